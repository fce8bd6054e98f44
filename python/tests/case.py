"""A case: a small call of an op, and a check of what it writes. Inputs, comparisons and caches that cases share."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import formats
import torch

from strata_attention import KvFormat, PagedCache


@dataclasses.dataclass
class Case:
    """A call: op(**arguments). check() looks at the outputs among the arguments."""

    op: Callable[..., None]
    arguments: dict[str, Any]
    check: Callable[[], None]

    def run(self) -> None:
        self.op(**self.arguments)


#: name of a case -> a function that makes it anew.
CASES: dict[str, Callable[[], Case]] = {}


def case(*parameters: Any) -> Callable[[Callable[..., Case]], Callable[..., Case]]:
    def add(function: Callable[..., Case]) -> Callable[..., Case]:
        def make(arguments: tuple[Any, ...]) -> Callable[[], Case]:
            def made() -> Case:
                torch.manual_seed(7)
                return function(*arguments)

            return made

        for given in parameters or ((),):
            given = given if isinstance(given, tuple) else (given,)
            text = "-".join(getattr(value, "name", str(value)) for value in given)
            CASES[f"{function.__name__}[{text}]" if text else function.__name__] = make(given)
        return function

    return add


def near(name: str, actual: torch.Tensor, expected: torch.Tensor, relative: float, absolute: float = 1e-6) -> None:
    actual, expected = actual.double(), expected.double()
    assert actual.shape == expected.shape, f"{name}: {actual.shape}, expected {expected.shape}"
    same = (actual == expected) | ((actual - expected).abs() <= absolute + relative * expected.abs()) | (actual.isnan() & expected.isnan())
    assert same.all(), f"{name}: {(~same).sum()} of {same.numel()} differ, by up to {(actual - expected)[~same].abs().max()}"


def equal(name: str, actual: torch.Tensor, expected: torch.Tensor) -> None:
    assert torch.equal(actual.long(), expected.long()), f"{name}: {actual}\nexpected {expected}"


def nearly_all(name: str, actual: torch.Tensor, expected: torch.Tensor, relative: float, absolute: float = 1e-6) -> None:
    """Quantised values: where fp32 and float64 round to different neighbours one step may lie between."""
    actual, expected = actual.double(), expected.double()
    off = (actual - expected).abs() > 1e-3 * expected.abs() + absolute
    assert off.double().mean() <= 0.01, f"{name}: {off.sum()} of {off.numel()} differ"
    near(name, actual, expected, relative, absolute)


#: A bf16 result of fp32 sums; one step of e4m3 and of e2m1.
BF16, E4M3_STEP, E2M1_STEP = 2.0**-7, 0.13, 0.55


def bf16(*shape: int) -> torch.Tensor:
    return torch.randn(*shape).bfloat16()


def unwritten(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """An output: NaN, or the largest number, so that no result of another case is there by chance."""
    return torch.full((math.prod(shape) * dtype.itemsize,), 255, dtype=torch.uint8).view(dtype).view(shape)


def i32(*values: Any) -> torch.Tensor:
    return torch.tensor(*values, dtype=torch.int32)


def i64(*values: Any) -> torch.Tensor:
    return torch.tensor(*values, dtype=torch.int64)


def empty_cache(format: KvFormat, pages: int, page_size: int, row_dim: int | None = None) -> PagedCache:
    """Zeros, with a gap of 64 bytes after each page."""
    cache = PagedCache.empty(format, pages, page_size, row_dim, scale=0.25 if format == KvFormat.fp8_tensor else 1.0)
    stride = cache.page_stride + 64
    return PagedCache.empty(format, pages, page_size, cache.row_dim, page_stride=stride, scale=cache.scale)


def filled_cache(format: KvFormat, pages: int, page_size: int, row_dim: int | None = None) -> PagedCache:
    cache = empty_cache(format, pages, page_size, row_dim)
    formats.store(cache, torch.arange(pages * page_size), torch.randn(pages * page_size, cache.row_dim).double())
    return cache


def step_of(format: KvFormat) -> float:
    return {KvFormat.bf16: BF16, KvFormat.state_f32: 1e-6, KvFormat.indexer_mxfp4: E2M1_STEP}.get(format, E4M3_STEP)


def check_rows(cache: PagedCache, slots: torch.Tensor, rows: torch.Tensor, *, ue8m0: bool = False) -> None:
    """The cache has these rows, quantised, and zeros elsewhere."""
    expected = dataclasses.replace(cache, tensor=torch.zeros_like(cache.tensor))
    data, scales = formats.encode(expected, rows, ue8m0=ue8m0)
    at_data, at_scale, n_data, n_scale = formats._offsets(expected, slots)
    memory = expected.tensor
    memory[at_data[:, None] + torch.arange(n_data)] = data
    if n_scale:
        memory[at_scale[:, None] + torch.arange(n_scale)] = scales
    every = torch.arange(cache.num_pages * cache.page_size)
    absolute = 0.02 if cache.format == KvFormat.indexer_mxfp4 else 2e-3
    if cache.format in (KvFormat.bf16, KvFormat.state_f32):
        near("cache", formats.load(cache, every), formats.load(expected, every), step_of(cache.format), 1e-4)
    else:
        nearly_all("cache", formats.load(cache, every), formats.load(expected, every), step_of(cache.format), absolute)
