"""Module functions over ``torch.ops.strata``: structured arguments become the flat ones of the schema.

The scheme (docs/python.md): an argument of the schema has the name of a parameter, or that of a record's member after the parameter's:
``cache_page_size`` is ``cache.page_size``, ``query_prologue_positions`` is ``query_prologue.positions``.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from . import _library, types

_F = TypeVar("_F", bound=Callable[..., Any])

_RECORDS = {
    record.__name__: record
    for record in (
        types.PagedCache,
        types.LinearWeight,
        types.KeyInsert,
        types.StateSave,
        types.IndexerQuery,
        types.TopkSlots,
        types.QueryNormRope,
        types.InverseRope,
    )
}
#: The member that has the parameter's own name in the schema.
_MAIN = {types.PagedCache: "tensor", types.LinearWeight: "weight"}


def as_bytes(tensor: torch.Tensor | None) -> torch.Tensor | None:
    """Power-of-two scales as their bytes: torch's stable ABI 2.10 has no name for float8_e8m0fnu."""
    if tensor is not None and tensor.dtype == torch.float8_e8m0fnu:
        return tensor.view(torch.uint8)
    return tensor


def _members(name: str, record: type, path: str) -> dict[str, str]:
    """The schema's names of a record's members, and the expressions of their values."""
    found: dict[str, str] = {}
    for field in dataclasses.fields(record):
        nested = _RECORDS.get(str(field.type))
        if nested is not None:
            found |= _members(f"{name}_{field.name}", nested, f"{path}.{field.name}")
        else:
            found[name if _MAIN.get(record) == field.name else f"{name}_{field.name}"] = f"{path}.{field.name}"
    return found


def _expressions(parameters: dict[str, inspect.Parameter]) -> dict[str, str]:
    expressions = {}
    for name, parameter in parameters.items():
        kind, _, optional = str(parameter.annotation).partition(" | ")
        record = _RECORDS.get(kind)
        if record is None:
            expressions[name] = f"_as_bytes({name})" if name.startswith("q_scale") and kind == "torch.Tensor" else name
            continue
        for member, value in _members(name, record, name).items():
            expressions[member] = f"{value} if {name} is not None else _defaults[{member!r}]" if optional else value
    return expressions


_KINDS = _RECORDS | {"torch.Tensor": torch.Tensor}


def _check_kind(op: str, name: str, annotation: str, value: Any) -> None:
    kind, _, optional = annotation.partition(" | ")
    if kind not in _KINDS or (optional and value is None):
        return
    if not isinstance(value, _KINDS[kind]):
        raise TypeError(f"{op}: {name} must be a {kind}, is {type(value).__name__}") from None
    if kind in _RECORDS:
        for field in dataclasses.fields(_RECORDS[kind]):
            _check_kind(op, f"{name}.{field.name}", str(field.type), getattr(value, field.name))


def _check_records(name: str, parameters: dict[str, inspect.Parameter], given: dict[str, Any]) -> None:
    """TypeError for an argument that is no record or tensor where the op takes one. Looked at after a call failed: it costs a right call
    nothing."""
    for parameter in parameters.values():
        _check_kind(name, parameter.name, str(parameter.annotation), given[parameter.name])


def _compiled(function: Callable[..., Any], overload: Any) -> Callable[..., Any]:
    parameters = dict(inspect.signature(function).parameters)
    expressions = _expressions(parameters)
    arguments = overload._schema.arguments
    names = [argument.name for argument in arguments]
    unknown = [name for name in expressions if name not in names and name not in ("workspace", "next_weights")]
    missing = [name for name in names if name not in expressions]
    if unknown or missing:
        raise AssertionError(f"{function.__name__}: not in the schema {unknown}, not in the function {missing}")
    head, is_keyword = [], False
    for parameter in parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and not is_keyword:
            head.append("*")
            is_keyword = True
        head.append(parameter.name if parameter.default is parameter.empty else f"{parameter.name}=_parameters[{parameter.name!r}].default")
    source = (
        f"def {function.__name__}({', '.join(head)}):\n"
        f"    try:\n"
        f"        return _overload({', '.join(expressions[name] for name in names)})\n"
        f"    except RuntimeError as error:\n"
        f"        _check_records(locals())\n"
        f"        raise _translated(error) from None\n"
        f"    except AttributeError:\n"
        f"        _check_records(locals())\n"
        f"        raise\n"
    )
    scope = {
        "_overload": overload,
        "_translated": _library.translated,
        "_check_records": functools.partial(_check_records, function.__name__, parameters),
        "_as_bytes": as_bytes,
        "_parameters": parameters,
        "_defaults": {argument.name: argument.default_value for argument in arguments if argument.has_default_value()},
    }
    exec(compile(source, f"<strata_attention {overload}>", "exec"), scope)
    return functools.update_wrapper(scope[function.__name__], function)


def _fake(name: str) -> Callable[..., None]:
    """The op without memory: nothing to compute, nothing to return. It also gets calls with tensors of torch's device "meta"."""

    def fake(*arguments: Any, **keywords: Any) -> None:
        names = [argument.name for argument in getattr(torch.ops.strata, name).default._schema.arguments]
        tensors = [(key, value) for key, value in (*zip(names, arguments), *keywords.items()) if isinstance(value, torch.Tensor)]
        # Tensors of a trace are of a class of their own.
        absent = next((key for key, value in tensors if type(value) is torch.Tensor and value.is_meta), None)
        held = next((value for _, value in tensors if not value.is_meta), None)
        if absent is not None and held is not None:
            raise ValueError(f"{name}: {absent} must be on {held.device}, is on meta")

    return fake


def op(function: _F) -> _F:
    """A function of the decorated one's signature that calls the op of its name."""
    name = function.__name__
    torch.library.register_fake(f"strata::{name}")(_fake(name))
    bound = _compiled(function, getattr(torch.ops.strata, name).default)
    for query in ("workspace_bytes", "implementations"):
        setattr(bound, query, _compiled(function, getattr(torch.ops.strata, f"{name}_{query}").default))
    return bound  # type: ignore[return-value]
