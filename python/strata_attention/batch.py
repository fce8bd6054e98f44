"""The metadata of a step: requests, batches and their tensors."""

from __future__ import annotations

import ctypes
import dataclasses
import enum
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from . import _c_api
from ._device import Device, Owner
from ._memory import tensor_of
from .pool import BatchLimits, CacheGroup, CacheGroupSpec, Pool, spec_array


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


def _check_tables(requests: Sequence[Request]) -> None:
    """ValueError for a table of no group. Looked at after a call failed: it costs a right call nothing."""
    for number, request in enumerate(requests):
        for key in request.block_tables or ():
            if key not in CacheGroup._value2member_map_:
                name = request.request if request.request >= 0 else number
                raise ValueError(f"BatchBuilder.build: request {name}: block_tables: keys must be CacheGroup, has {key!r}") from None


class BatchBuilder(Owner):
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
            raise ValueError(f"BatchBuilder: num_pages must have {len(groups)} entries, has {len(num_pages)}")
        self._device = pool._device if pool is not None else Device.of(device)  # type: ignore[arg-type]
        self._pool = pool
        self.limits = limits
        self._topk: dict[int, torch.Tensor] = {}
        given, specs, counts = limits._struct(), spec_array(groups), (ctypes.c_int64 * max(len(num_pages), 1))(*num_pages)
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
        """The metadata of a step, on torch's current stream. The counts pad the step for graphs.

        Pass decode requests first; one after a prefill counts as a prefill.
        """
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
            try:
                _c_api.call("strata_batch_build", self._handle, array, len(requests), ctypes.byref(padding), stream)
            except ValueError:
                _check_tables(requests)
                raise
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
        return tensor_of(view, self._device.torch, self)

    def group(self, group: CacheGroup) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Block table i32 [R, max_blocks] and slot mapping i64 [T] of a group in the last step; None for a group that is not there."""
        found = _c_api.struct("strata_group_metadata")
        _c_api.call("strata_batch_get_group", self._handle, group, ctypes.byref(found))
        if not found.present:
            return None
        tables, slots = tensor_of(found.block_table, self._device.torch, self), tensor_of(found.slot_mapping, self._device.torch, self)
        assert tables is not None and slots is not None
        return tables, slots
