"""Strata's flash_mla in the place of the FlashMLA that vLLM brings."""

from __future__ import annotations

import importlib
import sys

_NAMES = ("flash_mla_with_kvcache", "flash_mla_sparse_fwd", "get_mla_metadata", "FlashMLASchedMeta")
_PLACES = ("vllm.third_party.flashmla.flash_mla_interface", "vllm.v1.attention.ops.flashmla")


def install() -> None:
    """Also where modules of vLLM that are loaded already have imported the functions by name."""
    from .. import flash_mla

    originals = {}
    for place in _PLACES:
        module = importlib.import_module(place)
        for name in _NAMES:
            originals[id(getattr(module, name))] = getattr(module, name), getattr(flash_mla, name)
            setattr(module, name, getattr(flash_mla, name))
    for module_name, module in list(sys.modules.items()):
        if not module_name.startswith("vllm.") or module is None:
            continue
        for name in _NAMES:
            held = vars(module).get(name)
            if held is not None and id(held) in originals and held is originals[id(held)][0]:
                setattr(module, name, originals[id(held)][1])
