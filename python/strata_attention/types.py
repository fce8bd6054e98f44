"""What ops take besides tensors and numbers: caches, weights, prologues and epilogues."""

from __future__ import annotations

import dataclasses
import enum
import math
from typing import Any

import torch

from . import _library


class KvFormat(enum.IntEnum):
    """Format of one cached row. docs/formats.md has the bytes."""

    bf16 = 0
    fp8_tensor = 1
    fp8_ds_mla_v4 = 2
    fp8_ds_mla = 3
    indexer_fp8 = 4
    indexer_mxfp4 = 5
    state_f32 = 6

    def row_data_bytes(self, row_dim: int) -> int:
        """Bytes of a row's data, which in a page precede all scales."""
        return _ROW_BYTES[self][0] * (row_dim if self in _PER_VALUE else 1)

    def row_scale_bytes(self) -> int:
        """Bytes of a row's scales outside its data."""
        return _ROW_BYTES[self][1]

    def row_bytes(self, row_dim: int) -> int:
        """Bytes of a row with its scales."""
        return self.row_data_bytes(row_dim) + self.row_scale_bytes()


_PER_VALUE = (KvFormat.bf16, KvFormat.fp8_tensor, KvFormat.state_f32)
_ROW_BYTES = {
    KvFormat.bf16: (2, 0),
    KvFormat.fp8_tensor: (1, 0),
    KvFormat.fp8_ds_mla_v4: (576, 8),
    KvFormat.fp8_ds_mla: (656, 0),
    KvFormat.indexer_fp8: (128, 4),
    KvFormat.indexer_mxfp4: (64, 4),
    KvFormat.state_f32: (4, 0),
}
#: The dtype of a row's values, where a row has nothing else.
_VALUE_DTYPE = {KvFormat.bf16: torch.bfloat16, KvFormat.state_f32: torch.float32}
_ROW_DIM = {KvFormat.fp8_ds_mla_v4: 512, KvFormat.fp8_ds_mla: 576, KvFormat.indexer_fp8: 128, KvFormat.indexer_mxfp4: 128}


class ActivationFormat(enum.IntEnum):
    """Format of the activations that enter a product with a weight."""

    bf16 = 0
    fp8_ue8m0 = 1
    fp8_f32 = 2


class RopePairing(enum.IntEnum):
    """The two elements of the rotary slice that form pair i: (2i, 2i+1), or (i, i + R/2)."""

    interleaved = 0
    half_split = 1


class RopeSlice(enum.IntEnum):
    """Which R dimensions of a vector are rotated."""

    last = 0
    first = 1


class _Record:
    """Records of tensors are equal when they are the same object, and are shown without the tensors' values."""

    def __repr__(self) -> str:
        shown = []
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            if value is None and field.default is None:
                continue
            if isinstance(value, torch.Tensor):
                text = f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)} on {value.device}"
            else:
                text = _format_name(value) if field.name == "format" else repr(value)
            shown.append(f"{field.name}={text}")
        return f"{type(self).__name__}({', '.join(shown)})"


def _format_name(value: Any) -> str:
    return KvFormat(value).name if value in KvFormat._value2member_map_ else repr(value)


@dataclasses.dataclass(eq=False, repr=False)
class PagedCache(_Record):
    """One layer's pages of one cache group, in the memory of a tensor. Slot = page * page_size + row within the page.

    tensor       any dtype, from the first byte of page 0: one dimension of bytes, or pages in its first dimension at
                 distances of page_stride bytes
    format       KvFormat of every row
    row_dim      values per row: 512 (V4), 576 (MLA), 128 (indexer), 2*coff*d (state)
    page_size    rows per page
    num_pages    pages in the tensor
    page_stride  bytes between pages
    scale        fp8_tensor only: value = e4m3 value * scale
    """

    tensor: torch.Tensor
    format: int
    row_dim: int
    page_size: int
    num_pages: int
    page_stride: int
    scale: float = 1.0

    @classmethod
    def empty(
        cls,
        format: KvFormat,
        num_pages: int,
        page_size: int,
        row_dim: int | None = None,
        *,
        page_stride: int | None = None,
        scale: float = 1.0,
        device: torch.device | str = "cpu",
    ) -> PagedCache:
        """A cache of zeros. row_dim: the format's own where it has one. page_stride: the pages' payload."""
        format = KvFormat(format)
        if row_dim is None:
            if format not in _ROW_DIM:
                raise ValueError(f"PagedCache.empty: row_dim is required with {format.name}")
            row_dim = _ROW_DIM[format]
        stride = format.row_bytes(row_dim) * page_size if page_stride is None else page_stride
        return cls(torch.zeros(num_pages * stride, dtype=torch.uint8, device=device), format, row_dim, page_size, num_pages, stride, scale)

    @classmethod
    def of(cls, tensor: torch.Tensor, format: KvFormat, row_dim: int | None = None, *, scale: float = 1.0) -> PagedCache:
        """The cache of an engine's tensor [num_pages, page_size, ...], whose first stride is the distance between pages.

        row_dim: the format's own, or all values of a slot; with several KV heads those of one. The tensor has the format's dtype or one of
        one byte, and as many bytes in a slot as a row has, its scales included, though in memory all scales follow the page's rows.
        """
        format = KvFormat(format)
        if tensor.dim() < 2:
            raise ValueError(f"PagedCache.of: tensor must be [num_pages, page_size, ...], has {tensor.dim()} dimensions")
        if row_dim is None:
            row_dim = _ROW_DIM.get(format)
        dtype = _VALUE_DTYPE.get(format)
        if tensor.dtype != dtype and (tensor.element_size() != 1 or tensor.dtype == torch.bool):
            expected = f"{str(dtype).removeprefix('torch.')} or bytes" if dtype is not None else "bytes"
            raise ValueError(f"PagedCache.of: tensor must be {expected} with {format.name}, is {tensor.dtype}")
        slot = math.prod(tensor.shape[2:]) * tensor.element_size()
        if row_dim is None:
            row_dim = slot // _ROW_BYTES[format][0]
        row = format.row_bytes(row_dim)
        # Several KV heads have their rows next to each other; rows with scales have one.
        if row < 1 or (slot != row and (format not in _PER_VALUE or slot == 0 or slot % row != 0)):
            raise ValueError(f"PagedCache.of: tensor must have {row} bytes in a slot with {format.name} of row_dim {row_dim}, has {slot}")
        return cls(tensor, format, row_dim, tensor.shape[1], tensor.shape[0], tensor.stride(0) * tensor.element_size(), scale)


@dataclasses.dataclass(eq=False, repr=False)
class LinearWeight(_Record):
    """A weight matrix. Exactly one of weight and packed is given.

    weight               bf16 or e4m3 [groups*n, k], contiguous
    scale                e4m3 only: f32 [ceil(groups*n / block_n), ceil(k / block_k)]
    n, k, groups         features of a group; 0: from the shape of weight
    power_of_two_scales  e4m3 only: all scales are powers of two
    from_e4m3            bf16 only: dequantised e4m3; the matrix may be kept as e4m3
    packed, packing      u8 [bytes] in the private layout of the implementation `packing`
    shares_device        products run concurrently with other work
    name                 for messages
    """

    weight: torch.Tensor | None = None
    scale: torch.Tensor | None = None
    n: int = 0
    k: int = 0
    groups: int = 1
    block_n: int = 128
    block_k: int = 128
    power_of_two_scales: bool = False
    from_e4m3: bool = False
    packed: torch.Tensor | None = None
    packing: str | None = None
    shares_device: bool = False
    name: str | None = None

    def __post_init__(self) -> None:
        if self.weight is not None and self.weight.dim() == 2 and self.groups > 0:
            self.n = self.n or self.weight.shape[0] // self.groups
            self.k = self.k or self.weight.shape[1]

    def pack(self, packing: str) -> LinearWeight:
        """The weight in the layout of that implementation (weight_packings()). ValueError where it does not take the weight."""
        given = (self.weight, self.scale, self.n, self.k, self.groups, self.block_n, self.block_k, self.power_of_two_scales, self.from_e4m3)
        names = (
            "weight",
            "weight_scale",
            "weight_n",
            "weight_k",
            "weight_groups",
            "weight_block_n",
            "weight_block_k",
            "weight_power_of_two_scales",
            "weight_from_e4m3",
        )
        arguments = dict(zip(names, given), weight_shares_device=self.shares_device, weight_name=self.name, packing=packing)
        if self.weight is None:
            raise ValueError("LinearWeight.pack: weight is required, is absent")
        try:
            size = torch.ops.strata.packed_weight_bytes(**arguments)
            packed = torch.empty(size, dtype=torch.uint8, device=self.weight.device)
            torch.ops.strata.pack_weight(**arguments, out=packed)
        except RuntimeError as error:
            failure = _library.translated(error)
            reason = self._why_not(packing, arguments) if "must be one that" in str(failure) else ""
            raise (type(failure)(f"{failure}: {reason}") if reason else failure) from None
        return dataclasses.replace(self, weight=None, scale=None, packed=packed, packing=packing)

    def _why_not(self, implementation: str, arguments: dict[str, Any]) -> str:
        """Why an implementation does not take the weight in a product with one token; empty where it says nothing."""
        assert self.weight is not None
        shape = (1,) if self.groups == 1 else (1, self.groups)
        x, y = (torch.empty(*shape, size, dtype=torch.bfloat16, device=self.weight.device) for size in (self.k, self.n))
        query = torch.ops.strata.linear_implementations if self.groups == 1 else torch.ops.strata.grouped_linear_implementations
        try:
            text: str = query(x=x, y=y, **{name: value for name, value in arguments.items() if name != "packing"})
        except RuntimeError:
            return ""
        reason = dict(line.split(": ", 1) for line in text.splitlines()).get(implementation, "eligible")
        return "" if reason == "eligible" else f"{implementation} {reason}"


@dataclasses.dataclass(eq=False, repr=False)
class KeyInsert(_Record):
    """Epilogue of rms_norm_pair: rotates, quantises and inserts the normalised key, as qnorm_rope_kv_insert does.

    slot_mapping i64 [N_ins], N_ins <= T; positions i64 [T]; cos_sin f32 [max_positions, R]; cache of row_dim Nkv, written.
    """

    slot_mapping: torch.Tensor
    positions: torch.Tensor
    cos_sin: torch.Tensor
    cache: PagedCache


@dataclasses.dataclass(eq=False, repr=False)
class StateSave(_Record):
    """Prologue of compress_norm_rope_store: the step's saves. kv_score f32 [T, 2*coff*d]; ape f32 [ratio, coff*d]."""

    kv_score: torch.Tensor
    ape: torch.Tensor


@dataclasses.dataclass(eq=False, repr=False)
class IndexerQuery(_Record):
    """Prologue of indexer_topk: computes the query as indexer_query does. Fields as in indexer_query."""

    q: torch.Tensor
    weights: torch.Tensor
    positions: torch.Tensor
    softmax_scale: float
    head_scale: float
    cos_sin: torch.Tensor | None = None
    pairing: int = RopePairing.interleaved
    rope_slice: int = RopeSlice.last
    hadamard: bool = False
    amax_floor: float = 1e-4


@dataclasses.dataclass(eq=False, repr=False)
class TopkSlots(_Record):
    """Epilogue of indexer_topk: the selected entries of the first S tokens as slots of another cache.

    block_table i32 [R, max_blocks]; page_size rows per page; slots i32 [S, k] and lens i32 [S], written.
    """

    block_table: torch.Tensor
    page_size: int
    slots: torch.Tensor
    lens: torch.Tensor


@dataclasses.dataclass(eq=False, repr=False)
class QueryNormRope(_Record):
    """Prologue of sparse_attn_decode: q := qnorm_rope(q). positions i64 [T]; cos_sin f32 [max_positions, R], R <= D."""

    positions: torch.Tensor
    cos_sin: torch.Tensor
    eps: float = 1e-6


@dataclasses.dataclass(eq=False, repr=False)
class InverseRope(_Record):
    """Epilogue of sparse_attn_decode: out := inverse_rope(out). positions i64 [T]; cos_sin f32 [max_positions, R], R <= Dv."""

    positions: torch.Tensor
    cos_sin: torch.Tensor
