"""The lightning indexer: queries, logits, top-k selection."""

from __future__ import annotations

import torch

from .._binding import op
from ..types import IndexerQuery, PagedCache, RopePairing, RopeSlice, TopkSlots


@op
def indexer_query(
    q: torch.Tensor,
    weights: torch.Tensor,
    positions: torch.Tensor,
    softmax_scale: float,
    head_scale: float,
    q_out: torch.Tensor,
    weights_out: torch.Tensor,
    *,
    cos_sin: torch.Tensor | None = None,
    pairing: int = RopePairing.interleaved,
    rope_slice: int = RopeSlice.last,
    hadamard: bool = False,
    amax_floor: float = 1e-4,
    q_scale_out: torch.Tensor | None = None,
    next_weights: torch.Tensor | None = None,
    workspace: torch.Tensor | None = None,
) -> None:
    """Rotates and quantises queries, and folds the scales into the head weights.

    q            bf16 [T, Hi, Di]
    weights      bf16 or f32 [T, Hi]
    positions    i64 [T]
    q_out        written: e4m3 [T, Hi, Di], u8 [T, Hi, Di/2] (MXFP4) or bf16 [T, Hi, Di], contiguous
    weights_out  written: f32 [T, Hi]: weights * softmax_scale * head_scale, with e4m3 q_out also times q's scale
    cos_sin      f32 [max_positions, R]; absent: no rotation
    pairing      RopePairing: which two elements form a pair
    rope_slice   RopeSlice: which R of Di dimensions are rotated
    hadamard     Di must be a power of two
    amax_floor   e4m3 q_out: least amax from which a scale is computed
    q_scale_out  written, MXFP4 only: e8m0 or u8 [T, Hi, Di/32]
    """


@op
def indexer_logits(
    q: torch.Tensor,
    weights: torch.Tensor,
    cache: PagedCache,
    block_table: torch.Tensor,
    token_to_req: torch.Tensor,
    lengths: torch.Tensor,
    logits: torch.Tensor,
    *,
    q_scale: torch.Tensor | None = None,
    next_weights: torch.Tensor | None = None,
    workspace: torch.Tensor | None = None,
) -> None:
    """logits[t, j] = k_scale[j] * sum_h weights[t, h] * relu(sum_d q[t, h, d] * k[j, d]) for j < lengths[t].

    q             e4m3 [T, Hi, Di], u8 [T, Hi, Di/2] or bf16 [T, Hi, Di], contiguous
    weights       f32 [T, Hi], contiguous
    cache         indexer_fp8 with e4m3 q, indexer_mxfp4 with u8 q, bf16 with bf16 q
    block_table   i32 [R, max_blocks]
    token_to_req  i32 [T]
    lengths       i32 [T]: candidates of each token
    logits        written: f32 [T, C]; columns from lengths[t] on are unchanged
    q_scale       MXFP4 only: e8m0 or u8 [T, Hi, Di/32]
    """


@op
def topk_select(
    logits: torch.Tensor,
    lengths: torch.Tensor,
    topk_indices: torch.Tensor,
    *,
    next_weights: torch.Tensor | None = None,
    workspace: torch.Tensor | None = None,
) -> None:
    """The k largest logits of each row as ascending entry numbers, left-packed; -1 fills the rest. Of equal logits the smaller number wins.

    logits        f32 [T, C]
    lengths       i32 [T], 0 <= lengths[t] <= C
    topk_indices  written: i32 [T, k]
    """


@op
def indexer_topk(
    lengths: torch.Tensor,
    max_length: int,
    topk_indices: torch.Tensor,
    *,
    q: torch.Tensor | None = None,
    q_scale: torch.Tensor | None = None,
    weights: torch.Tensor | None = None,
    cache: PagedCache | None = None,
    block_table: torch.Tensor | None = None,
    token_to_req: torch.Tensor | None = None,
    query_prologue: IndexerQuery | None = None,
    slots_epilogue: TopkSlots | None = None,
    next_weights: torch.Tensor | None = None,
    workspace: torch.Tensor | None = None,
) -> None:
    """indexer_logits and topk_select in one op, without a matrix of logits.

    lengths         i32 [T]: candidates of each token
    max_length      upper bound of lengths. At most k: selects 0..lengths[t]-1, and q, cache and so on may be absent
    topk_indices    written: i32 [T, k]
    q, q_scale, weights, cache, block_table, token_to_req  as in indexer_logits; q, q_scale and weights absent with query_prologue
    query_prologue  absent: q is quantised already
    slots_epilogue  absent: no slots are written
    """
