"""KV use, batch and queue over time, from the log of steps."""

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
    Int64s,
)

BINS = 240


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
    then.
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
    """Share of the time in which a step runs."""


def timeline(log: Float64s, capacity: int, end_s: float, bins: int = BINS) -> Timeline | None:
    """Return the levels of a step log, (steps, LOG_COLUMNS); None where no time passed.

    O(steps + bins).
    """
    if end_s <= 0 or not len(log):
        return None
    edges = np.linspace(0.0, end_s, bins + 1)
    starts, ends = log[:, LOG_START_S], log[:, LOG_START_S] + log[:, LOG_SECONDS]
    first = np.searchsorted(starts, edges[:-1], "right") - 1

    def level(values: Float64s) -> Level:
        return _level(values, starts, ends, edges, first)

    return Timeline(
        edges_s=_plain(edges),
        kv_use=level((capacity - log[:, LOG_FREE]) / capacity),
        running=level(log[:, LOG_RUNNING]),
        waiting=level(log[:, LOG_WAITING]),
        busy=float(log[:, LOG_SECONDS].sum() / end_s),
    )


def _plain(values: Float64s) -> tuple[float, ...]:
    return tuple(values.tolist())


def _level(
    values: Float64s, starts: Float64s, ends: Float64s, edges: Float64s, first: Int64s
) -> Level:
    # The integral of the level is linear within a step and flat between steps.
    whole = np.concatenate([[0.0], np.cumsum(values * (ends - starts))])
    times = np.column_stack([starts, ends]).ravel()
    sums = np.column_stack([whole[:-1], whole[1:]]).ravel()
    at = np.interp(edges, times, sums, left=0.0)
    peaks = np.zeros(len(edges) - 1)
    bin_of = np.clip(np.searchsorted(edges, starts, "right") - 1, 0, len(peaks) - 1)
    np.maximum.at(peaks, bin_of, values)
    # A step that began before the interval may reach into it.
    reach = (first >= 0) & (ends[first] > edges[:-1])
    peaks = np.where(reach, np.maximum(peaks, values[first]), peaks)
    return Level(
        mean=float(whole[-1] / edges[-1]),
        peak=float(values.max()),
        means=_plain(np.maximum(np.diff(at) / np.diff(edges), 0.0)),
        peaks=_plain(peaks),
    )
