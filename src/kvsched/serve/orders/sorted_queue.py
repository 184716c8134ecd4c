"""A queue that is sorted in place before each pass, as SGLang's cache-aware orders have it.

Its sort is stable, so those of equal rank stay as the sorts before left them; who arrives, or
comes back, goes to the end. One of several that wait with the same uncached prefix goes first, and
the others wait behind all: once it is computed they hit it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from kvsched.serve.blocks import hit_blocks
from kvsched.serve.orders.base import QueueOrder
from kvsched.serve.state import Int8s, Int32s, Int64s, State
from kvsched.trace.model import Trace

FIRST = 0
"""Place in ``queue`` of the first that waits."""
END = 1
SERIAL = 2
"""Passes made."""
ENTRIES = 3
"""Requests that were queued so far."""

LONGEST = 0
SAME_PREFIX = 1
BLOCK_SIZE = 2


class SortedQueue(NamedTuple):
    """Who waits, in order, and what the last pass found. R requests over N nodes."""

    queue: Int32s
    """(R,) who waits, in the places from ``FIRST`` to ``END``."""
    spare: Int32s
    """(R,) room for the sort."""
    position: Int64s
    """(R,) each one's place in ``queue``."""
    entry: Int64s
    """(R,) its number among those that were queued, again after a preemption."""
    hits: Int64s
    """(R,) tokens that each would hit, as of the last pass."""
    rank: Int64s
    """(R,) what is sorted by, the smallest first; then ``tie``."""
    tie: Int64s
    later: Int8s
    """(R,) whether one before it has the same uncached prefix."""
    stamp: Int64s
    """(N,) the last pass in which somebody with an uncached prefix had each node."""
    counts: Int64s
    limits: Int64s
    """The longest queue that is sorted; the most tokens that still count as uncached, and the least
    that count as the same prefix; tokens in a block."""


def new_sorted_queue(trace: Trace, longest: int, same_prefix: int) -> SortedQueue:
    """Return an empty queue. O(R + N)."""
    count = len(trace)

    def whole() -> Int64s:
        return np.zeros(count, np.int64)

    return SortedQueue(
        queue=np.zeros(count, np.int32),
        spare=np.zeros(count, np.int32),
        position=whole(),
        entry=whole(),
        hits=whole(),
        rank=whole(),
        tie=whole(),
        later=np.zeros(count, np.int8),
        stamp=np.zeros(trace.nodes, np.int64),
        counts=np.zeros(4, np.int64),
        limits=np.array([longest, same_prefix, trace.block_size], np.int64),
    )


def _close_up(own: Any) -> None:
    """Move the queue to the front of its array. O(waiting)."""
    first = int(own.counts[FIRST])
    length = int(own.counts[END]) - first
    for at in range(length):
        own.queue[at] = own.queue[first + at]
        own.position[own.queue[at]] = at
    own.counts[FIRST] = 0
    own.counts[END] = length


def on_queued(state: State, own: Any, request: int, now: float) -> None:
    """Put a request at the queue's end. O(1) on the mean."""
    if own.counts[END] == len(own.queue):
        _close_up(own)
    at = int(own.counts[END])
    own.queue[at] = request
    own.position[request] = at
    own.counts[END] = at + 1
    own.entry[request] = own.counts[ENTRIES]
    own.counts[ENTRIES] += 1


def on_admitted(state: State, own: Any, request: int, now: float) -> None:
    """Take a request out of the queue: it is the first, or those before it move up. O(1)."""
    first = int(own.counts[FIRST])
    for at in range(int(own.position[request]), first, -1):
        own.queue[at] = own.queue[at - 1]
        own.position[own.queue[at]] = at
    own.counts[FIRST] = first + 1


def queue_key(state: State, own: Any, request: int, now: float) -> int:
    """Return the place in the queue. O(1)."""
    return int(own.position[request])


def _shared_tokens(state: State, own: Any, request: int, mark: bool) -> int:
    """Return how long a prefix of a prompt has nodes stamped in this pass; or stamp its nodes.

    In full blocks: what a trace does not say of the tokens within a block cannot match. O(blocks).
    """
    serial = own.counts[SERIAL]
    low = state.work.starts[request]
    blocks = int(state.work.prompt[request] // own.limits[BLOCK_SIZE])
    at = 0
    while at < blocks:
        node = state.work.chains[low + at]
        # Blocks that the trace does not name are nobody else's.
        if node >= len(own.stamp):
            break
        if mark:
            own.stamp[node] = serial
        elif own.stamp[node] != serial:
            break
        at += 1
    return int(at * own.limits[BLOCK_SIZE])


def look_up(state: State, own: Any) -> None:
    """Find what everyone would hit, and who has the uncached prefix of one before. O(blocks)."""
    own.counts[SERIAL] += 1
    same = int(own.limits[SAME_PREFIX])
    size = int(own.limits[BLOCK_SIZE])
    for at in range(own.counts[FIRST], own.counts[END]):
        request = int(own.queue[at])
        hits = hit_blocks(state, request, size) * size
        own.hits[request] = hits
        own.later[request] = 0
        if hits > same:
            continue
        if _shared_tokens(state, own, request, False) >= max(same, 1):
            own.later[request] = 1
        else:
            _shared_tokens(state, own, request, True)


def is_sorted_now(own: Any) -> bool:
    """Whether the queue is short enough to be sorted. O(1)."""
    return bool(own.counts[END] - own.counts[FIRST] <= own.limits[LONGEST])


def _goes_before(own: Any, one: int, other: int) -> bool:
    if own.rank[one] != own.rank[other]:
        return bool(own.rank[one] < own.rank[other])
    return bool(own.tie[one] < own.tie[other])


def _merge(own: Any, low: int, middle: int, high: int) -> None:
    left = low
    right = middle
    for at in range(low, high):
        takes_left = left < middle and (
            right >= high or not _goes_before(own, own.queue[right], own.queue[left])
        )
        if takes_left:
            own.spare[at] = own.queue[left]
            left += 1
        else:
            own.spare[at] = own.queue[right]
            right += 1
    for at in range(low, high):
        own.queue[at] = own.spare[at]


def sort_by_rank(own: Any) -> None:
    """Sort the queue by rank, then tie, stable. O(W log W), O(W) where it is in order."""
    _close_up(own)
    length = int(own.counts[END])
    width = 1
    while width < length:
        for low in range(0, length - width, 2 * width):
            middle = low + width
            if _goes_before(own, own.queue[middle], own.queue[middle - 1]):
                _merge(own, low, middle, min(middle + width, length))
        width *= 2
    for at in range(length):
        own.position[own.queue[at]] = at


class SortedOrder(QueueOrder):
    """Base of the orders that sort it: they say how, in `before_admission`."""

    resumes_first = False
    moves = True
    watches = True
    queue_key = staticmethod(queue_key)
    on_queued = staticmethod(on_queued)
    on_admitted = staticmethod(on_admitted)
    on_left = on_admitted
