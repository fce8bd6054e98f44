"""Cases of indices of rows and slots."""

from __future__ import annotations

from typing import Any

import oracle
import torch
from case import (
    Case,
    case,
    equal,
    i32,
    i64,
)

import strata_attention as sa


@case()
def scatter_block_tables() -> Case:
    entries, table = torch.arange(100, 110, dtype=torch.int32), torch.zeros(3, 6, dtype=torch.int32)
    expected = torch.zeros(3, 6)
    expected[0, 2:5], expected[2, 0:2] = torch.tensor([101.0, 102, 103]), torch.tensor([107.0, 108])
    arguments = {"entries": entries, "segments": i32([[0, 2, 1, 3], [2, 0, 7, 2]]), "block_table": table}
    return Case(sa.scatter_block_tables, arguments, lambda: equal("block_table", table, expected))


_POSITIONS, _TO_REQ, _VALID = i64([5, 7, 0, 3]), i32([1, 0, 0, 1]), torch.tensor([True, True, True, False])
_TABLE = i32([[4, 2, 7, 9], [1, 8, 0, 3]])


@case(1, 4)
def slot_mapping(ratio: int) -> Case:
    slots, expected = i64([9, 9, 9, 9]), []
    for p, r, ok in zip(_POSITIONS.tolist(), _TO_REQ.tolist(), _VALID.tolist()):
        entry = p // ratio
        expected.append(int(_TABLE[r, entry // 2]) * 2 + entry % 2 if ok and (p + 1) % ratio == 0 else -1)
    arguments = {
        "positions": _POSITIONS,
        "token_to_req": _TO_REQ,
        "block_table": _TABLE,
        "page_size": 2,
        "slot_mapping": slots,
        "is_valid_token": _VALID,
        "ratio": ratio,
    }
    return Case(sa.slot_mapping, arguments, lambda: equal("slot_mapping", slots, torch.tensor(expected)))


@case()
def swa_indices() -> Case:
    indices, lens = torch.zeros(4, 3, dtype=torch.int32), torch.zeros(4, dtype=torch.int32)
    expected, counts = torch.full((4, 3), -1), []
    for t, (p, r, ok) in enumerate(zip(_POSITIONS.tolist(), _TO_REQ.tolist(), _VALID.tolist())):
        rows = torch.arange(max(p - 2, 0), p + 1) if ok else torch.arange(0)
        expected[t, : len(rows)] = oracle.slots_of(_TABLE, r, rows, 2)
        counts.append(len(rows))

    def check() -> None:
        equal("indices", indices, expected)
        equal("lens", lens, torch.tensor(counts))

    arguments = {
        "positions": _POSITIONS,
        "token_to_req": _TO_REQ,
        "block_table": _TABLE,
        "page_size": 2,
        "indices": indices,
        "lens": lens,
        "is_valid_token": _VALID,
        "window": 3,
    }
    return Case(sa.swa_indices, arguments, check)


@case(True, False)
def compressed_indices(has_table: bool) -> Case:
    indices, lens = torch.zeros(4, 3, dtype=torch.int32), torch.zeros(4, dtype=torch.int32)
    expected, counts = torch.full((4, 3), -1), []
    for t, (p, r, ok) in enumerate(zip(_POSITIONS.tolist(), _TO_REQ.tolist(), _VALID.tolist())):
        rows = torch.arange(min((p + 1) // 2, 3)) if ok else torch.arange(0)
        expected[t, : len(rows)] = oracle.slots_of(_TABLE, r, rows, 2) if has_table else rows
        counts.append(len(rows))

    def check() -> None:
        equal("indices", indices, expected)
        equal("lens", lens, torch.tensor(counts))

    arguments: dict[str, Any] = {"positions": _POSITIONS, "indices": indices, "lens": lens, "is_valid_token": _VALID, "ratio": 2}
    if has_table:
        arguments |= {"token_to_req": _TO_REQ, "block_table": _TABLE, "page_size": 2}
    return Case(sa.compressed_indices, arguments, check)


@case()
def compute_global_topk() -> Case:
    topk = i32([[0, 5, -1], [3, -1, -1], [6, 7, 1], [0, 1, 2]])
    out, lens, expected, counts = torch.zeros_like(topk), torch.zeros(4, dtype=torch.int32), torch.full((4, 3), -1), []
    for t, (r, ok) in enumerate(zip(_TO_REQ.tolist(), _VALID.tolist())):
        local = topk[t].long()
        if ok:
            expected[t] = torch.where(local >= 0, oracle.slots_of(_TABLE, r, local.clamp_min(0), 2), -1)
        counts.append(int((local >= 0).sum()) if ok else 0)

    def check() -> None:
        equal("global_indices", out, expected)
        equal("lens", lens, torch.tensor(counts))

    arguments = {
        "topk_indices": topk,
        "token_to_req": _TO_REQ,
        "block_table": _TABLE,
        "page_size": 2,
        "global_indices": out,
        "lens": lens,
        "is_valid_token": _VALID,
    }
    return Case(sa.compute_global_topk, arguments, check)


@case()
def combine_topk_swa() -> Case:
    # Two requests with 2 and 3 tokens of the chunk; ratio 4, two selected entries, a window of 3.
    starts, seq, gathered = i32([10, 12, 15]), i32([6, 9]), i32([4, 5])
    topk = i32([[0, -1], [0, -1], [0, -1], [1, 0], [1, 0]])
    topk[2:] = i32([[0, -1], [0, 1], [0, 1]])
    m, n, expected, counts = 20, 8, torch.full((5, 6), -1), []
    t = 0
    for c in range(2):
        count = int(starts[c + 1] - starts[c])
        for i in range(count):
            p = int(seq[c]) - count + i
            nt, ns = min((p + 1) // 4, 2), min(p + 1, 3)
            expected[t, :nt] = topk[t, :nt] + c * m
            expected[t, nt : nt + ns] = c * m + n + (p - ns + 1 - int(seq[c] - gathered[c])) + torch.arange(ns)
            counts.append(nt + ns)
            t += 1
    out, lens = torch.zeros(5, 6, dtype=torch.int32), torch.zeros(5, dtype=torch.int32)

    def check() -> None:
        equal("combined_indices", out, expected)
        equal("combined_lens", lens, torch.tensor(counts))

    arguments = {
        "query_start_loc": starts,
        "seq_lens": seq,
        "gather_lens": gathered,
        "m": m,
        "n": n,
        "combined_indices": out,
        "combined_lens": lens,
        "topk_indices": topk,
        "window": 3,
        "ratio": 4,
        "top_k": 2,
    }
    return Case(sa.combine_topk_swa, arguments, check)
