"""The more important first, then the earlier: vLLM's other policy."""

from __future__ import annotations

from typing import Any

from kvsched.serve.orders.base import QueueOrder
from kvsched.serve.state import RUNNING_COUNT, State


def queue_key(state: State, own: Any, request: int, now: float) -> int:
    """Return the priority as vLLM has it: a smaller one goes first."""
    return int(state.work.priority[request])


def preempted_place(state: State, own: Any, request: int, now: float) -> int:
    """Return the place of the largest (priority, arrival). O(running)."""
    best = 0
    for at in range(1, state.counts[RUNNING_COUNT]):
        mine, its = state.running[at], state.running[best]
        rank, other = state.work.priority[mine], state.work.priority[its]
        arrived = state.progress.tie
        if rank > other or (rank == other and arrived[mine] > arrived[its]):
            best = at
    return best


class Priority(QueueOrder):
    """Requests by (priority, arrival); the last of the running in that order is preempted.

    A preempted request has its old place in the queue. The trace's priority is turned round: in a
    trace the larger is more important, in vLLM the smaller.
    """

    name = "priority"
    source = "vLLM 0.32.0 v1 PriorityRequestQueue"
    resumes_first = False
    queue_key = staticmethod(queue_key)
    preempted_place = staticmethod(preempted_place)
