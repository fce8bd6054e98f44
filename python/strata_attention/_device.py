"""Handles of the C API with an owner, and the library's devices for those of torch."""

from __future__ import annotations

import ctypes
import threading
import weakref
from typing import Any

import torch

from . import _c_api


class Owner:
    """Owns a handle. Objects keep alive what they were made from, so that they can be destroyed in any order."""

    def __init__(self, handle: int, destroy: str) -> None:
        self._handle = handle
        self._destroyed = weakref.finalize(self, _c_api.call, destroy, handle)

    def __reduce_ex__(self, _protocol: Any) -> Any:
        """The handle is of this process, and has one owner."""
        raise TypeError(f"{type(self).__name__}: cannot be copied or pickled")


class Device(Owner):
    """A device of the library for one of torch's, opened once."""

    _opened: dict[str, Device] = {}
    _lock = threading.Lock()

    def __init__(self, name: str) -> None:
        config = _c_api.struct("strata_config", from_environment=1)
        super().__init__(_c_api.handle("strata_device_open", name.encode(), ctypes.byref(config)), "strata_device_close")
        self.torch = torch.device(name)
        self.id = _c_api.types["strata_device_id"](1 if self.torch.type == "cuda" else 0, self.torch.index or 0)

    @classmethod
    def of(cls, device: torch.device | str) -> Device:
        device = torch.device(device)
        if device.type == "cuda" and device.index is None:
            try:
                device = torch.device("cuda", torch.cuda.current_device())
            except (RuntimeError, AssertionError):
                cls("cuda:0")  # Whether the build has the backend comes before torch's own reason.
                raise
        name = "cpu" if device.type == "cpu" else str(device)
        with cls._lock:
            if name not in cls._opened:
                cls._opened[name] = cls(name)
            return cls._opened[name]

    def stream(self) -> Stream:
        return Stream(self)


class Stream:
    """torch's current stream while a call runs."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._handle = 0

    def __enter__(self) -> int:
        if self._device.torch.type == "cuda":
            native = torch.cuda.current_stream(self._device.torch).cuda_stream
            self._handle = _c_api.handle("strata_stream_wrap", self._device._handle, native)
        return self._handle

    def __exit__(self, *_error: object) -> None:
        if self._handle:
            _c_api.call("strata_stream_destroy", self._handle)
