"""Strata: DeepSeek's attention layers as ops of torch. docs/python.md is the guide."""

from __future__ import annotations

import torch

from . import _library
from .layers import (BatchBuilder, BatchInfo, BatchLimits, BatchTensor, CacheGroup, CacheGroupSpec, Checkpoint, IndexerFormat, Layer, MlaMode,
                     Pool, PrefillMode, Request, load_layers, synthesize)
from .ops import *  # noqa: F403
from .ops import __all__ as _ops
from .types import (ActivationFormat, IndexerQuery, InverseRope, KeyInsert, KvFormat, LinearWeight, PagedCache, QueryNormRope,
                    RopePairing, RopeSlice, StateSave, TopkSlots)

#: MAJOR.MINOR.PATCH of the library in this package.
__version__: str = torch.ops.strata.version()


def describe_device(device: torch.device | str = "cpu") -> str:
    """One line for users: the chip, its features, memory, threads. RuntimeError where the build or the machine lacks the device."""
    try:
        return torch.ops.strata.describe_device(str(device))
    except RuntimeError as error:
        raise _library.translated(error) from None


def weight_packings() -> list[str]:
    """Names for LinearWeight.pack: the implementations of linear with weights in a layout of their own."""
    return torch.ops.strata.weight_packings().splitlines()


__all__ = [*_ops, "ActivationFormat", "BatchBuilder", "BatchInfo", "BatchLimits", "BatchTensor", "CacheGroup", "CacheGroupSpec", "Checkpoint",
           "IndexerFormat", "Layer", "MlaMode", "Pool", "PrefillMode", "Request", "load_layers", "synthesize", "IndexerQuery", "InverseRope", "KeyInsert", "KvFormat", "LinearWeight", "PagedCache", "QueryNormRope",
           "RopePairing", "RopeSlice", "StateSave", "TopkSlots", "describe_device", "weight_packings"]
