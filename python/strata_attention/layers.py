"""The attention layers of a checkpoint."""

from __future__ import annotations

import ctypes
import enum
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from . import _c_api
from ._device import Device, Owner
from ._memory import view
from .batch import BatchBuilder
from .checkpoint import Checkpoint
from .communicator import Communicator
from .pool import BatchLimits, CacheGroup, CacheGroupSpec, Pool, paged_cache, specs_of
from .types import KvFormat, PagedCache


class IndexerFormat(enum.IntEnum):
    """Format of indexer queries and keys."""

    fp8 = 0
    mxfp4 = 1
    none = 2


class PrefillMode(enum.IntEnum):
    """How prefill tokens of V4 and of sparse MLA layers read their keys."""

    automatic = 0
    gathered = 1
    paged = 2


class MlaMode(enum.IntEnum):
    """The form in which a dense MLA layer attends."""

    automatic = 0
    mha = 1
    mqa = 2


def _require(name: str, given: object, kind: type) -> None:
    if not isinstance(given, kind):
        raise TypeError(f"Layer.forward: {name} must be a {kind.__name__}, is {type(given).__name__}")


def _created(params: Any) -> int:
    try:
        return _c_api.handle("strata_layer_create", ctypes.byref(params))
    except RuntimeError as error:
        # The format of another model is an argument that cannot be.
        raise (ValueError(f"Layer: {error}") if str(error).startswith("kv_format ") else error) from None


class _Shared:
    """Rotary tables and side streams of a model's layers, which the layers keep."""

    def __init__(self, device: Device, max_positions: int) -> None:
        self.tables = Owner(_c_api.handle("strata_rope_tables_create", device._handle, max_positions), "strata_rope_tables_destroy")
        self.streams = Owner(_c_api.handle("strata_side_streams_create", device._handle), "strata_side_streams_destroy")


class Layer(Owner):
    """One attention layer: bf16 hidden states in, bf16 hidden states out.

    checkpoint, layer   whose weights it loads, and which of its layers
    limits              of the builder whose batches it gets
    device              where weights are loaded and work runs
    share               another layer of the model: rotary tables and side streams are shared with it
    communicator        sums the outputs of all ranks; tp_rank and tp_size are its own. Absent with tp_size above 1: the output is the
                        rank's part of the sum
    Options as in strata/attention.h; kv_format None: fp8_ds_mla_v4 for V4, bf16 for MLA.

    Attributes:
    limits           BatchLimits, as given
    device           torch.device of weights and work
    index            the layer's number in the model
    kind             "window", "c4", "c128", "mla", "mla_sparse"
    compress_ratio   positions per compressed entry
    hidden_size      width of hidden states
    num_heads        query heads of this rank
    index_topk       entries that the indexer selects; 0: the layer attends to every position
    weight_bytes     memory of the weights
    workspace_bytes  size of forward's workspace, at any address
    cache_groups     the caches that forward needs
    """

    #: As given.
    limits: BatchLimits
    #: Of weights and work.
    device: torch.device
    #: The layer's number in the model.
    index: int
    #: "window", "c4", "c128", "mla", "mla_sparse"
    kind: str
    #: Positions per compressed entry.
    compress_ratio: int
    #: Width of hidden states.
    hidden_size: int
    #: Query heads of this rank.
    num_heads: int
    #: Entries that the indexer selects; 0: the layer attends to every position.
    index_topk: int
    #: Memory of the weights, in bytes.
    weight_bytes: int
    #: Size of forward's workspace in bytes, at any address.
    workspace_bytes: int
    #: The caches that forward needs.
    cache_groups: list[CacheGroupSpec]

    def __init__(
        self,
        checkpoint: Checkpoint,
        layer: int,
        limits: BatchLimits,
        device: torch.device | str = "cpu",
        *,
        share: Layer | None = None,
        kv_format: KvFormat | None = None,
        indexer_format: IndexerFormat = IndexerFormat.fp8,
        hadamard: bool = False,
        fp8_output: bool = False,
        quantize_activations: bool = True,
        prefill_mode: PrefillMode = PrefillMode.automatic,
        mla_mode: MlaMode = MlaMode.automatic,
        context_chunk_rows: int = 0,
        kv_scale_ue8m0: bool = False,
        rotary_embedding: bool = True,
        batch_invariant: bool = False,
        communicator: Communicator | None = None,
        tp_rank: int | None = None,
        tp_size: int | None = None,
    ) -> None:
        if not isinstance(checkpoint, Checkpoint):
            raise TypeError(f"Layer: checkpoint must be a Checkpoint, is {type(checkpoint).__name__}")
        self._device = Device.of(device)
        if share is not None and share._device is not self._device:
            raise ValueError(f"Layer: share must be on {self._device.torch}, is on {share._device.torch}")
        self._shared: _Shared = share._shared if share is not None else _Shared(self._device, limits.max_model_len)
        if communicator is not None and not isinstance(communicator, Communicator):
            raise TypeError(f"Layer: communicator must be a Communicator, is {type(communicator).__name__}")
        self._communicator = communicator
        rank = tp_rank if tp_rank is not None else communicator.rank if communicator is not None else 0
        size = tp_size if tp_size is not None else communicator.size if communicator is not None else 1
        given = limits._struct()
        options = _c_api.struct(
            "strata_layer_options",
            limits=ctypes.addressof(given),
            kv_format=_c_api.KV_FAMILY_DEFAULT if kv_format is None else kv_format,
            indexer_format=indexer_format,
            hadamard=hadamard,
            fp8_output=fp8_output,
            quantize_activations=quantize_activations,
            prefill_mode=prefill_mode,
            mla_mode=mla_mode,
            context_chunk_rows=context_chunk_rows,
            kv_scale_ue8m0=kv_scale_ue8m0,
            rotary_embedding=rotary_embedding,
            batch_invariant=batch_invariant,
            tp_rank=rank,
            tp_size=size,
        )
        params = _c_api.struct(
            "strata_layer_params",
            checkpoint=checkpoint._handle,
            layer=layer,
            device=self._device._handle,
            options=ctypes.addressof(options),
            rope_tables=self._shared.tables._handle,
            communicator=communicator._handle if communicator is not None else 0,
            side_streams=self._shared.streams._handle,
        )
        super().__init__(_created(params), "strata_layer_destroy")
        info = _c_api.struct("strata_layer_info")
        _c_api.call("strata_layer_get_info", self._handle, ctypes.byref(info))
        self.limits = limits
        self.device = self._device.torch
        self.index = info.layer_index
        self.compress_ratio = info.compress_ratio
        self.kind = info.kind.decode()
        self.hidden_size = info.hidden_size
        self.num_heads = info.num_heads
        self.index_topk = info.index_topk
        self.weight_bytes = info.weight_bytes
        # The library's is for memory that begins at a multiple of 256.
        self.workspace_bytes = info.workspace_bytes + 255
        self.cache_groups = specs_of("strata_layer_cache_groups", self._handle)

    def forward(
        self,
        hidden: torch.Tensor,
        batch: BatchBuilder,
        pool: Pool | None = None,
        *,
        caches: Mapping[CacheGroup, PagedCache] | None = None,
        out: torch.Tensor | None = None,
        topk_indices: torch.Tensor | None = None,
        skip_topk: bool = False,
        llama_4_scaling: torch.Tensor | None = None,
        q_tap: torch.Tensor | None = None,
        attn_out_tap: torch.Tensor | None = None,
        workspace: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """The layer's output for the batch's tokens, on torch's current stream.

        hidden           bf16 [T, hidden_size], already normalised
        batch            the builder, whose last step is the batch
        pool, caches     a pool that was made with this layer, or the engine's own pages of every group
        out              written and returned: bf16 [T, hidden_size], may be hidden; absent: a new tensor
        topk_indices     i32 [max_num_batched_tokens, index_topk]; absent: the batch's buffer, which all layers share
        skip_topk        read the stored rows of topk_indices instead of selecting
        llama_4_scaling  f32 [T], MLA only
        q_tap            written: bf16 [T, H, D], the rotated queries
        attn_out_tap     written: bf16 [T, H, D], the attention output
        workspace        u8 [workspace_bytes], contiguous; absent: from torch
        """
        if torch.compiler.is_dynamo_compiling():
            # Imported here alone: torch.compiler.disable would load the compiler with this package.
            torch._dynamo.graph_break(msg="Layer.forward cannot be in a graph of torch.compile: leave out fullgraph=True")
        if (pool is None) == (caches is None):
            raise ValueError("Layer.forward: exactly one of pool and caches is required")
        _require("hidden", hidden, torch.Tensor)
        _require("batch", batch, BatchBuilder)
        if pool is not None:
            _require("pool", pool, Pool)
        if workspace is not None:
            _require("workspace", workspace, torch.Tensor)
        if out is None:
            out = torch.empty(hidden.shape, dtype=torch.bfloat16, device=self.device)
        if topk_indices is None and self.index_topk > 0:
            topk_indices = batch._topk_buffer(self.index_topk)
        if workspace is None:
            workspace = torch.empty(self.workspace_bytes, dtype=torch.uint8, device=self.device)
        skipped = -workspace.data_ptr() % 256
        args = _c_api.struct(
            "strata_forward_args",
            batch=batch._handle,
            hidden=view(hidden, "hidden", self.device),
            out=view(out, "out", self.device),
            topk_indices=view(topk_indices, "topk_indices", self.device),
            skip_topk=skip_topk,
            llama_4_scaling=view(llama_4_scaling, "llama_4_scaling", self.device),
            q_tap=view(q_tap, "q_tap", self.device),
            attn_out_tap=view(attn_out_tap, "attn_out_tap", self.device),
            workspace=workspace.data_ptr() + skipped,
            workspace_bytes=max(workspace.numel() - skipped, 0),
        )
        if workspace.dtype != torch.uint8 or not workspace.is_contiguous() or workspace.device != self.device:
            raise ValueError(f"Layer.forward: workspace must be contiguous u8 on {self.device}, is {workspace.dtype} on {workspace.device}")
        structs = []
        if pool is not None:
            args.pool, args.pool_layer = pool._handle, pool._number_of(self)
        else:
            pointers = (ctypes.c_void_p * _c_api.NUM_CACHE_GROUPS)()
            for group, cache in (caches or {}).items():
                found = paged_cache(cache)
                structs.append(found)
                pointers[CacheGroup(group)] = ctypes.addressof(found)
            args.caches, args.num_caches = ctypes.cast(pointers, ctypes.c_void_p), _c_api.NUM_CACHE_GROUPS
        with self._device.stream() as stream:
            args.stream = stream
            self._call_forward(args)
        return out

    __call__ = forward

    def _call_forward(self, args: Any) -> None:
        try:
            _c_api.call("strata_layer_forward", self._handle, ctypes.byref(args))
        except (ValueError, RuntimeError) as error:
            failure = self._communicator._failure() if self._communicator is not None else None
            if failure is None:
                raise
            if not isinstance(failure, Exception):
                raise failure from None
            raise RuntimeError(f"{error}: {type(failure).__name__}: {failure}") from failure


def load_layers(
    checkpoint: Checkpoint, limits: BatchLimits, device: torch.device | str = "cpu", layers: Iterable[int] | None = None, **options: Any
) -> list[Layer]:
    """All attention layers of a checkpoint, or those of these numbers, with one set of rotary tables and side streams."""
    if not isinstance(checkpoint, Checkpoint):
        raise TypeError(f"load_layers: checkpoint must be a Checkpoint, is {type(checkpoint).__name__}")
    found: list[Layer] = []
    for number in checkpoint.layers if layers is None else layers:
        found.append(Layer(checkpoint, number, limits, device, share=found[0] if found else None, **options))
    return found
