"""Cases of MLA: inserts and dense attention."""

from __future__ import annotations

import dataclasses
import math

import formats
import oracle
import torch
from case import (
    BF16,
    Case,
    bf16,
    case,
    check_rows,
    empty_cache,
    filled_cache,
    i32,
    i64,
    near,
    unwritten,
)

import strata_attention as sa
from strata_attention import KvFormat, RopePairing, RopeSlice


@case((KvFormat.bf16, False), (KvFormat.fp8_tensor, False), (KvFormat.fp8_ds_mla, True))
def mla_rope_kv_insert(format: KvFormat, ue8m0: bool) -> Case:
    q, c, k_pe, positions, table = bf16(3, 2, 192), bf16(3, 512), bf16(3, 64), i64([4, 0, 7]), oracle.rope_table(8, 64)
    factors, slots, cache = torch.tensor([1.0, 1.5, 0.75]), i64([5, -1, 2]), empty_cache(format, 2, 4, 576)
    q_pe_out = unwritten(2, 2, 64, dtype=torch.bfloat16)
    was_q, was_k = q.clone(), k_pe.clone()

    def check() -> None:
        rotated = oracle.rope(was_q[:, :, 128:], positions, table).bfloat16()
        whole = torch.cat([was_q[:, :, :128], rotated], 2).double() * factors[:, None, None]
        near("q", q, whole, 2 * BF16, 1e-3)
        near("q_pe_out", q_pe_out, q[:2, :, 128:], 0)
        near("k_pe", k_pe, oracle.rope(was_k, positions, table), BF16, 1e-3)
        check_rows(cache, slots[[0, 2]], torch.cat([c, k_pe], 1).double()[[0, 2]], ue8m0=ue8m0)

    arguments = {
        "q": q,
        "c": c,
        "k_pe": k_pe,
        "positions": positions,
        "cos_sin": table,
        "llama_4_scaling": factors,
        "q_pe_out": q_pe_out,
        "slot_mapping": slots,
        "cache": cache,
        "ue8m0": ue8m0,
    }
    return Case(sa.mla_rope_kv_insert, arguments, check)


@case((KvFormat.indexer_fp8, True), (KvFormat.bf16, False))
def indexer_key_insert(format: KvFormat, hadamard: bool) -> Case:
    k, weight, bias, positions, table = bf16(3, 128), torch.randn(128), torch.randn(128), i64([4, 0, 7]), oracle.rope_table(8, 64)
    slots, cache = i64([5, -1, 2]), empty_cache(format, 2, 4, 128)

    def check() -> None:
        y = torch.nn.functional.layer_norm(k.double(), (128,), weight.double(), bias.double(), 1e-6).bfloat16()
        y = oracle.rope(y, positions, table, pairing=RopePairing.half_split, where=RopeSlice.first).bfloat16()
        check_rows(cache, slots[[0, 2]], (oracle.hadamard(y).bfloat16() if hadamard else y)[[0, 2]].double())

    arguments = {
        "k": k,
        "weight": weight,
        "bias": bias,
        "slot_mapping": slots,
        "cache": cache,
        "positions": positions,
        "cos_sin": table,
        "hadamard": hadamard,
    }
    return Case(sa.indexer_key_insert, arguments, check)


@case(
    (KvFormat.bf16, 1, True),
    (KvFormat.fp8_tensor, 1, False),
    (KvFormat.fp8_ds_mla, 1, True),
    (KvFormat.bf16, 2, False),
    (KvFormat.fp8_tensor, 3, True),
)
def dense_attn_decode(format: KvFormat, kv_heads: int, causal: bool) -> Case:
    # With several KV heads the rows of a slot lie next to each other: pages of kv_heads times as many rows.
    rows, q, scale = filled_cache(format, 6, 4 * kv_heads, 576), bf16(4, 6, 576), 192**-0.5
    cache = dataclasses.replace(rows, page_size=4)
    table, starts, lens = i32([[2, 0], [5, 1], [3, 4]]), i32([0, 1, 1, 4]), i32([7, 0, 6])
    out, lse = unwritten(4, 6, 512, dtype=torch.bfloat16), unwritten(4, 6)

    def check() -> None:
        each = 6 // kv_heads
        for t, (b, seen) in enumerate(((0, 7), (2, 4), (2, 5), (2, 6))):
            slots = oracle.slots_of(table, b, torch.arange(seen if causal else int(lens[b])), 4)
            for g in range(kv_heads):
                keys, heads = formats.load(rows, slots * kv_heads + g), slice(g * each, (g + 1) * each)
                expected = oracle.attend(q[t, heads], keys, keys[:, :512], scale)
                near("out", out[t, heads], expected[0], 2 * BF16, 5e-3)
                near("lse", lse[t, heads], expected[1], 1e-4, 1e-4)

    arguments = {
        "q": q,
        "cache": cache,
        "block_table": table,
        "query_start_loc": starts,
        "seq_lens": lens,
        "max_query_len": 3,
        "max_seq_len": 8,
        "softmax_scale": scale,
        "out": out,
        "lse": lse,
        "num_kv_heads": kv_heads,
        "causal": causal,
    }
    return Case(sa.dense_attn_decode, arguments, check)


@case(True, False)
def dense_attn_prefill(causal: bool) -> Case:
    q, k_nope, k_pe, v, scale = bf16(5, 2, 96), bf16(6, 2, 64), bf16(6, 32), bf16(6, 2, 48), 0.1
    starts, key_starts = i32([0, 2, 5]), i32([0, 2, 6])
    out, lse = unwritten(5, 2, 48), unwritten(5, 2)

    def check() -> None:
        keys = torch.cat([k_nope, k_pe[:, None].expand(-1, 2, -1)], 2)
        for b in range(2):
            n, m = int(starts[b + 1] - starts[b]), int(key_starts[b + 1] - key_starts[b])
            for i in range(n):
                first = int(key_starts[b])
                rows = slice(first, first + (m - n + i + 1 if causal else m))
                expected = oracle.attend(q[int(starts[b]) + i], keys[rows], v[rows], scale, empty_lse=-math.inf)
                near("out", out[int(starts[b]) + i], expected[0], 2 * BF16, 5e-3)
                near("lse", lse[int(starts[b]) + i], expected[1], 1e-4, 1e-4)

    arguments = {
        "q": q,
        "k_nope": k_nope,
        "k_pe": k_pe,
        "v": v,
        "max_query_len": 3,
        "max_key_len": 4,
        "softmax_scale": scale,
        "out": out,
        "query_start_loc": starts,
        "key_start_loc": key_starts,
        "causal": causal,
        "lse": lse,
    }
    return Case(sa.dense_attn_prefill, arguments, check)
