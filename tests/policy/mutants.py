"""Real code with one piece of its source replaced."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable
from typing import Any


def edited(function: Callable[..., Any], module: Any, before: str, after: str) -> Any:
    """Return ``function`` with one piece of its source replaced: a mutant of the real code."""
    source = textwrap.dedent(inspect.getsource(function))
    assert source.count(before) == 1, f"{before!r} is in the source {source.count(before)} times"
    scope = dict(vars(module))
    exec(source.replace(before, after), scope)  # noqa: S102  # our own source, edited above
    return scope[function.__name__]
