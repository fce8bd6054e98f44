"""A case's arguments as those of torch.ops.strata, by the scheme of docs/python.md. Shares no code with the package."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from case import Case

from strata_attention import LinearWeight, PagedCache


def _flat(name: str, value: Any) -> dict[str, Any]:
    if not dataclasses.is_dataclass(value):
        if isinstance(value, torch.Tensor) and value.dtype == torch.float8_e8m0fnu:
            value = value.view(torch.uint8)
        return {name: value}
    main = {PagedCache: "tensor", LinearWeight: "weight"}.get(type(value))
    result: dict[str, Any] = {}
    for field in dataclasses.fields(value):
        result |= _flat(name if field.name == main else f"{name}_{field.name}", getattr(value, field.name))
    return result


def flat(case: Case) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for name, value in case.arguments.items():
        result |= _flat(name, value)
    return result


def torch_op(case: Case) -> Any:
    return getattr(torch.ops.strata, case.op.__name__).default
