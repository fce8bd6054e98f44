"""Sparse attention: softmax over selected rows; keys and values are the same vectors."""

from __future__ import annotations

import torch

from .._binding import op
from ..types import InverseRope, PagedCache, QueryNormRope


@op
def sparse_attn_decode(
    q: torch.Tensor,
    cache: PagedCache,
    indices: torch.Tensor,
    softmax_scale: float,
    out: torch.Tensor,
    *,
    topk_length: torch.Tensor | None = None,
    extra_cache: PagedCache | None = None,
    extra_indices: torch.Tensor | None = None,
    extra_topk_length: torch.Tensor | None = None,
    attn_sink: torch.Tensor | None = None,
    batch_invariant: bool = False,
    schedule: torch.Tensor | None = None,
    query_prologue: QueryNormRope | None = None,
    out_epilogue: InverseRope | None = None,
    lse: torch.Tensor | None = None,
    max_logits: torch.Tensor | None = None,
    next_weights: torch.Tensor | None = None,
    workspace: torch.Tensor | None = None,
) -> None:
    """Attention over paged caches, with one or several query tokens per batch entry.

    q                  bf16 [B, S, H, D], D = 512 or 576
    cache              fp8_ds_mla_v4, fp8_ds_mla, bf16, fp8_tensor; row_dim D
    indices            i32 [B, S, topk]: slots; -1: no row
    softmax_scale      factor of <q, k>
    out                written: bf16 [B, S, H, Dv], Dv <= D
    topk_length        i32 [B]; absent: topk
    extra_cache        second set of rows, with its own page size and stride
    extra_indices      i32 [B, S, topk2]: slots of extra_cache
    extra_topk_length  i32 [B]; absent: topk2
    attn_sink          f32 [H], raw logits; -inf: no effect
    batch_invariant    a token's result does not depend on the rest of the batch
    schedule           u8 [bytes], contiguous, of a batch; absent: none
    query_prologue     absent: q already is normalised and rotated
    out_epilogue       absent: out keeps the rotation of the rows
    lse                written: f32 [B, H, S], natural logarithm
    max_logits         written: f32 [B, H, S]
    """


@op
def sparse_attn_prefill(
    q: torch.Tensor,
    kv: torch.Tensor,
    indices: torch.Tensor,
    softmax_scale: float,
    out: torch.Tensor,
    *,
    topk_length: torch.Tensor | None = None,
    attn_sink: torch.Tensor | None = None,
    batch_invariant: bool = False,
    lse: torch.Tensor | None = None,
    max_logits: torch.Tensor | None = None,
    next_weights: torch.Tensor | None = None,
    workspace: torch.Tensor | None = None,
) -> None:
    """Attention over bf16 rows that were gathered before. Entries outside [0, s_kv) are skipped.

    q                bf16 [T, H, D]
    kv               bf16 [s_kv, D], rows contiguous
    indices          i32 [T, topk]: rows of kv
    softmax_scale    factor of <q, k>
    out              written: bf16 [T, H, Dv]
    topk_length      i32 [T]; absent: topk
    attn_sink        f32 [H]
    batch_invariant  a token's result does not depend on the rest of the batch
    lse, max_logits  written: f32 [T, H]
    """


@op
def merge_attn_states(
    o: torch.Tensor,
    lse: torch.Tensor,
    empty_lse: float,
    out: torch.Tensor,
    *,
    attn_sink: torch.Tensor | None = None,
    lse_out: torch.Tensor | None = None,
    next_weights: torch.Tensor | None = None,
    workspace: torch.Tensor | None = None,
) -> None:
    """One softmax from n partial results over disjoint rows.

    o          f32 or bf16 [n, T, H, Dv]
    lse        f32 [n, T, H], natural logarithm; inf or -inf: an empty result
    empty_lse  lse_out of an empty row: inf or -inf
    out        written: bf16 or f32 [T, H, Dv]; may be one of o
    attn_sink  f32 [H]
    lse_out    written: f32 [T, H]; may be one of lse
    """
