"""flash_mla_sparse_fwd: sparse attention of many tokens over bf16 rows in memory."""

from __future__ import annotations

import torch

from .. import ops
from .checks import require, require_bf16, require_dim

_NAME = "flash_mla_sparse_fwd"


def flash_mla_sparse_fwd(
    q: torch.Tensor,
    kv: torch.Tensor,
    indices: torch.Tensor,
    sm_scale: float,
    d_v: int = 512,
    attn_sink: torch.Tensor | None = None,
    topk_length: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    enable_batch_invariant: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Attention of each token over the rows that its indices name. Returns out, max_logits and lse.

    q                       bf16 [s_q, h_q, d], d = 512 or 576, last dimension contiguous
    kv                      bf16 [s_kv, 1, d], last dimension contiguous
    indices                 i32 [s_q, 1, topk]: rows of kv; entries outside [0, s_kv) are skipped
    sm_scale                factor of <q, k>
    d_v                     values are the first d_v dimensions of a row
    attn_sink               f32 [h_q]
    topk_length             i32 [s_q], the leading indices that count
    out                     written and returned: bf16 [s_q, h_q, d_v]; None: a new tensor
    enable_batch_invariant  a token's result does not depend on the other tokens

    max_logits and lse are f32 [s_q, h_q], scaled, natural logarithm; a token without a row has out 0, max_logits -inf and lse inf.
    ValueError for arguments that cannot be.
    """
    require_dim(_NAME, 3, q=q, kv=kv, indices=indices)
    require_bf16(_NAME, q=q, kv=kv)
    require(kv.shape[1] == 1, _NAME, f"kv must have 1 head, has {kv.shape[1]}")
    require(indices.shape[1] == 1, _NAME, f"indices must have 1 head, has {indices.shape[1]}")
    if out is None:
        out = q.new_empty(q.shape[0], q.shape[1], d_v)
    else:
        require(out.dim() == 3 and out.shape[2] == d_v, _NAME, f"out must be [s_q, h_q, {d_v}], is {list(out.shape)}")
    max_logits, lse = torch.empty((2, q.shape[0], q.shape[1]), dtype=torch.float32, device=q.device).unbind()
    ops.sparse_attn_prefill(
        q,
        kv.squeeze(1),
        indices.squeeze(1),
        sm_scale,
        out,
        topk_length=topk_length,
        attn_sink=attn_sink,
        batch_invariant=enable_batch_invariant,
        lse=lse,
        max_logits=max_logits,
    )
    return out, max_logits, lse
