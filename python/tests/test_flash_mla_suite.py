"""tools/flash_mla_suite on a small checkout of its own: which cases run, what is kept, what a next run does."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
from typing import Any

import pytest

SUITE = pathlib.Path(__file__).resolve().parents[2] / "tools" / "flash_mla_suite"

pytest.importorskip("flash_mla", reason="strata-flash-mla is not installed")
pytestmark = pytest.mark.skipif(not SUITE.is_file(), reason="tools/flash_mla_suite is in the repository alone")

LIB = """
import dataclasses
import torch

@dataclasses.dataclass
class TestParam:
    n: int
    kind: str
    seed: int = -1
    num_runs: int = 0

def zeros(p):
    assert p.num_runs == 0, "timed cases run once on a CPU"
    return torch.zeros(p.n, device=torch.device("cuda:0")).cuda()
"""

PREFILL = """
import os
import pathlib
import sys
import torch
import lib
from lib import TestParam

TRIED = pathlib.Path(__file__).with_name("tried")

def run_test(p):
    print("================")
    print(f"Running on {p}")
    t = lib.zeros(p)
    torch.cuda.synchronize()
    if p.kind == "raises":
        raise ValueError("as a kernel would")
    if p.kind == "exits":
        sys.exit(1)
    if p.kind == "dies":
        os._exit(9)
    if p.kind == "memory" or p.kind == "crowded" and not TRIED.exists():
        TRIED.touch()
        raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory")
    if p.kind == "differs":
        print("`out` mismatch")
    return p.kind != "differs" and t.device.type == "cpu" and p.seed == p.n

if __name__ == '__main__':
    torch.set_default_device(torch.device("cuda:0"))
    assert torch.cuda.get_device_capability() == (9, 0)
    failed = [p for p in [TestParam(n, kind, num_runs=10 * (kind == "timed")) for n, kind in enumerate(KINDS)] if not run_test(p)]
    if failed:
        sys.exit("a case of the main part failed")
"""


def checkout(folder: pathlib.Path, kinds: list[str]) -> pathlib.Path:
    tests = folder / "tests"
    tests.mkdir(parents=True, exist_ok=True)
    (tests / "lib.py").write_text(LIB)
    (tests / "test_flash_mla_sparse_prefill.py").write_text(f"KINDS = {kinds}\n{PREFILL}")
    return folder


def suite(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(SUITE), *map(str, arguments)], capture_output=True, text=True, timeout=300, check=False)


def lines(path: pathlib.Path) -> list[dict[str, Any]]:
    """Without those that a case has before it runs."""
    found = [json.loads(text) for text in path.read_text().splitlines()]
    return [line for line in found if line["why"] != "the process ended"]


def test_results_and_resume(tmp_path: pathlib.Path) -> None:
    results = tmp_path / "results.jsonl"
    fake = checkout(tmp_path / "a", ["good", "raises", "good", "differs", "exits", "good"])
    options = (fake, "--results", results, "--file", "sparse_prefill", "--device", "cpu")
    done = suite(*options, "--every", 2)
    assert done.returncode == 1, done.stderr
    assert {line["index"]: line["passed"] for line in lines(results)} == {0: True, 2: True, 4: False}
    done = suite(*options, "--jobs", 2)
    found = {line["index"]: line for line in lines(results)}
    assert done.returncode == 1 and len(lines(results)) == 6
    assert {index: line["passed"] for index, line in found.items()} == {0: True, 1: False, 2: True, 3: False, 4: False, 5: True}
    assert found[1]["why"].startswith("ValueError: as a kernel would") and found[3]["why"] == "`out` mismatch"
    assert found[4]["why"].startswith("SystemExit: 1") and all(line["cases"] == 6 for line in found.values())
    assert "| test_flash_mla_sparse_prefill.py | 6 | 6 | 3 |" in done.stdout
    # A mended kernel: the failed cases run again, the others do not.
    checkout(tmp_path / "a", ["raises", "good", "raises", "good", "good", "raises"])
    assert suite(*options).returncode == 1 and len(lines(results)) == 6
    done = suite(*options, "--again", "--jobs", 2)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(lines(results)) == 9
    assert suite("--summary", "--results", results).returncode == 0


def test_memory_and_ends_of_processes(tmp_path: pathlib.Path) -> None:
    results = tmp_path / "results.jsonl"
    fake = checkout(tmp_path, ["good", "crowded", "timed", "memory", "dies", "good", "good"])
    options = (fake, "--results", results, "--file", "sparse_prefill", "--device", "cpu", "--limit", 6)
    done = suite(*options, "--jobs", 2)
    assert done.returncode == 1, done.stdout + done.stderr
    found = {line["index"]: line for line in map(json.loads, results.read_text().splitlines())}
    assert {index: line["passed"] for index, line in found.items()} == {0: True, 1: True, 2: True, 3: False, 4: False, 5: True}
    assert found[3]["why"].startswith("too little memory: RuntimeError") and found[4]["why"] == "the process ended"
    # A next run tries the case that ended its process, and no other.
    checkout(tmp_path, ["good", "good", "good", "good", "good", "raises", "good"])
    assert suite(*options).returncode == 1
    assert [line["index"] for line in lines(results)[-1:]] == [4] and lines(results)[-1]["passed"]


def test_no_case_begins_after_the_time(tmp_path: pathlib.Path) -> None:
    results = tmp_path / "results.jsonl"
    fake = checkout(tmp_path, ["good"] * 3)
    done = suite(fake, "--results", results, "--file", "sparse_prefill", "--device", "cpu", "--minutes", 0)
    assert done.returncode == 0 and not results.exists()


def test_bad_input(tmp_path: pathlib.Path) -> None:
    results = tmp_path / "results.jsonl"
    done = suite(tmp_path, "--results", results, "--file", "dense_decode", "--device", "cpu")
    assert done.returncode != 0 and "expected FlashMLA's" in done.stderr
    results.write_text("no result\n")
    done = suite("--summary", "--results", results)
    assert done.returncode == 2 and "line 1 is no result of a case" in done.stderr
    assert suite("--results", results).returncode == 2
    assert suite(tmp_path, "--results", results, "--jobs", 0).returncode == 2
