"""Random calls of flash_mla's functions over a grid, with what they must return, in float64 (oracle.py, formats.py)."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Iterator
from typing import Any

import formats
import oracle
import torch

from strata_attention import KvFormat, PagedCache

INF = math.inf
#: Rows of a page, among them those that FlashMLA's tests have.
PAGE_SIZES = (2, 53, 61, 64, 69, 256, 576)
HEADS = (1, 3, 20, 64, 128)
ROW_BYTES = {512: 584, 576: 656}
FORMAT = {512: KvFormat.fp8_ds_mla_v4, 576: KvFormat.fp8_ds_mla}


def padded(tensor: torch.Tensor) -> torch.Tensor:
    """The same values with gaps in every dimension, the last one contiguous."""
    room = torch.full([n + 1 for n in tensor.shape[:-1]] + [tensor.shape[-1] + 128], 0, dtype=tensor.dtype)
    view = room[tuple(slice(0, n) for n in tensor.shape)]
    view.copy_(tensor)
    return view


@dataclasses.dataclass(frozen=True)
class SparseDecode:
    dim: int
    heads: int
    queries: int
    page_size: int
    extra_page_size: int = 0  # 0: one cache
    batch: int = 3
    lengths: bool = False  # topk_length and extra_topk_length are given
    invalid: str = "some"  # "some", "all" or "none" of the indices are -1
    empty: bool = False  # some requests have the length 0
    sink: bool = True
    strided: bool = True

    def __str__(self) -> str:
        words = [f"{name}={value}" for name, value in dataclasses.asdict(self).items()]
        return ",".join(words)


def sparse_decode_grid() -> Iterator[SparseDecode]:
    """Every number of heads, queries and page size of both formats; the rest at random, from a fixed seed."""
    draw = random.Random(3)
    for dim in (512, 576):
        for heads in HEADS:
            for queries in (1, 2, 3):
                for page_size in PAGE_SIZES:
                    yield SparseDecode(
                        dim,
                        heads,
                        queries,
                        page_size,
                        extra_page_size=draw.choice((0, *PAGE_SIZES)) if dim == 512 else 0,
                        batch=draw.choice((1, 3)),
                        lengths=draw.random() < 0.6,
                        invalid=draw.choice(("some", "some", "all", "none")),
                        empty=draw.random() < 0.3,
                        sink=draw.random() < 0.7,
                        strided=draw.random() < 0.7,
                    )


def _rows(case: SparseDecode, page_size: int, topk: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, PagedCache]:
    """FlashMLA's view of a cache, indices, lengths, and the cache. Rows that no index names are NaN."""
    bytes_per_row = ROW_BYTES[case.dim]
    pages = -(-2 * topk // page_size) + 1
    # A page of V4's rows is padded to a multiple of 576 bytes; one of V3.2's has the room of a further row.
    stride = -(-page_size * bytes_per_row // 576) * 576 if case.dim == 512 else (page_size + 1) * bytes_per_row
    memory = torch.full((pages * stride,), 255, dtype=torch.uint8)
    cache = PagedCache(memory, FORMAT[case.dim], case.dim, page_size, pages, stride)
    slots = pages * page_size
    indices = torch.stack([torch.randperm(slots)[:topk] for _ in range(case.batch * case.queries)]).to(torch.int32)
    if case.invalid != "none":
        indices[torch.rand(indices.shape) < (2 if case.invalid == "all" else 0.2)] = -1
    indices = indices.view(case.batch, case.queries, topk)
    lengths = None
    if case.lengths:
        lengths = torch.randint(0, topk + 1, (case.batch,), dtype=torch.int32)
        if case.empty:
            lengths[0] = 0
    counted = indices.clone()
    if lengths is not None:
        counted[torch.arange(topk).expand_as(counted) >= lengths[:, None, None]] = -1
    used = counted[counted >= 0].unique()
    formats.store(cache, used, torch.randn(len(used), case.dim).double())
    view = memory.as_strided((pages, page_size, 1, bytes_per_row), (stride, bytes_per_row, bytes_per_row, 1)).view(torch.float8_e4m3fn)
    return view, indices, lengths, cache


def sinks(heads: int) -> torch.Tensor:
    """Values, inf and -inf."""
    sink = torch.randn(heads)
    kind = torch.randint(0, 3, (heads,))
    sink[kind == 1], sink[kind == 2] = INF, -INF
    return sink


def sparse_decode(case: SparseDecode, seed: int) -> tuple[dict[str, Any], torch.Tensor, torch.Tensor]:
    """Arguments, out and lse."""
    torch.manual_seed(seed)
    q = torch.randn(case.batch, case.queries, case.heads, case.dim).bfloat16()
    scopes = [_rows(case, case.page_size, 40)]
    if case.extra_page_size:
        scopes.append(_rows(case, case.extra_page_size, 24))
    sink = sinks(case.heads) if case.sink else None
    scale = case.dim**-0.55
    out = torch.zeros(case.batch, case.queries, case.heads, 512, dtype=torch.float64)
    lse = torch.zeros(case.batch, case.heads, case.queries, dtype=torch.float64)
    for b in range(case.batch):
        for s in range(case.queries):
            rows = []
            for _, indices, lengths, cache in scopes:
                found = indices[b, s] if lengths is None else indices[b, s, : lengths[b]]
                rows.append(formats.load(cache, found[found >= 0]))
            keys = torch.cat(rows)
            out[b, s], lse[b, :, s], _ = oracle.attend(q[b, s], keys, keys[:, :512], scale, sink)
    shown = padded if case.strided else torch.Tensor.contiguous
    arguments = {
        "q": shown(q),
        "k_cache": scopes[0][0],
        "block_table": None,
        "cache_seqlens": None,
        "head_dim_v": 512,
        "softmax_scale": scale,
        "is_fp8_kvcache": True,
        "indices": shown(scopes[0][1]),
        "attn_sink": sink,
        "topk_length": scopes[0][2],
    }
    if case.extra_page_size:
        arguments |= {"extra_k_cache": scopes[1][0], "extra_indices_in_kvcache": shown(scopes[1][1]), "extra_topk_length": scopes[1][2]}
    return arguments, out, lse


@dataclasses.dataclass(frozen=True)
class DenseDecode:
    heads: int
    kv_heads: int
    queries: int
    causal: bool
    page_size: int = 64
    longest: int = 140
    varied: bool = True  # lengths differ, and some are 0

    def __str__(self) -> str:
        return ",".join(f"{name}={value}" for name, value in dataclasses.asdict(self).items())


def dense_decode_grid() -> Iterator[DenseDecode]:
    draw = random.Random(5)
    for heads in (1, 3, 9, 64, 126, 128):
        for kv_heads in (1, 2, 3, 8):
            if heads % kv_heads:
                continue
            for queries in (1, 2, 4):
                for causal in (False, True):
                    yield DenseDecode(
                        heads, kv_heads, queries, causal, draw.choice((16, 64, 64)), draw.choice((20, 140)), draw.random() < 0.7
                    )


def dense_decode(case: DenseDecode, seed: int) -> tuple[dict[str, Any], torch.Tensor, torch.Tensor]:
    torch.manual_seed(seed)
    batch, dim = 3, 576
    lengths = torch.full((batch,), case.longest, dtype=torch.int32)
    if case.varied:
        lengths = torch.randint(case.queries, case.longest + 1, (batch,), dtype=torch.int32)
        lengths[1] = 0
    blocks = -(-case.longest // case.page_size) + 1
    table = torch.randperm(batch * blocks).to(torch.int32).view(batch, blocks)
    pages = torch.full((batch * blocks, case.page_size, case.kv_heads, dim), math.nan).bfloat16()
    q = torch.randn(batch, case.queries, case.heads, dim).bfloat16()
    out = torch.zeros(batch, case.queries, case.heads, 512, dtype=torch.float64)
    lse = torch.full((batch, case.heads, case.queries), INF, dtype=torch.float64)
    group = case.heads // case.kv_heads
    for b, length in enumerate(lengths.tolist()):
        rows = torch.randn(length, case.kv_heads, dim).bfloat16()
        slots = oracle.slots_of(table, b, torch.arange(length), case.page_size)
        pages.view(-1, case.kv_heads, dim)[slots] = rows
        table[b, -(-length // case.page_size) :] = 2147480000
        for s in range(case.queries):
            seen = length - case.queries + 1 + s if case.causal else length
            keys = rows[: max(seen, 0)].repeat_interleave(group, 1)
            out[b, s], lse[b, :, s], _ = oracle.attend(q[b, s], keys, keys[..., :512], dim**-0.5)
    arguments = {
        "q": q,
        "k_cache": pages,
        "block_table": padded(table),
        "cache_seqlens": lengths,
        "head_dim_v": 512,
        "causal": case.causal,
    }
    return arguments, out, lse


@dataclasses.dataclass(frozen=True)
class SparsePrefill:
    dim: int
    heads: int
    tokens: int
    rows: int
    topk: int
    lengths: bool
    sink: bool
    invalid: str

    def __str__(self) -> str:
        return ",".join(f"{name}={value}" for name, value in dataclasses.asdict(self).items())


#: Indices that name no row, whatever the number of rows below 100,000.
NO_ROW = (-2147483648, -123456, -1, 114514, 1919810, 2147480000, 2147483647)


def sparse_prefill_grid() -> Iterator[SparsePrefill]:
    draw = random.Random(7)
    for dim in (512, 576):
        for heads in (1, 5, 20, 64, 128):
            for rows, topk in ((128, 128), (592, 128), (95, 128), (32, 300)):
                for tokens in (1, 9):
                    yield SparsePrefill(
                        dim, heads, tokens, rows, topk, draw.random() < 0.5, draw.random() < 0.6, draw.choice(("some", "some", "all"))
                    )


def sparse_prefill(case: SparsePrefill, seed: int) -> tuple[dict[str, Any], torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(seed)
    q, kv = torch.randn(case.tokens, case.heads, case.dim).bfloat16(), torch.randn(case.rows, case.dim).bfloat16()
    fillers = torch.tensor((*NO_ROW, case.rows), dtype=torch.int64)
    indices = torch.stack([torch.randperm(max(case.rows, case.topk))[: case.topk] for _ in range(case.tokens)])
    none = (indices >= case.rows) | (torch.rand(indices.shape) < 0.1)
    none[0] |= case.invalid == "all"
    indices[none] = fillers[torch.randint(len(fillers), (int(none.sum()),))]
    lengths = torch.randint(0, case.topk + 1, (case.tokens,), dtype=torch.int32) if case.lengths else None
    sink = sinks(case.heads) if case.sink else None
    out = torch.zeros(case.tokens, case.heads, 512, dtype=torch.float64)
    most, lse = (torch.zeros(case.tokens, case.heads, dtype=torch.float64) for _ in range(2))
    scale = 0.5 * case.dim**-0.5
    for t in range(case.tokens):
        found = indices[t] if lengths is None else indices[t, : lengths[t]]
        keys = kv[found[(found >= 0) & (found < case.rows)]]
        out[t], lse[t], most[t] = oracle.attend(q[t], keys, keys[:, :512], scale, sink)
    arguments = {
        "q": padded(q),
        "kv": padded(kv[:, None]),
        "indices": padded(indices.to(torch.int32)[:, None]),
        "sm_scale": scale,
        "attn_sink": sink,
        "topk_length": lengths,
    }
    return arguments, out, most, lse
