"""What the layers of one forward of a V4 model share: lengths and rows of the compressed caches, computed once by the first layer."""

from __future__ import annotations

from typing import Any

import torch
from vllm.forward_context import get_forward_context

import strata_attention as strata

_MEMBER = "strata_v4_step"
#: Widths of c128 rows are multiples of this.
_WIDTH = 128


class Step:
    """Tensors over the tokens of requests, [N]; vLLM puts decode's tokens first.

    They are made on the current stream. While a CUDA graph is captured they belong to the graph, which later steps with longer requests
    replay: bounds are then those of the model.

    window         metadata of a window cache
    max_model_len  the model's
    """

    def __init__(self, positions: torch.Tensor, window: Any, max_model_len: int) -> None:
        self.num_decode_tokens: int = window.num_decode_tokens
        self.num_prefill_tokens: int = window.num_prefill_tokens
        self.num_tokens = self.num_decode_tokens + self.num_prefill_tokens
        self.positions = positions[: self.num_tokens]
        self.token_to_req: torch.Tensor = window.token_to_req_indices[: self.num_tokens]
        self.is_valid: torch.Tensor = window.is_valid_token[: self.num_tokens]
        self._captured = positions.is_cuda and torch.cuda.is_current_stream_capturing()
        self._max_model_len = max_model_len
        self._c4_lens: torch.Tensor | None = None
        self._c128: dict[Any, tuple[torch.Tensor, torch.Tensor]] = {}

    def max_seq_len(self, metadata: Any) -> int:
        """An upper bound of the lengths, in positions, on the host."""
        return self._max_model_len if self._captured else min(int(metadata.max_seq_len), self._max_model_len)

    @property
    def c4_lens(self) -> torch.Tensor:
        """i32 [N]: complete entries of ratio 4 before and at each token; 0 for padding."""
        if self._c4_lens is None:
            self._c4_lens = ((self.positions + 1) // 4 * self.is_valid).to(torch.int32)
        return self._c4_lens

    def c128(self, metadata: Any, as_slots: bool) -> tuple[torch.Tensor, torch.Tensor]:
        """Entries of ratio 128 of each token: i32 [N, width] and their count i32 [N]. Slots by the metadata's table, or entry numbers."""
        key = metadata.block_table.data_ptr() if as_slots else None
        found = self._c128.get(key)
        if found is None:
            width = max(1, -(-(self.max_seq_len(metadata) // 128) // _WIDTH)) * _WIDTH
            indices = torch.empty((self.num_tokens, width), dtype=torch.int32, device=self.positions.device)
            lens = torch.empty(self.num_tokens, dtype=torch.int32, device=self.positions.device)
            strata.compressed_indices(
                self.positions,
                indices,
                lens,
                token_to_req=self.token_to_req if as_slots else None,
                is_valid_token=self.is_valid,
                block_table=metadata.block_table if as_slots else None,
                page_size=metadata.block_size // 128 if as_slots else 0,
                ratio=128,
            )
            found = self._c128[key] = (indices, lens)
        return found


def current_step(positions: torch.Tensor, window: Any, max_model_len: int) -> Step:
    """The step of the current forward."""
    context = get_forward_context()
    step: Step | None = getattr(context, _MEMBER, None)
    if step is None:
        step = Step(positions, window, max_model_len)
        setattr(context, _MEMBER, step)
    return step
