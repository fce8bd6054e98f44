"""vLLM's V4 layer on a CPU with attention and output projection in float32, from the bytes of vLLM's pages.

vLLM's own kernels of these two need AVX-512 BF16 or AMX, and compute in bf16. All else is vLLM's.
"""

from __future__ import annotations

from typing import Any

import torch


#: The last layer's normalised and rotated queries.
QUERIES: list[torch.Tensor] = []
attend: Any = None


def rows_of(cache: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    """f32 [..., 512]: rows of fp8_ds_mla pages [pages, rows, 584] by slot; slots below 0 give row 0."""
    pages, rows = cache.shape[:2]
    flat = torch.as_strided(cache, (pages, rows * 584), (cache.stride(0), 1), cache.storage_offset())
    slot = slots.long().clamp(min=0)
    page, row = (slot // rows)[..., None], (slot % rows)[..., None]
    data = flat[page, row * 576 + torch.arange(576)]
    exponent = flat[page, rows * 576 + row * 8 + torch.arange(7)].float() - 127
    codes = data[..., :448].contiguous().view(torch.float8_e4m3fn).float().unflatten(-1, (7, 64))
    rotary = data[..., 448:].contiguous().view(torch.bfloat16).float()
    return torch.cat([(codes * torch.exp2(exponent)[..., None]).flatten(-2), rotary], -1)


def rotated_back(x: torch.Tensor, positions: torch.Tensor, cos_sin: torch.Tensor) -> torch.Tensor:
    """f32 [T, H, 512] with its last 64 dimensions rotated back by the tokens' positions."""
    table = cos_sin[positions].float()
    cos, sin = table[:, None, :32], table[:, None, 32:]
    even, odd = x[..., 448::2], x[..., 449::2]
    rotated = torch.stack([even * cos + odd * sin, odd * cos - even * sin], -1).flatten(-2)
    return torch.cat([x[..., :448], rotated], -1)


def install() -> type:
    """Puts the layer in the place of vLLM's. Returns it."""
    from strata_attention.vllm import v4_cpu_metadata

    v4_cpu_metadata.install()
    import vllm.models.deepseek_v4.cpu.model as model
    from vllm.forward_context import get_forward_context
    from vllm.models.deepseek_v4.cpu.cpu_utils import map_local_to_global_slots_cpu as slots_of

    class Reference(model.DeepseekV4CPUAttention):  # type: ignore[misc, name-defined]
        def _wrap_wo_a_process_weights_after_loading(self) -> None:
            self.wo_a.quant_method.process_weights_after_loading = lambda layer: None

        def forward_mqa(self, q: torch.Tensor, kv: torch.Tensor, positions: torch.Tensor, output: torch.Tensor) -> None:
            QUERIES[:] = [q]
            metadata: Any = get_forward_context().attn_metadata
            if metadata is None:
                output.zero_()
                return
            window = metadata[self.swa_cache_layer.prefix]
            request = window.token_to_req_indices
            near = positions[:, None] - self.window_size + 1 + torch.arange(self.window_size)
            scopes = [(self.swa_cache_layer.kv_cache, near, window.block_table, window.block_size)]
            if self.compress_ratio > 1:
                keys = metadata[self.prefix]
                if self.compress_ratio == 4:
                    chosen = self.topk_indices_buffer[: q.shape[0]].long()
                else:
                    entry = torch.arange(max(1, keys.max_seq_len // 128))
                    chosen = torch.where(entry < ((positions + 1) // 128)[:, None], entry, -1)
                scopes.append((self.kv_cache, chosen, keys.block_table, keys.block_size // self.compress_ratio))
            rows, wanted = [], []
            for cache, local, table, page in scopes:
                rows.append(rows_of(cache, slots_of(torch.where(local >= 0, local, -1), request[: q.shape[0]], table, page)))
                wanted.append(local >= 0)
            k, ok = torch.cat(rows, 1), torch.cat(wanted, 1)
            logits = torch.einsum("thd,tkd->thk", q.float(), k) * self.scale
            logits = logits.masked_fill(~ok[:, None], -torch.inf)
            sink = self.attn_sink.float()[None, :, None].expand(q.shape[0], -1, 1)
            weights = torch.softmax(torch.cat([logits, sink], -1), -1)[..., :-1]
            output.copy_(torch.einsum("thk,tkd->thd", weights, k))

        def _o_proj(self, o: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
            x = rotated_back(o.float(), positions, self.rotary_emb.cos_sin_cache).view(o.shape[0], self.n_local_groups, -1)
            weight = self.wo_a.weight.float().view(self.n_local_groups, self.o_lora_rank, -1)
            z = torch.einsum("tgk,gnk->tgn", x, weight).to(o.dtype)
            result: torch.Tensor = self.wo_b(z.flatten(1))
            return result

    global attend
    attend = lambda layer, q, positions, output: Reference.forward_mqa(layer, q, q, positions, output)  # noqa: E731
    model.DeepseekV4CPUAttention = Reference
    return Reference
