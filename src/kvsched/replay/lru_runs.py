"""LRU's fast path: the list of `kvsched.policy.lru`, kept in runs instead of nodes.

Nodes last used by the same request stand together in LRU's list, shallow first, and are a
stretch of that request's chain. So the list is a list of requests, each with the stretch that
it still holds: a hit shortens one at its head, an eviction one at its tail, and a node needs
to know only which request used it last.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from kvsched.foundation.jit import bind
from kvsched.replay.loop import Counts, Decisions
from kvsched.trace.model import Trace


def _runs(
    capacity: int,
    starts: NDArray[np.int64],
    chains: NDArray[np.int32],
    owner: NDArray[np.int32],
    first: NDArray[np.int32],
    end: NDArray[np.int32],
    counts: Counts,
    decisions: Decisions,
) -> int:
    used = 0
    oldest = 0
    logged = 0
    room = len(decisions.victim)
    for request in range(len(starts) - 1):
        low = starts[request]
        high = starts[request + 1]
        at = low
        while at < high:
            holder = owner[chains[at]]
            if holder < 0 or at - low >= end[holder]:
                break
            stop = min(high, low + end[holder])
            while at < stop and owner[chains[at]] == holder:
                owner[chains[at]] = request
                at += 1
            first[holder] = at - low
        counts.hits[request] = at - low
        length = min(high - low, capacity)
        stored = low + length - at
        free = min(capacity - used, stored)
        incoming = at + free
        while at < low + length:
            owner[chains[at]] = request
            at += 1
        end[request] = length
        used += free
        evicted = stored - free
        counts.stored[request] = stored
        counts.evicted[request] = evicted
        while evicted > 0:
            leaving = min(evicted, end[oldest] - first[oldest])
            if room > 0:
                base = starts[oldest] + end[oldest] - 1
                for back in range(leaving):
                    decisions.victim[logged] = chains[base - back]
                    decisions.incoming[logged] = chains[incoming]
                    incoming += 1
                    logged += 1
            end[oldest] -= leaving
            evicted -= leaving
            if end[oldest] == first[oldest]:
                oldest += 1
    return used


@functools.cache
def _bound(compiled: bool) -> Callable[..., int]:
    return bind(_runs, None, compiled)


def lru_replay(
    trace: Trace, capacity: int, counts: Counts, decisions: Decisions, compiled: bool
) -> int:
    """Replay ``trace`` under LRU; fill ``counts`` and ``decisions`` as `replay_loop` does. O(B)."""
    owner = np.full(trace.nodes, -1, np.int32)
    first = np.zeros(len(trace), np.int32)
    end = np.zeros(len(trace), np.int32)
    loop = _bound(compiled)
    return loop(capacity, trace.starts, trace.chains, owner, first, end, counts, decisions)
