"""Cases of the indexer."""

from __future__ import annotations

from typing import Any

import formats
import oracle
import torch
from case import (
    BF16,
    E2M1_STEP,
    E4M3_STEP,
    Case,
    bf16,
    case,
    equal,
    filled_cache,
    i32,
    i64,
    near,
    nearly_all,
    unwritten,
)

import strata_attention as sa
from strata_attention import KvFormat, PagedCache, RopePairing, RopeSlice


def _indexer_query(
    q: torch.Tensor,
    weights: torch.Tensor,
    positions: torch.Tensor,
    table: torch.Tensor,
    form: str,
    scales: tuple[float, float],
    **rotation: Any,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """The values (float64), the stored query, its head weights, its MXFP4 scales."""
    rotate = {"pairing": rotation["pairing"], "where": rotation["where"]}
    x = oracle.rope(q, positions, table, **rotate).bfloat16()
    if rotation["hadamard"]:
        x = oracle.hadamard(x).bfloat16()
    folded = weights.double() * scales[0] * scales[1]
    if form == "e4m3":
        values, scale = formats.quantised_blocks(x, x.shape[-1], 1e-4)
        return values.double(), values, folded * scale[..., 0], None
    if form == "mxfp4":
        packed, scale = formats.to_mxfp4(x)
        return formats.from_mxfp4(packed, scale), packed, folded, scale
    return x.double(), x, folded, None


@case(("e4m3", False), ("mxfp4", True), ("bf16", False))
def indexer_query(form: str, v32: bool) -> Case:
    q, weights, positions, table = bf16(3, 4, 128), torch.randn(3, 4), i64([2, 0, 7]), oracle.rope_table(8, 64)
    rotation = {
        "pairing": RopePairing.half_split if v32 else RopePairing.interleaved,
        "where": RopeSlice.first if v32 else RopeSlice.last,
        "hadamard": v32,
    }
    values, stored, folded, scale = _indexer_query(q, weights, positions, table, form, (128**-0.5, 0.5), **rotation)
    q_out, weights_out = unwritten(*stored.shape, dtype=stored.dtype), unwritten(3, 4)
    arguments = {
        "q": q,
        "weights": weights,
        "positions": positions,
        "softmax_scale": 128**-0.5,
        "head_scale": 0.5,
        "q_out": q_out,
        "weights_out": weights_out,
        "cos_sin": table,
        "pairing": rotation["pairing"],
        "rope_slice": rotation["where"],
        "hadamard": v32,
    }
    if scale is not None:
        arguments["q_scale_out"] = unwritten(*scale.shape, dtype=scale.dtype).view(torch.float8_e8m0fnu)

    def check() -> None:
        near("weights_out", weights_out, folded, 1e-5)
        if scale is None:
            (near if form == "bf16" else nearly_all)("q_out", q_out, values, BF16 if form == "bf16" else E4M3_STEP, 0.02)
        else:
            equal("q_scale_out", arguments["q_scale_out"].view(torch.uint8), scale)
            nearly_all("q_out", formats.from_mxfp4(q_out, scale), values, E2M1_STEP, 0.5)

    return Case(sa.indexer_query, arguments, check)


_LENGTHS, _REQUESTS = i32([11, 0, 6]), i32([1, 0, 0])


def _indexer_cache(format: KvFormat) -> tuple[PagedCache, torch.Tensor]:
    return filled_cache(format, 6, 4, 128), i32([[5, 1, 0], [2, 3, 4]])


def _logits(values: torch.Tensor, folded: torch.Tensor, cache: PagedCache, table: torch.Tensor) -> list[torch.Tensor]:
    result = []
    for t, length in enumerate(_LENGTHS):
        keys = formats.load(cache, oracle.slots_of(table, int(_REQUESTS[t]), torch.arange(int(length)), cache.page_size))
        result.append(torch.einsum("h,hj->j", folded[t].double(), torch.einsum("hd,jd->hj", values[t], keys).relu()))
    return result


_FORMS = (("e4m3", KvFormat.indexer_fp8), ("mxfp4", KvFormat.indexer_mxfp4), ("bf16", KvFormat.bf16))
_PLAIN = {"pairing": RopePairing.interleaved, "where": RopeSlice.last, "hadamard": False}


@case(*_FORMS)
def indexer_logits(form: str, format: KvFormat) -> Case:
    cache, table = _indexer_cache(format)
    values, stored, folded, scale = _indexer_query(
        bf16(3, 4, 128), torch.randn(3, 4), i64([2, 0, 7]), oracle.rope_table(8, 64), form, (0.1, 0.5), **_PLAIN
    )
    logits = torch.full((3, 12), 77.0)
    arguments = {
        "q": stored,
        "weights": folded.float(),
        "cache": cache,
        "block_table": table,
        "token_to_req": _REQUESTS,
        "lengths": _LENGTHS,
        "logits": logits,
    }
    if scale is not None:
        arguments["q_scale"] = scale

    def check() -> None:
        for t, row in enumerate(_logits(values, folded.float(), cache, table)):
            near(f"logits[{t}]", logits[t, : len(row)], row, 1e-4, 1e-3)
            assert (logits[t, len(row) :] == 77).all()

    return Case(sa.indexer_logits, arguments, check)


def _topk(rows: list[torch.Tensor], k: int) -> torch.Tensor:
    result = torch.full((len(rows), k), -1)
    for t, row in enumerate(rows):
        best = row.sort(descending=True, stable=True).indices[:k].sort().values
        result[t, : len(best)] = best
    return result


@case()
def topk_select() -> Case:
    logits, lengths, topk = torch.randn(4, 40), i32([40, 3, 0, 17]), torch.zeros(4, 8, dtype=torch.int32)
    logits[0, :20] = logits[0, 0]  # ties: the smaller number wins
    expected = _topk([row[: int(n)] for row, n in zip(logits, lengths)], 8)
    return Case(sa.topk_select, {"logits": logits, "lengths": lengths, "topk_indices": topk}, lambda: equal("topk_indices", topk, expected))


@case(
    *((*form, False) for form in _FORMS),
    ("e4m3", KvFormat.indexer_fp8, True),
    ("mxfp4", KvFormat.indexer_mxfp4, True),
    ("bf16", KvFormat.bf16, True),
)
def indexer_topk(form: str, format: KvFormat, is_fused: bool) -> Case:
    (cache, table), rope = _indexer_cache(format), oracle.rope_table(8, 64)
    q, weights, positions = bf16(3, 4, 128), torch.randn(3, 4), i64([2, 0, 7])
    values, stored, folded, scale = _indexer_query(q, weights, positions, rope, form, (0.1, 0.5), **_PLAIN)
    topk = torch.zeros(3, 5, dtype=torch.int32)
    arguments: dict[str, Any] = {
        "lengths": _LENGTHS,
        "max_length": 12,
        "topk_indices": topk,
        "cache": cache,
        "block_table": table,
        "token_to_req": _REQUESTS,
    }
    slots, lens, other = torch.zeros(2, 5, dtype=torch.int32), torch.zeros(2, dtype=torch.int32), i32([[3, 0], [7, 2]])
    if is_fused:
        arguments["query_prologue"] = sa.IndexerQuery(q, weights, positions, 0.1, 0.5, rope)
        arguments["slots_epilogue"] = sa.TopkSlots(other, 8, slots, lens)
    else:
        arguments |= {"q": stored, "weights": folded.float()} | ({"q_scale": scale} if scale is not None else {})

    def check() -> None:
        expected = _topk(_logits(values, folded.float(), cache, table), 5)
        equal("topk_indices", topk, expected)
        if is_fused:
            for t in range(2):
                local = expected[t]
                found = torch.where(local >= 0, oracle.slots_of(other, int(_REQUESTS[t]), local.clamp_min(0), 8), -1)
                equal("slots", slots[t], found)
                assert lens[t] == (local >= 0).sum()

    return Case(sa.indexer_topk, arguments, check)
