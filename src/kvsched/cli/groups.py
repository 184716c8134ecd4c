"""Options that several commands share, written once as fields of a dataclass."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Any, get_type_hints


def spread(command: Callable[..., None]) -> Callable[..., None]:
    """Return ``command`` with every parameter that is a dataclass spread into its fields.

    Typer reads options from a signature, one a parameter. A command says ``source: TraceOptions``
    instead of repeating eight options; a field's annotation and default are the option's.
    """
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, type[Any]] = {}
    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command).parameters.items():
        if dataclasses.is_dataclass(hints[name]):
            groups[name] = hints[name]
            parameters += _fields(hints[name])
        else:
            kind = inspect.Parameter.KEYWORD_ONLY
            parameters.append(parameter.replace(kind=kind, annotation=hints[name]))

    @functools.wraps(command)
    def spread_command(**values: Any) -> None:
        for name, group in groups.items():
            mine = [field.name for field in dataclasses.fields(group)]
            values[name] = group(**{field: values.pop(field) for field in mine})
        command(**values)

    # What functools.wraps set speaks of the command as written, not as it is called.
    del spread_command.__wrapped__
    spread_command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    spread_command.__annotations__ = {each.name: each.annotation for each in parameters}
    return spread_command


def _fields(group: type[Any]) -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty
            if field.default is dataclasses.MISSING
            else field.default,
            annotation=hints[field.name],
        )
        for field in dataclasses.fields(group)
    ]
