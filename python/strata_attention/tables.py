"""Rotary tables, the ``cos_sin`` of ops."""

from __future__ import annotations

import ctypes

import torch

from . import _c_api
from ._device import Device
from ._memory import view


def rope_table(
    max_positions: int,
    *,
    dim: int = 64,
    theta: float = 10000.0,
    factor: float = 1.0,
    original_max_position: int = 0,
    beta_fast: float = 32.0,
    beta_slow: float = 1.0,
    truncate: bool = True,
    mscale_gain: float = 1.0,
    device: torch.device | str = "cpu",
) -> torch.Tensor:
    """f32 [max_positions, dim]: row p is cos(p * f), then sin(p * f), for dim / 2 frequencies f.

    dim                    R, the number of rotary dimensions
    theta                  base of the frequencies
    factor                 YaRN: by how much the context is extended; 1: no YaRN
    original_max_position  YaRN: positions before the extension
    beta_fast, beta_slow   YaRN: rotations where the ramp begins and ends
    truncate               YaRN: the bounds of the ramp are rounded outward to whole pairs
    mscale_gain            factor of cos and sin: 1 for V4
    """
    owner = Device.of(device)
    config = _c_api.struct(
        "strata_rope_config",
        dim=dim,
        theta=theta,
        factor=factor,
        original_max_position=original_max_position,
        beta_fast=beta_fast,
        beta_slow=beta_slow,
        truncate=truncate,
        mscale_gain=mscale_gain,
    )
    if max_positions < 1 or dim < 1:
        raise ValueError(f"rope_table: max_positions and dim must be at least 1, are {max_positions} and {dim}")
    table = torch.empty(max_positions, dim, dtype=torch.float32, device=owner.torch)
    _c_api.call("strata_rope_table_build", owner._handle, ctypes.byref(config), view(table, "table", owner.torch))
    return table
