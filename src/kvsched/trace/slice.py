"""A part of a trace: a window of time, some requests, some sessions or tenants."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from kvsched.foundation.errors import UsageError
from kvsched.trace.model import Int64s, Origin, Trace
from kvsched.trace.pick import pick

LABELS = ("session", "tenant", "type", "model")
_SHOWN = 3


def slice_trace(
    trace: Trace,
    *,
    from_s: float | None = None,
    to_s: float | None = None,
    requests: tuple[int, int] | None = None,
    first: int | None = None,
    names: Mapping[str, Sequence[str]] | None = None,
) -> Trace:
    """Return the requests of ``trace`` that meet every condition given, as a trace.

    ``from_s`` ≤ time < ``to_s``, in seconds on the trace's clock; ``requests`` (A, B): numbers A
    to B-1 in time order, from 0; ``names``: of each label named (session, tenant, type, model)
    one of its names; ``first``: the first so many of those that the others leave. The new clock
    starts at the first request kept; notes say what was cut. A block is new where no request kept
    used it before, so the part starts with a cold cache. O(B + N). Raises UsageError for a range
    that is none, a name that the trace does not have, and where no request is left.
    """
    keep = np.ones(len(trace), bool)
    what: list[str] = []
    if from_s is not None or to_s is not None:
        keep &= _window(trace, from_s, to_s, what)
    if requests is not None:
        low, high = requests
        if not 0 <= low < high:
            raise UsageError(f"requests {low}:{high}: write A:B with 0 <= A < B")
        number = np.arange(len(trace))
        keep &= (number >= low) & (number < high)
        what.append(f"requests {low}:{high}")
    for label, wanted in (names or {}).items():
        keep &= _named(trace, label, wanted, what)
    order = np.flatnonzero(keep).astype(np.int64)
    if first is not None:
        if first < 1:
            raise UsageError(f"first {first}: at least 1 request")
        order = order[:first]
        what.append(f"the first {first}")
    if not len(order):
        raise UsageError(f"no request of {trace.origin.source} is left: {', '.join(what)}")
    return pick(trace, order, _origin(trace, order, ", ".join(what) or "all"))


def _window(
    trace: Trace, from_s: float | None, to_s: float | None, what: list[str]
) -> NDArray[np.bool_]:
    low = -math.inf if from_s is None else from_s
    high = math.inf if to_s is None else to_s
    if not low < high:
        raise UsageError(f"from {low:g} s to {high:g} s is no window of time")
    if from_s is not None:
        what.append(f"from {from_s:g} s")
    if to_s is not None:
        what.append(f"before {to_s:g} s")
    return (trace.time_s >= low) & (trace.time_s < high)


def _named(trace: Trace, label: str, wanted: Sequence[str], what: list[str]) -> NDArray[np.bool_]:
    if label not in LABELS:
        raise UsageError(f"label {label!r} is not known: use {', '.join(LABELS)}")
    labels = getattr(trace, label)
    if labels is None:
        raise UsageError(f"{trace.origin.source}: no request has a {label}")
    place = {name: code for code, name in enumerate(labels.names)}
    for name in wanted:
        if name not in place:
            raise UsageError(
                f"{trace.origin.source}: no {label} is called {name!r} "
                f"({_listed(labels.names, 'there is')})"
            )
    what.append(_listed(wanted, label))
    codes = np.array([place[name] for name in wanted], np.int32)
    return np.isin(labels.codes, codes)


def _listed(names: Sequence[str], before: str) -> str:
    """A few names, and how many more there are."""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{before} {', '.join(names[:_SHOWN])}{more}"


def _origin(trace: Trace, order: Int64s, what: str) -> Origin:
    start = float(trace.time_s[order[0]])
    notes = [*trace.origin.notes]
    if len(order) < len(trace):
        notes.append(f"cut to {len(order):,} of {len(trace):,} requests: {what}")
    if start > 0:
        notes.append(f"the clock starts {start:g} s after the first request of the whole trace")
    if order[-1] >= len(order):
        notes.append("blocks that only requests cut away had used before count as new")
    settings = dict(trace.origin.settings)
    if isinstance(settings.get("first_timestamp_s"), int | float):
        settings["first_timestamp_s"] = round(settings["first_timestamp_s"] + start, 9)
    return dataclasses.replace(trace.origin, notes=tuple(notes), settings=settings)
