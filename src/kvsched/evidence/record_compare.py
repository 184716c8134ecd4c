"""Two records side by side: what was measured, and what differs in how."""

from __future__ import annotations

from typing import Any

import msgspec

from kvsched.evidence.record import Record
from kvsched.evidence.record_words import flat
from kvsched.foundation.errors import UsageError


class MetricChange(msgspec.Struct, frozen=True, kw_only=True):
    """One metric of both records."""

    name: str
    a: float | int | None
    b: float | int | None
    difference: float | int | None
    """B − A; None where one is missing."""
    ratio: float | None
    """B / A; None where one is missing, or A is 0."""
    missing: str
    """Why a side has none, a sentence; empty where both have one."""


class SettingChange(msgspec.Struct, frozen=True, kw_only=True):
    """A setting that the two do not share; a side that lacks it has no value."""

    name: str
    """With dots between levels."""
    in_a: bool
    in_b: bool
    a: Any = None
    b: Any = None


class RecordComparison(msgspec.Struct, frozen=True, kw_only=True):
    """Record B against record A. It computes no decision: two single runs carry none."""

    a: Record
    b: Record
    same_workload: bool
    metrics: tuple[MetricChange, ...]
    config: tuple[SettingChange, ...]
    environment: tuple[SettingChange, ...]
    warnings: tuple[str, ...]


def compare_records(a: Record, b: Record, *, any_workload: bool = False) -> RecordComparison:
    """Compare two records. O(size).

    Raises UsageError where their workloads' digests differ, or only one has a workload, unless
    ``any_workload``.
    """
    same = a.workload_digest == b.workload_digest
    if not same and not any_workload:
        raise UsageError(
            f"{a.record_id[:8]} and {b.record_id[:8]} measured different workloads (digests "
            f"{_short(a.workload_digest)} and {_short(b.workload_digest)}): they cannot be "
            "compared; --any-workload sets them side by side all the same"
        )
    return RecordComparison(
        a=a,
        b=b,
        same_workload=same,
        metrics=tuple(_metric(name, a, b) for name in _names(a, b)),
        config=_changes(a.config, b.config),
        environment=_changes(a.environment, b.environment),
        warnings=tuple(_warnings(a, b, same)),
    )


def _short(digest: str | None) -> str:
    return "none" if digest is None else digest[:12]


def _names(a: Record, b: Record) -> list[str]:
    """Return the names of all metrics: A's in their order, then what B alone has."""
    return [*a.metrics, *(name for name in b.metrics if name not in a.metrics)]


def _metric(name: str, a: Record, b: Record) -> MetricChange:
    x, y = a.metrics.get(name), b.metrics.get(name)
    lacking = [
        f"{side}: {record.missing.get(name) or 'not measured'}"
        for side, record, value in (("A", a, x), ("B", b, y))
        if value is None
    ]
    known = x is not None and y is not None
    return MetricChange(
        name=name,
        a=x,
        b=y,
        difference=_finite(y - x) if known and x is not None and y is not None else None,
        ratio=_finite(y / x) if x and y is not None else None,
        missing="; ".join(lacking),
    )


def _finite(value: float | int) -> float | int | None:
    """Two finite numbers may differ by more than any float says."""
    return value if abs(value) < float("inf") else None


_NONE = object()


def _changes(a: dict[str, Any], b: dict[str, Any]) -> tuple[SettingChange, ...]:
    left, right = dict(flat(a)), dict(flat(b))
    found = []
    for name in sorted(set(left) | set(right)):
        x, y = left.get(name, _NONE), right.get(name, _NONE)
        # True equals 1 in Python, and is another setting; 1.0 is the same one.
        if x != y or isinstance(x, bool) != isinstance(y, bool):
            found.append(
                SettingChange(
                    name=name,
                    in_a=x is not _NONE,
                    in_b=y is not _NONE,
                    a=None if x is _NONE else x,
                    b=None if y is _NONE else y,
                )
            )
    return tuple(found)


def _warnings(a: Record, b: Record, same: bool) -> list[str]:
    said = []
    if not same:
        said.append("The workloads differ: no difference below is due to the settings alone.")
    for what in ("task", "evidence_level"):
        x, y = getattr(a, what), getattr(b, what)
        if x != y:
            said.append(f"A and B differ in {what.replace('_', ' ')}: {x} and {y}.")
    said += [
        f"{side} has status {record.status}: {record.reason or 'no reason given'}"
        for side, record in (("A", a), ("B", b))
        if record.status != "ok"
    ]
    return said
