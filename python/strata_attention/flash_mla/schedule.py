"""What FlashMLA calls the tile scheduler's metadata: one object for calls of the same shapes."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch


@dataclasses.dataclass
class FlashMLASchedMeta:
    """What calls of flash_mla_with_kvcache with the same shapes share. Made empty by get_mla_metadata; the first call fills it."""

    @dataclasses.dataclass
    class Config:
        """The shapes and options of the first call."""

        b: int
        s_q: int
        h_q: int
        page_block_size: int
        h_k: int
        causal: bool
        is_fp8_kvcache: bool
        topk: int | None
        extra_page_block_size: int | None
        extra_topk: int | None
        enable_batch_invariant: bool = False

    have_initialized: bool = False
    config: Config | None = None
    #: Dense attention: i32 [b + 1], where each request's queries begin. Sparse attention: None.
    tile_scheduler_metadata: torch.Tensor | None = None
    #: Always None: the kernels divide the rows by themselves.
    num_splits: torch.Tensor | None = None

    def __post_init__(self) -> None:
        # The members of config, which are quicker to compare than config itself.
        self._values: tuple[object, ...] | None = None

    def use(self, *values: Any) -> None:
        """Keeps the first call's configuration, `values` in the order of Config's members.

        AssertionError, as FlashMLA raises, where a later call has another one.
        """
        if values == self._values and self.have_initialized:
            return
        config = self.Config(*values)
        if self.have_initialized and self.config != config:
            kept = dataclasses.asdict(self.config) if self.config is not None else {}
            wrong = [
                f"{name} must be {kept.get(name)}, is {value}"
                for name, value in dataclasses.asdict(config).items()
                if kept.get(name) != value
            ]
            raise AssertionError(f"flash_mla_with_kvcache: {'; '.join(wrong)}: tile_scheduler_metadata is of calls with other arguments")
        if not self.have_initialized:
            self.tile_scheduler_metadata = None
        self.have_initialized, self.config, self._values = True, config, values


def get_mla_metadata(*args: Any, **kwargs: Any) -> tuple[FlashMLASchedMeta, None]:
    """An empty FlashMLASchedMeta, and None. Arguments of FlashMLA's older interface are accepted and not used."""
    return FlashMLASchedMeta(), None
