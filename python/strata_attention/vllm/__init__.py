"""Plugin of vLLM: DeepSeek's attention by Strata's ops. vLLM finds register by the entry point vllm.general_plugins.

STRATA_VLLM in the environment chooses the steps: 1: all; 0 or absent: none; or names with commas, such as ops,mla. The steps are unfinished, so none
is on by default.
A step stays off, and the log says why, where vLLM's version is not in the table of steps or where a name or signature differs.
"""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path

from .names import missing
from .steps import STEPS

#: Outcome of each step of this platform, "on" or "off: reason"; empty before register.
STATE: dict[str, str] = {}


def register() -> None:
    """Installs the chosen steps, once in a process, and logs one line. ValueError for an unknown step in STRATA_VLLM."""
    if STATE:
        return
    chosen = _chosen(os.environ.get("STRATA_VLLM", "0"))
    if not chosen:
        return
    import vllm
    from vllm.platforms import current_platform

    platform = "cuda" if current_platform.is_cuda() else "cpu" if current_platform.is_cpu() else current_platform.device_type
    version = vllm.__version__.split("+")[0]
    STATE.update(outcomes(Path(vllm.__path__[0]), version, platform, chosen))
    text = ", ".join(f"{name} {state}" for name, state in STATE.items())
    # vLLM may configure its loggers after it loads plugins.
    print(f"strata_attention, vLLM {version} on {platform}: {text}", file=sys.stderr, flush=True)


def outcomes(root: Path, version: str, platform: str, chosen: frozenset[str]) -> dict[str, str]:
    """Installs the chosen steps in the vLLM in folder root; by name "on", or "off: reason"."""
    result = {}
    for name in sorted(chosen):
        step = next((s for s in STEPS if s.name == name and s.platform == platform), None)
        if step is None:
            result[name] = f"off: nothing for {platform}"
        elif version not in step.versions:
            result[name] = f"off: expected vLLM {' or '.join(step.versions)}, got {version}"
        elif messages := missing(root, step.names):
            result[name] = "off: " + "; ".join(messages)
        else:
            result[name] = _install(step.install)
    return result


def _install(target: str) -> str:
    module, function = target.split(":")
    try:
        getattr(importlib.import_module(f"{__name__}.{module}"), function)()
    except Exception as error:  # noqa: BLE001, vLLM runs without the step
        return f"off: {type(error).__name__}: {error}"
    return "on"


def _chosen(value: str) -> frozenset[str]:
    known = frozenset(step.name for step in STEPS)
    if value == "1":
        return known
    if value in ("", "0"):
        return frozenset()
    names = frozenset(part.strip() for part in value.split(","))
    if unknown := sorted(names - known):
        raise ValueError(f"STRATA_VLLM: expected 0, 1 or names of {sorted(known)}, got {', '.join(map(repr, unknown))}")
    return names
