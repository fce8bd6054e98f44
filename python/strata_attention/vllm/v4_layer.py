"""DeepSeek V4's attention layer in vLLM by Strata's ops: what all platforms share.

The layer keeps vLLM's parameters, projections, caches and metadata. Ops read and write vLLM's pages where they are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from vllm.distributed import tensor_model_parallel_all_reduce
from vllm.forward_context import get_forward_context
from vllm.model_executor.layers.linear import RowParallelLinear

import strata_attention as strata

from .v4_step import Step, current_step
from .v4_weights import InPlaceLinearMethod

#: Up to this number of tokens the selection makes the indexer's query (src/layers/launch_order/v4.cpp).
_FEW_TOKENS = 64

if TYPE_CHECKING:
    _Base = torch.nn.Module
else:
    _Base = object


class StrataV4Layer(_Base):
    """Mixed into vLLM's DeepseekV4Attention of a platform, before it. `prepare_and_attend` is the layer between projections."""

    #: Of vLLM's layer.
    compress_ratio: int
    n_local_heads: int
    n_local_groups: int
    head_dim: int
    eps: float
    scale: float
    max_model_len: int
    indexer: Any
    compressor: Any
    swa_cache_layer: Any
    rotary_emb: Any

    @classmethod
    def get_padded_num_q_heads(cls, num_heads: int) -> int:
        """Ops take any number of heads."""
        return num_heads

    def take_weights(self, config: Any) -> None:
        """To be called at the end of __init__. config: of the model."""
        quantization = getattr(config, "quantization_config", None) or {}
        ue8m0 = quantization.get("scale_fmt", "ue8m0") == "ue8m0"
        activation = strata.ActivationFormat.fp8_ue8m0 if ue8m0 else strata.ActivationFormat.fp8_f32
        self._o_norms: dict[int, torch.Tensor] = {}
        self._caches: dict[int, tuple[torch.Tensor, strata.PagedCache]] = {}
        for projection, groups in ((self.wo_a, self.n_local_groups), (self.wo_b, 1)):
            name = f"{self.prefix}.{'wo_a' if projection is self.wo_a else 'wo_b'}"
            projection.quant_method = InPlaceLinearMethod(projection.quant_method, name, groups, activation, self._o_norms.clear)

    def _norm_weight(self, norm: Any) -> torch.Tensor:
        """f32 [d]: a norm's weight as ops take it. Computed after each load."""
        found = self._o_norms.get(id(norm))
        if found is None:
            found = self._o_norms[id(norm)] = norm.weight.data.to(torch.float32).contiguous()
        return found

    def _pages(self, owner: Any, format: strata.KvFormat) -> strata.PagedCache:
        """The pages that vLLM has bound to a layer of its: pages in the first dimension, at any distance."""
        tensor: torch.Tensor = owner.kv_cache
        found = self._caches.get(id(owner))
        if found is None or found[0] is not tensor:
            found = self._caches[id(owner)] = (tensor, strata.PagedCache.of(tensor, format))
        return found[1]

    @property
    def _window_pages(self) -> strata.PagedCache:
        return self._pages(self.swa_cache_layer, strata.KvFormat.fp8_ds_mla_v4)

    @property
    def _compressed_pages(self) -> strata.PagedCache:
        return self._pages(self, strata.KvFormat.fp8_ds_mla_v4)

    @property
    def _index_pages(self) -> strata.PagedCache:
        fp4 = self.indexer.use_fp4_kv
        return self._pages(self.indexer.k_cache, strata.KvFormat.indexer_mxfp4 if fp4 else strata.KvFormat.indexer_fp8)

    def run_beside(self, first: Callable[[], Any], others: list[Callable[[], None]]) -> Any:
        """first() with the others; they do not depend on each other. Platforms with streams run them concurrently."""
        result = first()
        for other in others:
            other()
        return result

    def prepare_and_attend(
        self,
        qr: torch.Tensor,
        kv: torch.Tensor,
        kv_score: torch.Tensor | None,
        index_kv_score: torch.Tensor | None,
        index_weights: torch.Tensor | None,
        positions: torch.Tensor,
        out: torch.Tensor,
    ) -> None:
        """From the projections of the hidden states to the attention of every head.

        qr              bf16 [T, q_lora_rank], not normalised
        kv              bf16 [T, 512], not normalised
        kv_score        f32 [T, 2*coff*512], layers with a compressor
        index_kv_score  f32 [T, 2*coff*128], layers with an indexer
        index_weights   [T, index_n_heads], layers with an indexer
        positions       i64 [T]
        out             written: bf16 [T, H, 512], rotated back where `gives_unrotated`
        """
        metadata = get_forward_context().attn_metadata
        if not isinstance(metadata, dict):  # vLLM measures memory
            self._reserve(qr, out)
            return
        window = metadata[self.swa_cache_layer.prefix]
        step = current_step(positions, window, self.max_model_len)
        n = step.num_tokens
        if n < out.shape[0]:
            out[n:].zero_()
        if n == 0:
            return
        normed = torch.empty((n, qr.shape[1]), dtype=qr.dtype, device=qr.device)
        strata.rms_norm_pair(
            kv[:n],
            self._norm_weight(self.kv_norm),
            q=qr[:n],
            q_weight=self._norm_weight(self.q_norm),
            q_out=normed,
            eps=self.eps,
            insert_epilogue=strata.KeyInsert(window.slot_mapping[:n], step.positions, self._cos_sin, self._window_pages),
        )
        others: list[Callable[[], None]] = []
        rows: tuple[torch.Tensor, torch.Tensor] | None = None
        if self.indexer is not None:
            rows = self._topk_rows(step)
            slots = rows
            others.append(lambda: self._select(step, metadata, normed, index_kv_score, index_weights, slots))
        if self.compressor is not None:
            others.append(lambda: self._compress(step, metadata, self.compressor, self._compressed_pages, self.prefix, kv_score))
        q = self.run_beside(lambda: self._queries(step, normed, kv), others)
        if self.compress_ratio == 128:
            rows = step.c128(metadata[self.prefix], as_slots=True)
        self._attend(step, metadata, window, q, rows, out)

    @property
    def _cos_sin(self) -> torch.Tensor:
        table: torch.Tensor = self.rotary_emb.cos_sin_cache
        return table

    @property
    def gives_unrotated(self) -> bool:
        """Whether attention rotates its result back. e4m3 products do it while they quantise."""
        return not self.wo_a.quant_method.is_fp8

    def _queries(self, step: Step, qr: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
        """bf16 [N, H, 512]. Decode's are left raw: attention normalises and rotates them."""
        q: torch.Tensor = self.wq_b(qr).view(-1, self.n_local_heads, self.head_dim)
        first = step.num_decode_tokens
        if step.num_prefill_tokens > 0:
            rest = q[first:]
            strata.qnorm_rope_kv_insert(rest, kv[first : step.num_tokens], step.positions[first:], self._cos_sin, rest, eps=self.eps)
        return q

    def _compress(
        self, step: Step, metadata: Any, compressor: Any, pages: strata.PagedCache, owner: str, kv_score: torch.Tensor | None
    ) -> None:
        """Saves the step's states, and inserts the entries that they complete into `pages`, whose metadata are the owner's."""
        assert kv_score is not None
        state = metadata[compressor.state_cache.prefix]
        n = step.num_tokens
        strata.compress_norm_rope_store(
            self._pages(compressor.state_cache, strata.KvFormat.state_f32),
            state.block_table,
            step.token_to_req,
            step.positions,
            state.slot_mapping[:n],
            metadata[owner].slot_mapping[:n],
            self._norm_weight(compressor.norm),
            self._cos_sin,
            pages,
            ratio=self.compress_ratio,
            eps=compressor.rms_norm_eps,
            save_prologue=strata.StateSave(kv_score[:n], compressor.ape.data),
        )

    def _topk_rows(self, step: Step) -> tuple[torch.Tensor, torch.Tensor]:
        """Slots i32 [N, k] of the selected entries and their count i32 [N], not yet computed; the step's lengths are."""
        n, device = step.num_tokens, step.positions.device
        assert step.c4_lens is not None
        slots = torch.empty((n, self.indexer.topk_tokens), dtype=torch.int32, device=device)
        return slots, torch.empty(n, dtype=torch.int32, device=device)

    def _select(
        self,
        step: Step,
        metadata: Any,
        qr: torch.Tensor,
        kv_score: torch.Tensor | None,
        weights: torch.Tensor | None,
        slots: tuple[torch.Tensor, torch.Tensor],
    ) -> None:
        """The indexer: its keys, its queries, the top-k into vLLM's buffer, and their slots."""
        indexer = self.indexer
        assert weights is not None
        self._compress(step, metadata, indexer.compressor, self._index_pages, indexer.k_cache.prefix, kv_score)
        n, keys = step.num_tokens, metadata[self.prefix]
        max_length = step.max_seq_len(keys) // 4
        arguments: dict[str, Any] = {}
        if max_length > indexer.topk_tokens:
            q, _ = indexer.wq_b(qr)
            query = strata.IndexerQuery(
                q=q.view(n, indexer.n_head, indexer.head_dim),
                weights=weights[:n],
                positions=step.positions,
                softmax_scale=indexer.softmax_scale,
                head_scale=indexer.n_head**-0.5,
                cos_sin=self._cos_sin,
            )
            # Keys and indexer keys are of one group, whose table vLLM gives to both.
            table = getattr(metadata[indexer.k_cache.prefix], "block_table", None)
            arguments = {
                "cache": self._index_pages,
                "block_table": keys.block_table if table is None else table,
            }
            arguments |= {"query_prologue": query} if n <= _FEW_TOKENS else self._quantised(query)
        strata.indexer_topk(
            step.c4_lens,
            max_length,
            indexer.topk_indices_buffer[:n],
            token_to_req=step.token_to_req,
            slots_epilogue=strata.TopkSlots(keys.block_table, keys.block_size // 4, *slots),
            **arguments,
        )

    def _quantised(self, query: strata.IndexerQuery) -> dict[str, torch.Tensor]:
        """q, weights and with MXFP4 q_scale of indexer_topk."""
        n, heads, dim = query.q.shape
        device = query.q.device
        weights = torch.empty((n, heads), dtype=torch.float32, device=device)
        result = {"weights": weights}
        if self.indexer.use_fp4_kv:
            result["q"] = torch.empty((n, heads, dim // 2), dtype=torch.uint8, device=device)
            result["q_scale"] = torch.empty((n, heads, dim // 32), dtype=torch.uint8, device=device)
        else:
            result["q"] = torch.empty((n, heads, dim), dtype=torch.float8_e4m3fn, device=device)
        strata.indexer_query(
            query.q,
            query.weights,
            query.positions,
            query.softmax_scale,
            query.head_scale,
            result["q"],
            weights,
            cos_sin=query.cos_sin,
            q_scale_out=result.get("q_scale"),
        )
        return result

    def _attend(
        self,
        step: Step,
        metadata: Any,
        window: Any,
        q: torch.Tensor,
        rows: tuple[torch.Tensor, torch.Tensor] | None,
        out: torch.Tensor,
    ) -> None:
        """Attention of every token to its window and to the rows of compressed keys (slots and counts), straight from the pages."""
        decodes = step.num_decode_tokens
        parts = (
            (True, slice(0, decodes), window.decode_swa_indices, window.decode_swa_lens),
            (False, slice(decodes, step.num_tokens), window.prefill_swa_indices, window.prefill_swa_lens),
        )
        for is_decode, part, indices, lens in parts:
            count = part.stop - part.start
            if count == 0:
                continue
            positions = step.positions[part]
            extra: dict[str, Any] = {}
            if rows is not None:
                extra = {
                    "extra_cache": self._compressed_pages,
                    "extra_indices": rows[0][part].unsqueeze(1),
                    "extra_topk_length": rows[1][part],
                }
            if is_decode:
                extra["query_prologue"] = strata.QueryNormRope(positions, self._cos_sin, self.eps)
            if self.gives_unrotated:
                extra["out_epilogue"] = strata.InverseRope(positions, self._cos_sin)
            strata.sparse_attn_decode(
                q[part].unsqueeze(1),
                self._window_pages,
                indices.view(indices.shape[0], 1, -1)[:count],
                self.scale,
                out[part].unsqueeze(1),
                topk_length=lens[:count],
                attn_sink=self.attn_sink.data,
                **extra,
            )

    def _reserve(self, qr: torch.Tensor, out: torch.Tensor) -> None:
        """Takes as much memory at once as a step of these tokens, so that vLLM leaves it free. The result is zeros."""
        out.zero_()
        tokens, device = out.shape[0], out.device
        rows = {1: 0, 4: self.indexer.topk_tokens if self.indexer is not None else 0, 128: -(-self.max_model_len // 16384) * 128}
        q = torch.empty((tokens, 1, self.n_local_heads, self.head_dim), dtype=out.dtype, device=device)
        indices = torch.zeros((tokens, 1, self.swa_cache_layer.window_size), dtype=torch.int32, device=device)
        page = strata.PagedCache.empty(strata.KvFormat.fp8_ds_mla_v4, 1, 64, device=device)
        extra: dict[str, Any] = {}
        if rows[self.compress_ratio] > 0:
            slots = torch.empty((tokens, 1, rows[self.compress_ratio]), dtype=torch.int32, device=device)
            extra = {"extra_cache": page, "extra_indices": slots}
        size = strata.workspace_bytes(strata.sparse_attn_decode, q, page, indices, self.scale, q, **extra)
        if self.indexer is not None:
            size = max(size, self._selection_bytes(tokens, device))
        torch.empty(size, dtype=torch.uint8, device=device)

    def _selection_bytes(self, tokens: int, device: torch.device) -> int:
        """Of the workspace of the selection among the keys of the longest request."""
        indexer, length = self.indexer, self.max_model_len // 4
        if length <= indexer.topk_tokens:
            return 0
        fp4 = indexer.use_fp4_kv
        q = torch.empty(
            (tokens, indexer.n_head, indexer.head_dim // (2 if fp4 else 1)),
            dtype=torch.uint8 if fp4 else torch.float8_e4m3fn,
            device=device,
        )
        page = strata.PagedCache.empty(strata.KvFormat.indexer_mxfp4 if fp4 else strata.KvFormat.indexer_fp8, 1, 64, device=device)
        tables = torch.zeros((tokens, -(-length // 64)), dtype=torch.int32, device=device)
        numbers = torch.zeros(tokens, dtype=torch.int32, device=device)
        return strata.workspace_bytes(
            strata.indexer_topk,
            numbers,
            length,
            torch.empty((tokens, indexer.topk_tokens), dtype=torch.int32, device=device),
            q=q,
            q_scale=torch.empty((tokens, indexer.n_head, indexer.head_dim // 32), dtype=torch.uint8, device=device) if fp4 else None,
            weights=torch.empty((tokens, indexer.n_head), dtype=torch.float32, device=device),
            cache=page,
            block_table=tables,
            token_to_req=numbers,
        )

    def _o_proj(self, o: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """bf16 [T, H, 512] of prepare_and_attend to bf16 [T, hidden_size], summed over the ranks."""
        tokens, groups = o.shape[0], self.n_local_groups
        first, second = self.wo_a.quant_method, self.wo_b.quant_method
        weight = first.weight
        codes = self._gives_codes(weight.n)
        y = torch.empty((tokens, groups, weight.n), dtype=torch.float8_e4m3fn if codes else torch.bfloat16, device=o.device)
        y_scale = torch.empty((tokens, groups, weight.n // 128), dtype=torch.float32, device=o.device) if codes else None
        x, x_scale = o.view(tokens, groups, -1), None
        if tokens > 0 and first.is_fp8:
            x = torch.empty((tokens, groups, weight.k), dtype=torch.float8_e4m3fn, device=o.device)
            x_scale = torch.empty((tokens, groups, weight.k // 128), dtype=torch.float32, device=o.device)
            strata.inverse_rope_quant(o, positions, self._cos_sin, x, x_scale)
        if tokens > 0:
            y_format = second.activation if codes else strata.ActivationFormat.bf16
            strata.grouped_linear(x, weight, y, x_scale=x_scale, y_scale=y_scale, y_format=y_format)
        if y_scale is None:
            result: torch.Tensor = self.wo_b(y.view(tokens, -1))
            return result
        result = second.multiply(y.view(tokens, -1), y_scale.view(tokens, -1))
        return tensor_model_parallel_all_reduce(result) if self.wo_b.tp_size > 1 and self.wo_b.reduce_results else result

    def _gives_codes(self, width: int) -> bool:
        """Whether wo_a's product is quantised for wo_b at once. Not where vLLM has wrapped wo_b, as LoRA does."""
        return type(self.wo_b) is RowParallelLinear and self.wo_b.quant_method.is_fp8 and width % 128 == 0
