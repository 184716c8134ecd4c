"""Orders with one rule broken each: the oracle notices all."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from factory import make_trace
from order_oracle import follow
from serving import COST

from kvsched.serve.orders import decode_order
from kvsched.serve.orders import tenant_fair as fair
from kvsched.serve.orders.registry import make_order
from kvsched.serve.orders.sorted_queue import (
    FIRST,
    look_up,
    on_admitted,
    on_queued,
    sort_by_rank,
)
from kvsched.serve.settings import Settings
from kvsched.trace.model import Labels, Trace


def crowded(seed: int) -> tuple[Trace, Settings]:
    """Return work where many wait, share prefixes and are preempted."""
    rng = np.random.default_rng(seed)
    count = 24
    paths = [
        tuple(int(key) for key in rng.integers(0, 2, rng.integers(1, 6))) for _ in range(count)
    ]
    gaps = rng.choice([0, 0, 1, 5], count).tolist()
    trace = make_trace(paths, gaps, [5] * count)
    given = rng.choice([np.nan, -5.0, 1.0, 60.0], count)
    trace = dataclasses.replace(
        trace,
        output_tokens=rng.integers(0, 60, count),
        priority=rng.integers(0, 3, count).astype(np.int32),
        tenant=Labels(rng.integers(-1, 3, count).astype(np.int32), ("a", "b", "c")),
        deadline_s=trace.time_s + given,
    )
    return trace, Settings(num_gpu_blocks=14, max_num_seqs=3, max_num_batched_tokens=40)


class AsItIs:
    """A function that `bind` leaves: what it calls is not broken with it."""

    def __init__(self, function: Any) -> None:
        self.function = function

    def __call__(self, *arguments: Any) -> Any:
        return self.function(*arguments)


def by_hits_only(state: Any, own: Any) -> None:
    look_up(state, own)
    own.later[:] = 0


def no_hits(state: Any, own: Any) -> None:
    look_up(state, own)
    own.hits[:] = 0


def backwards(own: Any) -> None:
    own.rank[:] = -own.rank
    sort_by_rank(own)


def by_arrival(own: Any) -> None:
    own.tie[:] = np.arange(len(own.tie))
    sort_by_rank(own)


def to_the_head(state: Any, own: Any, request: int, now: float) -> None:
    on_queued(state, own, request, now)
    if state.progress.preemptions[request] > 0:
        on_admitted(state, own, request, now)
        own.counts[FIRST] -= 1
        own.queue[own.counts[FIRST]] = request
        own.position[request] = own.counts[FIRST]


def no_deadline(state: Any, own: Any, request: int) -> int:
    return int(state.progress.arrival_s[request] * 1e6)


def trace_deadline(state: Any, own: Any, request: int) -> int:
    return int(own[request] * 1e6)


def ignored(state: Any, own: Any, request: int, tokens: int) -> None:
    """Charges nothing."""


def hits_are_charged(state: Any, own: Any, request: int, now: float) -> None:
    fair.on_admitted(state, own, request, now)
    tenant = own.tenant[request]
    own.counter[tenant] += state.progress.computed[request] * own.prompt_price[tenant]


def charged_again(state: Any, own: Any, request: int, now: float) -> None:
    own.reached[request] = 0
    fair.on_admitted(state, own, request, now)


def back_to_the_end(state: Any, own: Any, request: int, now: float) -> None:
    times = int(state.progress.preemptions[request])
    state.progress.preemptions[request] = 0
    fair.on_queued(state, own, request, now)
    state.progress.preemptions[request] = times


def by_first(state: Any, own: Any, now: float) -> int:
    return min((int(first) for first in own.first if first >= 0), default=-1)


def not_cached(state: Any, request: int, size: int) -> int:
    return 0


def turned(state: Any, own: Any, request: int, now: float) -> int:
    return -decode_order.queue_key(state, own, request, now)


def no_waiting(state: Any, own: Any, request: int, cached_tokens: int) -> int:
    own.weights[decode_order.WAITED] = 0
    return decode_order.score_millionths(state, own, request, cached_tokens)


BROKEN: dict[str, tuple[str, dict[str, Any]]] = {
    "lpm: duplicates are not held back": ("lpm", {"look_up": by_hits_only}),
    "lpm: hits do not count": ("lpm", {"look_up": no_hits}),
    "lpm: the shortest prefix goes first": ("lpm", {"sort_by_rank": backwards}),
    "lpm: equals go by arrival": ("lpm", {"sort_by_rank": by_arrival}),
    "lpm: a long queue is sorted": ("lpm:longest=4", {"is_sorted_now": lambda own: True}),
    "lpm: no queue is sorted": ("lpm", {"is_sorted_now": lambda own: False}),
    "lpm: the preempted go to the head": ("lpm:longest=1", {"on_queued": to_the_head}),
    "spf: duplicates are not held back": ("spf", {"look_up": by_hits_only}),
    "spf: hits are not subtracted": ("spf", {"look_up": no_hits}),
    "spf: the longest goes first": ("spf", {"sort_by_rank": backwards}),
    "spf: the preempted keep their arrival": ("spf", {"sort_by_rank": by_arrival}),
    "edf: all have the same time": ("edf", {"deadline_us": no_deadline}),
    "edf: time runs from the start": ("edf", {"deadline_us": trace_deadline}),
    "edf: arrival decides": ("edf", {"queue_key": lambda state, own, request, now: 0}),
    "tenant-fair: savings are kept": ("tenant-fair", {"_lift": lambda own, tenant: None}),
    "tenant-fair: what is generated is free": ("tenant-fair", {"on_ran": ignored}),
    "tenant-fair: hits are charged": ("tenant-fair", {"on_admitted": hits_are_charged}),
    "tenant-fair: a preemption is charged": ("tenant-fair", {"on_admitted": charged_again}),
    "tenant-fair: the preempted go to the end": ("tenant-fair", {"on_queued": back_to_the_end}),
    "tenant-fair: arrival decides": ("tenant-fair", {"next_waiting": by_first}),
    "decode-order: hits do not count": ("decode-order", {"hit_blocks": not_cached}),
    "decode-order: the worst goes first": ("decode-order", {"queue_key": turned}),
    "decode-order: waiting does not count": ("decode-order", {"score_millionths": no_waiting}),
    "decode-order: keys are not asked anew": ("decode-order", {"moves": False}),
}


@pytest.mark.parametrize("which", BROKEN)
def test_a_broken_order_is_noticed(which: str) -> None:
    reference, broken = BROKEN[which]
    names = {name: AsItIs(value) if callable(value) else value for name, value in broken.items()}
    for seed in range(60):
        trace, told = crowded(seed)
        follow(trace, told, make_order(reference), COST)
        try:
            follow(trace, told, make_order(reference), COST, names=names)
        except AssertionError:
            return
    pytest.fail("no workload tells them apart")
