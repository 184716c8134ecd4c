"""SIEVE."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvsched.kernel import linked
from kvsched.kernel.heap import KEY, Heap, empty_heap, heap_peek, heap_push, heap_remove
from kvsched.kernel.linked import BEHIND, Links, empty_links, link_behind, unlink
from kvsched.kernel.table import NONE, Table
from kvsched.policy.base import Policy, Setup

START = -1
"""Where the hand stands before the oldest node."""

LAP = 0
HAND = 1
AHEAD = 2
HELD = 3
FIRST = 4
NEXT = 5


class SieveState(NamedTuple):
    """The evictable nodes by the moment when the hand comes by."""

    links: Links
    """Two lists by place, of the even laps and of the odd ones: their ends are rows N and N+1."""
    heap: Heap
    """By (lap of the hand, place): nodes that would not be the last of their list."""
    place: NDArray[np.int64]
    """(N,) place of each node in the queue, the tail being the smallest: the order of storing, in
    which a head comes before what follows it in its chain."""
    visited: NDArray[np.uint8]
    """(N,) 1 if the node was hit since it was stored or the hand passed; 0 whenever it leaves."""
    hand: NDArray[np.int64]
    """(6,) the hand's lap, the place it passed last, the evictable nodes ahead of it, and all;
    the place of this request's root, and of the next one's."""


def _go_round(state: SieveState) -> None:
    state.hand[LAP] += 1
    state.hand[HAND] = START
    state.hand[AHEAD] = state.hand[HELD]


def _begin(table: Table, state: SieveState, request: int, now: float, last_rank: int) -> None:
    state.hand[FIRST] = state.hand[NEXT]
    state.hand[NEXT] = last_rank + 1


def _on_hit(table: Table, state: SieveState, node: int, rank: int) -> None:
    state.visited[node] = 1


def _on_insert(table: Table, state: SieveState, node: int, rank: int) -> None:
    # A hand at the head starts again before something new is put there.
    if state.hand[AHEAD] == 0:
        _go_round(state)
    # What was left out of a sampled chain leaves no gap.
    state.place[node] = state.hand[FIRST] + state.hand[NEXT] - 1 - rank


def _wait(state: SieveState, node: int, lap: int) -> None:
    """Let a node wait for the hand of a lap: in its list where it is the last, else in the heap."""
    ends = len(state.place) + (lap & 1)
    last = state.links[ends, linked.AHEAD]
    if last == ends or state.place[last] < state.place[node]:
        link_behind(state.links, last, node)
    else:
        heap_push(state.heap, node, lap, state.place[node])


def _take(state: SieveState, node: int) -> None:
    if state.heap.place[node] == NONE:
        unlink(state.links, node)
    else:
        heap_remove(state.heap, node)


def _enter(table: Table, state: SieveState, node: int) -> None:
    lap = int(state.hand[LAP])
    if state.place[node] > state.hand[HAND]:
        state.hand[AHEAD] += 1
    else:
        lap += 1
    state.hand[HELD] += 1
    _wait(state, node, lap)


def _leave(table: Table, state: SieveState, node: int) -> None:
    if state.place[node] > state.hand[HAND]:
        state.hand[AHEAD] -= 1
    state.hand[HELD] -= 1
    _take(state, node)


def _next(state: SieveState) -> int:
    """Return the node that the hand comes by next, or NONE."""
    lap = int(state.hand[LAP])
    if state.hand[AHEAD] == 0:
        lap += 1
    ends = len(state.place) + (lap & 1)
    listed = state.links[ends, BEHIND]
    other = heap_peek(state.heap)
    due = other != NONE and state.heap.entries[0, KEY] == lap
    if due and (listed == ends or state.place[other] < state.place[listed]):
        return other
    return NONE if listed == ends else int(listed)


def _pass(state: SieveState, node: int) -> None:
    """Move the hand past the node that is next."""
    if state.hand[AHEAD] == 0:
        _go_round(state)
    state.hand[AHEAD] -= 1
    state.hand[HAND] = state.place[node]
    _take(state, node)


def _victim(table: Table, state: SieveState, incoming: int, rank: int) -> int:
    node = _next(state)
    while node != NONE and state.visited[node] != 0:
        state.visited[node] = 0
        _pass(state, node)
        _wait(state, node, int(state.hand[LAP]) + 1)
        node = _next(state)
    return node


def _on_evict(table: Table, state: SieveState, node: int) -> None:
    _pass(state, node)
    state.hand[HELD] -= 1


def _on_drop(table: Table, state: SieveState, node: int) -> None:
    state.visited[node] = 0


class Sieve(Policy):
    """A hand goes from the oldest node to the newest and evicts the first not hit since it came by.

    The paper's queue is the order of insertion (`place`), its `visited` bit and its hand are the
    fields of those names. A hit sets the bit and moves nothing; the hand clears it and goes on;
    at the head it starts again from the tail.

    Closed under ancestors: the hand sees evictable nodes only. What cannot leave keeps its bit and
    its place, and is met in the lap after it can; so a head, which stands before its tail, gets
    most of a lap more than the paper's queue would give it. Evictable nodes wait in the order in
    which the hand comes by, and it walks past nothing. As it goes from old to new, most become
    evictable, or have their bit cleared, in that very order: those are the last of a list, O(1);
    others are in a heap, O(log n). A bit is cleared once for each time it was set.
    """

    name = "sieve"
    source = "SIEVE, NSDI'24"
    begin = staticmethod(_begin)
    on_hit = staticmethod(_on_hit)
    on_insert = staticmethod(_on_insert)
    enter = staticmethod(_enter)
    leave = staticmethod(_leave)
    on_evict = staticmethod(_on_evict)
    on_drop = staticmethod(_on_drop)
    victim = staticmethod(_victim)

    def prepare(self, setup: Setup) -> Any:
        """Return a `SieveState` for ``setup``. O(N)."""
        nodes = setup.nodes
        heap = empty_heap(nodes, setup.capacity_blocks)
        hand = np.array([0, START, 0, 0, 0, 0], np.int64)
        links = empty_links(nodes + 1)
        links[nodes] = nodes
        return SieveState(links, heap, np.zeros(nodes, np.int64), np.zeros(nodes, np.uint8), hand)
