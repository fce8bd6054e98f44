"""The KV compressor of V4."""

from __future__ import annotations

import torch

from .._binding import op
from ..types import PagedCache, StateSave


@op
def save_partial_states(
    kv_score: torch.Tensor,
    ape: torch.Tensor,
    positions: torch.Tensor,
    state_slots: torch.Tensor,
    state: PagedCache,
    *,
    next_weights: torch.Tensor | None = None,
    workspace: torch.Tensor | None = None,
) -> None:
    """State row state_slots[t] = [kv[t] | score[t] + ape[positions[t] % ratio]] for every token with state_slots[t] >= 0.

    kv_score     f32 [T, 2*coff*d], rows contiguous: kv, then score
    ape          f32 [ratio, coff*d]
    positions    i64 [T]
    state_slots  i64 [T]; negative: skip
    state        written: state_f32, row_dim 2*coff*d
    """


@op
def compress_norm_rope_store(
    state: PagedCache,
    block_table: torch.Tensor,
    token_to_req: torch.Tensor,
    positions: torch.Tensor,
    state_slots: torch.Tensor,
    out_slots: torch.Tensor,
    norm_weight: torch.Tensor,
    cos_sin: torch.Tensor,
    cache: PagedCache,
    *,
    ratio: int = 4,
    eps: float = 1e-6,
    hadamard: bool = False,
    save_prologue: StateSave | None = None,
    next_weights: torch.Tensor | None = None,
    workspace: torch.Tensor | None = None,
) -> None:
    """Pools the last coff*ratio state rows of boundary tokens, (positions[t] + 1) % ratio == 0; norm, rotation, quantisation, insertion at
    out_slots[t].

    state          state_f32, row_dim 2*coff*d; written with save_prologue
    block_table    i32 [R, max_blocks] of the state group
    token_to_req   i32 [T]
    positions      i64 [T]
    state_slots    i64 [T]; negative: skip
    out_slots      i64 [T]; negative: skip
    norm_weight    f32 [d], d = 512 or 128
    cos_sin        f32 [max_positions, R]
    cache          written; d = 512: fp8_ds_mla_v4, bf16, fp8_tensor; d = 128: indexer_fp8, indexer_mxfp4, bf16
    ratio          4 (overlapping windows) or 128
    eps            of the RMSNorm, added to the mean of squares
    hadamard       d = 128 only: multiply by H128/sqrt(128) after the rotation
    save_prologue  absent: the step's rows are already saved
    """
