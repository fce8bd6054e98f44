"""Sums over tensor-parallel ranks, for the layers of one rank."""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections.abc import Callable
from typing import Any

import torch

from . import _c_api
from ._device import Owner
from ._memory import tensor_of

_OK, _DEVICE_FAILURE = 0, 6  # STRATA_OK, STRATA_DEVICE_FAILURE
_AllReduce = ctypes.CFUNCTYPE(
    ctypes.c_int32, ctypes.c_void_p, ctypes.POINTER(_c_api.types["strata_tensor_view"]), _c_api.types["strata_device_id"], ctypes.c_void_p
)


class Communicator(Owner):
    """What a layer needs of its ranks: ``rank``, ``size`` and a sum. One object serves all layers of a rank, and may be used by threads.

    Not made directly: ``SingleRank``, ``FunctionCommunicator`` and ``ProcessGroup`` are communicators.
    """

    def __init__(self, handle: int) -> None:
        super().__init__(handle, "strata_communicator_destroy")
        #: This rank, in [0, size).
        self.rank: int = _c_api.result("strata_communicator_rank", ctypes.c_int32, handle)
        #: The number of ranks.
        self.size: int = _c_api.result("strata_communicator_size", ctypes.c_int32, handle)

    def _failure(self) -> BaseException | None:
        """What this thread's last sum has raised, once."""
        return None


class SingleRank(Communicator):
    """For a model that is not split: the sum over ranks is the tensor itself."""

    def __init__(self) -> None:
        super().__init__(_c_api.handle("strata_communicator_single"))


class FunctionCommunicator(Communicator):
    """A communicator of a Python function.

    all_reduce_sum  called with a contiguous bf16 or f32 tensor in the library's memory, of any extent, 0 included: puts the sum over all
                    ranks in its place. On a GPU it runs on torch's current stream; the call may return before the sum is there. A layer
                    calls it once, at the end of every forward, on the thread of the forward. The tensor is valid until it returns.
    rank, size      this rank, in [0, size), and the number of ranks

    What the function raises becomes the RuntimeError of the forward, with its text. Other ranks then still wait for this one.
    """

    def __init__(self, all_reduce_sum: Callable[[torch.Tensor], object], rank: int, size: int) -> None:
        if not callable(all_reduce_sum):
            raise TypeError(f"FunctionCommunicator: all_reduce_sum must be a function, is {type(all_reduce_sum).__name__}")
        self._raised = raised = threading.local()

        def call(_user: int | None, view: Any, device_id: Any, stream: int | None) -> int:
            try:
                device = torch.device("cuda", device_id.index) if device_id.kind else torch.device("cpu")
                with _on(device, stream or 0):
                    tensor = tensor_of(view.contents, device, None)
                    assert tensor is not None
                    all_reduce_sum(tensor)
                return _OK
            except BaseException as error:  # noqa: BLE001 - nothing may leave through C
                raised.error = error
                return _DEVICE_FAILURE

        # Lives as long as this object, which the layers keep.
        self._function = _AllReduce(call)
        callbacks = _c_api.struct(
            "strata_communicator_callbacks", rank=rank, size=size, all_reduce_sum=ctypes.cast(self._function, ctypes.c_void_p).value
        )
        super().__init__(_c_api.handle("strata_communicator_create", ctypes.byref(callbacks)))

    def _failure(self) -> BaseException | None:
        error: BaseException | None = self._raised.__dict__.pop("error", None)
        return error


class ProcessGroup(FunctionCommunicator):
    """A communicator over a process group of ``torch.distributed``: gloo on CPUs, nccl on GPUs.

    group  absent: the default group. ValueError where torch.distributed is not initialised and where this process is not of the group
    """

    def __init__(self, group: Any = None) -> None:
        distributed = torch.distributed
        if not distributed.is_available() or not distributed.is_initialized():
            raise ValueError("ProcessGroup: torch.distributed must be initialised (init_process_group), is not")
        rank = distributed.get_rank(group)
        if rank < 0:
            raise ValueError("ProcessGroup: this process must be of the group, is not")

        def all_reduce(tensor: torch.Tensor) -> None:
            distributed.all_reduce(tensor, group=group)

        super().__init__(all_reduce, rank, distributed.get_world_size(group))


def _on(device: torch.device, stream: int) -> contextlib.AbstractContextManager[Any]:
    """Makes a stream torch's current one, where it is not."""
    if device.type == "cpu" or torch.cuda.current_stream(device).cuda_stream == stream:
        return contextlib.nullcontext()
    if stream == 0:
        return torch.cuda.stream(torch.cuda.default_stream(device))
    return torch.cuda.stream(torch.cuda.ExternalStream(stream, device=device))  # type: ignore[no-untyped-call]
