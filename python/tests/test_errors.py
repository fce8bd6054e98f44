"""Misuse: every op refuses dtypes, ranks, strides, shapes, missing arguments and indices that it cannot take, and writes nothing."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

import pytest
import torch
from cases import CASES, Case, bf16, i32, i64
from flat import flat, torch_op

import strata_attention as sa
from strata_attention import KvFormat, PagedCache

FIRST: dict[str, str] = {}
for _name in CASES:
    FIRST.setdefault(_name.split("[")[0], _name)


def _tensors(case: Case) -> list[str]:
    """Names of a case's plain tensors; caches are tested apart."""
    return [name for name, value in case.arguments.items() if isinstance(value, torch.Tensor)]


# Extents that may differ: widths of tables, numbers of candidates, selected entries.
FREE_LAST = {
    ("scatter_block_tables", "entries"),
    ("scatter_block_tables", "block_table"),
    ("combine_topk_swa", "combined_indices"),
    ("topk_select", "logits"),
    ("topk_select", "topk_indices"),
    ("indexer_logits", "logits"),
    ("indexer_topk", "topk_indices"),
    ("sparse_attn_decode", "indices"),
    ("sparse_attn_prefill", "indices"),
    ("compressed_indices", "indices"),
    # At most as many as the tokens; at most as wide as a row.
    ("qnorm_rope_kv_insert", "slot_mapping"),
    ("quantize_and_insert_k", "slot_mapping"),
    ("sparse_attn_decode", "extra_indices"),
    ("sparse_attn_prefill", "out"),
    ("mla_rope_kv_insert", "q"),
    ("dense_attn_decode", "out"),
} | {(op.__name__, "block_table") for op in sa.ALL}

PARAMETERS = [(name, argument) for name in FIRST.values() for argument in _tensors(CASES[name]())]


def _unchanged(case: Case, call: Any) -> None:
    tensors = [value for value in flat(case).values() if isinstance(value, torch.Tensor)]
    before = [tensor.clone().view(torch.uint8) for tensor in tensors]
    call()
    for tensor, old in zip(tensors, before):
        assert torch.equal(tensor.view(torch.uint8), old)


def _refused(case: Case, argument: str, value: Any, match: str = "") -> None:
    def call() -> None:
        with pytest.raises(ValueError, match=f"{case.op.__name__}: .*{match}"):
            case.op(**{**case.arguments, argument: value})

    _unchanged(case, call)


@pytest.mark.parametrize(("name", "argument"), PARAMETERS)
def test_wrong_dtype(name: str, argument: str) -> None:
    case = CASES[name]()
    tensor = case.arguments[argument]
    for dtype in (torch.float16, torch.float64, torch.int16):
        _refused(case, argument, torch.zeros(tensor.shape, dtype=dtype))
    _refused(case, argument, torch.zeros(tensor.shape, dtype=torch.complex64), "dtype that ops compute with")


@pytest.mark.parametrize(("name", "argument"), PARAMETERS)
def test_wrong_rank(name: str, argument: str) -> None:
    case = CASES[name]()
    tensor = case.arguments[argument]
    _refused(case, argument, tensor[None])
    _refused(case, argument, tensor.reshape(-1)[0], "1 to 4 dimensions, has 0")
    _refused(case, argument, tensor[None, None, None, None], "1 to 4 dimensions")


@pytest.mark.parametrize(
    ("name", "argument"), [(name, argument) for name, argument in PARAMETERS if CASES[name]().arguments[argument].shape[-1] > 1]
)
def test_wrong_stride(name: str, argument: str) -> None:
    """Every op reads the last dimension as an array."""
    case = CASES[name]()
    tensor = case.arguments[argument]
    wide = torch.zeros(*tensor.shape, 2, dtype=tensor.dtype)
    wide[..., 0] = tensor
    _refused(case, argument, wide[..., 0])


@pytest.mark.parametrize(
    ("name", "argument"), [(name, argument) for name, argument in PARAMETERS if (CASES[name]().op.__name__, argument) not in FREE_LAST]
)
def test_wrong_shape(name: str, argument: str) -> None:
    """A last dimension of one element more."""
    case = CASES[name]()
    tensor = case.arguments[argument]
    _refused(case, argument, torch.cat([tensor, tensor[..., :1]], -1))


@pytest.mark.parametrize("name", FIRST.values())
def test_missing_argument(name: str) -> None:
    case = CASES[name]()
    for argument in case.arguments:
        rest = {key: value for key, value in case.arguments.items() if key != argument}
        if inspect.signature(case.op).parameters[argument].default is inspect.Parameter.empty:
            with pytest.raises(TypeError, match=argument):
                case.op(**rest)
            with pytest.raises((ValueError, RuntimeError, TypeError, AttributeError)):
                case.op(**rest, **{argument: None})


@pytest.mark.parametrize(
    ("name", "absent"),
    [
        ("qnorm_rope_kv_insert[fp8_ds_mla_v4]", ["cache"]),
        ("rms_norm_pair", ["kv_out"]),
        ("rms_norm_pair", ["q_weight"]),
        ("linear_quantised_x", ["x_scale"]),
        ("grouped_linear_fp8_y", ["y_scale"]),
        ("indexer_query[mxfp4-True]", ["q_scale_out"]),
        ("indexer_logits[mxfp4-indexer_mxfp4]", ["q_scale"]),
        ("indexer_topk[e4m3-indexer_fp8-False]", ["q"]),
        ("indexer_topk[e4m3-indexer_fp8-False]", ["cache"]),
        ("indexer_topk[bf16-bf16-True]", ["token_to_req"]),
        ("compressed_indices[True]", ["token_to_req"]),
        ("combine_topk_swa", ["topk_indices"]),
        ("sparse_attn_decode_two_caches[False]", ["extra_indices"]),
        ("mla_rope_kv_insert[bf16-False]", ["positions"]),
        ("mla_rope_kv_insert[bf16-False]", ["cache"]),
        ("indexer_key_insert[bf16-False]", ["positions"]),
        ("dense_attn_prefill[True]", ["key_start_loc"]),
    ],
)
def test_absent_where_another_argument_needs_it(name: str, absent: list[str]) -> None:
    case = CASES[name]()
    for argument in absent:
        _refused(case, argument, None)


@pytest.mark.parametrize(
    ("name", "argument", "value"),
    [
        ("qnorm_rope_kv_insert[bf16]", "positions", i64([0, 5, 8, 2])),
        ("qnorm_rope_kv_insert[bf16]", "slot_mapping", i64([10, -1, 1])),
        ("quantize_and_insert_k[fp8_ds_mla-576-False]", "slot_mapping", i64([9, 1, 2])),
        ("dequantize_and_gather_k[bf16-96]", "block_table", i32([[2, -1], [3, 1]])),
        ("dequantize_and_gather_k[bf16-96]", "seq_lens", i32([50, 4])),
        ("save_partial_states", "state_slots", i64([8, -1, 0])),
        ("save_partial_states", "positions", i64([3, 4, -9])),
        ("indexer_query[bf16-False]", "positions", i64([2, 0, 8])),
        ("indexer_logits[bf16-bf16]", "lengths", i32([13, 0, 6])),
        ("indexer_topk[bf16-bf16-False]", "token_to_req", i32([2, 0, 0])),
        ("topk_select", "lengths", i32([41, 3, 0, 17])),
        ("scatter_block_tables", "segments", i32([[0, 5, 1, 3], [2, 0, 7, 2]])),
        ("slot_mapping[1]", "positions", i64([5, 77, 0, 3])),
        ("swa_indices", "token_to_req", i32([1, 5, 0, 1])),
        ("compressed_indices[True]", "block_table", i32([[-1, 2, 7, 9], [-1, 8, 0, 3]])),
        ("compute_global_topk", "token_to_req", i32([1, -1, 0, 1])),
        ("combine_topk_swa", "gather_lens", i32([1, 1])),
        ("sparse_attn_decode[bf16-512]", "indices", torch.full((3, 2, 6), 15, dtype=torch.int32)),
        ("sparse_attn_decode[bf16-512]", "indices", torch.full((3, 2, 6), -2, dtype=torch.int32)),
        ("sparse_attn_decode_two_caches[False]", "extra_indices", torch.full((3, 1, 4), 10, dtype=torch.int32)),
        ("inverse_rope", "positions", i64([4, -1, 7])),
        ("inverse_rope_quant", "positions", i64([4, 0, 8])),
        ("mla_rope_kv_insert[bf16-False]", "slot_mapping", i64([8, -1, 2])),
        ("indexer_key_insert[bf16-False]", "slot_mapping", i64([8, -1, 2])),
        ("dense_attn_decode[bf16-1-True]", "block_table", i32([[2, 6], [5, 1], [3, 4]])),
        ("dense_attn_decode[bf16-1-True]", "seq_lens", i32([7, 0, 9])),
        ("dense_attn_decode[bf16-1-True]", "query_start_loc", i32([0, 2, 1, 4])),
        ("dense_attn_prefill[True]", "key_start_loc", i32([0, 5, 4])),
    ],
)
def test_index_out_of_range(name: str, argument: str, value: torch.Tensor) -> None:
    _refused(CASES[name](), argument, value)


@pytest.mark.parametrize(
    ("name", "argument", "value"),
    [
        ("sparse_attn_decode[bf16-512]", "softmax_scale", 0.0),
        ("sparse_attn_prefill", "softmax_scale", -1.0),
        ("slot_mapping[1]", "page_size", 0),
        ("slot_mapping[1]", "page_size", 2**31),
        ("slot_mapping[1]", "ratio", -(2**40)),
        ("merge_attn_states[inf]", "empty_lse", 0.0),
        ("linear", "activation", 3),
        ("linear", "activation", -1),
        ("compress_norm_rope_store[4-bf16-512-True]", "ratio", 5),
        ("indexer_query[bf16-False]", "pairing", 2),
        ("dense_attn_decode[bf16-1-True]", "max_seq_len", -1),
    ],
)
def test_number_out_of_range(name: str, argument: str, value: Any) -> None:
    _refused(CASES[name](), argument, value)


CACHED = [
    (name, argument) for name in FIRST.values() for argument, value in CASES[name]().arguments.items() if isinstance(value, PagedCache)
]


@pytest.mark.parametrize(("name", "argument"), CACHED)
def test_cache_that_is_not_in_its_memory(name: str, argument: str) -> None:
    case = CASES[name]()
    cache: PagedCache = case.arguments[argument]
    one_more = dataclasses.replace(cache, num_pages=cache.num_pages + 1)
    _refused(case, argument, one_more, f"{argument} must have the memory of num_pages pages")
    _refused(case, argument, dataclasses.replace(cache, num_pages=2**62), "memory of num_pages pages")
    _refused(case, argument, dataclasses.replace(cache, page_stride=cache.page_stride - 65))
    _refused(case, argument, dataclasses.replace(cache, format=7))
    _refused(case, argument, dataclasses.replace(cache, page_size=0))
    _refused(case, argument, dataclasses.replace(cache, row_dim=cache.row_dim + 1))
    _refused(case, argument, dataclasses.replace(cache, tensor=cache.tensor[128:]), "memory of num_pages pages")


def test_cache_without_the_rows_of_all_kv_heads() -> None:
    case = CASES["dense_attn_decode[bf16-2-False]"]()
    cache: PagedCache = case.arguments["cache"]
    _refused(case, "num_kv_heads", 3)
    _refused(case, "num_kv_heads", 0, "num_kv_heads must be at least 1")
    short = cache.tensor[: -cache.row_dim * 2 - 64]
    _refused(case, "cache", dataclasses.replace(cache, tensor=short.clone()), "memory of num_pages pages")


def test_cache_of_pages_at_other_distances() -> None:
    case = CASES["quantize_and_insert_k[bf16-96-False]"]()
    pages = torch.zeros(3, 3, 96).bfloat16()
    cache = PagedCache.of(pages, KvFormat.bf16)
    _refused(case, "cache", dataclasses.replace(cache, page_stride=cache.page_stride + 64), "distances of page_stride")
    _refused(case, "cache", PagedCache.of(torch.zeros(3, 96, 3).bfloat16().transpose(1, 2), KvFormat.bf16), "contiguous pages")
    case.op(**{**case.arguments, "cache": cache})
    assert torch.equal(pages[2, 1], case.arguments["k"][0])


def test_unsupported_is_a_runtime_error() -> None:
    """A call that no implementation takes: a weight packed for another machine."""
    weight = sa.LinearWeight(n=8, k=64, packed=torch.zeros(64, dtype=torch.uint8), packing="cpu/none")
    with pytest.raises(RuntimeError, match="linear: no implementation"):
        sa.linear(bf16(2, 64), weight, torch.empty(2, 8))


def test_pack_weight_refuses_by_name() -> None:
    weight = sa.LinearWeight(bf16(8, 64))
    with pytest.raises(ValueError, match="packing must be one of"):
        weight.pack("none")


def test_codes_of_flat_ops() -> None:
    case = CASES["rms_norm_pair"]()
    with pytest.raises(RuntimeError, match=r"^\[invalid_argument\] rms_norm_pair: kv must be bf16"):
        torch_op(case)(**{**flat(case), "kv": case.arguments["kv"].float()})


def test_device_that_ops_do_not_run_on() -> None:
    with pytest.raises(ValueError, match="a device is cpu, cuda:N"):
        sa.describe_device("mps:0")
    with pytest.raises(RuntimeError, match="not a device of torch's"):
        sa.describe_device("opencl:0")


def test_records_of_another_type() -> None:
    x, y = torch.zeros(1, 64).bfloat16(), torch.zeros(1, 32)
    with pytest.raises(TypeError, match="linear: weight must be a LinearWeight, is NoneType"):
        sa.linear(x, None, y)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="quantize_and_insert_k: cache must be a PagedCache, is Tensor"):
        sa.quantize_and_insert_k(x, torch.zeros(1, dtype=torch.int64), x)  # type: ignore[arg-type]
