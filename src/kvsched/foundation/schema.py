"""JSON Schemas of msgspec types, with each field's docstring as its description."""

from __future__ import annotations

import ast
import inspect
import sys
from typing import Any

import msgspec


def field_docstrings(*types: type) -> dict[str, dict[str, str]]:
    """Return the docstring after each field, by class and field.

    Read from the source of the modules in which ``types`` are defined.
    """
    found: dict[str, dict[str, str]] = {}
    for module in dict.fromkeys(each.__module__ for each in types):
        for node in ast.parse(inspect.getsource(sys.modules[module])).body:
            if not isinstance(node, ast.ClassDef):
                continue
            fields = found.setdefault(node.name, {})
            for field, after in zip(node.body, node.body[1:], strict=False):
                if (
                    isinstance(field, ast.AnnAssign)
                    and isinstance(field.target, ast.Name)
                    and isinstance(after, ast.Expr)
                    and isinstance(after.value, ast.Constant)
                ):
                    fields[field.target.id] = inspect.cleandoc(str(after.value.value))
    return found


def described_schema(root: type, *others: type) -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of ``root``.

    ``others`` are types of further modules whose fields it uses.
    """
    schema: dict[str, Any] = msgspec.json.schema(root)
    docstrings = field_docstrings(root, *others)
    for name, definition in schema["$defs"].items():
        for field, described in definition.get("properties", {}).items():
            text = docstrings.get(name, {}).get(field)
            if text:
                described["description"] = text
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
