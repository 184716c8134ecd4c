"""The highest rate at which an objective holds: bracketed, narrowed down, and looked at around."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import msgspec

from kvsched.foundation.errors import UsageError
from kvsched.foundation.version import VERSION
from kvsched.serve.engine import COMPILING
from kvsched.serve.points import Ask, Point, Records, Report, Value, check_point, run_points
from kvsched.serve.served import Asking, StepTimeSummary
from kvsched.serve.summary import DEFINITIONS
from kvsched.serve.sweep import asked_of, step_time_of
from kvsched.trace.model import Trace
from kvsched.trace.summary import summarise as summarise_trace

SCHEMA_VERSION = 1
TOLERANCE = 0.01
DOUBLINGS = 16
"""The rate that is begun with, doubled or halved so often, ends the search for a bracket."""
AROUND = (0.5, 0.8, 1.25, 2.0)
"""Multiples of what was found at which it is looked whether a higher rate holds and a lower not."""
ROUNDS = 3
"""Searches in all, where a rate holds above one that does not."""
Runs = Callable[[Sequence[float]], Sequence[bool]]
"""Says of each rate whether the objective holds at it."""


class Tried(msgspec.Struct, frozen=True, kw_only=True):
    """A rate that was tried."""

    value: float
    requests_s: float | None
    """Requests (sessions, where these arrive) a second; a speedup's are their mean. None for a
    speedup with sessions, whose later turns arrive when they are answered."""
    holds: bool
    point: Point


class RateResult(msgspec.Struct, frozen=True, kw_only=True):
    """The highest rate that holds the objective. The same input gives the same bytes."""

    schema_version: int
    kvsched: str
    trace: dict[str, Any]
    asked: dict[str, Value]
    step_time: StepTimeSummary | None
    by: Literal["rate", "speedup"]
    share: float
    """Of all requests that must meet the objective."""
    tolerance: float
    """What was found and the next rate that fails differ by no more, as a share."""
    found: float | None
    """The highest rate, or speedup, that holds; None where none that was tried does."""
    found_requests_s: float | None
    fails_at: float | None
    """The lowest one above it that was tried; None where the highest that was tried holds."""
    reversals: tuple[tuple[float, float], ...]
    """Each lower rate that fails, and the lowest above it that holds."""
    tried: tuple[Tried, ...]
    """By rising rate."""
    sentences: tuple[str, ...]
    definitions: dict[str, str]


def _digits(value: float) -> float:
    return float(f"{value:.6g}")


class Search:
    """Which rates were tried, and which held. The order of trials rests on these alone."""

    def __init__(self, run: Runs, start: float, tolerance: float = TOLERANCE) -> None:
        if not (math.isfinite(start) and start > 0):
            raise UsageError(f"the search begins at a rate above 0, not {start:g}")
        if not 0 < tolerance < 1:
            raise UsageError(f"the tolerance must be between 0 and 1, not {tolerance:g}")
        self._run = run
        self._start = start
        self._tolerance = tolerance
        self.held: dict[float, bool] = {}

    def _try(self, values: Sequence[float]) -> None:
        new = list(dict.fromkeys(v for v in map(_digits, values) if v not in self.held))
        if new:
            self.held |= dict(zip(new, self._run(new), strict=True))

    @property
    def found(self) -> float | None:
        """The highest that held."""
        return max((value for value, held in self.held.items() if held), default=None)

    @property
    def fails_at(self) -> float | None:
        """The lowest tried above `found`, or of all where none held."""
        least = self.found or 0.0
        return min((value for value in self.held if value > least), default=None)

    @property
    def reversals(self) -> tuple[tuple[float, float], ...]:
        """Every rate that failed below one that held, with the lowest of these."""
        held = sorted(value for value, holds in self.held.items() if holds)
        return tuple(
            (value, next(above for above in held if above > value))
            for value in sorted(self.held)
            if not self.held[value] and held and held[-1] > value
        )

    def _bracket(self) -> None:
        # Two at a time: the trials are the same on one core and on many.
        self._try([self._start, 2 * self._start])
        if self.found is None:
            # What requests do not see where they are alone, they see at no rate: rather than halve
            # down to there, look there, and at a few on the way.
            lowest = self._start / 2**DOUBLINGS
            self._try([lowest, self._start / 4])
            if self.found is None:
                self._try([self._start / 16, self._start / 256])
                return
        for power in range(2, DOUBLINGS + 1, 2):
            best = self.found
            if best is not None and best < self._start / 2**power:
                self._try([self._start / 2 ** (power - 1), self._start / 2**power])
            elif self.fails_at is None:
                self._try([self._start * 2**power, self._start * 2 ** (power + 1)])

    def _narrow(self) -> None:
        while True:
            low, high = self.found, self.fails_at
            if low is None or high is None or high <= low * (1 + self._tolerance):
                return
            known = len(self.held)
            ratio = high / low
            self._try([low * ratio ** (part / 4) for part in (1, 2, 3)])
            if len(self.held) == known:
                return

    def go(self) -> None:
        """Find the highest that holds. About 20 trials."""
        self._bracket()
        for _ in range(ROUNDS):
            self._narrow()
            best = self.found
            if best is None or self.fails_at is None:
                return
            self._try([best * factor for factor in AROUND])
            if self.found == best:
                return
        self._narrow()


def _start(trace: Trace, asking: Asking) -> tuple[Literal["rate", "speedup"], float, float | None]:
    """Return what is searched, where it begins, and the requests a second of a value of 1."""
    if asking.concurrency is not None:
        raise UsageError("a closed loop has no rate to find: leave out --concurrency")
    if asking.objective is None or not asking.objective.asked:
        raise UsageError("--find-rate needs an objective: --slo-ttft-ms, --slo-tpot-ms or both")
    if asking.rate is not None:
        if math.isinf(asking.rate):
            raise UsageError("--find-rate begins at a rate that is a number, not at infinity")
        return "rate", asking.rate, 1.0
    span = float(trace.time_s[-1] - trace.time_s[0]) if len(trace) else 0.0
    if not span > 0:
        raise UsageError(
            "all requests of the trace arrive at once, so there is no rate to find: give --rate, "
            "where the search begins"
        )
    return "speedup", asking.speedup, None if asking.sessions else (len(trace) - 1) / span


def holds(point: Point, share: float) -> bool:
    """Whether so many of all requests meet the objective, and no overload is seen."""
    found = point.figures
    if found is None or found.goodput_share is None or found.overloaded:
        return False
    return found.goodput_share >= share - 1e-12


def find_rate(
    trace: Trace,
    asking: Asking,
    *,
    share: float = 0.99,
    tolerance: float = TOLERANCE,
    records: Records | None = None,
    threads: int = 0,
    report: Report | None = None,
    compiled: bool | None = None,
) -> RateResult:
    """Return the highest rate, or speedup of the trace's times, that holds the objective.

    It holds where ``share`` of all requests meet it and the queue does not grow without end. From
    the rate or speedup that ``asking`` has, doubled or halved until one holds and one above it does
    not; the interval is then cut in four until its ends differ by ``tolerance``. That a lower rate
    is served better is not taken for granted: rates around what was found are tried too, and where
    one above holds the search goes on there. Cost: about 20 runs with the middle step time. Raises
    UsageError, InputError.
    """
    if not 0 < share <= 1:
        raise UsageError(f"the share must be above 0 and at most 1, not {share:g}")
    by, start, each = _start(trace, asking)
    asking = dataclasses.replace(asking, band=False)
    check_point(asking, trace)
    points: dict[float, Point] = {}

    def compiling(what: str, done: int, count: int) -> None:
        if report is not None and what == COMPILING:
            report(what, done, count)

    def run(values: Sequence[float]) -> list[bool]:
        asks = [_ask(asking, by, value) for value in values]
        done = run_points(
            trace, asks, records=records, threads=threads, compiled=compiled, report=compiling
        )
        points.update(zip(values, done, strict=True))
        if report is not None:
            report("rates", len(points), max(len(points) + 1, 20))
        return [holds(point, share) for point in done]

    search = Search(run, start, tolerance)
    search.go()
    best = search.found
    tried = tuple(
        Tried(value=v, requests_s=_times(v, each), holds=search.held[v], point=points[v])
        for v in sorted(points)
    )
    return RateResult(
        schema_version=SCHEMA_VERSION,
        kvsched=VERSION,
        trace=summarise_trace(trace),
        asked=asked_of(asking, (by,)),
        step_time=step_time_of([asking]),
        by=by,
        share=share,
        tolerance=tolerance,
        found=best,
        found_requests_s=_times(best, each),
        fails_at=search.fails_at,
        reversals=search.reversals,
        tried=tried,
        sentences=_sentences(search, by, each, tried, asking.sessions),
        definitions=DEFINITIONS,
    )


def _times(value: float | None, each: float | None) -> float | None:
    return None if value is None or each is None else value * each


def _ask(asking: Asking, by: str, value: float) -> Ask:
    change: dict[str, Any] = {by: value}
    return Ask({by: value}, dataclasses.replace(asking, **change))


def _sentences(
    search: Search, by: str, each: float | None, tried: Sequence[Tried], sessions: bool
) -> tuple[str, ...]:
    one = "sessions" if sessions else "requests"

    def named(value: float) -> str:
        if by == "rate":
            return f"{value:.4g} {one} a second"
        if each is None:
            return f"--speedup {value:.4g}"
        return f"--speedup {value:.4g}, {value * each:.4g} requests a second on average"

    best, above = search.found, search.fails_at
    said = []
    if best is None:
        lowest = min(search.held)
        said.append(f"The objective does not hold even at the lowest tried: {named(lowest)}.")
        figures = next((each.point.figures for each in tried if each.value == lowest), None)
        if figures is not None and figures.goodput_share is not None:
            said.append(
                f"There {100 * figures.goodput_share:.1f}% of all requests meet it: with a larger "
                "--slo-share no rate holds it."
            )
    elif above is None:
        said.append(f"The objective holds even at the highest tried: {named(best)}.")
    else:
        said.append(f"The objective holds up to {named(best)}; at {named(above)} it does not.")
    for low, high in search.reversals:
        said.append(
            f"It does not hold at {named(low)}, though it does above that, at {named(high)}."
        )
    untold = [each.value for each in tried if _untold(each)]
    if untold:
        said.append(
            f"Overload cannot be told at {len(untold)} of the {len(tried)} that were tried."
        )
    faults = [each for each in tried if each.point.fault is not None]
    if faults:
        said.append(f"{named(faults[0].value)} could not run: {faults[0].point.fault}.")
    return tuple(said)


def _untold(tried: Tried) -> bool:
    return tried.point.figures is not None and tried.point.figures.overloaded is None
