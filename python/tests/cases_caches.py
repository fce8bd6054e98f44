"""Cases of keys, caches and the compressor."""

from __future__ import annotations

import math

import formats
import oracle
import torch
from case import (
    BF16,
    E4M3_STEP,
    Case,
    bf16,
    case,
    check_rows,
    empty_cache,
    filled_cache,
    i32,
    i64,
    near,
    nearly_all,
    unwritten,
)

import strata_attention as sa
from strata_attention import KvFormat

# Keys and caches.


@case(KvFormat.fp8_ds_mla_v4, KvFormat.bf16, KvFormat.fp8_tensor)
def qnorm_rope_kv_insert(format: KvFormat) -> Case:
    q, kv, positions, table = bf16(4, 3, 512), bf16(4, 512), i64([0, 5, 7, 2]), oracle.rope_table(8, 64)
    slots, cache = i64([6, -1, 1]), empty_cache(format, 2, 5, 512)
    q_out = torch.full((4, 5, 512), math.nan).bfloat16()

    def check() -> None:
        near("q_out", q_out[:, :3], oracle.rope(oracle.rms_norm(q, None, 1e-6), positions, table), BF16, 1e-3)
        assert (q_out[:, 3:] == 0).all()
        check_rows(cache, slots[[0, 2]], oracle.rope(kv, positions, table)[[0, 2]])

    return Case(
        sa.qnorm_rope_kv_insert,
        {"q": q, "kv": kv, "positions": positions, "cos_sin": table, "q_out": q_out, "slot_mapping": slots, "cache": cache},
        check,
    )


@case()
def qnorm_rope_kv_insert_fp8_q() -> Case:
    q, kv, positions, table = bf16(2, 3, 512), bf16(2, 512), i64([4, 5]), oracle.rope_table(8, 64)
    q_out, cache = unwritten(2, 3, 512, dtype=formats.E4M3), empty_cache(KvFormat.fp8_tensor, 1, 4, 512)

    def check() -> None:
        expected = oracle.rope(oracle.rms_norm(q, None, 1e-6), positions, table) * 8
        nearly_all("q_out", q_out, formats.to_e4m3(expected), E4M3_STEP, 0.02)
        check_rows(cache, i64([1, 3]), oracle.rope(kv, positions, table))

    arguments = {
        "q": q,
        "kv": kv,
        "positions": positions,
        "cos_sin": table,
        "q_out": q_out,
        "slot_mapping": i64([1, 3]),
        "cache": cache,
        "q_scale_inv": 8.0,
    }
    return Case(sa.qnorm_rope_kv_insert, arguments, check)


_INSERTED = (
    (KvFormat.fp8_ds_mla_v4, 512),
    (KvFormat.bf16, 96),
    (KvFormat.fp8_tensor, 96),
    (KvFormat.indexer_fp8, 128),
    (KvFormat.indexer_mxfp4, 128),
    (KvFormat.fp8_ds_mla, 576),
)


@case(*((format, dim, False) for format, dim in _INSERTED), (KvFormat.fp8_ds_mla, 576, True))
def quantize_and_insert_k(format: KvFormat, dim: int, ue8m0: bool) -> Case:
    k, slots, cache = bf16(4, dim), i64([7, -1, 2]), empty_cache(format, 3, 3, dim)
    arguments = {"k": k, "slot_mapping": slots, "cache": cache, "ue8m0": ue8m0}
    return Case(sa.quantize_and_insert_k, arguments, lambda: check_rows(cache, slots[[0, 2]], k[[0, 2]].double(), ue8m0=ue8m0))


@case(*_INSERTED)
def dequantize_and_gather_k(format: KvFormat, dim: int) -> Case:
    cache, table = filled_cache(format, 4, 3, dim), i32([[2, 0], [3, 1]])
    out = torch.full((2, 7, cache.row_dim), 5.0).bfloat16()

    def check() -> None:
        expected = torch.full(out.shape, 5.0).double()
        expected[0, 1:4] = formats.load(cache, oracle.slots_of(table, 0, torch.arange(2, 5), 3))
        expected[1, 1:3] = formats.load(cache, oracle.slots_of(table, 1, torch.arange(2, 4), 3))
        near("out", out, expected, 2.0**-8)

    return Case(
        sa.dequantize_and_gather_k,
        {"cache": cache, "seq_lens": i32([5, 4]), "block_table": table, "out": out, "gather_lens": i32([3, 2]), "offset": 1},
        check,
    )


# The compressor.


@case()
def save_partial_states() -> Case:
    kv_score, ape, positions, slots = torch.randn(3, 512), torch.randn(4, 256), i64([3, 4, 9]), i64([4, -1, 0])
    state = empty_cache(KvFormat.state_f32, 2, 4, 512)

    def check() -> None:
        rows = torch.cat([kv_score[:, :256], kv_score[:, 256:] + ape[positions % 4]], 1).double()
        check_rows(state, slots[[0, 2]], rows[[0, 2]])

    return Case(
        sa.save_partial_states, {"kv_score": kv_score, "ape": ape, "positions": positions, "state_slots": slots, "state": state}, check
    )


def _entry(rows: torch.Tensor, position: int, ratio: int, d: int) -> torch.Tensor:
    """The pooled vector of state rows [position + 1, 2*coff*d] of one request, at a boundary."""
    width, coff = (2 * ratio, 2) if ratio == 4 else (ratio, 1)
    kv, score = rows[:, : coff * d], rows[:, coff * d :]
    picked_kv, picked_score = [], []
    for p in range(max(position + 1 - width, 0), position + 1):
        half = slice(d, 2 * d) if ratio == 4 and p > position - ratio else slice(0, d)
        picked_kv.append(kv[p, half])
        picked_score.append(score[p, half])
    return (torch.stack(picked_score).softmax(0) * torch.stack(picked_kv)).sum(0)


@case(
    (4, KvFormat.fp8_ds_mla_v4, 512, False),
    (4, KvFormat.bf16, 512, True),
    (128, KvFormat.fp8_tensor, 512, True),
    (4, KvFormat.indexer_fp8, 128, True),
    (4, KvFormat.indexer_mxfp4, 128, False),
    (4, KvFormat.bf16, 128, False),
)
def compress_norm_rope_store(ratio: int, format: KvFormat, d: int, with_saves: bool) -> Case:
    coff, tokens = (2, 9) if ratio == 4 else (1, 130)
    state = empty_cache(KvFormat.state_f32, tokens // 4 + 2, 4, 2 * coff * d)
    table_of_state = torch.randperm(state.num_pages, dtype=torch.int32)[None]
    positions = torch.arange(tokens)
    slots = oracle.slots_of(table_of_state, 0, positions, 4)
    kv_score, ape = torch.randn(tokens, 2 * coff * d), torch.randn(ratio, coff * d)
    rows = torch.cat([kv_score[:, : coff * d], kv_score[:, coff * d :] + ape[positions % ratio]], 1).double()
    if not with_saves:
        formats.store(state, slots, rows)
    cache = empty_cache(format, 2, 2, d)
    is_boundary = (positions + 1) % ratio == 0
    out_slots = torch.where(is_boundary, positions // ratio, -1)
    weight, table = torch.randn(d), oracle.rope_table(256, 64)
    hadamard = d == 128 and format == KvFormat.indexer_fp8

    def check() -> None:
        ends = positions[is_boundary]
        pooled = torch.stack([_entry(rows, int(p), ratio, d) for p in ends])
        normed = oracle.rms_norm(pooled, weight, 1e-6)
        entries = oracle.rope(normed, ends // ratio * ratio, table)
        check_rows(cache, ends // ratio, oracle.hadamard(entries.bfloat16()) if hadamard else entries)
        if with_saves:
            near("state", formats.load(state, slots), rows, 1e-6)

    arguments = {
        "state": state,
        "block_table": table_of_state,
        "token_to_req": torch.zeros(tokens, dtype=torch.int32),
        "positions": positions,
        "state_slots": slots,
        "out_slots": out_slots,
        "norm_weight": weight,
        "cos_sin": table,
        "cache": cache,
        "ratio": ratio,
        "hadamard": hadamard,
    }
    if with_saves:
        arguments["save_prologue"] = sa.StateSave(kv_score, ape)
    return Case(sa.compress_norm_rope_store, arguments, check)
