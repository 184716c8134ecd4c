"""Whether arrivals exceed what the engine can serve: a queue that grows without end."""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from kvsched.serve.result import Simulation
from kvsched.serve.state import Float64s

WINDOWS = 20
"""Windows of equal length that the time of arrivals is cut into."""
ERRORS = 3.0
"""Standard errors by which the mean growth of a window must be above 0."""
_CHANCE = "the queue rose throughout, but by no more than chance may explain; take a longer trace"
_FILLING = "the batch was still filling when the last request arrived; take a longer trace"
LEAST_REQUESTS = 40
"""Of fewer requests nothing is said: two a window."""


class Overload(msgspec.Struct, frozen=True, kw_only=True):
    """How the queue went while requests arrived: those that have not had their first step."""

    overloaded: bool | None
    """Whether the queue grows without end; None where that cannot be told."""
    why_unknown: str | None
    """Why it cannot be told."""
    arrival_rate: float | None
    """Requests a second that arrived and were not rejected."""
    queue_at_last_arrival: int
    drain_s: float | None
    """Seconds from the last arrival until the queue was empty; None where it never was."""
    growth: float | None
    """Requests a second by which the queue grew while requests arrived."""
    growth_error: float | None
    """Standard error of `growth`, from its windows."""
    service_rate: float | None
    """Requests a second that the engine finishes with a queue; None where it is not overloaded."""


def overload(found: Simulation, *, closed_loop: bool = False) -> Overload:
    """Say whether the queue of a simulation grows without end.

    The batch is bounded by `max_num_seqs` and by memory: what exceeds service is in the queue.
    The time from the first to the last arrival is cut into `WINDOWS` windows of equal length. The
    queue grows without end if (1) its mean growth a window is more than `ERRORS` standard errors
    above 0, from the windows' own spread, and (2) its mean length rises from each quarter of the
    time to the next. A burst that drains and a rush at the end fail the first, a queue that
    levels off the second. Nothing is said where it rises, but by 1 to `ERRORS` standard errors,
    and where those who wait or run grow in number by the same two conditions: then the batch was
    still filling. In a closed loop requests wait for answers, and nothing is said. The rate that
    the engine could serve is what it finishes a second from the middle of the arrivals on, while
    somebody waits. O(R log R).
    """
    arrived = ~found.rejected & ~np.isnan(found.arrival_s)
    arrivals = np.sort(found.arrival_s[arrived])
    if found.horizon_s is not None:
        arrivals = arrivals[arrivals < found.horizon_s]
    first, last = (float(arrivals[0]), float(arrivals[-1])) if len(arrivals) else (0.0, 0.0)
    started = np.sort(found.scheduled_s[arrived & ~np.isnan(found.scheduled_s)])
    queue = _Queue(arrivals, started)
    left = int(queue.at(np.array([last]))[0])
    drained = len(started) == len(arrivals)
    drain_s = max(float(started[-1]) - last, 0.0) if drained and len(started) else None
    why = _unknown(closed_loop, len(arrivals), last - first)
    if why is not None:
        return Overload(
            overloaded=None, why_unknown=why, arrival_rate=None, queue_at_last_arrival=left,
            drain_s=drain_s, growth=None, growth_error=None, service_rate=None,
        )  # fmt: skip
    growth = _growth(queue, first, last)
    why = None if growth.certain else _unclear(growth, found, arrivals, arrived, (first, last))
    rate = _served(found, (first + last) / 2, started, drained) if growth.certain else None
    return Overload(
        overloaded=growth.certain if why is None else None,
        why_unknown=why,
        arrival_rate=(len(arrivals) - 1) / (last - first),
        queue_at_last_arrival=left,
        drain_s=drain_s,
        growth=growth.mean,
        growth_error=growth.error,
        service_rate=rate,
    )


class _Growth(NamedTuple):
    """How a number grows a second, over windows; ``rises`` from each quarter to the next."""

    mean: float
    error: float
    rises: bool

    @property
    def certain(self) -> bool:
        return self.rises and self.mean > 0 and self.mean > ERRORS * self.error


def _growth(queue: _Queue, first: float, last: float) -> _Growth:
    edges = np.linspace(first, last, WINDOWS + 1)
    each = np.diff(queue.at(edges)) / np.diff(edges)
    quarters = [
        queue.mean(low, high)
        for low, high in itertools.pairwise(np.linspace(first, last, 5).tolist())
    ]
    error = float(each.std(ddof=1)) / math.sqrt(WINDOWS)
    return _Growth(float(each.mean()), error, _rises(quarters))


def _rises(means: list[float]) -> bool:
    return all(low < high for low, high in itertools.pairwise(means))


def _unclear(
    growth: _Growth,
    found: Simulation,
    arrivals: Float64s,
    arrived: NDArray[np.bool_],
    span: tuple[float, float],
) -> str | None:
    """Why it cannot be said that the queue does not grow; None where it can."""
    if growth.rises and growth.mean > growth.error:
        return _CHANCE
    ended = np.sort(found.finished_s[arrived & found.finished])
    inside = _growth(_Queue(arrivals, ended), *span)
    return _FILLING if inside.certain else None


def _unknown(closed_loop: bool, requests: int, seconds: float) -> str | None:
    if closed_loop:
        return "a closed loop: requests wait for answers, and so arrive no faster than these"
    if requests < LEAST_REQUESTS:
        return f"fewer than {LEAST_REQUESTS} requests arrived"
    if not seconds > 0:
        return "all requests arrive at once, which is no rate"
    return None


def _served(found: Simulation, since: float, started: Float64s, drained: bool) -> float | None:
    """Requests finished a second from ``since`` to the end of the queue, or of the run."""
    until = float(started[-1]) if drained else found.end_s
    ends = found.finished_s[found.finished]
    count = int(((ends > since) & (ends <= until)).sum())
    return count / (until - since) if until > since and count else None


class _Queue:
    """How many have arrived and not started, at any time; both (n,) ascending."""

    def __init__(self, arrivals: Float64s, started: Float64s) -> None:
        self.arrivals, self.started = arrivals, started

    def at(self, times: Float64s) -> Float64s:
        """(T,) the queue just after each of ``times``."""
        come = np.searchsorted(self.arrivals, times, "right")
        gone = np.searchsorted(self.started, times, "right")
        return (come - gone).astype(np.float64)

    def mean(self, low: float, high: float) -> float:
        """Its mean from ``low`` to ``high``: seconds in the queue over seconds."""
        come = np.clip(high - np.clip(self.arrivals, low, None), 0.0, None).sum()
        gone = np.clip(high - np.clip(self.started, low, None), 0.0, None).sum()
        return float(come - gone) / (high - low)
