"""Cache groups, and page storage with block tables for callers without an engine."""

from __future__ import annotations

import ctypes
import dataclasses
import enum
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from . import _c_api
from ._device import Owner
from ._memory import bytes_of
from .types import KvFormat, PagedCache

if TYPE_CHECKING:
    from .layers import Layer


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


def specs_of(function: str, handle: int) -> list[CacheGroupSpec]:
    specs = (_c_api.types["strata_cache_group_spec"] * _c_api.NUM_CACHE_GROUPS)()
    specs[0].struct_size = ctypes.sizeof(specs[0])
    count = _c_api.result(function, ctypes.c_int64, handle, specs, _c_api.NUM_CACHE_GROUPS)
    return [CacheGroupSpec._of(spec) for spec in specs[:count]]


def spec_array(specs: Sequence[CacheGroupSpec]) -> Any:
    return (_c_api.types["strata_cache_group_spec"] * max(len(specs), 1))(*(spec._struct() for spec in specs))


def paged_cache(cache: PagedCache) -> Any:
    if not isinstance(cache, PagedCache):
        raise TypeError(f"cache must be a PagedCache, is {type(cache).__name__}")
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


class Pool(Owner):
    """Page storage for a set of layers, and the block tables of their requests.

    cached_positions: how many positions the requests may hold in total; 0: max_num_seqs * max_model_len. ``pages`` gives the pages of
    each group instead. One call runs at a time.
    """

    def __init__(self, layers: Sequence[Layer], cached_positions: int = 0, *, pages: Mapping[CacheGroup, int] | None = None) -> None:
        if not layers:
            raise ValueError("Pool: at least one layer is required")
        self._layers = list(layers)
        self._device = layers[0]._device
        specs = spec_array([spec for layer in layers for spec in layer.cache_groups])
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
                planned[CacheGroup(group)] = count
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
        return specs_of("strata_pool_groups", self._handle)

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
        """Allocates pages for positions [0, seq_len). False, and nothing changes, where there are too few free pages.

        ValueError where no free page would help: beyond max_model_len, or more new positions than a step may have.
        """
        extended: int = _c_api.result("strata_pool_extend", ctypes.c_int32, self._handle, request, first_new_position, seq_len)
        if not extended:
            self._check_limits(request, seq_len, seq_len - first_new_position)
        return extended != 0

    def _check_limits(self, request: int, seq_len: int, new: int) -> None:
        limits = self._layers[0].limits
        if seq_len > limits.max_model_len:
            raise ValueError(f"Pool.extend: request {request}: seq_len must be at most max_model_len {limits.max_model_len}, is {seq_len}")
        # A group that keeps its newest positions alone has pages for those of one step.
        if new > limits.max_num_batched_tokens and any(spec.retained > 0 for spec in self.groups):
            raise ValueError(
                f"Pool.extend: request {request}: new positions must be at most max_num_batched_tokens "
                f"{limits.max_num_batched_tokens}, are {new}"
            )

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
        tensor = bytes_of(found.data, found.num_pages * found.page_stride, self._device.torch, self)
        return PagedCache(tensor, KvFormat(found.format), found.row_dim, found.page_size, found.num_pages, found.page_stride, found.scale)
