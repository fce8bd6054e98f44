"""Strata: DeepSeek's attention layers as ops of torch. docs/python.md is the guide."""

from __future__ import annotations

import torch

from . import _library, flash_mla
from .batch import BatchBuilder, BatchInfo, BatchTensor, Request
from .checkpoint import Checkpoint, synthesize
from .communicator import Communicator, FunctionCommunicator, ProcessGroup, SingleRank
from .layers import IndexerFormat, Layer, MlaMode, PrefillMode, load_layers
from .ops import (
    ALL,
    combine_topk_swa,
    compress_norm_rope_store,
    compressed_indices,
    compute_global_topk,
    dense_attn_decode,
    dense_attn_prefill,
    dequantize_and_gather_k,
    grouped_linear,
    implementations,
    indexer_key_insert,
    indexer_logits,
    indexer_query,
    indexer_topk,
    inverse_rope,
    inverse_rope_quant,
    linear,
    merge_attn_states,
    mla_rope_kv_insert,
    qnorm_rope_kv_insert,
    quantize_and_insert_k,
    rms_norm_pair,
    save_partial_states,
    scatter_block_tables,
    slot_mapping,
    sparse_attn_decode,
    sparse_attn_prefill,
    swa_indices,
    topk_select,
    workspace_bytes,
)
from .pool import BatchLimits, CacheGroup, CacheGroupSpec, Pool
from .tables import rope_table
from .types import (
    ActivationFormat,
    IndexerQuery,
    InverseRope,
    KeyInsert,
    KvFormat,
    LinearWeight,
    PagedCache,
    QueryNormRope,
    RopePairing,
    RopeSlice,
    StateSave,
    TopkSlots,
)

#: MAJOR.MINOR.PATCH of the library in this package.
__version__: str = torch.ops.strata.version()


def describe_device(device: torch.device | str = "cpu") -> str:
    """One line for users: the chip, its features, memory, threads. RuntimeError where the build or the machine lacks the device."""
    try:
        text: str = torch.ops.strata.describe_device(str(device))
    except RuntimeError as error:
        raise _library.translated(error) from None
    return text


def weight_packings() -> list[str]:
    """Names for LinearWeight.pack: the implementations of linear with weights in a layout of their own."""
    names: str = torch.ops.strata.weight_packings()
    return names.splitlines()


__all__ = [
    "ALL",
    "ActivationFormat",
    "BatchBuilder",
    "BatchInfo",
    "BatchLimits",
    "BatchTensor",
    "CacheGroup",
    "CacheGroupSpec",
    "Checkpoint",
    "Communicator",
    "FunctionCommunicator",
    "IndexerFormat",
    "IndexerQuery",
    "InverseRope",
    "KeyInsert",
    "KvFormat",
    "Layer",
    "LinearWeight",
    "MlaMode",
    "PagedCache",
    "Pool",
    "PrefillMode",
    "ProcessGroup",
    "QueryNormRope",
    "Request",
    "RopePairing",
    "RopeSlice",
    "SingleRank",
    "StateSave",
    "TopkSlots",
    "combine_topk_swa",
    "compress_norm_rope_store",
    "compressed_indices",
    "compute_global_topk",
    "dense_attn_decode",
    "dense_attn_prefill",
    "dequantize_and_gather_k",
    "describe_device",
    "flash_mla",
    "grouped_linear",
    "implementations",
    "indexer_key_insert",
    "indexer_logits",
    "indexer_query",
    "indexer_topk",
    "inverse_rope",
    "inverse_rope_quant",
    "linear",
    "load_layers",
    "merge_attn_states",
    "mla_rope_kv_insert",
    "qnorm_rope_kv_insert",
    "quantize_and_insert_k",
    "rms_norm_pair",
    "rope_table",
    "save_partial_states",
    "scatter_block_tables",
    "slot_mapping",
    "sparse_attn_decode",
    "sparse_attn_prefill",
    "swa_indices",
    "synthesize",
    "topk_select",
    "weight_packings",
    "workspace_bytes",
]
