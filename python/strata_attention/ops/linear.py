"""Linear layers: y = x W^T."""

from __future__ import annotations

import torch

from .._binding import op
from ..types import ActivationFormat, LinearWeight


@op
def linear(
    x: torch.Tensor,
    weight: LinearWeight,
    y: torch.Tensor,
    *,
    x_scale: torch.Tensor | None = None,
    activation: int = ActivationFormat.bf16,
    next_weights: torch.Tensor | None = None,
    workspace: torch.Tensor | None = None,
) -> None:
    """y[t, o] = sum_i x[t, i] * W[o, i], accumulated in fp32. With an fp8 activation format x is quantised first.

    x           bf16 [T, K]; or e4m3 [T, K] with x_scale. Rows contiguous
    weight      groups == 1
    y           written: bf16 or f32 [T, N], rows contiguous
    x_scale     e4m3 x only: f32 [T, ceil(K / 128)]
    activation  ActivationFormat; of an e4m3 x its fp8 format
    """


@op
def grouped_linear(
    x: torch.Tensor,
    weight: LinearWeight,
    y: torch.Tensor,
    *,
    x_scale: torch.Tensor | None = None,
    y_scale: torch.Tensor | None = None,
    y_format: int = ActivationFormat.bf16,
    next_weights: torch.Tensor | None = None,
    workspace: torch.Tensor | None = None,
) -> None:
    """y[t, g, o] = sum_i x[t, g, i] * W[g*n + o, i].

    x         bf16 [T, G, K]; or e4m3 [T, G, K] with x_scale. Last dimension contiguous
    weight    groups == G
    y         written: bf16 [T, G, N]; or e4m3 [T, G, N], contiguous, N a multiple of 128
    x_scale   e4m3 x only: f32 [T, G, K/128]
    y_scale   written, e4m3 y only: f32 [T, G, N/128], contiguous
    y_format  ActivationFormat, e4m3 y only: the fp8 format
    """
