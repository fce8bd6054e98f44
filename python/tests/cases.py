"""Small calls of every op with what they must write: inputs, and a check of the outputs against oracle.py."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import formats
import oracle
import torch

import strata_attention as sa
from strata_attention import ActivationFormat, KvFormat, LinearWeight, PagedCache, RopePairing, RopeSlice


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


def _case(*parameters: Any) -> Callable[[Callable[..., Case]], Callable[..., Case]]:
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


# Linear layers.


@_case()
def linear() -> Case:
    x, w, y = bf16(5, 96), bf16(40, 96), torch.full((5, 40), math.nan)
    return Case(
        sa.linear, {"x": x, "weight": LinearWeight(w, name="w"), "y": y}, lambda: near("y", y, x.double() @ w.double().T, 1e-5, 1e-4)
    )


def _fp8_weight(n: int, k: int) -> tuple[LinearWeight, torch.Tensor]:
    scale = torch.exp2(torch.randint(-3, 3, (math.ceil(n / 128), math.ceil(k / 128))).float())
    values = (torch.randn(n, k) * 50).to(formats.E4M3)
    wide = scale.double().repeat_interleave(128, 0)[:n].repeat_interleave(128, 1)[:, :k]
    return LinearWeight(values, scale, power_of_two_scales=True), values.double() * wide


@_case(ActivationFormat.fp8_ue8m0, ActivationFormat.fp8_f32)
def linear_fp8(format: ActivationFormat) -> Case:
    x, (w, dequantised), y = bf16(3, 256), _fp8_weight(200, 256), torch.empty(3, 200)
    q, scale = formats.quantised_blocks(x, 128, 1e-10, powers=format == ActivationFormat.fp8_ue8m0)
    rounded = (q.double().unflatten(-1, (-1, 128)) * scale[..., None]).flatten(-2)

    def check() -> None:
        # Implementations may compute with bf16 instead of quantised activations (V4 5.2).
        exact, quantised = x.double() @ dequantised.T, rounded @ dequantised.T
        size = x.double().abs() @ dequantised.abs().T
        assert torch.minimum((y - quantised).abs(), (y - exact).abs()).le(1e-3 * size).all()

    return Case(sa.linear, {"x": x, "weight": w, "y": y, "activation": format}, check)


@_case()
def linear_quantised_x() -> Case:
    x, (w, dequantised), y = bf16(3, 256), _fp8_weight(128, 256), torch.empty(3, 128)
    q, scale = formats.quantised_blocks(x, 128, 1e-10)
    rounded = (q.double().unflatten(-1, (-1, 128)) * scale[..., None]).flatten(-2)
    arguments = {"x": q, "x_scale": scale.float(), "weight": w, "y": y, "activation": ActivationFormat.fp8_ue8m0}

    def check() -> None:
        # FP8 matrix units keep fewer bits of a sum than fp32.
        size = rounded.abs() @ dequantised.abs().T
        assert (y - rounded @ dequantised.T).abs().le(1e-3 * size).all()

    return Case(sa.linear, arguments, check)


@_case()
def grouped_linear() -> Case:
    x, w, y = bf16(4, 2, 64), bf16(2 * 24, 64), torch.empty(4, 2, 24).bfloat16()
    expected = torch.einsum("tgk,gnk->tgn", x.double(), w.double().view(2, 24, 64))
    return Case(sa.grouped_linear, {"x": x, "weight": LinearWeight(w, groups=2), "y": y}, lambda: near("y", y, expected, BF16, 1e-3))


@_case()
def grouped_linear_fp8_y() -> Case:
    x, w = bf16(4, 2, 64), bf16(2 * 128, 64)
    y, scale = torch.empty(4, 2, 128, dtype=formats.E4M3), torch.empty(4, 2, 1)
    z = torch.einsum("tgk,gnk->tgn", x.double(), w.double().view(2, 128, 64)).bfloat16()
    q, s = formats.quantised_blocks(z, 128, 1e-10)

    def check() -> None:
        near("y_scale", scale, s, 0)
        nearly_all("y", y.double() * scale, q.double() * s, E4M3_STEP, 0.05)

    return Case(
        sa.grouped_linear,
        {"x": x, "weight": LinearWeight(w, groups=2), "y": y, "y_scale": scale, "y_format": ActivationFormat.fp8_ue8m0},
        check,
    )


# Norms.


@_case()
def rms_norm_pair() -> Case:
    q, kv, q_weight, kv_weight = bf16(3, 96), bf16(3, 64), torch.randn(96), torch.randn(64)
    q_out, kv_out = torch.empty_like(q), torch.empty_like(kv)

    def check() -> None:
        near("q_out", q_out, oracle.rms_norm(q, q_weight, 1e-5), BF16)
        near("kv_out", kv_out, oracle.rms_norm(kv, kv_weight, 1e-5), BF16)

    return Case(
        sa.rms_norm_pair,
        {"kv": kv, "kv_weight": kv_weight, "kv_out": kv_out, "q": q, "q_weight": q_weight, "q_out": q_out, "eps": 1e-5},
        check,
    )


@_case()
def rms_norm_pair_fp8_insert() -> Case:
    q, kv, q_weight, kv_weight = bf16(3, 256), bf16(3, 512), torch.randn(256), torch.randn(512)
    q_out, q_scale = torch.empty(3, 256, dtype=formats.E4M3), torch.empty(3, 2)
    cache, slots, positions, table = empty_cache(KvFormat.fp8_ds_mla_v4, 2, 4), i64([5, -1, 2]), i64([9, 3, 1]), oracle.rope_table(16, 64)
    normed = oracle.rms_norm(kv, kv_weight, 1e-6).bfloat16()

    def check() -> None:
        values, scale = formats.quantised_blocks(oracle.rms_norm(q, q_weight, 1e-6).bfloat16(), 128, 1e-10)
        near("q_scale", q_scale, scale, 0)
        nearly_all("q_out", q_out, values, E4M3_STEP, 0.3)
        check_rows(cache, slots[[0, 2]], oracle.rope(normed, positions, table)[[0, 2]])

    arguments = {
        "kv": kv,
        "kv_weight": kv_weight,
        "q": q,
        "q_weight": q_weight,
        "q_out": q_out,
        "q_scale": q_scale,
        "q_format": ActivationFormat.fp8_ue8m0,
        "insert_epilogue": sa.KeyInsert(slots, positions, table, cache),
    }
    return Case(sa.rms_norm_pair, arguments, check)


# Keys and caches.


@_case(KvFormat.fp8_ds_mla_v4, KvFormat.bf16, KvFormat.fp8_tensor)
def qnorm_rope_kv_insert(format: KvFormat) -> Case:
    q, kv, positions, table = bf16(4, 3, 512), bf16(4, 512), i64([0, 5, 7, 2]), oracle.rope_table(8, 64)
    slots, cache = i64([6, -1, 1]), empty_cache(format, 2, 5, 512)
    q_out = torch.full((4, 5, 512), math.nan).bfloat16()

    def check() -> None:
        near("q_out", q_out[:, :3], oracle.rope(oracle.rms_norm(q, None, 1e-6), positions, table), BF16, 1e-3)
        assert (q_out[:, 3:] == 0).all()
        check_rows(cache, slots[[0, 2]], oracle.rope(kv, positions, table)[[0, 2]])

    return Case(
        sa.qnorm_rope_kv_insert,
        {"q": q, "kv": kv, "positions": positions, "cos_sin": table, "q_out": q_out, "slot_mapping": slots, "cache": cache},
        check,
    )


@_case()
def qnorm_rope_kv_insert_fp8_q() -> Case:
    q, kv, positions, table = bf16(2, 3, 512), bf16(2, 512), i64([4, 5]), oracle.rope_table(8, 64)
    q_out, cache = torch.empty(2, 3, 512, dtype=formats.E4M3), empty_cache(KvFormat.fp8_tensor, 1, 4, 512)

    def check() -> None:
        expected = oracle.rope(oracle.rms_norm(q, None, 1e-6), positions, table) * 8
        nearly_all("q_out", q_out, formats.to_e4m3(expected), E4M3_STEP, 0.02)
        check_rows(cache, i64([1, 3]), oracle.rope(kv, positions, table))

    arguments = {
        "q": q,
        "kv": kv,
        "positions": positions,
        "cos_sin": table,
        "q_out": q_out,
        "slot_mapping": i64([1, 3]),
        "cache": cache,
        "q_scale_inv": 8.0,
    }
    return Case(sa.qnorm_rope_kv_insert, arguments, check)


_INSERTED = (
    (KvFormat.fp8_ds_mla_v4, 512),
    (KvFormat.bf16, 96),
    (KvFormat.fp8_tensor, 96),
    (KvFormat.indexer_fp8, 128),
    (KvFormat.indexer_mxfp4, 128),
    (KvFormat.fp8_ds_mla, 576),
)


@_case(*((format, dim, False) for format, dim in _INSERTED), (KvFormat.fp8_ds_mla, 576, True))
def quantize_and_insert_k(format: KvFormat, dim: int, ue8m0: bool) -> Case:
    k, slots, cache = bf16(4, dim), i64([7, -1, 2]), empty_cache(format, 3, 3, dim)
    arguments = {"k": k, "slot_mapping": slots, "cache": cache, "ue8m0": ue8m0}
    return Case(sa.quantize_and_insert_k, arguments, lambda: check_rows(cache, slots[[0, 2]], k[[0, 2]].double(), ue8m0=ue8m0))


@_case(*_INSERTED)
def dequantize_and_gather_k(format: KvFormat, dim: int) -> Case:
    cache, table = filled_cache(format, 4, 3, dim), i32([[2, 0], [3, 1]])
    out = torch.full((2, 7, cache.row_dim), 5.0).bfloat16()

    def check() -> None:
        expected = torch.full(out.shape, 5.0).double()
        expected[0, 1:4] = formats.load(cache, oracle.slots_of(table, 0, torch.arange(2, 5), 3))
        expected[1, 1:3] = formats.load(cache, oracle.slots_of(table, 1, torch.arange(2, 4), 3))
        near("out", out, expected, 2.0**-8)

    return Case(
        sa.dequantize_and_gather_k,
        {"cache": cache, "seq_lens": i32([5, 4]), "block_table": table, "out": out, "gather_lens": i32([3, 2]), "offset": 1},
        check,
    )


# The compressor.


@_case()
def save_partial_states() -> Case:
    kv_score, ape, positions, slots = torch.randn(3, 512), torch.randn(4, 256), i64([3, 4, 9]), i64([4, -1, 0])
    state = empty_cache(KvFormat.state_f32, 2, 4, 512)

    def check() -> None:
        rows = torch.cat([kv_score[:, :256], kv_score[:, 256:] + ape[positions % 4]], 1).double()
        check_rows(state, slots[[0, 2]], rows[[0, 2]])

    return Case(
        sa.save_partial_states, {"kv_score": kv_score, "ape": ape, "positions": positions, "state_slots": slots, "state": state}, check
    )


def _entry(rows: torch.Tensor, position: int, ratio: int, d: int) -> torch.Tensor:
    """The pooled vector of state rows [position + 1, 2*coff*d] of one request, at a boundary."""
    width, coff = (2 * ratio, 2) if ratio == 4 else (ratio, 1)
    kv, score = rows[:, : coff * d], rows[:, coff * d :]
    picked_kv, picked_score = [], []
    for p in range(max(position + 1 - width, 0), position + 1):
        half = slice(d, 2 * d) if ratio == 4 and p > position - ratio else slice(0, d)
        picked_kv.append(kv[p, half])
        picked_score.append(score[p, half])
    return (torch.stack(picked_score).softmax(0) * torch.stack(picked_kv)).sum(0)


@_case(
    (4, KvFormat.fp8_ds_mla_v4, 512, False),
    (4, KvFormat.bf16, 512, True),
    (128, KvFormat.fp8_tensor, 512, True),
    (4, KvFormat.indexer_fp8, 128, True),
    (4, KvFormat.indexer_mxfp4, 128, False),
    (4, KvFormat.bf16, 128, False),
)
def compress_norm_rope_store(ratio: int, format: KvFormat, d: int, with_saves: bool) -> Case:
    coff, tokens = (2, 9) if ratio == 4 else (1, 130)
    state = empty_cache(KvFormat.state_f32, tokens // 4 + 2, 4, 2 * coff * d)
    table_of_state = torch.randperm(state.num_pages, dtype=torch.int32)[None]
    positions = torch.arange(tokens)
    slots = oracle.slots_of(table_of_state, 0, positions, 4)
    kv_score, ape = torch.randn(tokens, 2 * coff * d), torch.randn(ratio, coff * d)
    rows = torch.cat([kv_score[:, : coff * d], kv_score[:, coff * d :] + ape[positions % ratio]], 1).double()
    if not with_saves:
        formats.store(state, slots, rows)
    cache = empty_cache(format, 2, 2, d)
    is_boundary = (positions + 1) % ratio == 0
    out_slots = torch.where(is_boundary, positions // ratio, -1)
    weight, table = torch.randn(d), oracle.rope_table(256, 64)
    hadamard = d == 128 and format == KvFormat.indexer_fp8

    def check() -> None:
        ends = positions[is_boundary]
        pooled = torch.stack([_entry(rows, int(p), ratio, d) for p in ends])
        normed = oracle.rms_norm(pooled, weight, 1e-6)
        entries = oracle.rope(normed, ends // ratio * ratio, table)
        check_rows(cache, ends // ratio, oracle.hadamard(entries.bfloat16()) if hadamard else entries)
        if with_saves:
            near("state", formats.load(state, slots), rows, 1e-6)

    arguments = {
        "state": state,
        "block_table": table_of_state,
        "token_to_req": torch.zeros(tokens, dtype=torch.int32),
        "positions": positions,
        "state_slots": slots,
        "out_slots": out_slots,
        "norm_weight": weight,
        "cos_sin": table,
        "cache": cache,
        "ratio": ratio,
        "hadamard": hadamard,
    }
    if with_saves:
        arguments["save_prologue"] = sa.StateSave(kv_score, ape)
    return Case(sa.compress_norm_rope_store, arguments, check)


# The indexer.


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


@_case(("e4m3", False), ("mxfp4", True), ("bf16", False))
def indexer_query(form: str, v32: bool) -> Case:
    q, weights, positions, table = bf16(3, 4, 128), torch.randn(3, 4), i64([2, 0, 7]), oracle.rope_table(8, 64)
    rotation = {
        "pairing": RopePairing.half_split if v32 else RopePairing.interleaved,
        "where": RopeSlice.first if v32 else RopeSlice.last,
        "hadamard": v32,
    }
    values, stored, folded, scale = _indexer_query(q, weights, positions, table, form, (128**-0.5, 0.5), **rotation)
    q_out, weights_out = torch.empty_like(stored), torch.empty(3, 4)
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
        arguments["q_scale_out"] = torch.empty_like(scale).view(torch.float8_e8m0fnu)

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


@_case(*_FORMS)
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


@_case()
def topk_select() -> Case:
    logits, lengths, topk = torch.randn(4, 40), i32([40, 3, 0, 17]), torch.zeros(4, 8, dtype=torch.int32)
    logits[0, :20] = logits[0, 0]  # ties: the smaller number wins
    expected = _topk([row[: int(n)] for row, n in zip(logits, lengths)], 8)
    return Case(sa.topk_select, {"logits": logits, "lengths": lengths, "topk_indices": topk}, lambda: equal("topk_indices", topk, expected))


@_case(
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


# Indices.


@_case()
def scatter_block_tables() -> Case:
    entries, table = torch.arange(100, 110, dtype=torch.int32), torch.zeros(3, 6, dtype=torch.int32)
    expected = torch.zeros(3, 6)
    expected[0, 2:5], expected[2, 0:2] = torch.tensor([101.0, 102, 103]), torch.tensor([107.0, 108])
    arguments = {"entries": entries, "segments": i32([[0, 2, 1, 3], [2, 0, 7, 2]]), "block_table": table}
    return Case(sa.scatter_block_tables, arguments, lambda: equal("block_table", table, expected))


_POSITIONS, _TO_REQ, _VALID = i64([5, 7, 0, 3]), i32([1, 0, 0, 1]), torch.tensor([True, True, True, False])
_TABLE = i32([[4, 2, 7, 9], [1, 8, 0, 3]])


@_case(1, 4)
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


@_case()
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


@_case(True, False)
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


@_case()
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


@_case()
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


# Attention.


@_case((KvFormat.fp8_ds_mla_v4, 512), (KvFormat.fp8_ds_mla, 576), (KvFormat.bf16, 512), (KvFormat.fp8_tensor, 576))
def sparse_attn_decode(format: KvFormat, dim: int) -> Case:
    cache, q, scale = filled_cache(format, 3, 5, dim), bf16(3, 2, 4, dim), dim**-0.5
    indices, lengths = torch.randint(0, 15, (3, 2, 6), dtype=torch.int32), i32([6, 0, 3])
    indices[0, :, 2], indices[2, :, 3:] = -1, 2147483647
    out, lse, most = torch.empty(3, 2, 4, 512).bfloat16(), torch.empty(3, 4, 2), torch.empty(3, 4, 2)
    # Matrix units read keys as bf16. Those of fp8_ds_mla are rounded, as their scales are fp32; the others are exact.
    logit = 4e-3 if format == KvFormat.fp8_ds_mla else 1e-4

    def check() -> None:
        for b in range(3):
            for s in range(2):
                chosen = indices[b, s, : int(lengths[b])]
                keys = formats.load(cache, chosen[chosen != -1])
                expected = oracle.attend(q[b, s], keys, keys[:, :512], scale)
                near("out", out[b, s], expected[0], 2 * BF16, 5e-3)
                near("lse", lse[b, :, s], expected[1], 1e-4, logit)
                near("max_logits", most[b, :, s], expected[2], 1e-4, logit)

    arguments = {
        "q": q,
        "cache": cache,
        "indices": indices,
        "softmax_scale": scale,
        "out": out,
        "topk_length": lengths,
        "lse": lse,
        "max_logits": most,
    }
    return Case(sa.sparse_attn_decode, arguments, check)


@_case(False, True)
def sparse_attn_decode_two_caches(is_fused: bool) -> Case:
    cache, extra = filled_cache(KvFormat.fp8_ds_mla_v4, 2, 8), filled_cache(KvFormat.fp8_ds_mla_v4, 5, 2)
    q, sink, scale = bf16(3, 1, 2, 512), torch.tensor([0.3, -math.inf]), 512**-0.5
    indices, more = torch.randint(0, 16, (3, 1, 5), dtype=torch.int32), torch.randint(0, 10, (3, 1, 4), dtype=torch.int32)
    lengths, more_lengths = i32([5, 2, 4]), i32([1, 4, 0])
    positions, table = i64([3, 30, 11]), oracle.rope_table(32, 64)
    out = torch.empty(3, 1, 2, 512).bfloat16()
    arguments = {
        "q": q,
        "cache": cache,
        "indices": indices,
        "softmax_scale": scale,
        "out": out,
        "topk_length": lengths,
        "extra_cache": extra,
        "extra_indices": more,
        "extra_topk_length": more_lengths,
        "attn_sink": sink,
        "batch_invariant": True,
    }
    if is_fused:
        arguments |= {"query_prologue": sa.QueryNormRope(positions, table, 1e-5), "out_epilogue": sa.InverseRope(positions, table)}

    def check() -> None:
        queries = oracle.rope(oracle.rms_norm(q[:, 0], None, 1e-5), positions, table).bfloat16() if is_fused else q[:, 0]
        expected = []
        for b in range(3):
            keys = torch.cat(
                [formats.load(cache, indices[b, 0, : int(lengths[b])]), formats.load(extra, more[b, 0, : int(more_lengths[b])])]
            )
            expected.append(oracle.attend(queries[b], keys, keys, scale, sink)[0])
        result = torch.stack(expected)
        near("out", out[:, 0], oracle.rope(result, positions, table, inverse=True) if is_fused else result, 2 * BF16, 1e-2)

    return Case(sa.sparse_attn_decode, arguments, check)


@_case()
def sparse_attn_prefill() -> Case:
    q, kv, sink, scale = bf16(3, 2, 512), bf16(10, 512), torch.randn(2), 0.05
    indices, lengths = i32([[0, 9, -1, 10, 3, 3], [-5, 2147483647, 10, 11, -1, -1], [5, 6, 7, 8, 1, 0]]), i32([6, 6, 4])
    out, lse, most = torch.empty(3, 2, 128).bfloat16(), torch.empty(3, 2), torch.empty(3, 2)

    def check() -> None:
        for t in range(3):
            chosen = [i for i in indices[t, : int(lengths[t])].tolist() if 0 <= i < 10]
            expected = oracle.attend(q[t], kv[chosen], kv[chosen][:, :128], scale, sink)
            near("out", out[t], expected[0], 2 * BF16, 5e-3)
            near("lse", lse[t], expected[1], 1e-4, 1e-4)
            near("max_logits", most[t], expected[2], 1e-4, 1e-4)

    arguments = {
        "q": q,
        "kv": kv,
        "indices": indices,
        "softmax_scale": scale,
        "out": out,
        "topk_length": lengths,
        "attn_sink": sink,
        "lse": lse,
        "max_logits": most,
        "batch_invariant": True,
    }
    return Case(sa.sparse_attn_prefill, arguments, check)


@_case(math.inf, -math.inf)
def merge_attn_states(empty_lse: float) -> Case:
    o, lse, sink = torch.randn(3, 4, 2, 16), torch.randn(3, 4, 2), torch.randn(2)
    lse[:, 1], lse[0, 2] = math.inf, -math.inf
    out, lse_out = torch.empty(4, 2, 16), torch.empty(4, 2)

    def check() -> None:
        finite = torch.where(lse.isinf(), -math.inf, lse.double())
        total = finite.logsumexp(0)
        factor = torch.where(total.isinf(), 0, (finite - torch.logaddexp(total, sink.double())).exp())
        near("out", out, (factor[..., None] * o.double()).sum(0), 1e-4, 1e-5)
        near("lse_out", lse_out, torch.where(total.isinf(), empty_lse, total), 1e-5, 1e-5)

    return Case(
        sa.merge_attn_states, {"o": o, "lse": lse, "empty_lse": empty_lse, "out": out, "attn_sink": sink, "lse_out": lse_out}, check
    )


@_case()
def inverse_rope() -> Case:
    o, positions, table = bf16(3, 2, 96), i64([4, 0, 7]), oracle.rope_table(8, 64)
    out = torch.empty_like(o)
    return Case(
        sa.inverse_rope,
        {"o": o, "positions": positions, "cos_sin": table, "out": out},
        lambda: near("out", out, oracle.rope(o, positions, table, inverse=True), BF16, 1e-3),
    )


@_case()
def inverse_rope_quant() -> Case:
    o, positions, table = bf16(3, 4, 256), i64([4, 0, 7]), oracle.rope_table(8, 64)
    out, scale = torch.empty(3, 2, 512, dtype=formats.E4M3), torch.empty(3, 2, 4)

    def check() -> None:
        values, expected = formats.quantised_blocks(oracle.rope(o, positions, table, inverse=True).reshape(3, 2, 512), 128, 1e-10)
        near("scale", scale, expected, 0)
        nearly_all("out", out, values, E4M3_STEP, 0.05)

    return Case(sa.inverse_rope_quant, {"o": o, "positions": positions, "cos_sin": table, "out": out, "scale": scale}, check)


# MLA.


@_case((KvFormat.bf16, False), (KvFormat.fp8_tensor, False), (KvFormat.fp8_ds_mla, True))
def mla_rope_kv_insert(format: KvFormat, ue8m0: bool) -> Case:
    q, c, k_pe, positions, table = bf16(3, 2, 192), bf16(3, 512), bf16(3, 64), i64([4, 0, 7]), oracle.rope_table(8, 64)
    factors, slots, cache = torch.tensor([1.0, 1.5, 0.75]), i64([5, -1, 2]), empty_cache(format, 2, 4, 576)
    q_pe_out = torch.empty(2, 2, 64).bfloat16()
    was_q, was_k = q.clone(), k_pe.clone()

    def check() -> None:
        rotated = oracle.rope(was_q[:, :, 128:], positions, table).bfloat16()
        whole = torch.cat([was_q[:, :, :128], rotated], 2).double() * factors[:, None, None]
        near("q", q, whole, 2 * BF16, 1e-3)
        near("q_pe_out", q_pe_out, q[:2, :, 128:], 0)
        near("k_pe", k_pe, oracle.rope(was_k, positions, table), BF16, 1e-3)
        check_rows(cache, slots[[0, 2]], torch.cat([c, k_pe], 1).double()[[0, 2]], ue8m0=ue8m0)

    arguments = {
        "q": q,
        "c": c,
        "k_pe": k_pe,
        "positions": positions,
        "cos_sin": table,
        "llama_4_scaling": factors,
        "q_pe_out": q_pe_out,
        "slot_mapping": slots,
        "cache": cache,
        "ue8m0": ue8m0,
    }
    return Case(sa.mla_rope_kv_insert, arguments, check)


@_case((KvFormat.indexer_fp8, True), (KvFormat.bf16, False))
def indexer_key_insert(format: KvFormat, hadamard: bool) -> Case:
    k, weight, bias, positions, table = bf16(3, 128), torch.randn(128), torch.randn(128), i64([4, 0, 7]), oracle.rope_table(8, 64)
    slots, cache = i64([5, -1, 2]), empty_cache(format, 2, 4, 128)

    def check() -> None:
        y = torch.nn.functional.layer_norm(k.double(), (128,), weight.double(), bias.double(), 1e-6).bfloat16()
        y = oracle.rope(y, positions, table, pairing=RopePairing.half_split, where=RopeSlice.first).bfloat16()
        check_rows(cache, slots[[0, 2]], (oracle.hadamard(y).bfloat16() if hadamard else y)[[0, 2]].double())

    arguments = {
        "k": k,
        "weight": weight,
        "bias": bias,
        "slot_mapping": slots,
        "cache": cache,
        "positions": positions,
        "cos_sin": table,
        "hadamard": hadamard,
    }
    return Case(sa.indexer_key_insert, arguments, check)


@_case(
    (KvFormat.bf16, 1, True),
    (KvFormat.fp8_tensor, 1, False),
    (KvFormat.fp8_ds_mla, 1, True),
    (KvFormat.bf16, 2, False),
    (KvFormat.fp8_tensor, 3, True),
)
def dense_attn_decode(format: KvFormat, kv_heads: int, causal: bool) -> Case:
    # With several KV heads the rows of a slot lie next to each other: pages of kv_heads times as many rows.
    rows, q, scale = filled_cache(format, 6, 4 * kv_heads, 576), bf16(4, 6, 576), 192**-0.5
    cache = dataclasses.replace(rows, page_size=4)
    table, starts, lens = i32([[2, 0], [5, 1], [3, 4]]), i32([0, 1, 1, 4]), i32([7, 0, 6])
    out, lse = torch.empty(4, 6, 512).bfloat16(), torch.empty(4, 6)

    def check() -> None:
        each = 6 // kv_heads
        for t, (b, seen) in enumerate(((0, 7), (2, 4), (2, 5), (2, 6))):
            slots = oracle.slots_of(table, b, torch.arange(seen if causal else int(lens[b])), 4)
            for g in range(kv_heads):
                keys, heads = formats.load(rows, slots * kv_heads + g), slice(g * each, (g + 1) * each)
                expected = oracle.attend(q[t, heads], keys, keys[:, :512], scale)
                near("out", out[t, heads], expected[0], 2 * BF16, 5e-3)
                near("lse", lse[t, heads], expected[1], 1e-4, 1e-4)

    arguments = {
        "q": q,
        "cache": cache,
        "block_table": table,
        "query_start_loc": starts,
        "seq_lens": lens,
        "max_query_len": 3,
        "max_seq_len": 8,
        "softmax_scale": scale,
        "out": out,
        "lse": lse,
        "num_kv_heads": kv_heads,
        "causal": causal,
    }
    return Case(sa.dense_attn_decode, arguments, check)


@_case(True, False)
def dense_attn_prefill(causal: bool) -> Case:
    q, k_nope, k_pe, v, scale = bf16(5, 2, 96), bf16(6, 2, 64), bf16(6, 32), bf16(6, 2, 48), 0.1
    starts, key_starts = i32([0, 2, 5]), i32([0, 2, 6])
    out, lse = torch.empty(5, 2, 48), torch.empty(5, 2)

    def check() -> None:
        keys = torch.cat([k_nope, k_pe[:, None].expand(-1, 2, -1)], 2)
        for b in range(2):
            n, m = int(starts[b + 1] - starts[b]), int(key_starts[b + 1] - key_starts[b])
            for i in range(n):
                first = int(key_starts[b])
                rows = slice(first, first + (m - n + i + 1 if causal else m))
                expected = oracle.attend(q[int(starts[b]) + i], keys[rows], v[rows], scale, empty_lse=-math.inf)
                near("out", out[int(starts[b]) + i], expected[0], 2 * BF16, 5e-3)
                near("lse", lse[int(starts[b]) + i], expected[1], 1e-4, 1e-4)

    arguments = {
        "q": q,
        "k_nope": k_nope,
        "k_pe": k_pe,
        "v": v,
        "max_query_len": 3,
        "max_key_len": 4,
        "softmax_scale": scale,
        "out": out,
        "query_start_loc": starts,
        "key_start_loc": key_starts,
        "causal": causal,
        "lse": lse,
    }
    return Case(sa.dense_attn_prefill, arguments, check)
