"""Multi-head Latent Attention: preparation of queries and keys."""

from __future__ import annotations

import torch

from .._binding import op
from ..types import PagedCache, RopePairing, RopeSlice


@op
def mla_rope_kv_insert(
    q: torch.Tensor,
    c: torch.Tensor,
    k_pe: torch.Tensor,
    *,
    positions: torch.Tensor | None = None,
    cos_sin: torch.Tensor | None = None,
    llama_4_scaling: torch.Tensor | None = None,
    q_pe_out: torch.Tensor | None = None,
    slot_mapping: torch.Tensor | None = None,
    cache: PagedCache | None = None,
    ue8m0: bool = False,
    next_weights: torch.Tensor | None = None,
    workspace: torch.Tensor | None = None,
) -> None:
    """Rotation of query and key in place, and the cache write: cache row slot_mapping[t] = concat(c[t], k_pe[t]).

    q                in place: bf16 [T, H, P + R], last dimension contiguous
    c                bf16 [T, L], after kv_a_layernorm
    k_pe             in place: bf16 [T, R]
    positions        i64 [T]; absent without cos_sin
    cos_sin          f32 [max_positions, R]; absent: no rotary embedding
    llama_4_scaling  f32 [T], factors of q
    q_pe_out         written: bf16 [N_out, H, R], N_out <= T: q[t, :, P:]
    slot_mapping     i64 [N_ins], N_ins <= T; absent: no cache write
    cache            written: bf16, fp8_tensor, fp8_ds_mla; row_dim L + R
    ue8m0            fp8_ds_mla: power-of-two scales
    """


@op
def indexer_key_insert(
    k: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    slot_mapping: torch.Tensor,
    cache: PagedCache,
    *,
    eps: float = 1e-6,
    positions: torch.Tensor | None = None,
    cos_sin: torch.Tensor | None = None,
    pairing: int = RopePairing.half_split,
    rope_slice: int = RopeSlice.first,
    hadamard: bool = False,
    next_weights: torch.Tensor | None = None,
    workspace: torch.Tensor | None = None,
) -> None:
    """Keys of V3.2's indexer: LayerNorm, rotation, optional Hadamard, quantisation, insertion.

    k             bf16 [T, Di], before the norm
    weight, bias  f32 [Di]
    slot_mapping  i64 [N_ins], N_ins <= T; negative: skip
    cache         written: indexer_fp8 (Di = 128) or bf16; row_dim Di
    eps           of the LayerNorm, added to the variance
    positions     i64 [T]; absent without cos_sin
    cos_sin       f32 [max_positions, R], R <= Di; absent: no rotation
    pairing       RopePairing: which two elements form a pair
    rope_slice    RopeSlice: which R of Di dimensions are rotated
    hadamard      Di must be a power of two
    """
