"""The licences of what the wheel contains are in the wheel, and no others."""

from __future__ import annotations

import importlib.metadata
import pathlib
import re

import pytest

import strata_attention as sa

EXPECTED = {"LICENSE", "LICENSES.md"} | {f"LICENSES/{name}.txt" for name in ("cuda-runtime", "fmt", "nlohmann-json", "pytorch")}


def test_the_wheel_has_them() -> None:
    try:
        distribution = importlib.metadata.distribution("strata-attention")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("strata_attention is no installed distribution")
    files = {str(file).split("/licenses/", 1)[1]: file for file in distribution.files or () if "/licenses/" in str(file)}
    assert set(files) == EXPECTED
    assert all(pathlib.Path(distribution.locate_file(file)).stat().st_size > 0 for file in files.values())
    table = pathlib.Path(distribution.locate_file(files["LICENSES.md"])).read_text()
    assert set(re.findall(r"\]\((\S+?)\)", table)) == EXPECTED - {"LICENSES.md"}


def test_what_is_inside_is_what_the_table_says() -> None:
    """Components leave names in the shared object: those that are listed, and neither CLI11 nor oneDNN."""
    code = pathlib.Path(sa.__file__).with_name("libstrata_torch.so").read_bytes()
    assert b"nlohmann" in code and b"CLI11" not in code and b"dnnl_" not in code and b"libclc" not in code
