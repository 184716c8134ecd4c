"""The unit of a trace's clock: told by size where rows count from 1970, else the format's own."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvsched.foundation.errors import InputError, UsageError
from kvsched.trace.model import Float64s, Int64s

UNITS = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}
# Seconds since 1970 from 2001 to 2286, and the same in finer units: no two ranges touch.
_EPOCH = {"s": (1e9, 1e10), "ms": (1e12, 1e13), "us": (1e15, 1e16), "ns": (1e18, 1e19)}
_FINER = {"s": "ms", "ms": "us", "us": "ns"}


def check_unit(unit: str | None) -> None:
    """Raise UsageError where ``unit`` is not one that `UNITS` knows."""
    if unit is not None and unit not in UNITS:
        raise UsageError(f"time unit {unit!r} is not known: use {', '.join(UNITS)}")


def seconds(times: NDArray[np.float64], unit: str) -> tuple[Float64s, float]:
    """Times (R,) as seconds from the earliest of them, and that one in seconds."""
    if not len(times):
        return times, 0.0
    first = float(times.min())
    return (times - first) / UNITS[unit], first / UNITS[unit]


def find_unit(
    file: str, times: Float64s, rows: Int64s, given: str | None, usual: str
) -> tuple[str, tuple[str, ...]]:
    """The unit of ``times`` (R,), with the note that declares it.

    ``rows`` (R,) number the lines for the fault. A unit that is ``given`` is taken as it is.
    Raises InputError where rows count in different units.
    """
    if given is not None:
        return given, ()
    classes = np.full(len(times), -1)
    for code, (low, high) in enumerate(_EPOCH.values()):
        classes[(times >= low) & (times < high)] = code
    units = list(_EPOCH)
    if len(times) and classes[0] >= 0 and (classes == classes[0]).all():
        unit = units[classes[0]]
        return unit, (f"timestamps are {unit} since 1970, by their size",)
    _refuse_mixed_epochs(file, times, rows, classes)
    if usual in _FINER:
        _refuse_mixed_relative(file, times, rows)
    if usual != "s" and (times != np.floor(times)).any():
        return usual, (f"timestamps have fractions; read as {usual}, the format's unit",)
    return usual, ()


def _refuse_mixed_epochs(
    file: str, times: Float64s, rows: Int64s, classes: NDArray[np.int64]
) -> None:
    """Raise where some rows count from 1970 and others in another unit, or from elsewhere.

    A clock that starts at 0 may run into an epoch's range by itself; it never leaps there by
    a factor of 1000.
    """
    dated = np.flatnonzero(classes >= 0)
    if not len(dated):
        return
    others = np.flatnonzero(classes < 0)
    units = list(_EPOCH)
    largest = float(times[others].max()) if len(others) else -1.0
    leap = times[dated] >= 1000.0 * max(largest, 1.0)
    if len(others) and not leap.all():
        return
    if len(others):
        odd, base = (dated[0], 0) if dated[0] > others[0] else (others[0], 0)
    else:
        odd, base = int(np.flatnonzero(classes != classes[0])[0]), 0

    def meaning(index: int) -> str:
        code = int(classes[index])
        return f"{units[code]} since 1970" if code >= 0 else "a count from 0"

    raise InputError(
        file,
        f"mixed units of time: {times[odd]:.0f} looks like {meaning(int(odd))}, "
        f"{times[base]:.0f} in row {rows[base]} like {meaning(base)} "
        "(--time-unit reads them as they are)",
        int(rows[odd]),
    )


def _refuse_mixed_relative(file: str, times: Float64s, rows: Int64s) -> None:
    """Raise where the rows out of order fall into order when multiplied by a power of 1000.

    They must also land in the span of the others (10 times it at most), so that a late row at
    the end, which fits anywhere, does not count.
    """
    if len(times) < 3 or not (np.diff(times) < 0).any():
        return
    for factor in (1e3, 1e6, 1e9):
        highest = np.maximum.accumulate(times)
        late = times < highest
        scaled = np.where(late, times * factor, times)
        # Once a scaled row stands, rows in the finer unit must still be above it.
        if (np.diff(scaled) < 0).any():
            continue
        span = float(times[~late].max() - times[~late].min())
        if float(scaled.max() - scaled.min()) > 10 * span or span == 0:
            continue
        row = int(np.flatnonzero(late)[0])
        raise InputError(
            file,
            f"mixed units of time: rows out of order fall into order when {times[row]:g} is "
            f"multiplied by {factor:.0f} (--time-unit reads them as they are)",
            int(rows[row]),
        )
