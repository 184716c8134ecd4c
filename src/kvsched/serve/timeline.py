"""KV use, batch and queue over time, from the log of steps; of several engines together."""

from __future__ import annotations

import msgspec
import numpy as np

from kvsched.serve.state import (
    LOG_FREE,
    LOG_RUNNING,
    LOG_SECONDS,
    LOG_START_S,
    LOG_WAITING,
    Float64s,
    Int32s,
)

BINS = 240
ROUNDING = 1e-12
"""Of a moment: two that differ by less are one."""
_ROWS = 1 << 18
"""Steps that are looked at together."""


class Level(msgspec.Struct, frozen=True, kw_only=True):
    """A level over time: its mean over the whole run, idle time as 0, and its peak."""

    mean: float
    peak: float
    means: tuple[float, ...]
    """Mean in each interval of the timeline."""
    peaks: tuple[float, ...]
    """The most in any step that reaches into the interval."""


class Timeline(msgspec.Struct, frozen=True, kw_only=True):
    """Levels in intervals of equal length from 0 to the run's end.

    A level holds from a step's start to its end, and is 0 between steps: nobody runs or waits
    then. Of several engines it is of all together: their blocks, their requests, at one moment.
    """

    edges_s: tuple[float, ...]
    kv_use: Level
    """Blocks that requests hold, as a share of all; what is only cached counts as free."""
    running: Level
    """Requests that run: the batch."""
    waiting: Level
    """Requests in the queue, as the scheduler leaves them: those that arrive in a step count from
    the next on."""
    busy: float
    """Share of the time in which a step runs; of several engines their mean."""


def timeline(
    log: Float64s,
    capacity: int,
    end_s: float,
    bins: int = BINS,
    *,
    replica: Int32s | None = None,
    replicas: int = 1,
) -> Timeline | None:
    """Return the levels of a step log, (steps, LOG_COLUMNS); None where no time passed.

    ``capacity`` is in blocks, of one engine. Where several served, ``replica`` is the engine of
    each row, (steps,). O(steps + bins) time and no copy of the log with one engine, with several
    O(steps log steps) and a copy.
    """
    if end_s <= 0 or not len(log):
        return None
    edges = np.linspace(0.0, end_s, bins + 1)
    sums = {name: _Sums(edges) for name in ("kv_use", "running", "waiting")}
    busy = 0.0
    if replicas > 1 and replica is not None:
        times, columns = together(log, capacity, replica, replicas)
        for name, values in zip(sums, columns, strict=True):
            sums[name].add(times[:-1], times[1:], values)
        busy = float(log[:, LOG_SECONDS].sum()) / replicas
    for low in range(0, 0 if replicas > 1 else len(log), _ROWS):
        rows = log[low : low + _ROWS]
        starts = rows[:, LOG_START_S].copy()
        ends = starts + rows[:, LOG_SECONDS]
        busy += float(rows[:, LOG_SECONDS].sum())
        sums["kv_use"].add(starts, ends, (capacity - rows[:, LOG_FREE]) / capacity)
        sums["running"].add(starts, ends, rows[:, LOG_RUNNING])
        sums["waiting"].add(starts, ends, rows[:, LOG_WAITING])
    levels = {name: each.level() for name, each in sums.items()}
    return Timeline(edges_s=tuple(edges.tolist()), busy=busy / end_s, **levels)


def together(
    log: Float64s, capacity: int, replica: Int32s, replicas: int
) -> tuple[Float64s, tuple[Float64s, Float64s, Float64s]]:
    """Return (T,) moments at which a level of all engines changes, and (T-1,) the levels between.

    These are KV use, running and waiting, as in `Timeline`. O(steps log steps).
    """
    starts, ends, rows = [], [], []
    for engine in range(replicas):
        own = log[replica == engine]
        start = own[:, LOG_START_S]
        end = start + own[:, LOG_SECONDS]
        # A step that follows at once begins where the one before ends, but for rounding.
        after = start[1:]
        close = np.abs(after - end[:-1]) <= ROUNDING * after
        end[:-1] = np.where(close, after, np.minimum(end[:-1], after))
        starts.append(start)
        ends.append(end)
        rows.append(own)
    own = np.concatenate(rows)
    times, at = np.unique(np.concatenate([*starts, *ends]), return_inverse=True)
    begin, end_at = at[: len(own)], at[len(own) :]
    found = []
    for values in (capacity - own[:, LOG_FREE], own[:, LOG_RUNNING], own[:, LOG_WAITING]):
        # Whole numbers: they add up to exactly 0 when all have ended.
        change = np.bincount(begin, values, len(times)) - np.bincount(end_at, values, len(times))
        found.append(np.cumsum(change)[:-1])
    return times, (found[0] / (capacity * replicas), found[1], found[2])


class _Sums:
    """A level's integral up to each edge, and its peak in each interval, as steps come in."""

    def __init__(self, edges: Float64s) -> None:
        self.edges = edges
        self.whole = np.zeros(len(edges))
        self.total = 0.0
        self.peaks = np.zeros(len(edges) - 1)

    def add(self, starts: Float64s, ends: Float64s, values: Float64s) -> None:
        """Take the next steps, (n,) each, in order."""
        edges, peaks = self.edges, self.peaks
        # The integral is linear within a step and flat between steps.
        areas = np.concatenate([[0.0], np.cumsum(values * (ends - starts))])
        times = np.column_stack([starts, ends]).ravel()
        self.whole += np.interp(edges, times, np.column_stack([areas[:-1], areas[1:]]).ravel())
        self.total += float(areas[-1])
        within = np.clip(np.searchsorted(edges, starts, "right") - 1, 0, len(peaks) - 1)
        np.maximum.at(peaks, within, values)
        # A step that began before an interval may reach into it.
        before = np.searchsorted(starts, edges[:-1], "right") - 1
        reach = (before >= 0) & (ends[before] > edges[:-1])
        peaks[reach] = np.maximum(peaks[reach], values[before[reach]])

    def level(self) -> Level:
        means = np.maximum(np.diff(self.whole) / np.diff(self.edges), 0.0)
        return Level(
            mean=self.total / float(self.edges[-1]),
            peak=float(self.peaks.max()),
            means=tuple(means.tolist()),
            peaks=tuple(self.peaks.tolist()),
        )
