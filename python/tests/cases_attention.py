"""Cases of sparse attention and of what follows it."""

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
    filled_cache,
    i32,
    i64,
    near,
    nearly_all,
    unwritten,
)

import strata_attention as sa
from strata_attention import KvFormat


@case((KvFormat.fp8_ds_mla_v4, 512), (KvFormat.fp8_ds_mla, 576), (KvFormat.bf16, 512), (KvFormat.fp8_tensor, 576))
def sparse_attn_decode(format: KvFormat, dim: int) -> Case:
    cache, q, scale = filled_cache(format, 3, 5, dim), bf16(3, 2, 4, dim), dim**-0.5
    indices, lengths = torch.randint(0, 15, (3, 2, 6), dtype=torch.int32), i32([6, 0, 3])
    indices[0, :, 2], indices[2, :, 3:] = -1, 2147483647
    out, lse, most = unwritten(3, 2, 4, 512, dtype=torch.bfloat16), unwritten(3, 4, 2), unwritten(3, 4, 2)
    # Matrix units read keys as bf16. Those of fp8_ds_mla are rounded, as their scales are fp32; the others are exact.
    logit = 4e-3 if format == KvFormat.fp8_ds_mla else 1e-4

    def check() -> None:
        for b in range(3):
            for s in range(2):
                chosen = indices[b, s, : int(lengths[b])]
                keys = formats.load(cache, chosen[chosen != -1])
                expected = oracle.attend(q[b, s], keys, keys[:, :512], scale)
                near("out", out[b, s], expected[0], 2 * BF16, 5e-3)
                near("lse", lse[b, :, s], expected[1], 1e-4, logit)
                near("max_logits", most[b, :, s], expected[2], 1e-4, logit)

    arguments = {
        "q": q,
        "cache": cache,
        "indices": indices,
        "softmax_scale": scale,
        "out": out,
        "topk_length": lengths,
        "lse": lse,
        "max_logits": most,
    }
    return Case(sa.sparse_attn_decode, arguments, check)


@case(False, True)
def sparse_attn_decode_two_caches(is_fused: bool) -> Case:
    cache, extra = filled_cache(KvFormat.fp8_ds_mla_v4, 2, 8), filled_cache(KvFormat.fp8_ds_mla_v4, 5, 2)
    q, sink, scale = bf16(3, 1, 2, 512), torch.tensor([0.3, -math.inf]), 512**-0.5
    indices, more = torch.randint(0, 16, (3, 1, 5), dtype=torch.int32), torch.randint(0, 10, (3, 1, 4), dtype=torch.int32)
    lengths, more_lengths = i32([5, 2, 4]), i32([1, 4, 0])
    positions, table = i64([3, 30, 11]), oracle.rope_table(32, 64)
    out = unwritten(3, 1, 2, 512, dtype=torch.bfloat16)
    arguments = {
        "q": q,
        "cache": cache,
        "indices": indices,
        "softmax_scale": scale,
        "out": out,
        "topk_length": lengths,
        "extra_cache": extra,
        "extra_indices": more,
        "extra_topk_length": more_lengths,
        "attn_sink": sink,
        "batch_invariant": True,
    }
    if is_fused:
        arguments |= {"query_prologue": sa.QueryNormRope(positions, table, 1e-5), "out_epilogue": sa.InverseRope(positions, table)}

    def check() -> None:
        queries = oracle.rope(oracle.rms_norm(q[:, 0], None, 1e-5), positions, table).bfloat16() if is_fused else q[:, 0]
        expected = []
        for b in range(3):
            keys = torch.cat(
                [formats.load(cache, indices[b, 0, : int(lengths[b])]), formats.load(extra, more[b, 0, : int(more_lengths[b])])]
            )
            expected.append(oracle.attend(queries[b], keys, keys, scale, sink)[0])
        result = torch.stack(expected)
        near("out", out[:, 0], oracle.rope(result, positions, table, inverse=True) if is_fused else result, 2 * BF16, 1e-2)

    return Case(sa.sparse_attn_decode, arguments, check)


@case()
def sparse_attn_prefill() -> Case:
    q, kv, sink, scale = bf16(3, 2, 512), bf16(10, 512), torch.randn(2), 0.05
    indices, lengths = i32([[0, 9, -1, 10, 3, 3], [-5, 2147483647, 10, 11, -1, -1], [5, 6, 7, 8, 1, 0]]), i32([6, 6, 4])
    out, lse, most = unwritten(3, 2, 128, dtype=torch.bfloat16), unwritten(3, 2), unwritten(3, 2)

    def check() -> None:
        for t in range(3):
            chosen = [i for i in indices[t, : int(lengths[t])].tolist() if 0 <= i < 10]
            expected = oracle.attend(q[t], kv[chosen], kv[chosen][:, :128], scale, sink)
            near("out", out[t], expected[0], 2 * BF16, 5e-3)
            near("lse", lse[t], expected[1], 1e-4, 1e-4)
            near("max_logits", most[t], expected[2], 1e-4, 1e-4)

    arguments = {
        "q": q,
        "kv": kv,
        "indices": indices,
        "softmax_scale": scale,
        "out": out,
        "topk_length": lengths,
        "attn_sink": sink,
        "lse": lse,
        "max_logits": most,
        "batch_invariant": True,
    }
    return Case(sa.sparse_attn_prefill, arguments, check)


@case(math.inf, -math.inf)
def merge_attn_states(empty_lse: float) -> Case:
    o, lse, sink = torch.randn(3, 4, 2, 16), torch.randn(3, 4, 2), torch.randn(2)
    lse[:, 1], lse[0, 2] = math.inf, -math.inf
    out, lse_out = unwritten(4, 2, 16), unwritten(4, 2)

    def check() -> None:
        finite = torch.where(lse.isinf(), -math.inf, lse.double())
        total = finite.logsumexp(0)
        factor = torch.where(total.isinf(), 0, (finite - torch.logaddexp(total, sink.double())).exp())
        near("out", out, (factor[..., None] * o.double()).sum(0), 1e-4, 1e-5)
        near("lse_out", lse_out, torch.where(total.isinf(), empty_lse, total), 1e-5, 1e-5)

    return Case(
        sa.merge_attn_states, {"o": o, "lse": lse, "empty_lse": empty_lse, "out": out, "attn_sink": sink, "lse_out": lse_out}, check
    )


@case()
def inverse_rope() -> Case:
    o, positions, table = bf16(3, 2, 96), i64([4, 0, 7]), oracle.rope_table(8, 64)
    out = unwritten(*o.shape, dtype=o.dtype)
    return Case(
        sa.inverse_rope,
        {"o": o, "positions": positions, "cos_sin": table, "out": out},
        lambda: near("out", out, oracle.rope(o, positions, table, inverse=True), BF16, 1e-3),
    )


@case()
def inverse_rope_quant() -> Case:
    o, positions, table = bf16(3, 4, 256), i64([4, 0, 7]), oracle.rope_table(8, 64)
    out, scale = unwritten(3, 2, 512, dtype=formats.E4M3), unwritten(3, 2, 4)

    def check() -> None:
        values, expected = formats.quantised_blocks(oracle.rope(o, positions, table, inverse=True).reshape(3, 2, 512), 128, 1e-10)
        near("scale", scale, expected, 0)
        nearly_all("out", out, values, E4M3_STEP, 0.05)

    return Case(sa.inverse_rope_quant, {"o": o, "positions": positions, "cos_sin": table, "out": out, "scale": scale}, check)
