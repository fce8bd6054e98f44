"""Checks of arguments that FlashMLA's functions have and the ops have not."""

from __future__ import annotations

from typing import NoReturn

import torch


def require(condition: bool, function: str, text: str) -> None:
    """ValueError with the function's name."""
    if not condition:
        raise ValueError(f"{function}: {text}")


def refuse_dtype(function: str, name: str, tensor: torch.Tensor) -> NoReturn:
    """Kernels are of bfloat16 alone; float16 is named, because FlashMLA's dense decode takes it."""
    note = " (float16 is not supported)" if tensor.dtype == torch.float16 else ""
    raise ValueError(f"{function}: {name} must be torch.bfloat16, is {tensor.dtype}{note}")


def require_bf16(function: str, **tensors: torch.Tensor) -> None:
    for name, tensor in tensors.items():
        if tensor.dtype != torch.bfloat16:
            refuse_dtype(function, name, tensor)


def require_dim(function: str, dim: int, **tensors: torch.Tensor) -> None:
    for name, tensor in tensors.items():
        if tensor.dim() != dim:
            raise ValueError(f"{function}: {name} must have {dim} dimensions, has {tensor.dim()}")
