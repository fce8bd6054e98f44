"""Checkpoints in the official format."""

from __future__ import annotations

import ctypes
import json
import os
from typing import Any

from . import _c_api
from ._device import Owner


def _path(directory: str | os.PathLike[str]) -> bytes:
    path = os.fsencode(directory)
    if b"\0" in path:
        raise ValueError(f"directory must be a path without a null character, is {directory!r}")
    return path


class Checkpoint(Owner):
    """A directory with config.json and safetensors, in the official format. ValueError for files that cannot be.

    Attributes:
    config  config.json in the official spelling
    """

    #: config.json in the official spelling.
    config: dict[str, Any]

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        super().__init__(_c_api.handle("strata_checkpoint_open", _path(directory), None), "strata_checkpoint_destroy")
        config = _c_api.handle("strata_checkpoint_get_config", self._handle)
        try:
            size = _c_api.result("strata_model_config_to_json", ctypes.c_int64, config, None, 0)
            text = ctypes.create_string_buffer(size)
            _c_api.call("strata_model_config_to_json", config, text, size, None)
        finally:
            _c_api.call("strata_model_config_destroy", config)
        self.config = json.loads(text.value)

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
        _c_api.call("strata_synthesize_checkpoint", config, ctypes.byref(options), _path(directory), None, None)
    finally:
        _c_api.call("strata_model_config_destroy", config)
