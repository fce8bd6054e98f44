"""Threads, memory and the command."""

from __future__ import annotations

import gc
import resource
import subprocess
import sys
import threading

import pytest
import torch
from cases import CASES

import strata_attention as sa

FIRST: dict[str, str] = {}
for _name in CASES:
    FIRST.setdefault(_name.split("[")[0], _name)


def test_threads_get_the_results_of_one() -> None:
    cases = [[CASES[name]() for name in FIRST.values()] for _ in range(4)]
    failures: list[BaseException] = []

    def work(own) -> None:
        try:
            for _ in range(5):
                for case in own:
                    # In place: the next result would be another.
                    if case.op is not sa.mla_rope_kv_insert:
                        case.run()
        except BaseException as error:  # noqa: BLE001
            failures.append(error)

    threads = [threading.Thread(target=work, args=(own,)) for own in cases]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    for own in cases:
        for case in own:
            if case.op is not sa.mla_rope_kv_insert:
                case.check()


def _resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


@pytest.mark.parametrize("name", ["rms_norm_pair", "sparse_attn_decode_two_caches[True]", "linear", "indexer_topk[e4m3-indexer_fp8-True]"])
@pytest.mark.parametrize("fails", [False, True])
def test_no_memory_is_lost_in_ten_thousand_calls(name: str, fails: bool) -> None:
    case = CASES[name]()
    arguments = dict(case.arguments)
    if fails:
        first = next(key for key, value in arguments.items() if isinstance(value, torch.Tensor))
        arguments[first] = arguments[first].double()

    def call() -> None:
        try:
            case.op(**arguments)
        except ValueError:
            assert fails

    for _ in range(1000):
        call()
    gc.collect()
    before = _resident()
    for _ in range(10000):
        call()
    gc.collect()
    # A lost handle of a tensor has more than 100 bytes.
    assert _resident() - before < 512 * 1024


def test_tensors_are_given_back() -> None:
    case = CASES["sparse_attn_decode_two_caches[True]"]()
    tensor = case.arguments["q"]
    before = tensor._use_count() if hasattr(tensor, "_use_count") else None
    case.run()
    if before is not None:
        assert tensor._use_count() == before


def test_info() -> None:
    text = subprocess.run([sys.executable, "-m", "strata_attention", "info"], check=True, capture_output=True, text=True).stdout
    assert f"strata {sa.__version__}, torch {torch.__version__}" in text and "  cpu: " in text
    assert text.count("\n  ") >= len(sa.ALL)
    weight = sa.LinearWeight(torch.zeros(256, 256).bfloat16())
    for name in sa.weight_packings():
        if name.startswith("cpu/"):
            eligible = sa.implementations(sa.linear, torch.zeros(1, 256).bfloat16(), weight, torch.zeros(1, 256))[name] == "eligible"
            assert (f"{name} (not here: needs" in text) == (not eligible)
    try:
        sa.describe_device("cuda:0")
    except RuntimeError as error:
        assert ("no CUDA backend (build it with nvcc: make python)" in str(error)) == ("  cuda: not in this build" in text)


def test_command_without_arguments_says_what_it_takes() -> None:
    done = subprocess.run([sys.executable, "-m", "strata_attention"], capture_output=True, text=True)
    assert done.returncode == 2 and "info" in done.stderr
