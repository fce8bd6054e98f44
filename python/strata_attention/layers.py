"""Layers of a checkpoint, their caches and the metadata of a step: thin objects over the C API."""

from __future__ import annotations

import ctypes
import dataclasses
import enum
import json
import os
import threading
import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from . import _c_api
from .types import KvFormat, PagedCache


class CacheGroup(enum.IntEnum):
    """Layers whose pages follow the same block table (strata/cache.h)."""

    window = 0
    c4_compressed = 1
    c4_indexer = 2
    c4_state = 3
    c4_indexer_state = 4
    c128_compressed = 5
    c128_state = 6
    mla_latent = 7
    mla_indexer = 8


class IndexerFormat(enum.IntEnum):
    """Format of indexer queries and keys."""

    fp8 = 0
    mxfp4 = 1
    none = 2


class PrefillMode(enum.IntEnum):
    """How prefill tokens of V4 and of sparse MLA layers read their keys."""

    automatic = 0
    gathered = 1
    paged = 2


class MlaMode(enum.IntEnum):
    """The form in which a dense MLA layer attends."""

    automatic = 0
    mha = 1
    mqa = 2


class BatchTensor(enum.IntEnum):
    """The tensors of a batch (strata/batch.h)."""

    positions = 0
    query_start_loc = 1
    seq_lens = 2
    token_to_req = 3
    is_valid_token = 4
    swa_indices = 5
    swa_lens = 6
    c4_lens = 7
    c128_slots = 8
    c128_local = 9
    c128_lens = 10
    c128_schedule = 11
    mla_schedule = 12
    mla_lens = 13
    gather_lens = 14
    c4_seq_lens = 15
    c128_seq_lens = 16


_DTYPES = {
    torch.float64: 0,
    torch.float32: 1,
    torch.bfloat16: 2,
    torch.float16: 3,
    torch.float8_e4m3fn: 4,
    torch.int64: 6,
    torch.int32: 7,
    torch.int16: 8,
    torch.int8: 9,
    torch.uint8: 10,
    torch.bool: 11,
}
_TORCH_DTYPES = {number: dtype for dtype, number in _DTYPES.items()}


class _Owner:
    """Owns a handle. Objects keep alive what they were made from, so that they can be destroyed in any order."""

    def __init__(self, handle: int, destroy: str) -> None:
        self._handle = handle
        self._destroyed = weakref.finalize(self, _c_api.call, destroy, handle)


class _Device(_Owner):
    """A device of the library for one of torch's, opened once."""

    _opened: dict[str, _Device] = {}
    _lock = threading.Lock()

    def __init__(self, name: str) -> None:
        config = _c_api.struct("strata_config", from_environment=1)
        super().__init__(_c_api.handle("strata_device_open", name.encode(), ctypes.byref(config)), "strata_device_close")
        self.torch = torch.device(name)
        self.id = _c_api.types["strata_device_id"](1 if self.torch.type == "cuda" else 0, self.torch.index or 0)

    @classmethod
    def of(cls, device: torch.device | str) -> _Device:
        device = torch.device(device)
        if device.type == "cuda" and device.index is None:
            device = torch.device("cuda", torch.cuda.current_device())
        name = "cpu" if device.type == "cpu" else str(device)
        with cls._lock:
            if name not in cls._opened:
                cls._opened[name] = cls(name)
            return cls._opened[name]

    def stream(self) -> _Stream:
        return _Stream(self)


class _Stream:
    """torch's current stream while a call runs."""

    def __init__(self, device: _Device) -> None:
        self._device = device
        self._handle = 0

    def __enter__(self) -> int:
        if self._device.torch.type == "cuda":
            native = torch.cuda.current_stream(self._device.torch).cuda_stream
            self._handle = _c_api.handle("strata_stream_wrap", self._device._handle, native)
        return self._handle

    def __exit__(self, *_error: object) -> None:
        if self._handle:
            _c_api.call("strata_stream_destroy", self._handle)


def _view(tensor: torch.Tensor | None, name: str, device: _Device) -> Any:
    """A view of a tensor's memory; all zero for None."""
    if tensor is None:
        return _c_api.struct("strata_tensor_view")
    if tensor.dtype not in _DTYPES or not 1 <= tensor.dim() <= 4:
        raise ValueError(f"{name} must have 1 to 4 dimensions and a dtype of ops, is {tensor.dtype} with {tensor.dim()} dimensions")
    kind = {"cpu": 0, "cuda": 1}.get(tensor.device.type)
    if kind is None:
        raise ValueError(f"{name} must be on {device.torch}, is on {tensor.device}")
    fill = [0] * (4 - tensor.dim())
    return _c_api.struct(
        "strata_tensor_view",
        data=tensor.data_ptr() or None,
        dtype=_DTYPES[tensor.dtype],
        rank=tensor.dim(),
        device=_c_api.types["strata_device_id"](kind, tensor.device.index or 0),
        shape=(ctypes.c_int64 * 4)(*tensor.shape, *fill),
        stride=(ctypes.c_int64 * 4)(*tensor.stride(), *fill),
    )


class _CudaMemory:
    """Bytes of device memory for torch, which keeps this object."""

    def __init__(self, address: int, size: int, owner: object) -> None:
        self.owner = owner
        self.__cuda_array_interface__ = {"data": (address, False), "shape": (size,), "typestr": "|u1", "version": 2}


def _bytes(address: int | None, size: int, device: _Device, owner: object) -> torch.Tensor:
    """Memory of the library as u8 [size]. The tensor keeps its owner."""
    if not address or size == 0:
        return torch.empty(0, dtype=torch.uint8, device=device.torch)
    if device.torch.type == "cuda":
        return torch.as_tensor(_CudaMemory(address, size, owner), device=device.torch)
    memory = (ctypes.c_uint8 * size).from_address(address)
    memory.owner = owner  # type: ignore[attr-defined]
    return torch.frombuffer(memory, dtype=torch.uint8)


def _tensor(view: Any, device: _Device, owner: object) -> torch.Tensor | None:
    """A view of the library as a tensor; None for an absent one."""
    if view.rank == 0:
        return None
    dtype, shape, stride = _TORCH_DTYPES[view.dtype], list(view.shape)[: view.rank], list(view.stride)[: view.rank]
    if 0 in shape:
        return torch.empty(shape, dtype=dtype, device=device.torch)
    size = (1 + sum((extent - 1) * step for extent, step in zip(shape, stride))) * dtype.itemsize
    return _bytes(view.data, size, device, owner).view(dtype).as_strided(shape, stride)


class Checkpoint(_Owner):
    """A directory with config.json and safetensors, in the official format. ValueError for files that cannot be."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        super().__init__(_c_api.handle("strata_checkpoint_open", os.fsencode(directory), None), "strata_checkpoint_destroy")
        config = _c_api.handle("strata_checkpoint_get_config", self._handle)
        try:
            size = _c_api.result("strata_model_config_to_json", ctypes.c_int64, config, None, 0)
            text = ctypes.create_string_buffer(size)
            _c_api.call("strata_model_config_to_json", config, text, size, None)
        finally:
            _c_api.call("strata_model_config_destroy", config)
        #: config.json in the official spelling.
        self.config: dict[str, Any] = json.loads(text.value)

    @property
    def layers(self) -> list[int]:
        """Numbers of the layers that have attention tensors. MTP layer j is num_hidden_layers + j."""
        count = _c_api.result("strata_checkpoint_attention_layers", ctypes.c_int64, self._handle, None, 0)
        numbers = (ctypes.c_int64 * count)()
        _c_api.call("strata_checkpoint_attention_layers", self._handle, numbers, count, None)
        return list(numbers)

    def kv_scale(self, layer: int) -> float:
        """The scale that the checkpoint was calibrated with for fp8_tensor caches; 1 when absent."""
        value: float = _c_api.result("strata_checkpoint_kv_scale", ctypes.c_float, self._handle, layer)
        return value


def synthesize(
    preset: str, directory: str | os.PathLike[str], *, num_layers: int = 0, fp8: bool = True, seed: int = 1, overwrite: bool = False
) -> None:
    """Writes a checkpoint in the official format with random weights: "v4-tiny", "v4-flash", "v3-tiny", ... num_layers 0: all."""
    config = _c_api.handle("strata_model_config_preset", preset.encode())
    try:
        options = _c_api.struct("strata_synthesize_options", num_layers=num_layers, fp8=fp8, seed=seed, overwrite=overwrite)
        _c_api.call("strata_synthesize_checkpoint", config, ctypes.byref(options), os.fsencode(directory), None, None)
    finally:
        _c_api.call("strata_model_config_destroy", config)


@dataclasses.dataclass(frozen=True)
class BatchLimits:
    """Sizes fixed at construction: tokens and requests of a step, positions of a request, drafted tokens of a decode request."""

    max_num_batched_tokens: int
    max_num_seqs: int
    max_model_len: int
    num_speculative_tokens: int = 0

    def _struct(self) -> Any:
        return _c_api.struct("strata_batch_limits", **dataclasses.asdict(self))


@dataclasses.dataclass(frozen=True)
class CacheGroupSpec:
    """Geometry of a cache group of a layer. page_size and page_bytes are proposals for engines with pages of their own."""

    group: CacheGroup
    format: KvFormat
    row_dim: int
    page_size: int
    ratio: int
    page_bytes: int
    retained: int
    num_query_heads: int

    @classmethod
    def _of(cls, found: Any) -> CacheGroupSpec:
        values = {field.name: getattr(found, field.name) for field in dataclasses.fields(cls)}
        return cls(**values | {"group": CacheGroup(found.group), "format": KvFormat(found.format)})

    def _struct(self) -> Any:
        return _c_api.struct("strata_cache_group_spec", **dataclasses.asdict(self))


def _specs(function: str, handle: int) -> list[CacheGroupSpec]:
    specs = (_c_api.types["strata_cache_group_spec"] * _c_api.NUM_CACHE_GROUPS)()
    specs[0].struct_size = ctypes.sizeof(specs[0])
    count = _c_api.result(function, ctypes.c_int64, handle, specs, _c_api.NUM_CACHE_GROUPS)
    return [CacheGroupSpec._of(spec) for spec in specs[:count]]


def _spec_array(specs: Sequence[CacheGroupSpec]) -> Any:
    return (_c_api.types["strata_cache_group_spec"] * max(len(specs), 1))(*(spec._struct() for spec in specs))


class _Shared:
    """Rotary tables and side streams of a model's layers, which the layers keep."""

    def __init__(self, device: _Device, max_positions: int) -> None:
        self.tables = _Owner(_c_api.handle("strata_rope_tables_create", device._handle, max_positions), "strata_rope_tables_destroy")
        self.streams = _Owner(_c_api.handle("strata_side_streams_create", device._handle), "strata_side_streams_destroy")


class Layer(_Owner):
    """One attention layer: bf16 hidden states in, bf16 hidden states out.

    checkpoint, layer   whose weights it loads, and which of its layers
    limits              of the builder whose batches it gets
    device              where weights are loaded and work runs
    share               another layer of the model: rotary tables and side streams are shared with it
    Options as in strata/attention.h; kv_format None: fp8_ds_mla_v4 for V4, bf16 for MLA.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        layer: int,
        limits: BatchLimits,
        device: torch.device | str = "cpu",
        *,
        share: Layer | None = None,
        kv_format: KvFormat | None = None,
        indexer_format: IndexerFormat = IndexerFormat.fp8,
        hadamard: bool = False,
        fp8_output: bool = False,
        quantize_activations: bool = True,
        prefill_mode: PrefillMode = PrefillMode.automatic,
        mla_mode: MlaMode = MlaMode.automatic,
        context_chunk_rows: int = 0,
        kv_scale_ue8m0: bool = False,
        rotary_embedding: bool = True,
        batch_invariant: bool = False,
        tp_rank: int = 0,
        tp_size: int = 1,
    ) -> None:
        self._device = _Device.of(device)
        if share is not None and share._device is not self._device:
            raise ValueError(f"Layer: share must be on {self._device.torch}, is on {share._device.torch}")
        self._shared: _Shared = share._shared if share is not None else _Shared(self._device, limits.max_model_len)
        given = limits._struct()
        options = _c_api.struct(
            "strata_layer_options",
            limits=ctypes.addressof(given),
            kv_format=_c_api.KV_FAMILY_DEFAULT if kv_format is None else kv_format,
            indexer_format=indexer_format,
            hadamard=hadamard,
            fp8_output=fp8_output,
            quantize_activations=quantize_activations,
            prefill_mode=prefill_mode,
            mla_mode=mla_mode,
            context_chunk_rows=context_chunk_rows,
            kv_scale_ue8m0=kv_scale_ue8m0,
            rotary_embedding=rotary_embedding,
            batch_invariant=batch_invariant,
            tp_rank=tp_rank,
            tp_size=tp_size,
        )
        params = _c_api.struct(
            "strata_layer_params",
            checkpoint=checkpoint._handle,
            layer=layer,
            device=self._device._handle,
            options=ctypes.addressof(options),
            rope_tables=self._shared.tables._handle,
            side_streams=self._shared.streams._handle,
        )
        super().__init__(_c_api.handle("strata_layer_create", ctypes.byref(params)), "strata_layer_destroy")
        info = _c_api.struct("strata_layer_info")
        _c_api.call("strata_layer_get_info", self._handle, ctypes.byref(info))
        self.limits = limits
        self.device = self._device.torch
        #: The layer's number in the model.
        self.index: int = info.layer_index
        self.compress_ratio: int = info.compress_ratio
        #: "window", "c4", "c128", "mla", "mla_sparse"
        self.kind: str = info.kind.decode()
        self.hidden_size: int = info.hidden_size
        #: Query heads of this rank.
        self.num_heads: int = info.num_heads
        #: 0: the layer attends to every position.
        self.index_topk: int = info.index_topk
        self.weight_bytes: int = info.weight_bytes
        self.workspace_bytes: int = info.workspace_bytes
        #: The caches that forward needs.
        self.cache_groups: list[CacheGroupSpec] = _specs("strata_layer_cache_groups", self._handle)

    def forward(
        self,
        hidden: torch.Tensor,
        batch: BatchBuilder,
        pool: Pool | None = None,
        *,
        caches: Mapping[CacheGroup, PagedCache] | None = None,
        out: torch.Tensor | None = None,
        topk_indices: torch.Tensor | None = None,
        skip_topk: bool = False,
        llama_4_scaling: torch.Tensor | None = None,
        q_tap: torch.Tensor | None = None,
        attn_out_tap: torch.Tensor | None = None,
        workspace: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """The layer's output for the batch's tokens, on torch's current stream.

        hidden           bf16 [T, hidden_size], already normalised
        batch            the builder, whose last step is the batch
        pool, caches     a pool that was made with this layer, or the engine's own pages of every group
        out              written and returned: bf16 [T, hidden_size], may be hidden; absent: a new tensor
        topk_indices     i32 [max_num_batched_tokens, index_topk]; absent: the batch's buffer, which all layers share
        skip_topk        read the stored rows of topk_indices instead of selecting
        llama_4_scaling  f32 [T], MLA only
        q_tap            written: bf16 [T, H, D], the rotated queries
        attn_out_tap     written: bf16 [T, H, D], the attention output
        workspace        u8 [workspace_bytes + 255]; absent: from torch
        """
        if (pool is None) == (caches is None):
            raise ValueError("Layer.forward: exactly one of pool and caches is required")
        device = self._device
        if out is None:
            out = torch.empty(hidden.shape, dtype=torch.bfloat16, device=self.device)
        if topk_indices is None and self.index_topk > 0:
            topk_indices = batch._topk_buffer(self.index_topk)
        if workspace is None:
            workspace = torch.empty(self.workspace_bytes + 255, dtype=torch.uint8, device=self.device)
        skipped = -workspace.data_ptr() % 256
        args = _c_api.struct(
            "strata_forward_args",
            batch=batch._handle,
            hidden=_view(hidden, "hidden", device),
            out=_view(out, "out", device),
            topk_indices=_view(topk_indices, "topk_indices", device),
            skip_topk=skip_topk,
            llama_4_scaling=_view(llama_4_scaling, "llama_4_scaling", device),
            q_tap=_view(q_tap, "q_tap", device),
            attn_out_tap=_view(attn_out_tap, "attn_out_tap", device),
            workspace=workspace.data_ptr() + skipped,
            workspace_bytes=max(workspace.numel() - skipped, 0),
        )
        if workspace.dtype != torch.uint8 or not workspace.is_contiguous() or workspace.device != self.device:
            raise ValueError(f"Layer.forward: workspace must be contiguous u8 on {self.device}, is {workspace.dtype} on {workspace.device}")
        structs = []
        if pool is not None:
            args.pool, args.pool_layer = pool._handle, pool._number_of(self)
        else:
            pointers = (ctypes.c_void_p * _c_api.NUM_CACHE_GROUPS)()
            for group, cache in (caches or {}).items():
                found = _paged_cache(cache)
                structs.append(found)
                pointers[group] = ctypes.addressof(found)
            args.caches, args.num_caches = ctypes.cast(pointers, ctypes.c_void_p), _c_api.NUM_CACHE_GROUPS
        with device.stream() as stream:
            args.stream = stream
            _c_api.call("strata_layer_forward", self._handle, ctypes.byref(args))
        return out

    __call__ = forward


def _paged_cache(cache: PagedCache) -> Any:
    tensor = cache.tensor
    needed = (cache.num_pages - 1) * cache.page_stride + KvFormat(cache.format).row_bytes(cache.row_dim) * cache.page_size
    given = tensor.untyped_storage().nbytes() - tensor.storage_offset() * tensor.element_size()
    if cache.num_pages > 0 and needed > given:
        raise ValueError(f"cache must have the memory of num_pages pages, {needed} bytes, has {given}")
    return _c_api.struct(
        "strata_paged_cache",
        data=tensor.data_ptr() or None,
        device=_c_api.types["strata_device_id"](1 if tensor.is_cuda else 0, tensor.device.index or 0),
        format=cache.format,
        row_dim=cache.row_dim,
        page_size=cache.page_size,
        scale=cache.scale,
        num_pages=cache.num_pages,
        page_stride=cache.page_stride,
    )


def load_layers(
    checkpoint: Checkpoint, limits: BatchLimits, device: torch.device | str = "cpu", layers: Iterable[int] | None = None, **options: Any
) -> list[Layer]:
    """All attention layers of a checkpoint, or those of these numbers, with one set of rotary tables and side streams."""
    found: list[Layer] = []
    for number in checkpoint.layers if layers is None else layers:
        found.append(Layer(checkpoint, number, limits, device, share=found[0] if found else None, **options))
    return found


class Pool(_Owner):
    """Page storage for a set of layers, and the block tables of their requests.

    cached_positions: how many positions the requests may hold in total; 0: max_num_seqs * max_model_len. ``pages`` gives the pages of
    each group instead. One call runs at a time.
    """

    def __init__(self, layers: Sequence[Layer], cached_positions: int = 0, *, pages: Mapping[CacheGroup, int] | None = None) -> None:
        if not layers:
            raise ValueError("Pool: at least one layer is required")
        self._layers = list(layers)
        self._device = layers[0]._device
        specs = _spec_array([spec for layer in layers for spec in layer.cache_groups])
        counts = (ctypes.c_int64 * len(layers))(*(len(layer.cache_groups) for layer in layers))
        groups = _c_api.struct(
            "strata_layer_groups",
            specs=ctypes.cast(specs, ctypes.c_void_p),
            num_specs=ctypes.cast(counts, ctypes.c_void_p),
            num_layers=len(layers),
        )
        planned = (ctypes.c_int64 * _c_api.NUM_CACHE_GROUPS)()
        if pages is None:
            _c_api.call(
                "strata_plan_pages",
                ctypes.byref(groups),
                ctypes.byref(layers[0].limits._struct()),
                cached_positions,
                planned,
                _c_api.NUM_CACHE_GROUPS,
            )
        else:
            for group, count in pages.items():
                planned[group] = count
        params = _c_api.struct(
            "strata_pool_params", layer_groups=ctypes.addressof(groups), pages=ctypes.addressof(planned), num_groups=_c_api.NUM_CACHE_GROUPS
        )
        super().__init__(_c_api.handle("strata_pool_create", self._device._handle, ctypes.byref(params)), "strata_pool_destroy")

    def _number_of(self, layer: Layer) -> int:
        for number, own in enumerate(self._layers):
            if own is layer:
                return number
        raise ValueError(f"Layer.forward: pool must have been made with layer {layer.index}")

    @property
    def groups(self) -> list[CacheGroupSpec]:
        """Every group of the pool once."""
        return _specs("strata_pool_groups", self._handle)

    @property
    def allocated_bytes(self) -> int:
        """Bytes of all pages of all layers."""
        value: int = _c_api.result("strata_pool_allocated_bytes", ctypes.c_int64, self._handle)
        return value

    @property
    def prefix_granularity(self) -> int:
        """A shared prefix is a multiple of this many positions."""
        value: int = _c_api.result("strata_pool_prefix_granularity", ctypes.c_int64, self._handle)
        return value

    def free_pages(self, group: CacheGroup) -> int:
        """Free pages of a group."""
        value: int = _c_api.result("strata_pool_free_pages", ctypes.c_int64, self._handle, group)
        return value

    def add_request(self, request: int, *, shared: int | None = None, positions: int = 0) -> None:
        """Adds a request, whose number the caller chooses. With shared it begins with the first positions of that request."""
        if shared is None:
            _c_api.call("strata_pool_add_request", self._handle, request)
        else:
            _c_api.call("strata_pool_add_request_with_prefix", self._handle, request, shared, positions)

    def extend(self, request: int, first_new_position: int, seq_len: int) -> bool:
        """Allocates pages for positions [0, seq_len). False, and nothing changes, where there are too few free pages."""
        extended: int = _c_api.result("strata_pool_extend", ctypes.c_int32, self._handle, request, first_new_position, seq_len)
        return extended != 0

    def mark_computed(self, request: int, positions: int) -> None:
        """Marks positions [0, positions) as computed; pages that left their windows become free."""
        _c_api.call("strata_pool_mark_computed", self._handle, request, positions)

    def remove_request(self, request: int) -> None:
        """Releases every page of the request."""
        _c_api.call("strata_pool_remove_request", self._handle, request)

    def block_table(self, request: int, group: CacheGroup) -> list[int]:
        """The page of each of the request's blocks."""
        count = _c_api.result("strata_pool_block_table", ctypes.c_int64, self._handle, request, group, None, 0)
        table = (ctypes.c_int32 * max(count, 1))()
        _c_api.call("strata_pool_block_table", self._handle, request, group, table, count, None)
        return list(table[:count])

    def cache(self, layer: Layer, group: CacheGroup) -> PagedCache | None:
        """A layer's pages of a group, for single ops; None for a group that the layer does not have. The tensor keeps the pool."""
        found = _c_api.struct("strata_paged_cache")
        _c_api.call("strata_pool_cache", self._handle, self._number_of(layer), group, ctypes.byref(found))
        if found.page_size == 0:
            return None
        tensor = _bytes(found.data, found.num_pages * found.page_stride, self._device, self)
        return PagedCache(tensor, KvFormat(found.format), found.row_dim, found.page_size, found.num_pages, found.page_stride, found.scale)


@dataclasses.dataclass
class Request:
    """One request of a step: positions after the step, new tokens, and its pages.

    request       its number in the pool; without a pool the id that errors name
    block_tables  the engine's own tables instead of a pool's, by group
    """

    seq_len: int
    query_len: int
    request: int = -1
    block_tables: Mapping[CacheGroup, Sequence[int]] | None = None


@dataclasses.dataclass(frozen=True)
class BatchInfo:
    """Counts of a step (strata/batch.h)."""

    num_tokens: int
    num_actual_tokens: int
    num_requests: int
    num_decodes: int
    num_prefills: int
    num_decode_tokens: int
    num_prefill_tokens: int
    max_query_len: int
    max_seq_len: int


class BatchBuilder(_Owner):
    """Builds the metadata of each step in device buffers at fixed addresses. One call runs at a time, forwards of its batch included.

    pool, or groups and num_pages   cache groups of the model, and pages of each layer's cache of a group
    window                          config["sliding_window"]; 0: the model has none
    """

    def __init__(
        self,
        limits: BatchLimits,
        pool: Pool | None = None,
        *,
        window: int = 0,
        device: torch.device | str | None = None,
        groups: Sequence[CacheGroupSpec] = (),
        num_pages: Sequence[int] = (),
    ) -> None:
        if pool is None and device is None:
            raise ValueError("BatchBuilder: a pool, or device, groups and num_pages are required")
        if len(groups) != len(num_pages):
            raise ValueError(f"BatchBuilder: num_pages must have one number for each of {len(groups)} groups, has {len(num_pages)}")
        self._device = pool._device if pool is not None else _Device.of(device)  # type: ignore[arg-type]
        self._pool = pool
        self.limits = limits
        self._topk: dict[int, torch.Tensor] = {}
        given, specs, counts = limits._struct(), _spec_array(groups), (ctypes.c_int64 * max(len(num_pages), 1))(*num_pages)
        params = _c_api.struct(
            "strata_batch_builder_params",
            limits=ctypes.addressof(given),
            pool=pool._handle if pool is not None else 0,
            groups=ctypes.cast(specs, ctypes.c_void_p) if groups else None,
            num_pages=ctypes.cast(counts, ctypes.c_void_p) if groups else None,
            num_groups=len(groups),
            window=window,
        )
        super().__init__(
            _c_api.handle("strata_batch_builder_create", self._device._handle, ctypes.byref(params)), "strata_batch_builder_destroy"
        )

    def _topk_buffer(self, width: int) -> torch.Tensor:
        if width not in self._topk:
            self._topk[width] = torch.full((self.limits.max_num_batched_tokens, width), -1, dtype=torch.int32, device=self._device.torch)
        return self._topk[width]

    def build(self, requests: Sequence[Request], *, num_tokens: int = 0, num_requests: int = 0, max_seq_len: int = 0) -> BatchInfo:
        """The metadata of a step, on torch's current stream. Decode requests come first; the counts pad the step for graphs."""
        array = (_c_api.types["strata_batch_request"] * max(len(requests), 1))()
        kept: list[Any] = []
        for number, request in enumerate(requests):
            members: dict[str, Any] = {"seq_len": request.seq_len, "query_len": request.query_len, "id": request.request}
            if request.block_tables is not None:
                tables = [list(request.block_tables.get(CacheGroup(group), ())) for group in range(_c_api.NUM_CACHE_GROUPS)]
                entries = [(ctypes.c_int32 * max(len(table), 1))(*table) for table in tables]
                pointers = (ctypes.c_void_p * len(tables))(*(ctypes.addressof(entry) for entry in entries))
                lengths = (ctypes.c_int64 * len(tables))(*(len(table) for table in tables))
                kept += [entries, pointers, lengths]
                members |= {
                    "block_tables": ctypes.cast(pointers, ctypes.c_void_p),
                    "block_table_lens": ctypes.cast(lengths, ctypes.c_void_p),
                    "num_block_tables": len(tables),
                }
            elif self._pool is not None and request.seq_len > 0:
                members |= {"pool": self._pool._handle, "pool_request": request.request}
            array[number] = _c_api.struct("strata_batch_request", **members)
        padding = _c_api.struct("strata_batch_padding", num_tokens=num_tokens, num_requests=num_requests, max_seq_len=max_seq_len)
        with self._device.stream() as stream:
            _c_api.call("strata_batch_build", self._handle, array, len(requests), ctypes.byref(padding), stream)
        return self.info

    @property
    def info(self) -> BatchInfo:
        """Counts of the last step."""
        found = _c_api.struct("strata_batch_info")
        _c_api.call("strata_batch_get_info", self._handle, ctypes.byref(found))
        return BatchInfo(**{field.name: getattr(found, field.name) for field in dataclasses.fields(BatchInfo)})

    def tensor(self, which: BatchTensor) -> torch.Tensor | None:
        """A tensor of the last step; None where it is absent. Valid until the next build."""
        view = _c_api.struct("strata_tensor_view")
        _c_api.call("strata_batch_get_tensor", self._handle, which, ctypes.byref(view))
        return _tensor(view, self._device, self)

    def group(self, group: CacheGroup) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Block table i32 [R, max_blocks] and slot mapping i64 [T] of a group in the last step; None for a group that is not there."""
        found = _c_api.struct("strata_group_metadata")
        _c_api.call("strata_batch_get_group", self._handle, group, ctypes.byref(found))
        if not found.present:
            return None
        tables, slots = _tensor(found.block_table, self._device, self), _tensor(found.slot_mapping, self._device, self)
        assert tables is not None and slots is not None
        return tables, slots
