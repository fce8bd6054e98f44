"""Names of vLLM that steps touch, and the check that they are there. Nothing of vLLM is imported: its source is read."""

from __future__ import annotations

import ast
import dataclasses
from pathlib import Path


@dataclasses.dataclass(frozen=True)
class Name:
    """A class, function, method or variable of vLLM.

    module      without "vllm.", such as "model_executor.layers.mla"
    name        "function", "Class" or "Class.method"; variables of a module or class too
    parameters  names that a call of the step gives by keyword or position, or that its replacement takes, in vLLM's order; None: no function
    """

    module: str
    name: str
    parameters: tuple[str, ...] | None = None


def missing(root: Path, names: tuple[Name, ...]) -> list[str]:
    """What of `names` the vLLM in folder `root` lacks, one message each: what, expected, got."""
    return [message for name in names for message in _check(root, name)]


def _check(root: Path, name: Name) -> list[str]:
    path = root.joinpath(*name.module.split("."))
    file = next((f for f in (path.with_suffix(".py"), path / "__init__.py") if f.is_file()), None)
    if file is None:
        return [f"vllm.{name.module}: expected a module, got none"]
    where = f"vllm.{name.module}.{name.name}"
    body: list[ast.stmt] = ast.parse(file.read_text(encoding="utf-8")).body
    parts = name.name.split(".")
    for part in parts[:-1]:
        found = _find(body, part)
        if not isinstance(found, ast.ClassDef):
            return [f"{where}: expected class {part}, got {'none' if found is None else type(found).__name__}"]
        body = found.body
    found = _find(body, parts[-1])
    if found is None:
        return [f"{where}: expected this name, got none"]
    if name.parameters is None:
        return []
    if not isinstance(found, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return [f"{where}: expected a function, got {type(found).__name__}"]
    given = tuple(a.arg for a in found.args.posonlyargs + found.args.args + found.args.kwonlyargs if a.arg not in ("self", "cls"))
    if given != name.parameters:
        return [f"{where}: expected parameters ({', '.join(name.parameters)}), got ({', '.join(given)})"]
    return []


def _find(body: list[ast.stmt], name: str) -> ast.stmt | None:
    """The statement that binds `name`, also under if, else, try and with."""
    for statement in body:
        if isinstance(statement, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            if statement.name == name:
                return statement
            continue
        if isinstance(statement, (ast.Import, ast.ImportFrom)):
            if any((alias.asname or alias.name) == name for alias in statement.names):
                return statement
            continue
        targets = (
            statement.targets if isinstance(statement, ast.Assign) else [statement.target] if isinstance(statement, ast.AnnAssign) else []
        )
        if any(isinstance(target, ast.Name) and target.id == name for target in targets):
            return statement
        for field in ("body", "orelse", "finalbody"):
            found = _find(getattr(statement, field, []), name)
            if found is not None:
                return found
        for handler in getattr(statement, "handlers", []):
            found = _find(handler.body, name)
            if found is not None:
                return found
    return None
