"""Tensors of torch as views of the library, and the library's memory as tensors."""

from __future__ import annotations

import ctypes
from typing import Any

import torch

from . import _c_api

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


def view(tensor: torch.Tensor | None, name: str, device: torch.device) -> Any:
    """A view of a tensor's memory; all zero for None."""
    if tensor is None:
        return _c_api.struct("strata_tensor_view")
    if not isinstance(tensor, torch.Tensor) or tensor.layout != torch.strided:
        raise ValueError(
            f"{name} must be a strided tensor, is {tensor.layout if isinstance(tensor, torch.Tensor) else type(tensor).__name__}"
        )
    if tensor.dtype not in _DTYPES or not 1 <= tensor.dim() <= 4:
        raise ValueError(f"{name} must have 1 to 4 dimensions and a dtype of ops, is {tensor.dtype} with {tensor.dim()} dimensions")
    kind = {"cpu": 0, "cuda": 1}.get(tensor.device.type)
    if kind is None:
        raise ValueError(f"{name} must be on {device}, is on {tensor.device}")
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


def bytes_of(address: int | None, size: int, device: torch.device, owner: object) -> torch.Tensor:
    """Memory of the library as u8 [size]. The tensor keeps its owner."""
    if not address or size == 0:
        return torch.empty(0, dtype=torch.uint8, device=device)
    if device.type == "cuda":
        return torch.as_tensor(_CudaMemory(address, size, owner), device=device)
    memory = (ctypes.c_uint8 * size).from_address(address)
    memory.owner = owner  # type: ignore[attr-defined]
    return torch.frombuffer(memory, dtype=torch.uint8)


def tensor_of(view: Any, device: torch.device, owner: object) -> torch.Tensor | None:
    """A view of the library as a tensor; None for an absent one."""
    if view.rank == 0:
        return None
    dtype, shape, stride = _TORCH_DTYPES[view.dtype], list(view.shape)[: view.rank], list(view.stride)[: view.rank]
    if 0 in shape:
        return torch.empty(shape, dtype=dtype, device=device)
    size = (1 + sum((extent - 1) * step for extent, step in zip(shape, stride))) * dtype.itemsize
    return bytes_of(view.data, size, device, owner).view(dtype).as_strided(shape, stride)
