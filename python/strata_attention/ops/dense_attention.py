"""Dense causal attention of Multi-head Latent Attention (MLA)."""

from __future__ import annotations

import torch

from .._binding import op
from ..types import PagedCache


@op
def dense_attn_decode(
    q: torch.Tensor,
    cache: PagedCache,
    block_table: torch.Tensor,
    query_start_loc: torch.Tensor,
    seq_lens: torch.Tensor,
    max_query_len: int,
    max_seq_len: int,
    softmax_scale: float,
    out: torch.Tensor,
    *,
    num_kv_heads: int = 1,
    causal: bool = True,
    batch_invariant: bool = False,
    schedule: torch.Tensor | None = None,
    lse: torch.Tensor | None = None,
    next_weights: torch.Tensor | None = None,
    workspace: torch.Tensor | None = None,
) -> None:
    """Attention over the paged latent cache; values are the first Dv dimensions of a row.

    q                bf16 [T, H, D], D <= 576
    cache            bf16, fp8_tensor, fp8_ds_mla (one KV head only); row_dim D
    block_table      i32 [B, max_blocks]
    query_start_loc  i32 [B + 1]
    seq_lens         i32 [B], the new tokens included; 0: padding request
    max_query_len    upper bound of a request's queries
    max_seq_len      upper bound of seq_lens
    softmax_scale    that of the 192-wide heads
    out              written: bf16 [T, H, Dv], Dv <= D
    num_kv_heads     K: a slot has K rows next to each other, pages are [page_size, K, D]; head h reads those of KV head h / (H / K)
    causal           bottom-right; False: every query sees all rows of its request
    batch_invariant  a token's result does not depend on the rest of the batch
    schedule         u8 [bytes], contiguous, of a batch; absent: none
    lse              written: f32 [T, H], natural logarithm
    """


@op
def dense_attn_prefill(
    q: torch.Tensor,
    k_nope: torch.Tensor,
    k_pe: torch.Tensor,
    v: torch.Tensor,
    max_query_len: int,
    max_key_len: int,
    softmax_scale: float,
    out: torch.Tensor,
    *,
    query_start_loc: torch.Tensor | None = None,
    key_start_loc: torch.Tensor | None = None,
    causal: bool = True,
    lse: torch.Tensor | None = None,
    next_weights: torch.Tensor | None = None,
    workspace: torch.Tensor | None = None,
) -> None:
    """Multi-head attention over keys and values in memory. A key is its head's k_nope, then the k_pe that all heads share.

    q                bf16 [Tq, H, P + R], P + R <= 576
    k_nope           bf16 [Tk, H, P], last dimension contiguous
    k_pe             bf16 [Tk, R]
    v                bf16 [Tk, H, V], last dimension contiguous
    max_query_len    upper bound of a request's queries
    max_key_len      upper bound of a request's keys
    softmax_scale    factor of <q, k>
    out              written: bf16 or f32 [Tq, H, V]
    query_start_loc  i32 [B + 1]; both absent: one request
    key_start_loc    i32 [B + 1]
    causal           bottom-right; False: every query sees all keys of its request
    lse              written: f32 [Tq, H], natural logarithm; -inf: no key
    """
