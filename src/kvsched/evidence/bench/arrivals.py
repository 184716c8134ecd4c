"""When the requests of a benchmark are due: the trace's times, or a rate."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvsched.foundation.errors import UsageError
from kvsched.serve.state import NEVER_S
from kvsched.serve.traffic import Traffic, plan
from kvsched.trace.model import Trace

Float64s = NDArray[np.float64]
Int32s = NDArray[np.int32]


def bench_arrivals(trace: Trace, traffic: Traffic) -> tuple[Float64s, Int32s, Float64s]:
    """Return arrival_s, after and think_s, (R,) each, of a `BenchWorkload`. O(R log R).

    The plan is the timed simulation's (`kvsched.serve.traffic`): the trace's times over a speedup;
    a rate, Poisson or with vLLM's burstiness, drawn from a seed; with sessions, later turns wait
    for the turn before and a think time, and have no arrival of their own (NaN). In a closed loop
    nothing has one: there 0 stands, and the order counts. Raises UsageError as `plan`.
    """
    coming = plan(trace, traffic)
    count = len(trace)
    after: Int32s = np.full(count, -1, np.int32)
    follows = coming.arrivals.follows
    before = np.flatnonzero(follows >= 0).astype(np.int32)
    after[follows[before]] = before
    waits = after >= 0
    arrival_s = np.where(coming.arrival_s == NEVER_S, 0.0, coming.arrival_s)
    arrival_s[waits] = np.nan
    think_s = np.where(waits, coming.arrivals.think_s, 0.0)
    return arrival_s, after, think_s


def fixed_rate(count: int, rate: float) -> Float64s:
    """Return (count,) arrivals ``rate`` a second, equally apart, the first at 0. O(count)."""
    if not 0 < rate < np.inf:
        raise UsageError(f"the rate must be above 0, not {rate!r}")
    return np.arange(count) / rate
