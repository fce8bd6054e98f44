"""Cases of linear layers and norms."""

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
    i64,
    near,
    nearly_all,
    unwritten,
)

import strata_attention as sa
from strata_attention import ActivationFormat, KvFormat, LinearWeight

# Linear layers.


@case()
def linear() -> Case:
    x, w, y = bf16(5, 96), bf16(40, 96), torch.full((5, 40), math.nan)
    return Case(
        sa.linear, {"x": x, "weight": LinearWeight(w, name="w"), "y": y}, lambda: near("y", y, x.double() @ w.double().T, 1e-5, 1e-4)
    )


def _fp8_weight(n: int, k: int) -> tuple[LinearWeight, torch.Tensor]:
    scale = torch.exp2(torch.randint(-3, 3, (math.ceil(n / 128), math.ceil(k / 128))).float())
    values = (torch.randn(n, k) * 50).to(formats.E4M3)
    wide = scale.double().repeat_interleave(128, 0)[:n].repeat_interleave(128, 1)[:, :k]
    return LinearWeight(values, scale, power_of_two_scales=True), values.double() * wide


@case(ActivationFormat.fp8_ue8m0, ActivationFormat.fp8_f32)
def linear_fp8(format: ActivationFormat) -> Case:
    x, (w, dequantised), y = bf16(3, 256), _fp8_weight(200, 256), unwritten(3, 200)
    q, scale = formats.quantised_blocks(x, 128, 1e-10, powers=format == ActivationFormat.fp8_ue8m0)
    rounded = (q.double().unflatten(-1, (-1, 128)) * scale[..., None]).flatten(-2)

    def check() -> None:
        # Implementations may compute with bf16 instead of quantised activations (V4 5.2).
        exact, quantised = x.double() @ dequantised.T, rounded @ dequantised.T
        size = x.double().abs() @ dequantised.abs().T
        assert torch.minimum((y - quantised).abs(), (y - exact).abs()).le(1e-3 * size).all()

    return Case(sa.linear, {"x": x, "weight": w, "y": y, "activation": format}, check)


@case()
def linear_quantised_x() -> Case:
    x, (w, dequantised), y = bf16(3, 256), _fp8_weight(128, 256), unwritten(3, 128)
    q, scale = formats.quantised_blocks(x, 128, 1e-10)
    rounded = (q.double().unflatten(-1, (-1, 128)) * scale[..., None]).flatten(-2)
    arguments = {"x": q, "x_scale": scale.float(), "weight": w, "y": y, "activation": ActivationFormat.fp8_ue8m0}

    def check() -> None:
        # FP8 matrix units keep fewer bits of a sum than fp32.
        size = rounded.abs() @ dequantised.abs().T
        assert (y - rounded @ dequantised.T).abs().le(1e-3 * size).all()

    return Case(sa.linear, arguments, check)


@case()
def grouped_linear() -> Case:
    x, w, y = bf16(4, 2, 64), bf16(2 * 24, 64), unwritten(4, 2, 24, dtype=torch.bfloat16)
    expected = torch.einsum("tgk,gnk->tgn", x.double(), w.double().view(2, 24, 64))
    return Case(sa.grouped_linear, {"x": x, "weight": LinearWeight(w, groups=2), "y": y}, lambda: near("y", y, expected, BF16, 1e-3))


@case()
def grouped_linear_fp8_y() -> Case:
    x, w = bf16(4, 2, 64), bf16(2 * 128, 64)
    y, scale = unwritten(4, 2, 128, dtype=formats.E4M3), unwritten(4, 2, 1)
    z = torch.einsum("tgk,gnk->tgn", x.double(), w.double().view(2, 128, 64)).bfloat16()
    q, s = formats.quantised_blocks(z, 128, 1e-10)

    def check() -> None:
        near("y_scale", scale, s, 0)
        nearly_all("y", y.double() * scale, q.double() * s, E4M3_STEP, 0.05)

    return Case(
        sa.grouped_linear,
        {"x": x, "weight": LinearWeight(w, groups=2), "y": y, "y_scale": scale, "y_format": ActivationFormat.fp8_ue8m0},
        check,
    )


# Norms.


@case()
def rms_norm_pair() -> Case:
    q, kv, q_weight, kv_weight = bf16(3, 96), bf16(3, 64), torch.randn(96), torch.randn(64)
    q_out, kv_out = unwritten(*q.shape, dtype=q.dtype), unwritten(*kv.shape, dtype=kv.dtype)

    def check() -> None:
        near("q_out", q_out, oracle.rms_norm(q, q_weight, 1e-5), BF16)
        near("kv_out", kv_out, oracle.rms_norm(kv, kv_weight, 1e-5), BF16)

    return Case(
        sa.rms_norm_pair,
        {"kv": kv, "kv_weight": kv_weight, "kv_out": kv_out, "q": q, "q_weight": q_weight, "q_out": q_out, "eps": 1e-5},
        check,
    )


@case()
def rms_norm_pair_fp8_insert() -> Case:
    q, kv, q_weight, kv_weight = bf16(3, 256), bf16(3, 512), torch.randn(256), torch.randn(512)
    q_out, q_scale = unwritten(3, 256, dtype=formats.E4M3), unwritten(3, 2)
    cache, slots, positions, table = empty_cache(KvFormat.fp8_ds_mla_v4, 2, 4), i64([5, -1, 2]), i64([9, 3, 1]), oracle.rope_table(16, 64)
    normed = oracle.rms_norm(kv, kv_weight, 1e-6).bfloat16()

    def check() -> None:
        values, scale = formats.quantised_blocks(oracle.rms_norm(q, q_weight, 1e-6).bfloat16(), 128, 1e-10)
        near("q_scale", q_scale, scale, 0)
        nearly_all("q_out", q_out, values, E4M3_STEP, 0.3)
        check_rows(cache, slots[[0, 2]], oracle.rope(normed, positions, table)[[0, 2]])

    arguments = {
        "kv": kv,
        "kv_weight": kv_weight,
        "q": q,
        "q_weight": q_weight,
        "q_out": q_out,
        "q_scale": q_scale,
        "q_format": ActivationFormat.fp8_ue8m0,
        "insert_epilogue": sa.KeyInsert(slots, positions, table, cache),
    }
    return Case(sa.rms_norm_pair, arguments, check)
