"""Compiled orders are the plain ones: all in one loop, for one compilation."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from serving import same
from test_orders_can_fail import COST, crowded

from kvsched.kernel.heap import heap_peek
from kvsched.serve.orders import decode_order, edf, sorted_queue, tenant_fair
from kvsched.serve.orders.base import QueueOrder
from kvsched.serve.orders.decode_order import DecodeOrder
from kvsched.serve.orders.edf import EarliestDeadline
from kvsched.serve.orders.lpm import LongestPrefix
from kvsched.serve.orders.spf import ShortestPrefill
from kvsched.serve.orders.tenant_fair import TenantFair
from kvsched.serve.simulate import simulate
from kvsched.trace.model import Trace

LPM, SPF, EDF, FAIR, DECODE = range(5)
ORDERS: list[type[QueueOrder]] = [
    LongestPrefix, ShortestPrefill, EarliestDeadline, TenantFair, DecodeOrder
]  # fmt: skip

# Under names of their own: `bind` puts the hooks below over those of the same name.
sorted_queued, sorted_admitted = sorted_queue.on_queued, sorted_queue.on_admitted
sorted_key = sorted_queue.queue_key
sort_by_hits, sort_by_work = LongestPrefix.before_admission, ShortestPrefill.before_admission
due, last_due = edf.queue_key, edf.preempted_place
fair_queued, fair_admitted = tenant_fair.on_queued, tenant_fair.on_admitted
fair_ran, fair_next = tenant_fair.on_ran, tenant_fair.next_waiting
scored, lowest = decode_order.queue_key, decode_order.preempted_place


class All(NamedTuple):
    """What every order has, and which of them decides."""

    which: Any
    queue: Any
    given: Any
    fair: Any
    weights: Any


def on_queued(state: Any, own: Any, request: int, now: float) -> None:
    if own.which[0] <= SPF:
        sorted_queued(state, own.queue, request, now)
    elif own.which[0] == FAIR:
        fair_queued(state, own.fair, request, now)


def on_admitted(state: Any, own: Any, request: int, now: float) -> None:
    if own.which[0] <= SPF:
        sorted_admitted(state, own.queue, request, now)
    elif own.which[0] == FAIR:
        fair_admitted(state, own.fair, request, now)


def on_ran(state: Any, own: Any, request: int, tokens: int) -> None:
    if own.which[0] == FAIR:
        fair_ran(state, own.fair, request, tokens)


def before_admission(state: Any, own: Any, now: float) -> None:
    if own.which[0] == LPM:
        sort_by_hits(state, own.queue, now)
    elif own.which[0] == SPF:
        sort_by_work(state, own.queue, now)


def queue_key(state: Any, own: Any, request: int, now: float) -> int:
    if own.which[0] <= SPF:
        return int(sorted_key(state, own.queue, request, now))
    if own.which[0] == EDF:
        return int(due(state, own.given, request, now))
    if own.which[0] == DECODE:
        return int(scored(state, own.weights, request, now))
    return 0


def next_waiting(state: Any, own: Any, now: float) -> int:
    if own.which[0] == FAIR:
        return int(fair_next(state, own.fair, now))
    return int(heap_peek(state.waiting))


def preempted_place(state: Any, own: Any, request: int, now: float) -> int:
    if own.which[0] == EDF:
        return int(last_due(state, own.given, request, now))
    if own.which[0] == DECODE:
        return int(lowest(state, own.weights, request, now))
    return int(state.counts[0] - 1)


class AnyOrder(QueueOrder):
    """One of the five: which, is asked while it runs."""

    name = "any"
    resumes_first = False
    moves = True
    picks = True
    watches = True
    on_queued = staticmethod(on_queued)
    on_admitted = staticmethod(on_admitted)
    on_ran = staticmethod(on_ran)
    before_admission = staticmethod(before_admission)
    queue_key = staticmethod(queue_key)
    next_waiting = staticmethod(next_waiting)
    preempted_place = staticmethod(preempted_place)

    def __init__(self, which: int) -> None:
        super().__init__()
        self.which = which

    def prepare(self, trace: Trace) -> All:
        queue = ORDERS[SPF if self.which == SPF else LPM]
        return All(
            np.array([self.which]),
            queue().prepare(trace),
            EarliestDeadline().prepare(trace),
            TenantFair().prepare(trace),
            DecodeOrder().prepare(trace),
        )


def test_compiled_is_plain() -> None:
    for which in range(len(ORDERS)):
        apart = 0
        for seed in range(4):
            trace, told = crowded(seed)
            more: dict[str, Any] = {"cost": COST, "step_log": True}
            found = simulate(trace, told, order=AnyOrder(which), compiled=True, **more)
            assert same(found, simulate(trace, told, order=ORDERS[which], compiled=False, **more))
            other = simulate(trace, told, order=ORDERS[which - 1], compiled=False, **more)
            apart += not same(found, other)
        assert apart > 0, "another order is told apart"
