"""Loads libstrata_torch.so, which registers ``torch.ops.strata``."""

from __future__ import annotations

import pathlib
import re

import torch

#: The oldest torch whose stable ABI has all that the library uses.
OLDEST_TORCH = (2, 10)

#: The shared object: the ops, and the C API where the build has it.
PATH = pathlib.Path(__file__).with_name("libstrata_torch.so")

_CODE = re.compile(r"\[(invalid_argument|invalid_file|unsupported|workspace_too_small|out_of_memory|device_failure)\] ")
_VALUE_ERRORS = ("invalid_argument", "invalid_file")


def _load() -> None:
    version = tuple(int(number) for number in re.findall(r"\d+", torch.__version__)[:2])
    if version < OLDEST_TORCH:
        raise ImportError(f"strata_attention needs torch 2.10 or later, is {torch.__version__}")
    if not PATH.is_file():
        raise ImportError(f"strata_attention needs {PATH.name} next to its Python files; install the wheel (docs/python.md)")
    torch.ops.load_library(str(PATH))  # type: ignore[no-untyped-call]


_load()


#: What the library says of every CUDA device in a build for CPUs alone.
NO_CUDA = "this build has no CUDA backend"


def with_hint(message: str) -> str:
    """An error's message, and how to get a build with the backend that it misses."""
    return f"{message} (build it with nvcc: make python)" if message.endswith(NO_CUDA) else message


def translated(error: RuntimeError) -> Exception:
    """The error of an op as Python's: ValueError for arguments and files that cannot be, RuntimeError for all else.

    torch's stable ABI carries a text alone, which begins with the library's code in brackets.
    """
    text = str(error)
    found = _CODE.match(text)
    if found is None:
        return error
    message = with_hint(text[found.end() :])
    return ValueError(message) if found.group(1) in _VALUE_ERRORS else RuntimeError(message)
