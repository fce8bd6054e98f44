"""flash_mla_with_kvcache: attention of a few new tokens of each request over paged caches."""

from __future__ import annotations

import torch

from .. import ops
from ..types import KvFormat, PagedCache
from .checks import refuse_dtype, require_dim
from .schedule import FlashMLASchedMeta

_NAME = "flash_mla_with_kvcache"
#: Format and bytes of a row in sparse attention, by q's head dimension.
_SPARSE_ROWS = {512: (KvFormat.fp8_ds_mla_v4, 584), 576: (KvFormat.fp8_ds_mla, 656)}


def flash_mla_with_kvcache(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    block_table: torch.Tensor | None,
    cache_seqlens: torch.Tensor | None,
    head_dim_v: int,
    tile_scheduler_metadata: FlashMLASchedMeta,
    num_splits: None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    is_fp8_kvcache: bool = False,
    indices: torch.Tensor | None = None,
    attn_sink: torch.Tensor | None = None,
    extra_k_cache: torch.Tensor | None = None,
    extra_indices_in_kvcache: torch.Tensor | None = None,
    topk_length: torch.Tensor | None = None,
    extra_topk_length: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    enable_batch_invariant: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention over a paged cache: dense where indices is None, sparse otherwise. Returns out and lse.

    q                          bf16 [b, s_q, h_q, d], last dimension contiguous
    k_cache                    dense: bf16 [blocks, rows, h_k, d]; sparse: 1-byte dtype [blocks, rows, 1, 584] (d = 512) or
                               [.., 656] (d = 576); any distance between blocks
    block_table                dense: i32 [b, max_blocks]; entries after a request's length are not read
    cache_seqlens              dense: i32 [b], the new tokens included
    head_dim_v                 values are the first head_dim_v dimensions of a row
    tile_scheduler_metadata    of get_mla_metadata; one object serves calls of the same shapes
    softmax_scale              None: d ** -0.5
    causal                     dense only, bottom-right
    is_fp8_kvcache             True for sparse, False for dense attention
    indices                    sparse: i32 [b, s_q, topk], slot = block * rows + row; -1: none
    attn_sink                  sparse: f32 [h_q]
    extra_k_cache              sparse, d = 512: a second cache, with its own block size
    extra_indices_in_kvcache   i32 [b, s_q, extra_topk]: slots of extra_k_cache
    topk_length                sparse: i32 [b], the leading indices that count
    extra_topk_length          i32 [b]
    out                        written and returned: bf16 [b, s_q, h_q, head_dim_v], last dimension contiguous; None: a new tensor
    enable_batch_invariant     a token's result does not depend on the rest of the batch

    lse is f32 [b, h_q, s_q], natural logarithm; a token without a row has out 0 and lse inf. No call synchronises; graphs may hold it.
    ValueError for arguments that cannot be; AssertionError for metadata of other shapes, and where FlashMLA asserts.
    """
    if q.dim() != 4 or k_cache.dim() != 4:
        require_dim(_NAME, 4, q=q, k_cache=k_cache)
    if not isinstance(tile_scheduler_metadata, FlashMLASchedMeta):
        given = type(tile_scheduler_metadata).__name__
        raise AssertionError(f"{_NAME}: tile_scheduler_metadata must be a FlashMLASchedMeta, is {given}")  # noqa: TRY004, as FlashMLA raises
    if num_splits is not None:
        raise AssertionError(f"{_NAME}: num_splits must be None, is {type(num_splits).__name__}")
    if q.dtype != torch.bfloat16:
        refuse_dtype(_NAME, "q", q)
    batch, queries, heads, dim = q.shape
    _, page_size, kv_heads, _ = k_cache.shape
    tile_scheduler_metadata.use(
        batch,
        queries,
        heads,
        page_size,
        kv_heads,
        causal,
        is_fp8_kvcache,
        None if indices is None else indices.shape[-1],
        None if extra_k_cache is None else extra_k_cache.shape[1],
        None if extra_indices_in_kvcache is None else extra_indices_in_kvcache.shape[-1],
        enable_batch_invariant,
    )
    scale = dim**-0.5 if softmax_scale is None else softmax_scale
    if out is None:
        out = q.new_empty(batch, queries, heads, head_dim_v)
    elif out.dim() != 4 or out.shape[3] != head_dim_v:
        raise ValueError(f"{_NAME}: out must be [b, s_q, h_q, {head_dim_v}], is {list(out.shape)}")
    if indices is None:
        sparse = {
            "attn_sink": attn_sink,
            "extra_k_cache": extra_k_cache,
            "extra_indices_in_kvcache": extra_indices_in_kvcache,
            "topk_length": topk_length,
            "extra_topk_length": extra_topk_length,
        }
        for name, value in sparse.items():
            if value is not None:
                raise AssertionError(f"{_NAME}: {name} must be None where indices is None")
        lse = _dense(
            q, k_cache, block_table, cache_seqlens, tile_scheduler_metadata, scale, causal, is_fp8_kvcache, out, enable_batch_invariant
        )
        return out, lse
    if causal:
        raise AssertionError(f"{_NAME}: causal must be False where indices is given")
    if not is_fp8_kvcache:
        raise AssertionError(f"{_NAME}: is_fp8_kvcache must be True where indices is given")
    lse = torch.empty((batch, heads, queries), dtype=torch.float32, device=q.device)
    ops.sparse_attn_decode(
        q,
        _sparse_cache("k_cache", k_cache, dim),
        indices,
        scale,
        out,
        topk_length=topk_length,
        extra_cache=None if extra_k_cache is None else _sparse_cache("extra_k_cache", extra_k_cache, dim),
        extra_indices=extra_indices_in_kvcache,
        extra_topk_length=extra_topk_length,
        attn_sink=attn_sink,
        batch_invariant=enable_batch_invariant,
        lse=lse,
    )
    return out, lse


def _sparse_cache(name: str, pages: torch.Tensor, dim: int) -> PagedCache:
    found = _SPARSE_ROWS.get(dim)
    if found is None:
        raise ValueError(f"{_NAME}: q must have 512 or 576 dimensions where indices is given, has {dim}")
    format, row_bytes = found
    if pages.element_size() != 1:
        raise ValueError(f"{_NAME}: {name} must have a dtype of one byte, has {pages.dtype}")
    shape = pages.shape
    if len(shape) != 4 or shape[2] != 1 or shape[3] != row_bytes:
        raise ValueError(f"{_NAME}: {name} must be [blocks, rows, 1, {row_bytes}] with q of {dim} dimensions, is {list(shape)}")
    page_stride, row_stride, _, stride = pages.stride()
    if row_stride != row_bytes or stride != 1:
        raise ValueError(
            f"{_NAME}: {name} must have its rows next to each other, strides [.., {row_bytes}, .., 1], has {list(pages.stride())}"
        )
    return PagedCache(pages, format, dim, shape[1], shape[0], page_stride)


def _dense(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    block_table: torch.Tensor | None,
    cache_seqlens: torch.Tensor | None,
    metadata: FlashMLASchedMeta,
    scale: float,
    causal: bool,
    is_fp8_kvcache: bool,
    out: torch.Tensor,
    batch_invariant: bool,
) -> torch.Tensor:
    if block_table is None or cache_seqlens is None:
        raise AssertionError(f"{_NAME}: block_table and cache_seqlens must be given where indices is None")
    if is_fp8_kvcache:
        raise ValueError(f"{_NAME}: is_fp8_kvcache must be False where indices is None")
    if k_cache.dtype != torch.bfloat16:
        refuse_dtype(_NAME, "k_cache", k_cache)
    if block_table.dim() != 2:
        require_dim(_NAME, 2, block_table=block_table)
    batch, queries, heads, _ = q.shape
    pages, rows, kv_heads, row_dim = k_cache.shape
    page_stride, *inside = k_cache.stride()
    if inside != [kv_heads * row_dim, row_dim, 1]:
        raise ValueError(f"{_NAME}: k_cache must have its rows next to each other, has strides {list(k_cache.stride())}")
    start = metadata.tile_scheduler_metadata
    if start is None:
        start = torch.arange(0, (batch + 1) * queries, queries, dtype=torch.int32, device=q.device)
        metadata.tile_scheduler_metadata = start
    # The op has the queries of all requests in one dimension; without a copy where b and s_q have one distance.
    try:
        tokens_out = out.view(batch * queries, heads, out.shape[3])
    except RuntimeError:
        raise ValueError(f"{_NAME}: out must have its b * s_q tokens at one distance, has strides {list(out.stride())}") from None
    lse = torch.empty((batch, queries, heads), dtype=torch.float32, device=q.device)
    ops.dense_attn_decode(
        q.flatten(0, 1),
        PagedCache(k_cache, KvFormat.bf16, row_dim, rows, pages, 2 * page_stride),
        block_table,
        start,
        cache_seqlens,
        queries,
        block_table.shape[1] * rows,
        scale,
        tokens_out,
        num_kv_heads=kv_heads,
        causal=causal,
        batch_invariant=batch_invariant,
        lse=lse.view(batch * queries, heads),
    )
    return lse.transpose(1, 2)
