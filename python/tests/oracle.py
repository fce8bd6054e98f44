"""The ops in float64 torch, from docs/specification. Shares no code with the library."""

from __future__ import annotations

import math

import torch

from strata_attention import RopePairing, RopeSlice


def rope_table(positions: int, dim: int, base: float = 10000.0) -> torch.Tensor:
    """f32 [positions, dim]: cos, then sin."""
    angles = torch.arange(positions).double()[:, None] * base ** (-torch.arange(0, dim, 2).double() / dim)
    return torch.cat([angles.cos(), angles.sin()], 1).float()


def rope(
    x: torch.Tensor,
    positions: torch.Tensor,
    cos_sin: torch.Tensor | None,
    *,
    inverse: bool = False,
    pairing: int = RopePairing.interleaved,
    where: int = RopeSlice.last,
) -> torch.Tensor:
    """x [T, ..., D] with R of its last dimension rotated, in float64."""
    x = x.double().clone()
    if cos_sin is None:
        return x
    dim = cos_sin.shape[1]
    cos, sin = cos_sin[positions].double().chunk(2, -1)
    shape = (x.shape[0],) + (1,) * (x.dim() - 2) + (dim // 2,)
    cos, sin = cos.view(shape), sin.view(shape) * (-1 if inverse else 1)
    part = x[..., -dim:] if where == RopeSlice.last else x[..., :dim]
    if pairing == RopePairing.interleaved:
        even, odd = part[..., 0::2].clone(), part[..., 1::2].clone()
        part[..., 0::2], part[..., 1::2] = even * cos - odd * sin, odd * cos + even * sin
    else:
        even, odd = part[..., : dim // 2].clone(), part[..., dim // 2 :].clone()
        part[..., : dim // 2], part[..., dim // 2 :] = even * cos - odd * sin, odd * cos + even * sin
    return x


def rms_norm(x: torch.Tensor, weight: torch.Tensor | None, eps: float) -> torch.Tensor:
    x = x.double()
    y = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    return y if weight is None else y * weight.double()


def hadamard(x: torch.Tensor) -> torch.Tensor:
    """x H / sqrt(n), Sylvester's order."""
    n = x.shape[-1]
    h = torch.ones(1, 1, dtype=torch.float64)
    while h.shape[0] < n:
        h = torch.cat([torch.cat([h, h], 1), torch.cat([h, -h], 1)], 0)
    return x.double() @ h / math.sqrt(n)


def attend(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float, sink: torch.Tensor | None = None, empty_lse: float = math.inf
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """One token: q [H, D], keys [n, D] or [n, H, D], values alike -> out [H, Dv], lse [H], the largest logits [H]."""
    q, keys, values = q.double(), keys.double(), values.double()
    heads = q.shape[0]
    if keys.shape[0] == 0:
        return (
            torch.zeros(heads, values.shape[-1], dtype=torch.float64),
            torch.full((heads,), empty_lse).double(),
            torch.full((heads,), -math.inf).double(),
        )
    keys = keys if keys.dim() == 3 else keys[:, None].expand(-1, heads, -1)
    values = values if values.dim() == 3 else values[:, None].expand(-1, heads, -1)
    logits = torch.einsum("hd,nhd->hn", q, keys) * scale
    lse, most = logits.logsumexp(1), logits.amax(1)
    out = torch.einsum("hn,nhd->hd", (logits - lse[:, None]).exp(), values)
    if sink is not None:
        out = out * torch.sigmoid(lse - sink.double())[:, None]
    return out, lse, most


def slots_of(table: torch.Tensor, req: int, rows: torch.Tensor, page_size: int) -> torch.Tensor:
    return table[req, rows // page_size].long() * page_size + rows % page_size
