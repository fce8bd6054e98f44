"""What the shared object needs: functions of torch that 2.10 has, the C and C++ runtimes, nothing of Python or CUDA."""

from __future__ import annotations

import pathlib
import re
import shutil
import subprocess

import pytest

import strata_attention._library as library

LIST = pathlib.Path(__file__).resolve().parents[1] / "torch-2.10-symbols"
RUNTIMES = {
    "libtorch_cpu.so",
    "libgomp.so.1",
    "libstdc++.so.6",
    "libm.so.6",
    "libgcc_s.so.1",
    "libc.so.6",
    "ld-linux-x86-64.so.2",
    "libdl.so.2",
    "libpthread.so.0",
    "librt.so.1",
}

pytestmark = pytest.mark.skipif(shutil.which("readelf") is None or not LIST.is_file(), reason="needs readelf and the repository")


def _symbols() -> list[tuple[bool, str]]:
    """Whether it is defined here, and the name, of every dynamic symbol."""
    text = subprocess.run(["readelf", "--dyn-syms", "--wide", str(library.PATH)], check=True, capture_output=True, text=True).stdout
    rows = [line.split() for line in text.splitlines() if re.match(r"\s*\d+:", line)]
    return [(row[6] != "UND", row[7].split("@")[0]) for row in rows if len(row) > 7]


def _listed() -> set[str]:
    return {line for line in LIST.read_text().splitlines() if line and not line.startswith("#")}


def test_functions_of_torch_are_those_of_the_list() -> None:
    used = {name for is_defined, name in _symbols() if not is_defined and name.startswith(("torch_", "aoti_"))}
    assert used | {"aoti_torch_get_current_cuda_stream"} == _listed()


def test_no_symbols_of_python_and_no_classes_of_torch() -> None:
    undefined = {name for is_defined, name in _symbols() if not is_defined}
    assert not {name for name in undefined if name.startswith(("Py", "_Py")) or "c10" in name or "5torch" in name}


def test_only_the_c_api_is_exported() -> None:
    assert {name for is_defined, name in _symbols() if is_defined and not name.startswith("strata_")} == set()


def test_needed_libraries() -> None:
    text = subprocess.run(["readelf", "--dynamic", str(library.PATH)], check=True, capture_output=True, text=True).stdout
    assert set(re.findall(r"\(NEEDED\).*\[(.+)\]", text)) <= RUNTIMES
    assert "RPATH" not in text and "RUNPATH" not in text
