"""The distribution strata-flash-mla: the module flash_mla is strata_attention.flash_mla."""

from __future__ import annotations

import importlib
import importlib.metadata

import pytest

import strata_attention


def test_module_is_ours() -> None:
    flash_mla = pytest.importorskip("flash_mla", reason="strata-flash-mla is not installed")
    interface = importlib.import_module("flash_mla.flash_mla_interface")
    for name in strata_attention.flash_mla.__all__:
        assert getattr(flash_mla, name) is getattr(strata_attention.flash_mla, name)
        assert getattr(interface, name) is getattr(strata_attention.flash_mla, name)
    assert flash_mla.__strata__ is True


def test_version_is_that_of_strata_attention() -> None:
    pytest.importorskip("flash_mla", reason="strata-flash-mla is not installed")
    distribution = importlib.metadata.distribution("strata-flash-mla")
    assert distribution.version == strata_attention.__version__
    assert f"strata-attention=={strata_attention.__version__}" in (distribution.requires or [])


def test_wheel_has_the_licence() -> None:
    pytest.importorskip("flash_mla", reason="strata-flash-mla is not installed")
    distribution = importlib.metadata.distribution("strata-flash-mla")
    assert distribution.metadata["License-Expression"] == "Apache-2.0"
    assert "Apache License" in (distribution.read_text("licenses/LICENSE") or "")
