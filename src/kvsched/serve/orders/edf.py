"""Earliest deadline first: who must have its first token soonest goes first."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from kvsched.policy.parameters import Parameter
from kvsched.serve.orders.base import QueueOrder
from kvsched.serve.state import RUNNING_COUNT, State
from kvsched.trace.model import Trace

MOST_S = 1e12
"""A deadline farther off is as good as none: keys are whole microseconds in 64 bits."""


def deadline_us(state: State, own: Any, request: int) -> int:
    """Return a request's deadline on the simulation's clock, whole microseconds. O(1)."""
    return int((state.progress.arrival_s[request] + own[request]) * 1e6)


def queue_key(state: State, own: Any, request: int, now: float) -> int:
    """Return the deadline. O(1)."""
    return deadline_us(state, own, request)


def preempted_place(state: State, own: Any, request: int, now: float) -> int:
    """Return the place of the latest deadline, the last to arrive of equals. O(running)."""
    best = 0
    latest = deadline_us(state, own, int(state.running[0]))
    for at in range(1, state.counts[RUNNING_COUNT]):
        its = deadline_us(state, own, int(state.running[at]))
        tie = state.progress.tie
        later = its == latest and tie[state.running[at]] > tie[state.running[best]]
        if its > latest or later:
            best = at
            latest = its
    return best


class EarliestDeadline(QueueOrder):
    """Requests by deadline, ties by arrival; the running one with the latest is preempted.

    The deadline is the arrival plus the time that the request has: ``deadline_s - time_s`` of the
    trace, which no speedup and no closed loop changes, or ``ttft_s`` where the trace gives none.
    Where it gives none at all, all have the same time, and this is first come, first served. What
    is past its deadline still goes first: nobody is dropped. A preempted request has its old place.

    Nobody starves while the times that requests have are bounded: only those overtake it that
    arrive before its deadline less the shortest time anyone has. A key costs O(1), once a request.
    """

    name = "edf"
    source = "C. L. Liu and J. W. Layland, J. ACM 20(1), 1973 (deadline-driven scheduling)"
    parameters: ClassVar[dict[str, Parameter]] = {
        "ttft_s": Parameter(1.0, "seconds that a request has where the trace gives no deadline")
    }
    resumes_first = False
    queue_key = staticmethod(queue_key)
    preempted_place = staticmethod(preempted_place)

    def prepare(self, trace: Trace) -> Any:
        """Return (R,) the seconds that each request has from its arrival on. O(R)."""
        given = np.full(len(trace), self.values["ttft_s"])
        if trace.deadline_s is not None:
            has = ~np.isnan(trace.deadline_s)
            given[has] = (trace.deadline_s - trace.time_s)[has]
        return np.clip(given, -MOST_S, MOST_S)
