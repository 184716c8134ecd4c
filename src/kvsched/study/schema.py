"""The JSON Schema of `result.json`, with each field's docstring as its description."""

from __future__ import annotations

import ast
import inspect
from typing import Any

import msgspec

from kvsched.study import result, worth


def _field_docstrings() -> dict[str, dict[str, str]]:
    """Return the docstring after each field, by class and field, read from the source."""
    found: dict[str, dict[str, str]] = {}
    for module in (result, worth):
        for node in ast.parse(inspect.getsource(module)).body:
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


def result_schema() -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of a `StudyResult`."""
    schema: dict[str, Any] = msgspec.json.schema(result.StudyResult)
    docstrings = _field_docstrings()
    for name, definition in schema["$defs"].items():
        for field, described in definition.get("properties", {}).items():
            text = docstrings.get(name, {}).get(field)
            if text:
                described["description"] = text
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
