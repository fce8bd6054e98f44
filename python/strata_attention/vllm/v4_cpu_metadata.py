"""Metadata kernels that vLLM's CPU path of V4 needs and has in Triton alone. Triton has no CPU backend on PyPI; these are torch.

They are installed where vLLM finds no Triton, and serve vLLM's own V4 layer as well as Strata's. Arguments are those of vLLM 0.32.0.
"""

from __future__ import annotations

import collections
from typing import Any

import torch


def _token_to_req(query_start_loc: torch.Tensor, out: torch.Tensor, num_mapped_tokens: int, num_tokens: int) -> torch.Tensor:
    token = torch.arange(num_tokens, dtype=query_start_loc.dtype)
    request = torch.searchsorted(query_start_loc[1:].contiguous(), token, right=True).clamp_(max=query_start_loc.shape[0] - 2)
    out[:num_tokens] = torch.where(token < num_mapped_tokens, request, 0)
    return out[:num_tokens]


def _swa_indices(
    swa_indices: torch.Tensor,
    swa_lens: torch.Tensor,
    window_size: int,
    index_width: int,
    left_visible: torch.Tensor,
    right_visible: torch.Tensor,
    query_start_loc: torch.Tensor,
    seq_lens: torch.Tensor,
    token_to_req_indices: torch.Tensor,
    is_valid_token: torch.Tensor,
    block_table: torch.Tensor,
    block_size: int,
    replay_start: torch.Tensor,
    *,
    num_tokens: int,
    token_offset: int,
    has_image: bool = False,
) -> None:
    token = torch.arange(token_offset, token_offset + num_tokens)
    request = token_to_req_indices[token].long()
    position = seq_lens[request].long() - query_start_loc[request + 1] + token
    first, last = position - window_size + 1, position
    if has_image:
        first, last = first - left_visible[token], last + right_visible[token]
    first = torch.maximum(first, replay_start[request].long()).clamp_(min=0)
    count = torch.where(is_valid_token[token], last + 1 - first, 0)
    column = torch.arange(index_width)
    wanted = column < count[:, None]
    row = torch.where(wanted, first[:, None] + column, 0)
    slot = block_table[request[:, None], row // block_size].long() * block_size + row % block_size
    swa_indices.view(-1, swa_indices.shape[-1])[:num_tokens, :index_width] = torch.where(wanted, slot, -1).to(torch.int32)
    swa_lens[:num_tokens] = count.to(swa_lens.dtype)


def _prefill_gather_lens(
    prefill_gather_lens: torch.Tensor,
    seq_lens: torch.Tensor,
    query_start_loc: torch.Tensor,
    replay_start: torch.Tensor,
    num_prefills: int,
    num_decodes: int,
    window_size: int,
) -> None:
    requests = slice(num_decodes, num_decodes + num_prefills)
    queries = torch.diff(query_start_loc)[requests]
    before = (seq_lens[requests] - queries - replay_start[requests]).clamp(0, window_size - 1)
    prefill_gather_lens[:num_prefills] = queries + before


def _compressed_slots(
    compressed_slot_mapping: torch.Tensor,
    slot_mapping: torch.Tensor,
    query_start_loc: torch.Tensor,
    seq_lens: torch.Tensor,
    block_table: torch.Tensor,
    block_size: int,
    compress_ratio: int,
    dcp_world_size: int,
    cp_interleave: int,
) -> None:
    if dcp_world_size != 1:
        raise ValueError(f"V4's compressed slots on CPUs: decode context parallelism must be 1, is {dcp_world_size}")
    tokens = min(int(query_start_loc[block_table.shape[0]]), compressed_slot_mapping.shape[0])
    token = torch.arange(tokens)
    request = torch.searchsorted(query_start_loc[1:].contiguous().long(), token, right=True)
    position = seq_lens[request].long() - query_start_loc[request + 1] + token
    ends = ((position + 1) % compress_ratio == 0) & (slot_mapping[:tokens] != -1)
    entry = torch.where(ends, position // compress_ratio, 0)
    slot = block_table[request, entry // block_size].long() * block_size + entry % block_size
    compressed_slot_mapping[:tokens] = torch.where(ends, slot, -1)


def _prefill_chunk(
    query_start_loc: torch.Tensor,
    uncompressed_seq_lens: torch.Tensor,
    cu_compressed_seq_lens: torch.Tensor,
    row_start_cu_compressed_seq_lens: torch.Tensor,
    token_to_seq: torch.Tensor,
    cu_compressed_seq_len_ks: torch.Tensor,
    cu_compressed_seq_len_ke: torch.Tensor,
    query_slice_start: int,
    query_slice_stop: int,
    dcp_rank: int,
    dcp_world: int,
    dcp_interleave: int,
    *,
    num_reqs: int,
    COMPRESS_RATIO: int,
) -> None:
    if dcp_world != 1:
        raise ValueError(f"V4's indexer on CPUs: decode context parallelism must be 1, is {dcp_world}")
    token = torch.arange(query_slice_start, query_slice_stop)
    request = torch.searchsorted(query_start_loc[1 : num_reqs + 1].contiguous().long(), token, right=True)
    length = uncompressed_seq_lens[request].long() - query_start_loc[request + 1] + token + 1
    start = row_start_cu_compressed_seq_lens[request]
    cu_compressed_seq_len_ks[: token.shape[0]] = start
    cu_compressed_seq_len_ke[: token.shape[0]] = start + (length // COMPRESS_RATIO).to(start.dtype)
    rows = torch.diff(cu_compressed_seq_lens[: num_reqs + 1]).long()
    sequence = torch.repeat_interleave(torch.arange(num_reqs, dtype=token_to_seq.dtype), rows)
    token_to_seq[: sequence.shape[0]] = sequence


def _uniform_decode(
    seq_lens: torch.Tensor,
    decode_seq_lens: torch.Tensor,
    block_table: torch.Tensor,
    expanded_block_table: torch.Tensor,
    decode_lens: torch.Tensor,
    num_decode_tokens: int,
    max_decode_len: int,
) -> None:
    token = torch.arange(num_decode_tokens)
    request = token // max_decode_len
    decode_seq_lens[:num_decode_tokens] = (seq_lens[request] - max_decode_len + token % max_decode_len + 1).clamp(min=0)
    expanded_block_table[:num_decode_tokens] = block_table[request, : expanded_block_table.shape[1]]
    decode_lens[:num_decode_tokens] = 1


class _Kernel:
    """A function in the place of one of vLLM's kernel objects, which also have a warm-up: there is nothing to compile."""

    def __init__(self, function: Any) -> None:
        self._function = function

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        return self._function(*arguments, **keywords)

    def register_warmup(self, **_keywords: Any) -> None:
        return None


def install() -> bool:
    """Puts these in the place of vLLM's where vLLM has no Triton. Returns whether it did."""
    from vllm.triton_utils import HAS_TRITON

    if HAS_TRITON:
        return False
    import vllm.models.deepseek_v4.cpu.cpu_mla as cpu_mla
    import vllm.v1.attention.backends.mla.compressor_utils as compressor_utils
    import vllm.v1.attention.backends.mla.indexer as indexer
    import vllm.v1.attention.backends.mla.sparse_swa as sparse_swa
    import vllm.v1.attention.ops.metadata as metadata

    metadata.compute_token_to_req_indices = _token_to_req
    sparse_swa.compute_token_to_req_indices = _token_to_req
    sparse_swa._COMPUTE_SWA_INDICES_AND_LENS_KERNEL = _Kernel(_swa_indices)
    sparse_swa._COMPUTE_PREFILL_METADATA_KERNEL = _Kernel(_prefill_gather_lens)
    compressor_utils._COMPRESSED_SLOT_MAPPING_KERNEL = _Kernel(_compressed_slots)
    indexer._BUILD_PREFILL_CHUNK_METADATA_KERNEL = _Kernel(_prefill_chunk)
    indexer._PREPARE_UNIFORM_DECODE_KERNEL = _Kernel(_uniform_decode)
    # vLLM's CPU builder lists three of the five kinds of layers that the base class looks up.
    cpu_mla.DeepseekV4CPUSparseSWAMetadataBuilder.build_tile_scheduler = lambda self, n: collections.defaultdict(lambda: None)
    return True
