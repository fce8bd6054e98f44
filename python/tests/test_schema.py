"""Schemas of torch.ops.strata against the headers' params and the Python functions."""

from __future__ import annotations

import dataclasses
import inspect
import pathlib
import re

import pytest
import torch

import strata_attention as sa

HEADERS = pathlib.Path(__file__).resolve().parents[2] / "include" / "strata"
CACHE = {
    "": "Tensor",
    "_format": "int",
    "_row_dim": "int",
    "_page_size": "int",
    "_num_pages": "int",
    "_page_stride": "int",
    "_scale": "float",
}
TYPES = {"TensorView": "Tensor", "bool": "bool", "float": "float", "std::string": "str"}
WEIGHT = {"weight": "weight", "scale": "weight_scale", "packed": "weight_packed"}


def _structs() -> dict[str, list[tuple[str, str]]]:
    """Members (type, name) of every struct of the ops' headers."""
    found = {}
    for header in sorted((HEADERS / "ops").glob("*.h")):
        text = re.sub(r"//.*", "", header.read_text())
        for name, body in re.findall(r"struct (\w+) \{(.*?)\n\};", text, re.DOTALL):
            members = re.findall(r"^\s*(?:const )?([\w:<>]+\*?) (\w+)(?:\{\}| = [^;]+)?;", body, re.MULTILINE)
            found[name] = members
    return found


def _expected(structs: dict[str, list[tuple[str, str]]], struct: str, prefix: str = "") -> dict[str, str]:
    """Names and base types of the schema's arguments for a struct."""
    result = {}
    for kind, name in structs[struct]:
        nested = re.fullmatch(r"std::optional<(\w+)>", kind)
        if kind == "PagedCache":
            result |= {f"{prefix}{name}{suffix}": base for suffix, base in CACHE.items()}
        elif kind == "LinearWeight*":
            result |= {WEIGHT.get(member, f"weight_{member}"): base for member, base in _expected(structs, "LinearWeight").items()}
        elif nested:
            result |= _expected(structs, nested.group(1), f"{prefix}{name}_")
        else:
            result[prefix + name] = TYPES.get(kind, "int")
    return result


def _base(argument: torch._C.Argument) -> str:
    return re.sub(r"Optional\[(\w+)\]|(\w+)\?", lambda found: found.group(1) or found.group(2), str(argument.type))


def _op_names() -> list[str]:
    return [op.__name__ for op in sa.ALL]


def test_ops_are_those_of_the_op_set() -> None:
    if not HEADERS.is_dir():
        pytest.skip("not in the repository")
    text = (HEADERS / "op_set.h").read_text()
    assert re.findall(r"f\(ops\.(\w+)\)", text) == _op_names()
    registered = {name.removeprefix("strata::") for name in torch._C._dispatch_get_all_op_names() if name.startswith("strata::")}
    queries = {f"{name}_{query}" for name in _op_names() for query in ("workspace_bytes", "implementations")}
    assert registered == set(_op_names()) | queries | {
        "pack_weight",
        "packed_weight_bytes",
        "weight_packings",
        "version",
        "describe_device",
    }


@pytest.mark.parametrize("name", _op_names())
def test_every_field_of_the_params_is_an_argument(name: str) -> None:
    if not HEADERS.is_dir():
        pytest.skip("not in the repository")
    (params,) = re.findall(rf"Op<(\w+)> {name};", (HEADERS / "op_set.h").read_text())
    schema = getattr(torch.ops.strata, name).default._schema
    actual = {argument.name: _base(argument) for argument in schema.arguments if argument.name not in ("next_weights", "workspace")}
    assert actual == _expected(_structs(), params)


@pytest.mark.parametrize("name", _op_names())
def test_workspace_and_hint_are_arguments_of_every_op(name: str) -> None:
    arguments = {argument.name: argument for argument in getattr(torch.ops.strata, name).default._schema.arguments}
    assert arguments["workspace"].alias_info.is_write
    assert arguments["next_weights"].alias_info is None


@pytest.mark.parametrize("op", sa.ALL, ids=lambda op: op.__name__)
def test_outputs_are_marked_as_written(op) -> None:
    """The docstring says "written" or "in place" of an argument where the schema marks it."""
    schema = getattr(torch.ops.strata, op.__name__).default._schema
    marked = {argument.name for argument in schema.arguments if argument.alias_info is not None and argument.alias_info.is_write} - {
        "workspace"
    }
    lines = re.split(r"\n(?=\w)", inspect.cleandoc(op.__doc__))
    stated = set()
    for line in lines[1:]:
        names, _, text = line.partition("  ")
        if re.search(r"^(written|in place)\b|; written with", text.strip()):
            stated |= set(names.split(", "))
    # Members of epilogues are marked too: their records' docstrings say so.
    own = {name for name in marked if "epilogue_" not in name}
    assert own == stated


@pytest.mark.parametrize("op", sa.ALL, ids=lambda op: op.__name__)
def test_defaults_of_functions_are_those_of_the_schema(op) -> None:
    defaults = {
        argument.name: argument.default_value
        for argument in getattr(torch.ops.strata, op.__name__).default._schema.arguments
        if argument.has_default_value()
    }
    for name, parameter in inspect.signature(op).parameters.items():
        if parameter.default is parameter.empty or name not in defaults:
            continue
        expected = defaults[name]
        assert parameter.default == (pytest.approx(expected) if isinstance(expected, float) else expected), name


@pytest.mark.parametrize(
    ("enumeration", "header"),
    [
        (sa.KvFormat, "kv_format.h"),
        (sa.ActivationFormat, "activation_format.h"),
        (sa.RopePairing, "ops/rope_slice.h"),
        (sa.RopeSlice, "ops/rope_slice.h"),
    ],
)
def test_enumerations_are_the_librarys(enumeration, header: str) -> None:
    if not HEADERS.is_dir():
        pytest.skip("not in the repository")
    (body,) = re.findall(rf"enum class {enumeration.__name__} : uint8_t \{{(.*?)\}};", (HEADERS / header).read_text(), re.DOTALL)
    names = re.findall(r"^\s*(\w+),", re.sub(r"//.*", "", body), re.MULTILINE)
    assert names == [member.name for member in enumeration] and [member.value for member in enumeration] == list(range(len(names)))


def test_records_have_the_members_of_the_librarys_structs() -> None:
    if not HEADERS.is_dir():
        pytest.skip("not in the repository")
    structs = _structs()
    for record, struct in (
        (sa.KeyInsert, "KeyInsert"),
        (sa.StateSave, "StateSave"),
        (sa.IndexerQuery, "IndexerQueryPrologue"),
        (sa.TopkSlots, "TopkSlots"),
        (sa.QueryNormRope, "QueryNormRope"),
        (sa.InverseRope, "InverseRope"),
        (sa.LinearWeight, "LinearWeight"),
    ):
        assert {field.name for field in dataclasses.fields(record)} == {name for _, name in structs[struct]}, struct
