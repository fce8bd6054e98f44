"""DeepSeek V4 on vLLM's CUDA platform (vLLM 0.26.0). Imported when vLLM loads such a model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import vllm.models.deepseek_v4.nvidia.model as base
from vllm.compilation.breakable_cudagraph import eager_break_during_capture
from vllm.config import get_current_vllm_config
from vllm.models.deepseek_v4.nvidia.flashmla import DeepseekV4FlashMLAAttention
from vllm.utils.multi_stream_utils import execute_in_parallel

from .v4_layer import StrataV4Layer

_select_vllm = base._select_dsv4_attn_cls


class StrataV4CUDAAttention(StrataV4Layer, DeepseekV4FlashMLAAttention):  # type: ignore[misc]
    """vLLM's projections, streams and metadata; all between projections, and the output projection, by Strata."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self.take_weights(get_current_vllm_config().model_config.hf_config)

    def forward(self, positions: torch.Tensor, hidden_states: torch.Tensor, llama_4_scaling: torch.Tensor | None = None) -> torch.Tensor:
        shape = (hidden_states.shape[0], self.n_local_heads, self.head_dim)
        out = torch.empty(shape, dtype=hidden_states.dtype, device=hidden_states.device)
        qr_kv, kv_score, index_kv_score, index_weights = self.attn_gemm_parallel_execute(hidden_states)
        qr, kv = qr_kv.split([self.q_lora_rank, self.head_dim], dim=-1)
        self.attention_impl(hidden_states, qr, kv, kv_score, index_kv_score, index_weights, positions, out)
        return self._o_proj(out, positions)

    @eager_break_during_capture
    def attention_impl(
        self,
        hidden_states: torch.Tensor,
        qr: torch.Tensor,
        kv: torch.Tensor,
        kv_score: torch.Tensor | None,
        indexer_kv_score: torch.Tensor | None,
        indexer_weights: torch.Tensor | None,
        positions: torch.Tensor,
        out: torch.Tensor,
    ) -> None:
        self.prepare_and_attend(qr, kv, kv_score, indexer_kv_score, indexer_weights, positions, out)

    def run_beside(self, first: Callable[[], Any], others: list[Callable[[], None]]) -> Any:
        """On vLLM's side streams. What they allocate is used again by them alone, after they have waited for this stream."""
        streams = self.aux_stream_list
        result, _ = execute_in_parallel(
            first,
            others,
            self.ln_events[0],
            self.ln_events[1 : 1 + len(others)],
            None if streams is None else streams[: len(others)],
            enable=streams is not None and len(others) > 0,
        )
        return result


def _select(vllm_config: Any) -> type:
    """Strata's layer in place of FlashMLA's, whose pages it reads; vLLM's own choice otherwise."""
    chosen: type = _select_vllm(vllm_config)
    return StrataV4CUDAAttention if chosen is DeepseekV4FlashMLAAttention else chosen


base._select_dsv4_attn_cls = _select


class StrataDeepseekV4ForCausalLM(base.DeepseekV4ForCausalLM):  # type: ignore[misc]
    """vLLM's model; its layers, and those of its draft model, find StrataV4CUDAAttention."""
