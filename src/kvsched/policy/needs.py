"""Columns of requests that a policy may need, and what is said where a trace lacks one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from kvsched.foundation.errors import UsageError
from kvsched.trace.model import Labels, Trace

Column = NDArray[Any] | Labels
"""(R,) values, one a request; of a column of names, the codes and the names."""

_MOONCAKE = "a Mooncake row gives it as `{}`, a table by --columns"
_LABEL = "Weka sessions and generated traces have it, " + _MOONCAKE

HOW_TO_GIVE = {
    "time_s": "every trace has it",
    "input_tokens": "every trace has it",
    "output_tokens": "every trace has it",
    "tenant": "generated traces have it, " + _MOONCAKE.format("tenant"),
    "session": _LABEL.format("session_id"),
    "type": _LABEL.format("type"),
    "model": "Weka sessions have it, " + _MOONCAKE.format("model"),
    "turn": _LABEL.format("turn"),
    "priority": _MOONCAKE.format("priority"),
    "deadline_s": "no reader gives it: set `deadline_s` of the Trace",
    "delay_s": _LABEL.format("delay"),
}
"""Every column of requests, and where it comes from."""


def find_column(name: str, trace: Trace | None, given: Mapping[str, Column]) -> Column | None:
    """Return a column from ``given``, else from ``trace``; None where neither has it. O(1)."""
    if name in given:
        return given[name]
    return getattr(trace, name, None) if name in HOW_TO_GIVE else None


def missing_columns(
    needed: Sequence[str], trace: Trace | None, given: Mapping[str, Column] | None = None
) -> list[str]:
    """Return those of ``needed`` that neither ``given`` nor ``trace`` has. O(1)."""
    return [name for name in needed if find_column(name, trace, given or {}) is None]


def lacking(policy: str, name: str, trace: Trace | None) -> UsageError:
    """Return the error that says which column is missing where, and how to give it."""
    if trace is None:
        return UsageError(
            f"policy {policy} needs `{name}` of every request, which this cache is not given"
        )
    return UsageError(
        f"policy {policy} needs `{name}` of every request, which the trace "
        f"{trace.origin.source} does not have ({HOW_TO_GIVE[name]})"
    )


def check_needs(kind: str, reference: str, needs: object) -> None:
    """Raise UsageError unless ``needs`` of a policy or an order names columns, in a tuple."""
    if not isinstance(needs, tuple) or not set(needs) <= set(HOW_TO_GIVE):
        known = ", ".join(HOW_TO_GIVE)
        raise UsageError(f"{kind} {reference}: needs must be a tuple of columns ({known})")
