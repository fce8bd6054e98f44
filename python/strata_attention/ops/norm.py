"""RMSNorm."""

from __future__ import annotations

import torch

from .._binding import op
from ..types import ActivationFormat, KeyInsert


@op
def rms_norm_pair(
    kv: torch.Tensor,
    kv_weight: torch.Tensor,
    *,
    kv_out: torch.Tensor | None = None,
    q: torch.Tensor | None = None,
    q_weight: torch.Tensor | None = None,
    q_out: torch.Tensor | None = None,
    q_scale: torch.Tensor | None = None,
    q_format: int = ActivationFormat.bf16,
    eps: float = 1e-6,
    insert_epilogue: KeyInsert | None = None,
    next_weights: torch.Tensor | None = None,
    workspace: torch.Tensor | None = None,
) -> None:
    """Two independent RMSNorms: y = bf16(x * rsqrt(mean(x^2) + eps) * w), in fp32 with one rounding.

    kv               bf16 [T, Nkv]
    kv_weight        f32 [Nkv]
    kv_out           written: bf16 [T, Nkv], may be kv; absent with insert_epilogue
    q                bf16 [T, Nq], rows contiguous; absent: only kv is normalised
    q_weight         f32 [Nq]
    q_out            written: bf16 [T, Nq], may be q; with an fp8 q_format e4m3 [T, Nq]
    q_scale          written, fp8 only: f32 [T, ceil(Nq / 128)]
    q_format         ActivationFormat of q_out
    insert_epilogue  the normalised kv goes into a cache
    """
