"""Arguments that cannot be: each error names what, what is expected, and what was given."""

from __future__ import annotations

import dataclasses
import inspect
import pathlib
import pydoc
import subprocess
import sys

import pytest
import torch
from cases import CASES

import strata_attention as sa
from strata_attention import CacheGroup, KvFormat, LinearWeight, PagedCache, Request

FIRST: dict[str, str] = {}
for _name in CASES:
    FIRST.setdefault(_name.split("[")[0], _name)
LIMITS = sa.BatchLimits(max_num_batched_tokens=64, max_num_seqs=4, max_model_len=512)


@pytest.fixture(scope="module")
def v4(tmp_path_factory: pytest.TempPathFactory) -> sa.Checkpoint:
    folder = tmp_path_factory.mktemp("v4")
    sa.synthesize("v4-tiny", folder, overwrite=True)
    return sa.Checkpoint(folder)


@pytest.fixture(scope="module")
def v3(tmp_path_factory: pytest.TempPathFactory) -> sa.Checkpoint:
    folder = tmp_path_factory.mktemp("v3")
    sa.synthesize("v3-tiny", folder, overwrite=True)
    return sa.Checkpoint(folder)


@pytest.mark.parametrize(
    ("format", "dtype", "slot", "row_dim"),
    [
        (KvFormat.bf16, torch.bfloat16, (512,), None),
        (KvFormat.bf16, torch.bfloat16, (2, 96), 96),
        (KvFormat.bf16, torch.uint8, (1024,), None),
        (KvFormat.fp8_tensor, torch.float8_e4m3fn, (576,), None),
        (KvFormat.fp8_tensor, torch.uint8, (3, 576), 576),
        (KvFormat.fp8_ds_mla_v4, torch.uint8, (584,), None),
        (KvFormat.fp8_ds_mla_v4, torch.float8_e4m3fn, (1, 584), None),
        (KvFormat.fp8_ds_mla, torch.int8, (656,), None),
        (KvFormat.indexer_fp8, torch.uint8, (132,), None),
        (KvFormat.indexer_mxfp4, torch.uint8, (68,), None),
        (KvFormat.state_f32, torch.float32, (2048,), None),
        (KvFormat.state_f32, torch.uint8, (8192,), None),
    ],
)
def test_cache_of_every_format(format: KvFormat, dtype: torch.dtype, slot: tuple[int, ...], row_dim: int | None) -> None:
    cache = PagedCache.of(torch.zeros(16, 64, *slot, dtype=dtype), format, row_dim)
    assert (cache.num_pages, cache.page_size) == (16, 64)
    heads = slot[0] if len(slot) == 2 else 1
    assert cache.page_stride == 64 * heads * format.row_bytes(cache.row_dim)


@pytest.mark.parametrize(
    ("format", "dtype", "slot", "row_dim", "match"),
    [
        (KvFormat.fp8_ds_mla_v4, torch.uint8, (656,), None, "584 bytes in a slot with fp8_ds_mla_v4 of row_dim 512, has 656"),
        (KvFormat.fp8_ds_mla_v4, torch.uint8, (2, 584), None, "584 bytes in a slot .*, has 1168"),
        (KvFormat.fp8_ds_mla_v4, torch.uint8, (), None, "584 bytes in a slot .*, has 1"),
        (KvFormat.fp8_ds_mla, torch.uint8, (584,), None, "656 bytes in a slot .*, has 584"),
        (KvFormat.indexer_fp8, torch.uint8, (128,), None, "132 bytes in a slot .*, has 128"),
        (KvFormat.indexer_mxfp4, torch.uint8, (64,), None, "68 bytes in a slot .*, has 64"),
        (KvFormat.bf16, torch.bfloat16, (512,), 576, "1152 bytes in a slot with bf16 of row_dim 576, has 1024"),
        (KvFormat.bf16, torch.bfloat16, (512,), 0, "row_dim 0"),
        (KvFormat.bf16, torch.float32, (512,), None, r"bfloat16 or bytes with bf16, is torch\.float32"),
        (KvFormat.bf16, torch.float16, (512,), None, r"bfloat16 or bytes with bf16, is torch\.float16"),
        (KvFormat.state_f32, torch.bfloat16, (512,), None, r"float32 or bytes with state_f32, is torch\.bfloat16"),
        (KvFormat.fp8_tensor, torch.bfloat16, (512,), None, r"bytes with fp8_tensor, is torch\.bfloat16"),
        (KvFormat.fp8_ds_mla_v4, torch.bfloat16, (292,), None, r"bytes with fp8_ds_mla_v4, is torch\.bfloat16"),
        (KvFormat.fp8_ds_mla, torch.bool, (656,), None, r"bytes with fp8_ds_mla, is torch\.bool"),
    ],
)
def test_cache_of_another_tensor(format: KvFormat, dtype: torch.dtype, slot: tuple[int, ...], row_dim: int | None, match: str) -> None:
    with pytest.raises(ValueError, match=f"PagedCache.of: tensor must (be |.*){match}"):
        PagedCache.of(torch.zeros(16, 64, *slot, dtype=dtype), format, row_dim)


@pytest.mark.parametrize("name", FIRST.values())
def test_none_for_a_required_tensor(name: str) -> None:
    case = CASES[name]()
    parameters = inspect.signature(case.op).parameters
    required = [key for key in case.arguments if parameters[key].annotation == "torch.Tensor"]
    assert required
    for argument in required:
        for call in (case.op, lambda **keywords: sa.implementations(case.op, **keywords)):
            with pytest.raises(TypeError, match=f"^{case.op.__name__}: {argument} must be a torch.Tensor, is NoneType"):
                call(**{**case.arguments, argument: None})


def test_none_in_a_record() -> None:
    case = CASES["quantize_and_insert_k[bf16-96-False]"]()
    cache = dataclasses.replace(case.arguments["cache"], tensor=None)
    with pytest.raises(TypeError, match="cache.tensor must be a torch.Tensor, is NoneType"):
        case.op(**{**case.arguments, "cache": cache})


def test_meta_among_real_tensors() -> None:
    x, weight = torch.ones(2, 8).bfloat16(), torch.ones(8)
    for call, name in (
        (lambda: sa.rms_norm_pair(x, weight.to("meta"), kv_out=x), "kv_weight"),
        (lambda: sa.rms_norm_pair(x, weight, kv_out=torch.empty_like(x, device="meta")), "kv_out"),
        (lambda: sa.rms_norm_pair(x.to("meta"), weight, kv_out=x), "kv"),
    ):
        with pytest.raises(ValueError, match=f"rms_norm_pair: {name} must be on cpu, is on meta"):
            call()
    sa.rms_norm_pair(x.to("meta"), weight.to("meta"), kv_out=torch.empty_like(x, device="meta"))


def test_pool_that_can_never_have_the_pages(v3: sa.Checkpoint, v4: sa.Checkpoint) -> None:
    for checkpoint in (v3, v4):
        pool = sa.Pool(sa.load_layers(checkpoint, LIMITS), 128)
        pool.add_request(7)
        assert pool.extend(7, 0, 64)
        with pytest.raises(ValueError, match="request 7: seq_len must be at most max_model_len 512, is 513"):
            pool.extend(7, 449, 513)
    with pytest.raises(ValueError, match="request 7: new positions must be at most max_num_batched_tokens 64, are 448"):
        pool.extend(7, 64, 512)
    # Pages that another request may give back.
    layers = sa.load_layers(v3, LIMITS)
    full = sa.Pool(layers, pages={spec.group: 1 for spec in layers[0].cache_groups})
    full.add_request(0)
    page = min(spec.page_size * spec.ratio for spec in layers[0].cache_groups)
    assert full.extend(0, 0, page) and not full.extend(0, page, page + 64) and not full.extend(0, page, page + 65)


def test_tables_of_a_builder(v4: sa.Checkpoint) -> None:
    groups = list({spec.group: spec for layer in sa.load_layers(v4, LIMITS) for spec in layer.cache_groups}.values())
    with pytest.raises(ValueError, match=f"num_pages must have {len(groups)} entries, has 1"):
        sa.BatchBuilder(LIMITS, device="cpu", groups=groups, num_pages=[4])
    batch = sa.BatchBuilder(LIMITS, window=v4.config["sliding_window"], device="cpu", groups=groups, num_pages=[4] * len(groups))
    with pytest.raises(ValueError, match="request 0: block_tables: keys must be CacheGroup, has 'window'"):
        batch.build([Request(4, 4, block_tables={"window": [0]})])  # type: ignore[dict-item]
    with pytest.raises(ValueError, match="must have at least 1 entries"):
        batch.build([Request(4, 4, block_tables={CacheGroup.window: []})])


def test_workspace_of_any_dtype_and_address() -> None:
    case = CASES["sparse_attn_decode_two_caches[True]"]()
    size = sa.workspace_bytes(case.op, **case.arguments)
    case.op(**case.arguments, workspace=torch.empty(size // 4 + 1, dtype=torch.float32))
    case.check()


@pytest.mark.parametrize("offset", [0, 1, 255])
def test_workspace_of_a_layer_at_any_address(v3: sa.Checkpoint, offset: int) -> None:
    layer = sa.Layer(v3, v3.layers[0], LIMITS)
    pool = sa.Pool([layer])
    pool.add_request(0)
    assert pool.extend(0, 0, 64)
    batch = sa.BatchBuilder(LIMITS, pool)
    batch.build([Request(64, 64, 0)])
    hidden = torch.randn(64, layer.hidden_size).bfloat16()
    memory = torch.empty(layer.workspace_bytes + 512, dtype=torch.uint8)
    begin = -memory.data_ptr() % 256 + offset
    out = layer(hidden, batch, pool, workspace=memory[begin : begin + layer.workspace_bytes])
    assert torch.equal(out, layer(hidden, batch, pool))


def test_records_are_shown_without_contents() -> None:
    cache = PagedCache.empty(KvFormat.bf16, 2, 4, 8)
    assert repr(cache) == (
        "PagedCache(tensor=uint8[128] on cpu, format=bf16, row_dim=8, page_size=4, num_pages=2, page_stride=64, scale=1.0)"
    )
    assert cache != dataclasses.replace(cache) and len({cache, cache}) == 1
    assert repr(LinearWeight(torch.zeros(4, 8))).startswith("LinearWeight(weight=float32[4, 8] on cpu, n=4, k=8, groups=1")
    assert "format=99" in repr(dataclasses.replace(cache, format=99))
    assert repr(sa.QueryNormRope(torch.zeros(2).long(), torch.zeros(3, 64))) == (
        "QueryNormRope(positions=int64[2] on cpu, cos_sin=float32[3, 64] on cpu, eps=1e-06)"
    )


def test_formats_and_objects_of_another_model(v3: sa.Checkpoint, v4: sa.Checkpoint) -> None:
    with pytest.raises(ValueError, match="kv_format must be bf16, fp8_tensor or fp8_ds_mla for MLA layers, is fp8_ds_mla_v4"):
        sa.Layer(v3, 0, LIMITS, kv_format=KvFormat.fp8_ds_mla_v4)
    with pytest.raises(ValueError, match="kv_format must be .* for V4 layers, is fp8_ds_mla"):
        sa.Layer(v4, 0, LIMITS, kv_format=KvFormat.fp8_ds_mla)
    with pytest.raises(TypeError, match="load_layers: checkpoint must be a Checkpoint, is str"):
        sa.load_layers("path", LIMITS)  # type: ignore[arg-type]
    for query in (sa.implementations, sa.workspace_bytes):
        with pytest.raises(TypeError, match=f"{query.__name__}: op must be an op of strata_attention, is 'linear'"):
            query("linear")  # type: ignore[arg-type]


@pytest.mark.skipif(torch.cuda.is_available(), reason="for machines without a CUDA device")
def test_cuda_without_a_device(v3: sa.Checkpoint) -> None:
    with pytest.raises((RuntimeError, AssertionError)) as caught:
        sa.load_layers(v3, LIMITS, "cuda")
    try:
        sa.describe_device("cuda:0")
    except RuntimeError as error:
        if "no CUDA backend" in str(error):
            assert str(caught.value) == str(error) == "device cuda:0: this build has no CUDA backend (build it with nvcc: make python)"


def test_packing_that_the_device_does_not_take() -> None:
    for weight in (LinearWeight(torch.zeros(256, 256).bfloat16()), LinearWeight(torch.zeros(256, 256).bfloat16(), groups=2)):
        op, shape = (sa.linear, (1, 256)) if weight.groups == 1 else (sa.grouped_linear, (1, 2, 256))
        y = torch.zeros(*shape[:-1], weight.n).bfloat16()
        found = sa.implementations(op, torch.zeros(shape).bfloat16(), weight, y)
        for name in sa.weight_packings():
            if found.get(name, "eligible") != "eligible":
                with pytest.raises(ValueError, match="weight must be one that") as caught:
                    weight.pack(name)
                assert str(caught.value).endswith(f": {name} {found[name]}")


def test_compiled_layer(v3: sa.Checkpoint) -> None:
    layer = sa.Layer(v3, v3.layers[0], LIMITS)
    pool = sa.Pool([layer])
    pool.add_request(0)
    assert pool.extend(0, 0, 4)
    batch = sa.BatchBuilder(LIMITS, pool)
    batch.build([Request(4, 4, 0)])
    hidden = torch.randn(4, layer.hidden_size).bfloat16()

    def call(hidden: torch.Tensor) -> torch.Tensor:
        return layer(hidden * 2, batch, pool) + 1

    torch._dynamo.reset()
    with pytest.raises(RuntimeError, match="Layer.forward cannot be in a graph of torch.compile: leave out fullgraph=True"):
        torch.compile(call, fullgraph=True, backend="eager")(hidden)
    torch._dynamo.reset()
    assert torch.equal(torch.compile(call, backend="eager")(hidden), call(hidden))


def test_help_names_attributes() -> None:
    for kind in (sa.Layer, sa.Checkpoint):
        text = pydoc.render_doc(kind, renderer=pydoc.plaintext)
        own = [name for name in kind.__annotations__ if not name.startswith("_")]
        assert own
        for name in own:
            assert any(line.strip(" |").startswith(f"{name}  ") for line in text.splitlines()), name


def test_notebook_of_a_model_without_a_window(tmp_path: pathlib.Path) -> None:
    example = pathlib.Path(__file__).resolve().parents[2] / "examples" / "notebook.py"
    if not example.is_file():
        pytest.skip("not in the repository")
    sa.synthesize("v3-tiny", tmp_path / "model")
    text = subprocess.run([sys.executable, str(example), str(tmp_path / "model")], check=True, capture_output=True, text=True).stdout
    assert text.count("positions, last token") == 6
