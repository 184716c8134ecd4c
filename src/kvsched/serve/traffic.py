"""When requests arrive: the trace's times, a rate, a closed loop, sessions that wait."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from kvsched.foundation.errors import UsageError
from kvsched.kernel.table import NONE
from kvsched.serve.state import NEVER_S, Arrivals, Float64s, Int32s
from kvsched.trace.model import Trace

FASTEST = 1e12
"""Greatest rate and speedup, and one over the smallest."""
MOST = 1 << 63
PARTS = 1e9
"""Parts of the mean gap to which a drawn gap is rounded."""


@dataclass(frozen=True)
class Traffic:
    """How requests arrive. Raises UsageError for what cannot be, or does not go together.

    Without sessions every request arrives by itself. With ``sessions`` the first turn of each
    does; a later turn arrives when the turn before it has ended and its think time is over. Turns
    of a session are those of the trace's session column, in the trace's order; a request without a
    session is one of its own. A turn that was rejected ended when it arrived.

    What arrives by itself arrives at the trace's times over ``speedup``, the first at 0; or at
    ``rate`` a second, in the trace's order; or ``concurrency`` at a time, each when one before it
    has ended, or ``think_s`` later (with sessions: has ended its last turn).
    """

    speedup: float = 1.0
    """Divides the times of the trace, and think times that come from it."""
    rate: float | None = None
    """Requests a second, with ``sessions`` sessions a second; infinity for all at once."""
    burstiness: float = 1.0
    """Shape of the gamma distribution of gaps: 1 for Poisson arrivals, below 1 for bursts, above 1
    for more even gaps, infinity for equal ones. As in vLLM 0.32.0's `bench serve`."""
    seed: int = 0
    concurrency: int | None = None
    sessions: bool = False
    think_s: float | None = None
    """Seconds from a turn's end to the next one's arrival. None: the trace's delay of the later
    turn, 0 if it is negative; or where it has none the time between the trace's two arrivals. In a
    closed loop without sessions: from a request's end to the next one's arrival, None for 0."""
    apart_s: float = 0.0
    """Of a closed loop: seconds at least between two arrivals. Who ends in one step sends at one
    moment, and a server's front takes one request after another."""

    def __post_init__(self) -> None:
        if not (_is_number(self.speedup) and 1 / FASTEST <= self.speedup <= FASTEST):
            raise UsageError(f"speedup must be above 0, not {self.speedup!r}")
        if self.rate is not None and not (
            _is_number(self.rate)
            and (1 / FASTEST <= self.rate <= FASTEST or (math.isinf(self.rate) and self.rate > 0))
        ):
            raise UsageError(
                f"the rate must be above 0 (from {1 / FASTEST:g} to {FASTEST:g} a second, or "
                f"infinite), not {self.rate!r}"
            )
        if not (_is_number(self.burstiness) and self.burstiness > 0):
            raise UsageError(f"burstiness must be above 0, not {self.burstiness!r}")
        _check_whole("the seed", self.seed, 0)
        if self.concurrency is not None:
            _check_whole("concurrency", self.concurrency, 1)
        think = self.think_s
        if think is not None and not (_is_number(think) and 0 <= think < FASTEST):
            raise UsageError(f"the think time must be at least 0 s, not {think!r}")
        if not (_is_number(self.apart_s) and 0 <= self.apart_s < FASTEST):
            raise UsageError(f"arrivals must be at least 0 s apart, not {self.apart_s!r}")
        self._check_together()

    def _check_together(self) -> None:
        if self.rate is not None and self.concurrency is not None:
            raise UsageError("give a rate or a concurrency, not both")
        if self.rate is None and self.burstiness != 1.0:
            raise UsageError("burstiness needs a rate")
        if self.think_s is not None and not self.sessions and self.concurrency is None:
            raise UsageError("a think time needs sessions, or a closed loop")
        if self.apart_s and self.concurrency is None:
            raise UsageError("arrivals are kept apart in a closed loop alone")
        timed = self.rate is None and self.concurrency is None
        if self.speedup != 1.0 and not timed and (not self.sessions or self.think_s is not None):
            raise UsageError("speedup divides the trace's times, and none of them is used")

    @property
    def closed_loop(self) -> bool:
        """Whether one begins when another has ended."""
        return self.concurrency is not None


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _check_whole(name: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value < MOST:
        raise UsageError(
            f"{name} must be a whole number of at least {least}, below 2^63, not {value!r}"
        )


class Coming(NamedTuple):
    """What the loop gets of `Traffic`."""

    arrival_s: Float64s
    """(R,) when each arrives, `NEVER_S` where that is not known at the start."""
    known: int
    """How many of ``arrivals.firsts`` are known at the start."""
    arrivals: Arrivals


def rate_times(count: int, rate: float, burstiness: float, seed: int) -> Float64s:
    """Return (count,) ascending arrivals in seconds, the first at 0, ``rate`` a second. O(count).

    Gaps are gamma distributed and then scaled, so that the last arrives at (count - 1) / rate. In
    vLLM 0.32.0's `bench serve`, from which this is, a gap comes before the first request too; here
    time begins with it, as with a trace's own times. Gaps are drawn from NumPy's PCG64 and rounded
    to a part in 10^9 of the mean, so that the last bit of a logarithm changes nothing. Raises
    UsageError for a burstiness so small that no gap is above 0.
    """
    if math.isinf(rate) or count < 2:
        return np.zeros(count)
    gaps = np.ones(count - 1)
    if math.isfinite(burstiness):
        random = np.random.Generator(np.random.PCG64(seed))
        gaps = random.gamma(burstiness, 1.0, count)[1:]
        whole = float(gaps.sum())
        if not whole > 0:
            raise UsageError(f"burstiness {burstiness:g} is too small: all would arrive at once")
        # Scaled before they are rounded: of a small one nearly all are next to nothing.
        gaps = gaps / whole * len(gaps)
    passed = np.cumsum(np.round(gaps * PARTS).astype(np.int64))
    times: Float64s = np.zeros(count)
    times[1:] = passed / int(passed[-1]) * (len(gaps) / rate)
    return times


def _followers(trace: Trace) -> tuple[Int32s, Int32s]:
    """Return (R,) the turn before each request, and the one after it; NONE where none. O(R log R).

    Raises UsageError where the trace has no sessions.
    """
    if trace.session is None:
        raise UsageError("sessions need the trace's session column, and it has none")
    before = np.full(len(trace), NONE, np.int32)
    after = np.full(len(trace), NONE, np.int32)
    codes = trace.session.codes
    order = np.argsort(codes, kind="stable").astype(np.int32)
    one, other = order[:-1], order[1:]
    joined = (codes[one] == codes[other]) & (codes[one] >= 0)
    after[one[joined]] = other[joined]
    before[other[joined]] = one[joined]
    return before, after


def _think_times(trace: Trace, before: Int32s, traffic: Traffic) -> Float64s:
    """Return (R,) seconds between the end of the turn before and each; 0 for a first turn."""
    later = before != NONE
    if traffic.think_s is not None:
        return np.where(later, traffic.think_s, 0.0)
    gaps = np.zeros(len(trace))
    gaps[later] = trace.time_s[later] - trace.time_s[before[later]]
    if trace.delay_s is not None:
        told = later & ~np.isnan(trace.delay_s)
        gaps[told] = np.maximum(trace.delay_s[told], 0.0)
    return gaps / traffic.speedup


def plan(trace: Trace, traffic: Traffic) -> Coming:
    """Return what the loop needs so that ``trace`` arrives as ``traffic`` says. O(R log R).

    Raises UsageError for sessions where the trace has none.
    """
    count = len(trace)
    firsts = np.arange(count, dtype=np.int32)
    follows = np.full(count, NONE, np.int32)
    think_s = np.zeros(count)
    due = 0
    if traffic.sessions:
        before, follows = _followers(trace)
        think_s = _think_times(trace, before, traffic)
        firsts = np.flatnonzero(before == NONE).astype(np.int32)
        due = count - len(firsts)
    elif traffic.think_s is not None:
        think_s[:] = traffic.think_s
    arrival_s = np.full(count, NEVER_S)
    known = len(firsts)
    if traffic.concurrency is not None:
        known = min(traffic.concurrency, known)
        arrival_s[firsts[:known]] = traffic.apart_s * np.arange(known)
    elif traffic.rate is not None:
        arrival_s[firsts] = rate_times(known, traffic.rate, traffic.burstiness, traffic.seed)
    else:
        arrival_s[firsts] = (trace.time_s[firsts] - trace.time_s[0]) / traffic.speedup
    nothing = np.zeros(0, np.int32)
    arrivals = Arrivals(
        firsts=firsts,
        follows=follows,
        think_s=think_s,
        due=np.zeros(due, np.int32),
        ended=nothing,
        ended_s=np.zeros(0),
        apart_s=float(traffic.apart_s),
    )
    return Coming(arrival_s, known, arrivals)
