"""Inserting keys into paged caches, and reading them back as bf16 rows."""

from __future__ import annotations

import torch

from .._binding import op
from ..types import PagedCache


@op
def qnorm_rope_kv_insert(
    q: torch.Tensor,
    kv: torch.Tensor,
    positions: torch.Tensor,
    cos_sin: torch.Tensor,
    q_out: torch.Tensor,
    *,
    slot_mapping: torch.Tensor | None = None,
    cache: PagedCache | None = None,
    eps: float = 1e-6,
    q_scale_inv: float = 1.0,
    next_weights: torch.Tensor | None = None,
    workspace: torch.Tensor | None = None,
) -> None:
    """Per-head RMSNorm and rotation of queries; rotation, quantisation and cache insertion of keys.

    q_out[n, h] = rope(q[n, h] * rsqrt(mean(q[n, h]^2) + eps), positions[n]); heads H..Hp-1 of q_out are +0.
    Cache row slot_mapping[n] = quantised rope(kv[n], positions[n]) for n < N_ins with slot_mapping[n] >= 0.

    q             bf16 [N, H, D]
    kv            bf16 [N, D], already normalised
    positions     i64 [N]
    cos_sin       f32 [max_positions, R]: cos, then sin; the last R of D dimensions are rotated
    q_out         written: bf16 [N, Hp, D], Hp >= H, may be q; with an fp8_tensor cache also e4m3 [N, H, D]
    slot_mapping  i64 [N_ins], N_ins <= N; absent: no cache
    cache         written: fp8_ds_mla_v4, bf16, fp8_tensor; row_dim D
    q_scale_inv   e4m3 q_out only: q_out = e4m3(clamp(q * q_scale_inv))
    """


@op
def quantize_and_insert_k(
    k: torch.Tensor,
    slot_mapping: torch.Tensor,
    cache: PagedCache,
    *,
    ue8m0: bool = False,
    next_weights: torch.Tensor | None = None,
    workspace: torch.Tensor | None = None,
) -> None:
    """Quantises rows that are already rotated, and inserts them.

    k             bf16 [N, D]
    slot_mapping  i64 [N_ins], N_ins <= N; negative: skip
    cache         written: fp8_ds_mla_v4, bf16, fp8_tensor (D = row_dim); indexer_fp8, indexer_mxfp4 (D = 128);
                  fp8_ds_mla (D = 576)
    ue8m0         fp8_ds_mla only: power-of-two scales instead of amax/448
    """


@op
def dequantize_and_gather_k(
    cache: PagedCache,
    seq_lens: torch.Tensor,
    block_table: torch.Tensor,
    out: torch.Tensor,
    *,
    gather_lens: torch.Tensor | None = None,
    offset: int = 0,
    next_weights: torch.Tensor | None = None,
    workspace: torch.Tensor | None = None,
) -> None:
    """Rows of the paged cache as bf16. For request c and i < g = gather_lens[c]: out[c, offset + i] = row seq_lens[c] - g + i of the request.

    cache        any format except state_f32
    seq_lens     i32 [R], in rows of this cache
    block_table  i32 [R, max_blocks]
    out          written: bf16 [R, M, row_dim]; other rows are unchanged
    gather_lens  i32 [R]; absent: seq_lens
    offset       first written row of each request
    """
