"""The ops. Each function calls ``torch.ops.strata.<name>``, writes its outputs in place and returns nothing.

Every op also takes ``next_weights``, the weights [n, k] that the stream's next op reads (a hint that changes no result), and
``workspace``, contiguous memory of any dtype with at least ``workspace_bytes(op, ...)`` bytes; absent, it is allocated from torch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .compressor import compress_norm_rope_store, save_partial_states
from .dense_attention import dense_attn_decode, dense_attn_prefill
from .indexer import indexer_logits, indexer_query, indexer_topk, topk_select
from .indices import combine_topk_swa, compressed_indices, compute_global_topk, scatter_block_tables, slot_mapping, swa_indices
from .kv_insert import dequantize_and_gather_k, qnorm_rope_kv_insert, quantize_and_insert_k
from .linear import grouped_linear, linear
from .mla import indexer_key_insert, mla_rope_kv_insert
from .norm import rms_norm_pair
from .rope import inverse_rope, inverse_rope_quant
from .sparse_attention import merge_attn_states, sparse_attn_decode, sparse_attn_prefill

#: All ops, in the order of the library's OpSet.
ALL: tuple[Callable[..., None], ...] = (
    linear,
    grouped_linear,
    rms_norm_pair,
    qnorm_rope_kv_insert,
    quantize_and_insert_k,
    dequantize_and_gather_k,
    save_partial_states,
    compress_norm_rope_store,
    indexer_query,
    indexer_logits,
    topk_select,
    indexer_topk,
    scatter_block_tables,
    slot_mapping,
    swa_indices,
    compressed_indices,
    compute_global_topk,
    combine_topk_swa,
    sparse_attn_decode,
    sparse_attn_prefill,
    merge_attn_states,
    inverse_rope,
    inverse_rope_quant,
    mla_rope_kv_insert,
    indexer_key_insert,
    dense_attn_decode,
    dense_attn_prefill,
)


def workspace_bytes(op: Callable[..., None], *arguments: Any, **keywords: Any) -> int:
    """Bytes of ``workspace`` for such a call of the op, wherever the memory begins. Looks at shapes, dtypes and formats only."""
    if not hasattr(op, "workspace_bytes"):
        raise TypeError(f"workspace_bytes: op must be an op of strata_attention, is {op!r}")
    size: int = op.workspace_bytes(*arguments, **keywords)
    return size


def implementations(op: Callable[..., None], *arguments: Any, **keywords: Any) -> dict[str, str]:
    """The op's implementations, fastest first, each "eligible" or with the reason why it is refused. The first eligible one runs."""
    if not hasattr(op, "implementations"):
        raise TypeError(f"implementations: op must be an op of strata_attention, is {op!r}")
    text: str = op.implementations(*arguments, **keywords)
    return dict(line.split(": ", 1) for line in text.splitlines())


__all__ = [
    "ALL",
    "combine_topk_swa",
    "compress_norm_rope_store",
    "compressed_indices",
    "compute_global_topk",
    "dense_attn_decode",
    "dense_attn_prefill",
    "dequantize_and_gather_k",
    "grouped_linear",
    "implementations",
    "indexer_key_insert",
    "indexer_logits",
    "indexer_query",
    "indexer_topk",
    "inverse_rope",
    "inverse_rope_quant",
    "linear",
    "merge_attn_states",
    "mla_rope_kv_insert",
    "qnorm_rope_kv_insert",
    "quantize_and_insert_k",
    "rms_norm_pair",
    "save_partial_states",
    "scatter_block_tables",
    "slot_mapping",
    "sparse_attn_decode",
    "sparse_attn_prefill",
    "swa_indices",
    "topk_select",
    "workspace_bytes",
]
