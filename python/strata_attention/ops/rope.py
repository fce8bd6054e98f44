"""The inverse rotation."""

from __future__ import annotations

import torch

from .._binding import op


@op
def inverse_rope(
    o: torch.Tensor,
    positions: torch.Tensor,
    cos_sin: torch.Tensor,
    out: torch.Tensor,
    *,
    next_weights: torch.Tensor | None = None,
    workspace: torch.Tensor | None = None,
) -> None:
    """out = o with the last R dimensions of every head rotated back by the query's position.

    o          bf16 [T, H, D]
    positions  i64 [T]
    cos_sin    f32 [max_positions, R], R <= D
    out        written: bf16 [T, H, D]; may be o
    """


@op
def inverse_rope_quant(
    o: torch.Tensor,
    positions: torch.Tensor,
    cos_sin: torch.Tensor,
    out: torch.Tensor,
    scale: torch.Tensor,
    *,
    next_weights: torch.Tensor | None = None,
    workspace: torch.Tensor | None = None,
) -> None:
    """inverse_rope, then FP8 quantisation with one scale per token and 128 channels.

    o          bf16 [T, H, D], D a multiple of 128
    positions  i64 [T]
    cos_sin    f32 [max_positions, R]
    out        written: e4m3 [T, G, hpg*D], G*hpg == H, contiguous
    scale      written: f32 [T, G, hpg*D/128], powers of two, contiguous
    """
