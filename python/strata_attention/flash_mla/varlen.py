"""flash_attn_varlen_*: forward of multi-head attention over requests of different lengths."""

from __future__ import annotations

from typing import Any

import torch

from .. import ops
from .checks import require, require_bf16, require_dim

_NAME = "flash_attn_varlen_func"


def _forward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_qo: torch.Tensor,
    cu_seqlens_kv: torch.Tensor,
    max_seqlen_qo: int,
    max_seqlen_kv: int,
    causal: bool,
    softmax_scale: float | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    require_dim(_NAME, 3, q=q, k=k, v=v)
    require_bf16(_NAME, q=q, k=k, v=v)
    heads, kv_heads = q.shape[1], k.shape[1]
    require(kv_heads >= 1 and heads % kv_heads == 0, _NAME, f"q must have a multiple of the {kv_heads} heads of k, has {heads}")
    require(v.shape[1] == kv_heads, _NAME, f"v must have the {kv_heads} heads of k, has {v.shape[1]}")
    scale = q.shape[2] ** -0.5 if softmax_scale is None else softmax_scale
    group = heads // kv_heads
    out = q.new_empty(q.shape[0], heads, v.shape[2])
    lse = torch.empty((q.shape[0], heads), dtype=torch.float32, device=q.device)
    # Keys have no part that all heads share.
    shared = k.new_empty(k.shape[0], 0)
    # One call where each head has its own keys; otherwise a call for the heads that read one KV head, over views of its rows.
    calls = [(slice(0, heads), k, v)]
    if group > 1:
        calls = [
            (slice(g * group, (g + 1) * group), k[:, g : g + 1].expand(-1, group, -1), v[:, g : g + 1].expand(-1, group, -1))
            for g in range(kv_heads)
        ]
    for part, keys, values in calls:
        ops.dense_attn_prefill(
            q[:, part],
            keys,
            shared,
            values,
            max_seqlen_qo,
            max_seqlen_kv,
            scale,
            out[:, part],
            query_start_loc=cu_seqlens_qo,
            key_start_loc=cu_seqlens_kv,
            causal=causal,
            lse=lse[:, part],
        )
    return out, lse


class _Varlen(torch.autograd.Function):
    """Refuses the backward pass by name; without it a gradient would be silently absent."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Any:
        out, lse = _forward(*arguments)
        ctx.mark_non_differentiable(lse)
        return out, lse

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise RuntimeError(f"{_NAME}: the backward pass is not supported")


def flash_attn_varlen_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_qo: torch.Tensor,
    cu_seqlens_kv: torch.Tensor,
    max_seqlen_qo: int,
    max_seqlen_kv: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    deterministic: bool = False,
    is_varlen: bool = True,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention of each request's queries over its keys. Forward only. Returns out and lse.

    q                             bf16 [total_q, h, d], d <= 576
    k                             bf16 [total_k, h_k, d]; h_k divides h
    v                             bf16 [total_k, h_k, dv], dv <= 576
    cu_seqlens_qo, cu_seqlens_kv  i32 [b + 1], where each request's rows begin
    max_seqlen_qo, max_seqlen_kv  upper bounds of the lengths
    softmax_scale                 None: d ** -0.5
    causal                        bottom-right
    is_varlen                     either value: the lengths are those of cu_seqlens

    out is bf16 [total_q, h, dv], lse f32 [total_q, h], natural logarithm; a query without a key has out 0 and lse -inf.
    ValueError for arguments that cannot be. AssertionError for dropout_p and deterministic, as FlashMLA raises. RuntimeError in backward.
    """
    if dropout_p != 0.0 or deterministic:
        raise AssertionError(f"{_NAME}: dropout_p must be 0 and deterministic False, are {dropout_p} and {deterministic}")
    arguments = (q, k, v, cu_seqlens_qo, cu_seqlens_kv, max_seqlen_qo, max_seqlen_kv, causal, softmax_scale)
    if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad):
        result: tuple[torch.Tensor, torch.Tensor] = _Varlen.apply(*arguments)
        return result
    return _forward(*arguments)


def flash_attn_varlen_qkvpacked_func(
    qkv: torch.Tensor,
    cu_seqlens: torch.Tensor,
    max_seqlen: int,
    head_dim_qk: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    deterministic: bool = False,
    is_varlen: bool = True,
) -> tuple[torch.Tensor, torch.Tensor]:
    """flash_attn_varlen_func of qkv [total, h, 2 * head_dim_qk + dv]: a head's query, key and value next to each other."""
    q, k, v = qkv[:, :, :head_dim_qk], qkv[:, :, head_dim_qk : head_dim_qk * 2], qkv[:, :, head_dim_qk * 2 :]
    return flash_attn_varlen_func(
        q, k, v, cu_seqlens, cu_seqlens, max_seqlen, max_seqlen, dropout_p, softmax_scale, causal, deterministic, is_varlen
    )


def flash_attn_varlen_kvpacked_func(
    q: torch.Tensor,
    kv: torch.Tensor,
    cu_seqlens_qo: torch.Tensor,
    cu_seqlens_kv: torch.Tensor,
    max_seqlen_qo: int,
    max_seqlen_kv: int,
    head_dim_qk: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    deterministic: bool = False,
    is_varlen: bool = True,
) -> tuple[torch.Tensor, torch.Tensor]:
    """flash_attn_varlen_func of kv [total_k, h_k, head_dim_qk + dv]: a head's key and value next to each other."""
    k, v = kv[:, :, :head_dim_qk], kv[:, :, head_dim_qk:]
    return flash_attn_varlen_func(
        q, k, v, cu_seqlens_qo, cu_seqlens_kv, max_seqlen_qo, max_seqlen_kv, dropout_p, softmax_scale, causal, deterministic, is_varlen
    )
