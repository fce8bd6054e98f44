"""Layers, pools and batches: recorded outputs of transformers, an engine's own pages, errors, lifetimes."""

from __future__ import annotations

import ctypes
import gc
import json
import math
import pathlib
import re
import struct
import subprocess
import sys
import weakref

import pytest
import torch

import strata_attention as sa
from strata_attention import BatchTensor, CacheGroup, IndexerFormat, KvFormat, Request, _c_api

ROOT = pathlib.Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "golden"
DTYPES = {"BF16": torch.bfloat16, "F32": torch.float32, "I32": torch.int32}
in_repository = pytest.mark.skipif(not GOLDEN.is_dir(), reason="not in the repository")


def read_safetensors(path: pathlib.Path) -> dict[str, torch.Tensor]:
    data = path.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    result = {}
    for name, entry in json.loads(data[8 : 8 + size]).items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            result[name] = torch.frombuffer(bytearray(data[8 + size + begin : 8 + size + end]), dtype=DTYPES[entry["dtype"]]).view(
                entry["shape"]
            )
    return result


@in_repository
@pytest.mark.parametrize(
    ("model", "options"),
    [
        ("hf_v3", {}),
        ("hf_glm47_flash", {}),
        ("hf_glm5", {"indexer_format": IndexerFormat.none}),
        ("hf_v4", {"kv_format": KvFormat.bf16, "indexer_format": IndexerFormat.none}),
    ],
)
def test_layers_agree_with_transformers(model: str, options: dict) -> None:
    """Prefill in chunks of 64, then token by token. The recorded selection, where a layer selects."""
    checkpoint = sa.Checkpoint(GOLDEN / model)
    cases = read_safetensors(GOLDEN / model / "cases.safetensors")
    limits = sa.BatchLimits(64, 1, 512)
    layers = sa.load_layers(checkpoint, limits, **options)
    pool = sa.Pool(layers)
    batch = sa.BatchBuilder(limits, pool, window=checkpoint.config.get("sliding_window") or 0)
    checked = 0
    for number, layer in enumerate(layers):
        for sequence in range(100):
            prefix = f"layer{layer.index}.seq{sequence}."
            if prefix + "x" not in cases:
                break
            x, expected = cases[prefix + "x"], cases[prefix + "out"].double()
            prefill, tokens, request, outs = int(cases[prefix + "num_prefill"]), len(x), 1000 * number + sequence, []
            pool.add_request(request)
            at = 0
            while at < tokens:
                count = min(64, prefill - at) if at < prefill else 1
                assert pool.extend(request, at, at + count)
                batch.build([Request(at + count, count, request)])
                topk = None
                if layer.index_topk:
                    topk = torch.full((64, layer.index_topk), -1, dtype=torch.int32)
                    topk[:count] = cases[prefix + "topk"][at : at + count]
                outs.append(layer(x[at : at + count], batch, pool, topk_indices=topk, skip_topk=topk is not None))
                at += count
            pool.remove_request(request)
            error = (torch.cat(outs).double() - expected).norm() / expected.norm()
            assert error < 0.01, f"{prefix}: {error}"
            checked += 1
    assert checked >= 3


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> sa.Checkpoint:
    folder = tmp_path_factory.mktemp("v4")
    sa.synthesize("v4-tiny", folder, seed=3)
    return sa.Checkpoint(folder)


LIMITS = sa.BatchLimits(64, 4, 512)


@pytest.fixture(scope="module")
def layers(model: sa.Checkpoint) -> list[sa.Layer]:
    return sa.load_layers(model, LIMITS)


def _window(model: sa.Checkpoint) -> int:
    return model.config["sliding_window"]


def test_checkpoint(model: sa.Checkpoint) -> None:
    assert model.layers == [0, 1, 2] and model.config["model_type"] == "deepseek_v4" and model.kv_scale(0) == 1


def test_layers_say_what_they_are(layers: list[sa.Layer]) -> None:
    assert [(layer.index, layer.kind, layer.compress_ratio) for layer in layers] == [(0, "window", 1), (1, "c4", 4), (2, "c128", 128)]
    assert [spec.group for spec in layers[2].cache_groups] == [CacheGroup.window, CacheGroup.c128_compressed, CacheGroup.c128_state]
    assert all(layer.weight_bytes > 0 and layer.workspace_bytes > 0 for layer in layers) and layers[1].index_topk > 0


def test_engines_own_pages_give_the_bits_of_a_pool(model: sa.Checkpoint, layers: list[sa.Layer]) -> None:
    hidden = torch.randn(40, layers[0].hidden_size).bfloat16()
    pool = sa.Pool(layers)
    batch = sa.BatchBuilder(LIMITS, pool, window=_window(model))
    pool.add_request(1)
    assert pool.extend(1, 0, 40)
    batch.build([Request(40, 40, 1)])
    expected = [layer(hidden, batch, pool) for layer in layers]

    groups = list({spec.group: spec for layer in layers for spec in layer.cache_groups}.values())
    own = sa.BatchBuilder(LIMITS, window=_window(model), device="cpu", groups=groups, num_pages=[20] * len(groups))
    tables = {spec.group: [19 - i for i in range(-(-40 // (spec.page_size * spec.ratio)))] for spec in groups}
    own.build([Request(40, 40, 7, tables)])
    for layer, wanted in zip(layers, expected):
        caches = {
            spec.group: sa.PagedCache.empty(spec.format, 20, spec.page_size, spec.row_dim, page_stride=spec.page_bytes + 64)
            for spec in layer.cache_groups
        }
        out = torch.empty_like(hidden)
        assert layer(hidden, own, caches=caches, out=out) is out
        assert torch.equal(out, wanted)


def test_taps_workspace_and_output_in_place(model: sa.Checkpoint, layers: list[sa.Layer]) -> None:
    pool = sa.Pool(layers)
    batch = sa.BatchBuilder(LIMITS, pool, window=_window(model))
    pool.add_request(1)
    assert pool.extend(1, 0, 5)
    batch.build([Request(5, 5, 1)])
    layer, hidden = layers[0], torch.randn(5, layers[0].hidden_size).bfloat16()
    q, o = torch.zeros(5, layer.num_heads, 512).bfloat16(), torch.zeros(5, layer.num_heads, 512).bfloat16()
    expected = layer(hidden, batch, pool, q_tap=q, attn_out_tap=o)
    assert q.count_nonzero() and o.count_nonzero()
    again = hidden.clone()
    layer(again, batch, pool, out=again, workspace=torch.empty(layer.workspace_bytes + 1, dtype=torch.uint8)[1:])
    assert torch.equal(again, expected)


def test_batch_tensors_and_pages_are_tensors_of_torch(model: sa.Checkpoint, layers: list[sa.Layer]) -> None:
    pool = sa.Pool(layers, 512)
    batch = sa.BatchBuilder(LIMITS, pool, window=_window(model))
    pool.add_request(1)
    pool.add_request(2)
    assert pool.extend(1, 0, 30) and pool.extend(2, 0, 3)
    info = batch.build([Request(30, 1, 1), Request(3, 3, 2)])
    assert (info.num_tokens, info.num_decodes, info.num_prefills) == (4, 1, 1)
    assert batch.tensor(BatchTensor.positions).tolist() == [29, 0, 1, 2]
    assert batch.tensor(BatchTensor.token_to_req).tolist() == [0, 1, 1, 1]
    assert batch.tensor(BatchTensor.mla_lens) is None and batch.group(CacheGroup.mla_latent) is None
    table, slots = batch.group(CacheGroup.window)
    assert table[0, 0] == pool.block_table(1, CacheGroup.window)[0] and slots[0] == table[0, 0] * 64 + 29
    cache = pool.cache(layers[0], CacheGroup.window)
    assert cache.format == KvFormat.fp8_ds_mla_v4 and pool.cache(layers[0], CacheGroup.c4_compressed) is None
    # An op on the pool's pages.
    k = torch.randn(4, 512).bfloat16()
    sa.quantize_and_insert_k(k, slots, cache)
    out = torch.zeros(1, 1, 512).bfloat16()
    sa.dequantize_and_gather_k(
        cache, torch.tensor([30], dtype=torch.int32), table[:1], out, gather_lens=torch.tensor([1], dtype=torch.int32)
    )
    assert (out[0, 0] - k[0]).abs().max() < 0.2
    assert pool.allocated_bytes > 0 and pool.free_pages(CacheGroup.window) > 0 and pool.prefix_granularity == 256


def test_padding_of_graphs(model: sa.Checkpoint, layers: list[sa.Layer]) -> None:
    pool = sa.Pool(layers)
    batch = sa.BatchBuilder(LIMITS, pool, window=_window(model))
    pool.add_request(1)
    assert pool.extend(1, 0, 3)
    info = batch.build([Request(3, 1, 1)], num_tokens=4, num_requests=4, max_seq_len=512)
    assert (info.num_tokens, info.num_actual_tokens, info.max_seq_len) == (4, 1, 512)
    out = layers[2](torch.randn(4, layers[2].hidden_size).bfloat16(), batch, pool)
    assert (out[1:] == 0).all() and out[0].count_nonzero()


def test_pages_run_out_and_come_back(layers: list[sa.Layer]) -> None:
    pool = sa.Pool(layers, 64)
    pool.add_request(1)
    assert pool.extend(1, 0, 64)
    pool.add_request(2)
    done = 0
    while done < 512 and pool.extend(2, done, done + 64):
        done += 64
    assert done < 512
    pool.remove_request(1)
    with pytest.raises(ValueError, match="1"):
        pool.extend(1, 0, 64)
    pool.remove_request(2)


def test_errors_are_pythons(model: sa.Checkpoint, layers: list[sa.Layer], tmp_path: pathlib.Path) -> None:
    with pytest.raises(ValueError, match="config.json"):
        sa.Checkpoint(tmp_path)
    with pytest.raises(ValueError, match="preset"):
        sa.synthesize("none", tmp_path)
    with pytest.raises(ValueError, match="layer"):
        sa.Layer(model, 9, LIMITS)
    with pytest.raises(ValueError, match="max_num_seqs"):
        sa.Layer(model, 0, sa.BatchLimits(64, 0, 512))
    with pytest.raises(ValueError, match="at least one layer"):
        sa.Pool([])
    with pytest.raises(ValueError, match="a pool, or device"):
        sa.BatchBuilder(LIMITS)
    pool = sa.Pool(layers)
    batch = sa.BatchBuilder(LIMITS, pool, window=_window(model))
    with pytest.raises(ValueError, match="a builder that has built a step"):
        batch.info
    pool.add_request(1)
    assert pool.extend(1, 0, 5)
    with pytest.raises(ValueError, match="request"):
        batch.build([Request(5, 5, 3)])
    with pytest.raises(ValueError, match="seq_len"):
        batch.build([Request(4, 5, 1)])
    batch.build([Request(5, 5, 1)])
    hidden = torch.randn(5, layers[0].hidden_size).bfloat16()
    for wrong, match in (
        (hidden[:3], "5 rows"),
        (hidden.float(), "bf16"),
        (hidden[:, :8], "hidden"),
        (hidden[None], "hidden"),
        (hidden.cfloat(), "dtype of ops"),
        (hidden.to("meta"), "must be on cpu"),
    ):
        with pytest.raises(ValueError, match=match):
            layers[0](wrong, batch, pool, out=torch.empty_like(hidden))
    with pytest.raises(ValueError, match="exactly one of pool and caches"):
        layers[0](hidden, batch)
    with pytest.raises(ValueError, match="must have been made with layer 0"):
        sa.Layer(model, 0, LIMITS)(hidden, batch, pool)
    with pytest.raises(RuntimeError, match="workspace"):
        layers[0](hidden, batch, pool, workspace=torch.empty(300, dtype=torch.uint8))
    with pytest.raises(ValueError, match="contiguous u8"):
        layers[0](hidden, batch, pool, workspace=torch.empty(10**7, dtype=torch.int32))
    cache = sa.PagedCache.empty(KvFormat.fp8_ds_mla_v4, 4, 64)
    cache.num_pages = 5
    with pytest.raises(ValueError, match="memory of num_pages pages"):
        layers[0](hidden, batch, caches={CacheGroup.window: cache})


def test_wrong_types_and_numbers_are_refused(model: sa.Checkpoint, layers: list[sa.Layer]) -> None:
    pool = sa.Pool(layers)
    batch = sa.BatchBuilder(LIMITS, pool, window=_window(model))
    pool.add_request(1)
    assert pool.extend(1, 0, 5)
    batch.build([Request(5, 5, 1)])
    layer, hidden = layers[0], torch.randn(5, layers[0].hidden_size).bfloat16()
    pages = pool.cache(layer, CacheGroup.window)
    for call, match in (
        (lambda: sa.Checkpoint("a\0b"), "null character"),
        (lambda: sa.Layer(None, 0, LIMITS), "checkpoint must be a Checkpoint, is NoneType"),
        (lambda: layer(None, batch, pool), "hidden must be a Tensor, is NoneType"),
        (lambda: layer(hidden, None, pool), "batch must be a BatchBuilder, is NoneType"),
        (lambda: layer(hidden, batch, 5), "pool must be a Pool, is int"),
        (lambda: layer(hidden, batch, pool, workspace="x"), "workspace must be a Tensor, is str"),
        (lambda: layer(hidden.to_sparse(), batch, pool), "hidden must be a strided tensor, is torch.sparse_coo"),
        (lambda: layer(hidden, batch, caches={99: pages}), "99 is not a valid CacheGroup"),
        (lambda: layer(hidden, batch, caches={-9: pages}), "-9 is not a valid CacheGroup"),
        (lambda: layer(hidden, batch, caches={0: 1}), "cache must be a PagedCache, is int"),
        (lambda: sa.Pool(layers, pages={-9: 1}), "-9 is not a valid CacheGroup"),
        (lambda: pool.add_request(2**64 + 2), "64 bits, is 18446744073709551618"),
        (lambda: batch.build([Request(2**64 + 5, 5, 1)]), "seq_len must be a number of 64 bits"),
        (lambda: sa.Layer(model, 0, LIMITS, tp_rank=2**32), "tp_rank must be a number of 32 bits"),
    ):
        # A class has a capital letter.
        with pytest.raises(TypeError if re.search("must be a [A-Z]", match) else ValueError, match=match):
            call()


def test_objects_live_as_long_as_they_are_used(model: sa.Checkpoint) -> None:
    layer = sa.Layer(model, 0, LIMITS)
    pool = sa.Pool([layer])
    tensor = pool.cache(layer, CacheGroup.window).tensor
    alive = weakref.ref(pool)
    del pool
    gc.collect()
    assert alive() is not None
    tensor.fill_(1)
    view = tensor[5:]
    del tensor
    gc.collect()
    view.fill_(2)
    del view
    gc.collect()
    assert alive() is None


def test_objects_are_given_back(model: sa.Checkpoint) -> None:
    layer = sa.Layer(model, 0, LIMITS)
    handle = layer._handle
    del layer
    gc.collect()
    info = _c_api.struct("strata_layer_info")
    with pytest.raises(RuntimeError, match="layer"):
        _c_api.call("strata_layer_get_info", handle, ctypes.byref(info))


@in_repository
def test_declarations_are_those_of_the_headers() -> None:
    text = "\n".join(re.sub(r"//.*", "", path.read_text()) for path in sorted((ROOT / "include" / "strata" / "c").rglob("*.h")))
    handles = re.findall(r"typedef struct (\w+) \{\s*uint64_t value;\s*\}", text)
    enumerations = re.findall(r"typedef int32_t (\w+);", text)
    plain = {name: "uint64_t" for name in handles} | {name: "int32_t" for name in enumerations}
    text = text.replace("STRATA_MAX_RANK", "4")

    def normal(kind: str) -> str:
        return re.sub(r"\w+", lambda found: plain.get(found.group(), found.group()), re.sub(r"\s+", " ", kind).strip()).replace(" *", "*")

    for name, declared in _c_api._STRUCTS.items():
        (body,) = re.findall(rf"typedef struct {name} \{{(.*?)\}} {name};", text, re.DOTALL)
        assert [normal(part) for part in body.split(";") if part.strip()] == [normal(part) for part in declared.split(";")], name
    for name, declared in _c_api._FUNCTIONS.items():
        (parameters,) = re.findall(rf"STRATA_API strata_status {name}\((.*?)\) STRATA_NOEXCEPT", text, re.DOTALL)
        kinds = [re.sub(r"\w+$", "", re.sub(r"\s+", " ", part).strip()).strip() for part in parameters.split(",")]
        assert kinds == [part.strip() for part in declared.split(",")], name
    for enumeration, prefix, header in (
        (sa.CacheGroup, "STRATA_GROUP_", "cache.h"),
        (sa.BatchTensor, "STRATA_BATCH_", "batch.h"),
        (sa.IndexerFormat, "STRATA_INDEXER_", "layer.h"),
        (sa.PrefillMode, "STRATA_PREFILL_", "layer.h"),
        (sa.MlaMode, "STRATA_MLA_", "layer.h"),
    ):
        found = re.findall(rf"{prefix}(\w+) = (\d+)", (ROOT / "include" / "strata" / "c" / header).read_text())
        assert [(member.name, str(member.value)) for member in enumeration] == [(name.lower(), number) for name, number in found]
    assert (
        f"#define STRATA_NUM_CACHE_GROUPS {_c_api.NUM_CACHE_GROUPS}\n" in text
        and f"STRATA_KV_FAMILY_DEFAULT ({_c_api.KV_FAMILY_DEFAULT})" in text
    )


@pytest.mark.parametrize("factor", [1.0, 16.0])
def test_rope_table(factor: float) -> None:
    """V4 5.4 in float64."""
    pair = torch.arange(32).double()
    frequencies = 160000.0 ** (-pair / 32)
    if factor > 1:
        low, high = (64 * math.log(65536 / (2 * math.pi * rotations)) / (2 * math.log(160000)) for rotations in (32, 1))
        low, high = max(math.floor(low), 0), min(math.ceil(high), 63)
        assert (low, high) == (15, 25)
        ramp = ((pair - low) / (high - low)).clamp(0, 1)
        frequencies = frequencies / factor * ramp + frequencies * (1 - ramp)
    angles = torch.arange(100).double()[:, None] * frequencies
    table = sa.rope_table(100, theta=160000, factor=factor, original_max_position=65536)
    assert table.dtype == torch.float32 and table.shape == (100, 64)
    assert (table.double() - torch.cat([angles.cos(), angles.sin()], 1)).abs().max() < 2e-5


def test_rope_table_refuses() -> None:
    for wrong in ({"dim": 63}, {"dim": 0}, {"theta": 0.5}, {"factor": 4.0}):
        with pytest.raises(ValueError, match="dim|theta|original_max_position"):
            sa.rope_table(10, **wrong)
    with pytest.raises(ValueError, match="max_positions"):
        sa.rope_table(0)


@in_repository
def test_example() -> None:
    text = subprocess.run([sys.executable, str(ROOT / "examples" / "notebook.py")], check=True, capture_output=True, text=True).stdout
    assert "171 positions" in text
