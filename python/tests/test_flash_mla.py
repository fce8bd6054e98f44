"""strata_attention.flash_mla against float64, on the CPU and, where there is one, on a CUDA device."""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Callable
from typing import Any

import flash_mla_cases as grid
import oracle
import pytest
import torch

from strata_attention import flash_mla
from strata_attention.flash_mla import flash_mla_sparse_fwd, flash_mla_with_kvcache, get_mla_metadata

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
#: FlashMLA's share of an output. Probabilities may be rounded to bf16 before they meet values of up to 4: 4 * 2^-9.
RELATIVE, ABSOLUTE = 2.01 / 128, 2**-7
#: A kernel may round a row of 656 bytes to bf16 after its scale, or not. The logits then differ by up to 5 standard deviations of 8e-4.
LSE, LSE_656 = 1e-4, 2**-8
on_devices = pytest.mark.parametrize("device", DEVICES)


def moved(arguments: dict[str, Any], device: str) -> dict[str, Any]:
    """On the device with the same strides: gaps between pages and rows stay."""

    def move(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or device == "cpu":
            return value
        whole = torch.empty(0, dtype=value.dtype).set_(value.untyped_storage())
        return whole.to(device).as_strided(value.shape, value.stride(), value.storage_offset())

    return {name: move(value) for name, value in arguments.items()}


def close(name: str, got: torch.Tensor, want: torch.Tensor, relative: float, absolute: float) -> None:
    got, want = got.double().cpu(), want.double()
    assert got.shape == want.shape, f"{name} is {list(got.shape)}, expected {list(want.shape)}"
    same = (got == want) | ((got - want).abs() <= absolute + relative * want.abs())
    assert same.all(), f"{name}: {int((~same).sum())} of {same.numel()} differ, {got[~same][:4]} for {want[~same][:4]}"


def check_decode(arguments: dict[str, Any], out: torch.Tensor, lse: torch.Tensor, device: str) -> None:
    given = torch.full(out.shape, math.nan, dtype=torch.bfloat16, device=device)
    got_out, got_lse = flash_mla_with_kvcache(**moved(arguments, device), tile_scheduler_metadata=get_mla_metadata()[0], out=given)
    assert got_out is given and got_lse.dtype == torch.float32
    close("out", got_out, out, RELATIVE, ABSOLUTE)
    close("lse", got_lse, lse, 1e-4, LSE_656 if arguments["k_cache"].shape[-1] == 656 else LSE)


# Chunks, so that a report stays short: a case is named where it fails.
def run_chunk(cases: list[Any], chunk: int, of: int, check: Callable[[Any, int], None]) -> None:
    mine = [(index, case) for index, case in enumerate(cases) if index % of == chunk]
    assert mine
    for index, case in mine:
        try:
            check(case, index)
        except AssertionError as error:
            raise AssertionError(f"{case}: {error}") from None


@on_devices
@pytest.mark.parametrize("chunk", range(8))
def test_sparse_decode(chunk: int, device: str) -> None:
    run_chunk(list(grid.sparse_decode_grid()), chunk, 8, lambda case, seed: check_decode(*grid.sparse_decode(case, seed), device))


@on_devices
@pytest.mark.parametrize("chunk", range(4))
def test_dense_decode(chunk: int, device: str) -> None:
    run_chunk(list(grid.dense_decode_grid()), chunk, 4, lambda case, seed: check_decode(*grid.dense_decode(case, seed), device))


@on_devices
@pytest.mark.parametrize("chunk", range(4))
def test_sparse_prefill(chunk: int, device: str) -> None:
    def check(case: grid.SparsePrefill, seed: int) -> None:
        arguments, out, most, lse = grid.sparse_prefill(case, seed)
        got = flash_mla_sparse_fwd(**moved(arguments, device))
        close("out", got[0], out, RELATIVE, ABSOLUTE)
        close("max_logits", got[1], most, 1e-4, 1e-4)
        close("lse", got[2], lse, 1e-4, 1e-4)

    run_chunk(list(grid.sparse_prefill_grid()), chunk, 4, check)


def test_grid_has_every_feature() -> None:
    """Each option of the generator is met with each other value of an option at least once in each format."""
    cases = list(grid.sparse_decode_grid())
    for dim in (512, 576):
        mine = [case for case in cases if case.dim == dim]
        assert {(case.heads, case.queries, case.page_size) for case in mine} == {
            (heads, queries, size) for heads in grid.HEADS for queries in (1, 2, 3) for size in grid.PAGE_SIZES
        }
        for name in ("lengths", "invalid", "empty", "sink", "strided", "batch"):
            assert len({getattr(case, name) for case in mine}) > 1, name
    assert {case.extra_page_size for case in cases} == {0, *grid.PAGE_SIZES}


CASE = grid.SparseDecode(512, 8, 2, 64, extra_page_size=2, lengths=True, invalid="some")


def sparse_call(**changes: Any) -> tuple[torch.Tensor, torch.Tensor]:
    arguments, _, _ = grid.sparse_decode(CASE, 11)
    arguments["tile_scheduler_metadata"] = get_mla_metadata()[0]
    return flash_mla_with_kvcache(**arguments | changes)


def dense_call(**changes: Any) -> tuple[torch.Tensor, torch.Tensor]:
    arguments, _, _ = grid.dense_decode(grid.DenseDecode(6, 2, 2, True), 11)
    arguments["tile_scheduler_metadata"] = get_mla_metadata()[0]
    return flash_mla_with_kvcache(**arguments | changes)


def test_nan_rows_would_be_seen() -> None:
    """The oracle's caches have NaN wherever a kernel must not look: one of them named by an index reaches the output."""
    arguments, _, _ = grid.sparse_decode(dataclasses.replace(CASE, extra_page_size=0, invalid="all", lengths=False), 3)
    arguments["indices"][0, 0, 0] = 5
    out, _ = flash_mla_with_kvcache(**arguments, tile_scheduler_metadata=get_mla_metadata()[0])
    assert out[0, 0].isnan().any() and not out[1:].isnan().any()


@on_devices
def test_out_may_be_a_view(device: str) -> None:
    arguments, out, _ = grid.sparse_decode(CASE, 12)
    room = torch.full((*out.shape[:2], out.shape[2] + 3, 600), math.nan, dtype=torch.bfloat16, device=device)
    view = room[:, :, : out.shape[2], :512]
    flash_mla_with_kvcache(**moved(arguments, device), tile_scheduler_metadata=get_mla_metadata()[0], out=view)
    close("out", view, out, RELATIVE, ABSOLUTE)
    view.fill_(math.nan)
    assert room.isnan().all()


@on_devices
def test_pages_of_an_engine(device: str) -> None:
    """Pages far apart, as where an engine's block holds the pages of all layers."""
    case = grid.SparseDecode(512, 16, 1, 64, batch=2, lengths=True)
    arguments, out, lse = grid.sparse_decode(case, 13)
    pages = arguments["k_cache"]
    far, near = 1_002_240, pages.stride(0)
    room = torch.zeros(pages.shape[0] * far, dtype=torch.uint8)
    room.as_strided((pages.shape[0], near), (far, 1))[:] = torch.empty(0, dtype=torch.uint8).set_(pages.untyped_storage()).view(-1, near)
    arguments["k_cache"] = room.as_strided(pages.shape, (far, *pages.stride()[1:])).view(pages.dtype)
    check_decode(arguments, out, lse, device)


@on_devices
def test_batch_invariant(device: str) -> None:
    case = grid.SparseDecode(512, 16, 2, 64, extra_page_size=64, batch=3, lengths=True)
    arguments = moved(grid.sparse_decode(case, 14)[0], device)
    whole, _ = flash_mla_with_kvcache(**arguments, tile_scheduler_metadata=get_mla_metadata()[0], enable_batch_invariant=True)
    per_request = ("q", "indices", "topk_length", "extra_indices_in_kvcache", "extra_topk_length")
    for b in range(3):
        alone = {name: value[b : b + 1] if name in per_request else value for name, value in arguments.items()}
        out, _ = flash_mla_with_kvcache(**alone, tile_scheduler_metadata=get_mla_metadata()[0], enable_batch_invariant=True)
        assert torch.equal(out[0], whole[b])


def test_one_metadata_serves_many_calls() -> None:
    for call in (sparse_call, dense_call):
        metadata, splits = get_mla_metadata("any", arguments="are accepted")
        assert splits is None and not metadata.have_initialized
        first = call(tile_scheduler_metadata=metadata)
        assert metadata.have_initialized
        for got, want in zip(call(tile_scheduler_metadata=metadata), first):
            assert torch.equal(got.nan_to_num(), want.nan_to_num())


def test_metadata_of_other_shapes() -> None:
    metadata, _ = get_mla_metadata()
    sparse_call(tile_scheduler_metadata=metadata)
    with pytest.raises(AssertionError, match=r"s_q must be 2, is 1; topk must be 40, is 39: tile_scheduler_metadata is of calls"):
        arguments, _, _ = grid.sparse_decode(dataclasses.replace(CASE, queries=1), 11)
        flash_mla_with_kvcache(**arguments | {"indices": arguments["indices"][..., :39], "tile_scheduler_metadata": metadata})


def test_metadata_used_anew() -> None:
    """Engines keep the object and clear have_initialized for a step of another shape."""
    metadata, _ = get_mla_metadata()
    dense_call(tile_scheduler_metadata=metadata)
    metadata.have_initialized = False
    arguments, out, _ = grid.dense_decode(grid.DenseDecode(6, 2, 1, True), 12)
    got, _ = flash_mla_with_kvcache(**arguments, tile_scheduler_metadata=metadata)
    close("out", got, out, RELATIVE, ABSOLUTE)


def test_dense_views() -> None:
    """Queries with gaps between requests are taken; an output with gaps between requests of several tokens is refused."""
    arguments, out, _ = grid.dense_decode(grid.DenseDecode(6, 2, 2, True), 13)
    q = torch.full((3, 3, 7, 600), math.nan).bfloat16()[:, :2, :6, :576]
    q.copy_(arguments["q"])
    got, _ = flash_mla_with_kvcache(**arguments | {"q": q}, tile_scheduler_metadata=get_mla_metadata()[0])
    close("out", got, out, RELATIVE, ABSOLUTE)
    room = torch.zeros(3, 2, 7, 600).bfloat16()
    flash_mla_with_kvcache(**arguments, tile_scheduler_metadata=get_mla_metadata()[0], out=room[:, :, :6, :512])
    close("out", room[:, :, :6, :512], out, RELATIVE, ABSOLUTE)
    with pytest.raises(ValueError, match=r"out must have its b \* s_q tokens at one distance, has strides"):
        dense_call(out=torch.zeros(3, 3, 6, 512).bfloat16()[:, :2])


def half(name: str) -> dict[str, Any]:
    arguments, _, _ = grid.dense_decode(grid.DenseDecode(6, 2, 2, True), 11)
    return {name: arguments[name].half()}


@pytest.mark.parametrize(
    ("call", "changes", "error", "text"),
    [
        (sparse_call, {"num_splits": torch.zeros(1)}, AssertionError, "num_splits must be None, is Tensor"),
        (sparse_call, {"tile_scheduler_metadata": None}, AssertionError, "must be a FlashMLASchedMeta, is NoneType"),
        (sparse_call, {"causal": True}, AssertionError, "causal must be False where indices is given"),
        (sparse_call, {"is_fp8_kvcache": False}, AssertionError, "is_fp8_kvcache must be True"),
        (sparse_call, {"q": torch.zeros(3, 2, 8, 500).bfloat16()}, ValueError, "q must have 512 or 576 dimensions .* has 500"),
        (sparse_call, {"q": torch.zeros(3, 2, 8, 512)}, ValueError, "q must be torch.bfloat16, is torch.float32"),
        (sparse_call, {"q": torch.zeros(3, 8, 512).bfloat16()}, ValueError, "q must have 4 dimensions, has 3"),
        (sparse_call, {"k_cache": torch.zeros(2, 64, 1, 656, dtype=torch.uint8)}, ValueError, r"k_cache must be \[blocks, rows, 1, 584\]"),
        (sparse_call, {"k_cache": torch.zeros(2, 64, 2, 584, dtype=torch.uint8)}, ValueError, r"k_cache must be \[blocks, rows, 1, 584\]"),
        (sparse_call, {"k_cache": torch.zeros(2, 64, 1, 584)}, ValueError, "a dtype of one byte, has torch.float32"),
        (sparse_call, {"k_cache": torch.zeros(2, 64, 1, 600, dtype=torch.uint8)[..., :584]}, ValueError, "rows next to each other"),
        (sparse_call, {"out": torch.zeros(3, 2, 8, 500).bfloat16()}, ValueError, r"out must be \[b, s_q, h_q, 512\], is"),
        (sparse_call, {"out": torch.zeros(3, 2, 7, 512).bfloat16()}, ValueError, "sparse_attn_decode: out must"),
        (sparse_call, {"indices": torch.zeros(3, 2, 40)}, ValueError, "sparse_attn_decode: indices must"),
        (sparse_call, {"attn_sink": torch.zeros(7)}, ValueError, "sparse_attn_decode: attn_sink must"),
        (sparse_call, {"extra_indices_in_kvcache": None}, ValueError, "sparse_attn_decode: extra_indices"),
        (dense_call, {"block_table": None}, AssertionError, "block_table and cache_seqlens must be given"),
        (dense_call, {"attn_sink": torch.zeros(6)}, AssertionError, "attn_sink must be None where indices is None"),
        (dense_call, {"topk_length": torch.zeros(3)}, AssertionError, "topk_length must be None where indices is None"),
        (dense_call, {"is_fp8_kvcache": True}, ValueError, "is_fp8_kvcache must be False where indices is None"),
        (dense_call, half("q"), ValueError, r"q must be torch.bfloat16, is torch.float16 \(float16 is not supported\)"),
        (dense_call, half("k_cache"), ValueError, r"k_cache must be torch.bfloat16, is torch.float16 \(float16 is not supported\)"),
        (dense_call, {"q": torch.zeros(3, 2, 7, 576).bfloat16()}, ValueError, "multiple of the 2 KV heads"),
        (dense_call, {"cache_seqlens": torch.tensor([5, 0, 9])}, ValueError, "seq_lens must"),
        (dense_call, {"cache_seqlens": torch.tensor([5, 0, 9999], dtype=torch.int32)}, ValueError, r"seq_lens\[2\] must be in"),
    ],
)
def test_errors(call: Callable[..., Any], changes: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        call(**changes)


def varlen_inputs(heads: int, kv_heads: int, dim: int, value_dim: int) -> dict[str, Any]:
    torch.manual_seed(2)
    queries, keys = torch.tensor([0, 3, 3, 8], dtype=torch.int32), torch.tensor([0, 5, 6, 16], dtype=torch.int32)
    return {
        "q": torch.randn(8, heads, dim).bfloat16(),
        "k": torch.randn(16, kv_heads, dim).bfloat16(),
        "v": torch.randn(16, kv_heads, value_dim).bfloat16(),
        "cu_seqlens_qo": queries,
        "cu_seqlens_kv": keys,
        "max_seqlen_qo": 5,
        "max_seqlen_kv": 10,
    }


def check_varlen(inputs: dict[str, Any], causal: bool, got: tuple[torch.Tensor, torch.Tensor]) -> None:
    q, k, v = inputs["q"].cpu(), inputs["k"].cpu(), inputs["v"].cpu()
    group = q.shape[1] // k.shape[1]
    starts, key_starts = inputs["cu_seqlens_qo"].tolist(), inputs["cu_seqlens_kv"].tolist()
    for b in range(len(starts) - 1):
        n, m = starts[b + 1] - starts[b], key_starts[b + 1] - key_starts[b]
        for i in range(n):
            keys = slice(key_starts[b], key_starts[b] + (max(m - n + i + 1, 0) if causal else m))
            out, lse, _ = oracle.attend(
                q[starts[b] + i],
                k[keys].repeat_interleave(group, 1),
                v[keys].repeat_interleave(group, 1),
                q.shape[2] ** -0.5,
                empty_lse=-math.inf,
            )
            close("out", got[0][starts[b] + i], out, RELATIVE, ABSOLUTE)
            close("lse", got[1][starts[b] + i], lse, 1e-4, 1e-4)


@on_devices
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("heads", "kv_heads", "dim", "value_dim"), [(4, 4, 192, 128), (6, 2, 128, 128), (5, 1, 64, 32)])
def test_varlen(heads: int, kv_heads: int, dim: int, value_dim: int, causal: bool, device: str) -> None:
    inputs = moved(varlen_inputs(heads, kv_heads, dim, value_dim), device)
    check_varlen(inputs, causal, flash_mla.flash_attn_varlen_func(**inputs, causal=causal))


def test_varlen_packed() -> None:
    inputs = varlen_inputs(4, 4, 64, 32)
    packed = torch.cat([inputs["k"], inputs["v"]], -1)
    rest = [inputs[name] for name in ("cu_seqlens_qo", "cu_seqlens_kv", "max_seqlen_qo", "max_seqlen_kv")]
    check_varlen(inputs, True, flash_mla.flash_attn_varlen_kvpacked_func(inputs["q"], packed, *rest, head_dim_qk=64, causal=True))
    same = inputs | {"k": inputs["k"][:8], "v": inputs["v"][:8], "cu_seqlens_kv": inputs["cu_seqlens_qo"], "max_seqlen_kv": 5}
    packed = torch.cat([same["q"], same["k"], same["v"]], -1)
    check_varlen(same, False, flash_mla.flash_attn_varlen_qkvpacked_func(packed, same["cu_seqlens_qo"], 5, 64))


def test_varlen_is_forward_only() -> None:
    inputs = varlen_inputs(4, 4, 64, 32)
    inputs["q"].requires_grad_()
    out, lse = flash_mla.flash_attn_varlen_func(**inputs)
    assert out.requires_grad and not lse.requires_grad
    with pytest.raises(RuntimeError, match="flash_attn_varlen_func: the backward pass is not supported"):
        out.sum().backward()
    for changes in ({"dropout_p": 0.1}, {"deterministic": True}):
        with pytest.raises(AssertionError, match="dropout_p must be 0 and deterministic False"):
            flash_mla.flash_attn_varlen_func(**inputs, **changes)
    with pytest.raises(ValueError, match="q must have a multiple of the 3 heads of k, has 4"):
        flash_mla.flash_attn_varlen_func(**inputs | {"k": torch.zeros(16, 3, 64).bfloat16()})


def test_api_is_flash_mlas() -> None:
    """Names, order and defaults of FlashMLA's functions, so that positional calls mean the same."""
    expected = {
        "flash_mla_with_kvcache": "q k_cache block_table cache_seqlens head_dim_v tile_scheduler_metadata num_splits softmax_scale causal "
        "is_fp8_kvcache indices attn_sink extra_k_cache extra_indices_in_kvcache topk_length extra_topk_length out enable_batch_invariant",
        "flash_mla_sparse_fwd": "q kv indices sm_scale d_v attn_sink topk_length out enable_batch_invariant",
        "flash_attn_varlen_func": "q k v cu_seqlens_qo cu_seqlens_kv max_seqlen_qo max_seqlen_kv dropout_p softmax_scale causal deterministic "
        "is_varlen",
        "flash_attn_varlen_qkvpacked_func": "qkv cu_seqlens max_seqlen head_dim_qk dropout_p softmax_scale causal deterministic is_varlen",
        "flash_attn_varlen_kvpacked_func": "q kv cu_seqlens_qo cu_seqlens_kv max_seqlen_qo max_seqlen_kv head_dim_qk dropout_p softmax_scale "
        "causal deterministic is_varlen",
    }
    for name, parameters in expected.items():
        assert list(inspect.signature(getattr(flash_mla, name)).parameters) == parameters.split(), name
    assert flash_mla.__strata__ is True
    assert [field.name for field in dataclasses.fields(flash_mla.FlashMLASchedMeta)] == [
        "have_initialized",
        "config",
        "tile_scheduler_metadata",
        "num_splits",
    ]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_graphs() -> None:
    """The metadata's first use may lie in the graph, as in vLLM's."""
    for make, case in ((grid.sparse_decode, CASE), (grid.dense_decode, grid.DenseDecode(16, 1, 2, True))):
        arguments, want, _ = make(case, 21)
        arguments = moved(arguments, "cuda")
        flash_mla_with_kvcache(**arguments, tile_scheduler_metadata=get_mla_metadata()[0])
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            metadata, _ = get_mla_metadata()
            out, _ = flash_mla_with_kvcache(**arguments, tile_scheduler_metadata=metadata)
        out.fill_(math.nan)
        graph.replay()
        close("out", out, want, RELATIVE, ABSOLUTE)
