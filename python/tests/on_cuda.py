"""Runs a case on the current CUDA device, and copies what it writes back into the case's own tensors."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from case import Case


def _moved(value: Any, pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> Any:
    if isinstance(value, torch.Tensor):
        for host, device in pairs:
            if host is value:
                return device
        moved = value.cuda()
        pairs.append((value, moved))
        return moved
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        changed = {field.name: _moved(getattr(value, field.name), pairs) for field in dataclasses.fields(value)}
        return dataclasses.replace(value, **changed)
    return value


def run(case: Case, *, graph: bool = False) -> None:
    pairs: list[tuple[torch.Tensor, torch.Tensor]] = []
    arguments = {name: _moved(value, pairs) for name, value in case.arguments.items()}
    if graph:
        # A first call outside the graph, on memory of its own; then the captured one.
        case.op(**{name: _moved(value, []) for name, value in case.arguments.items()})
        torch.cuda.synchronize()
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured):
            case.op(**arguments)
        captured.replay()
    else:
        case.op(**arguments)
    torch.cuda.synchronize()
    for host, device in pairs:
        host.copy_(device)
