"""W-TinyLFU: admission by frequency behind a small window."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvsched.kernel.hooks import weighted
from kvsched.kernel.lanes import (
    Lanes,
    empty_lanes,
    lane_first,
    lane_holds,
    lane_push,
    lane_remove,
)
from kvsched.kernel.linked import AHEAD, BEHIND, Links, empty_links, link_behind, unlink
from kvsched.kernel.sketch import Sketch, empty_sketch, sketch_add, sketch_count, sketch_forget
from kvsched.kernel.table import NONE, Table
from kvsched.kernel.weight import taken
from kvsched.policy.base import Policy, Setup
from kvsched.policy.parameters import Parameter

WINDOW = 0
PROTECTED = 1
PROBATION = 2

ROOM = 3
NEXT = 5
COUNTED = 6


class WTinyLFUState(NamedTuple):
    """Three segments: their evictable nodes as lanes, all nodes of the first two as lists."""

    lanes: Lanes
    """WINDOW and PROTECTED by last use, PROBATION by arrival there."""
    links: Links
    """WINDOW and PROTECTED, from (last use, shallow first) down; their ends are rows N and N+1."""
    cursor: NDArray[np.int32]
    """(2,) the last node that the current request touched in each list, or its ends."""
    where: NDArray[np.uint8]
    """(N,) segment of a resident node."""
    place: NDArray[np.int64]
    """(N,) order in its lane."""
    sketch: Sketch
    counts: NDArray[np.int64]
    """(7,) what each segment takes; room of the window and of the protected segment; the next place
    in probation; the rank of the touch that was counted last."""


def _begin(table: Table, state: WTinyLFUState, request: int, now: float, last_rank: int) -> None:
    state.cursor[WINDOW] = len(state.where)
    state.cursor[PROTECTED] = len(state.where) + 1


def _count(table: Table, state: WTinyLFUState, node: int, rank: int) -> None:
    """Count a request for a node, once a touch."""
    if state.counts[COUNTED] != rank:
        state.counts[COUNTED] = rank
        sketch_add(state.sketch, node, taken(table, node))


def _put(table: Table, state: WTinyLFUState, segment: int, node: int, rank: int) -> None:
    """Put a node of no list where the current request stands in a list; see to its room."""
    state.where[node] = segment
    state.counts[segment] += taken(table, node)
    state.place[node] = rank
    link_behind(state.links, state.cursor[segment], node)
    state.cursor[segment] = node
    while state.counts[segment] > state.counts[ROOM + segment]:
        _to_probation(table, state, segment)
        if not weighted:
            break


def _to_probation(table: Table, state: WTinyLFUState, segment: int) -> None:
    """Move the last node of a list to probation."""
    node = int(state.links[len(state.where) + segment, AHEAD])
    room = taken(table, node)
    if node == state.cursor[segment]:
        state.cursor[segment] = state.links[node, AHEAD]
    unlink(state.links, node)
    state.counts[segment] -= room
    state.where[node] = PROBATION
    state.counts[PROBATION] += room
    state.place[node] = state.counts[NEXT]
    state.counts[NEXT] += 1
    if lane_holds(state.lanes, node):
        lane_remove(state.lanes, node)
        lane_push(state.lanes, PROBATION, node, state.place[node], 0)


def _on_hit(table: Table, state: WTinyLFUState, node: int, rank: int) -> None:
    _count(table, state, node, rank)
    segment = int(state.where[node])
    state.counts[segment] -= taken(table, node)
    if segment == PROBATION:
        segment = PROTECTED
    else:
        unlink(state.links, node)
    _put(table, state, segment, node, rank)


def _on_insert(table: Table, state: WTinyLFUState, node: int, rank: int) -> None:
    _count(table, state, node, rank)
    _put(table, state, WINDOW, node, rank)


def _enter(table: Table, state: WTinyLFUState, node: int) -> None:
    lane_push(state.lanes, state.where[node], node, state.place[node], 0)


def _leave(table: Table, state: WTinyLFUState, node: int) -> None:
    lane_remove(state.lanes, node)


def _victim(table: Table, state: WTinyLFUState, incoming: int, rank: int) -> int:
    candidate = lane_first(state.lanes, WINDOW)
    rival = lane_first(state.lanes, PROBATION)
    if rival == NONE:
        rival = lane_first(state.lanes, PROTECTED)
    if candidate == NONE and rival == NONE:
        return NONE
    _count(table, state, incoming, rank)
    if candidate == NONE:
        return rival
    if rival == NONE or sketch_count(state.sketch, candidate) <= sketch_count(state.sketch, rival):
        return candidate
    return rival


def _on_drop(table: Table, state: WTinyLFUState, node: int) -> None:
    segment = int(state.where[node])
    state.counts[segment] -= taken(table, node)
    if segment != PROBATION:
        unlink(state.links, node)


def _on_evict(table: Table, state: WTinyLFUState, node: int) -> None:
    lane_remove(state.lanes, node)
    _on_drop(table, state, node)


def _on_release(table: Table, state: WTinyLFUState, node: int, rank: int) -> None:
    segment = int(state.where[node])
    if segment == PROBATION:
        return
    unlink(state.links, node)
    ends = len(state.where) + segment
    first = state.links[ends, BEHIND]
    if first == ends or state.place[first] < rank:
        state.cursor[segment] = ends
    link_behind(state.links, state.cursor[segment], node)
    state.cursor[segment] = node
    state.place[node] = rank


def _forget(table: Table, state: WTinyLFUState, node: int) -> None:
    sketch_forget(state.sketch, node)


class WTinyLFU(Policy):
    """A new node passes a small LRU window; the main part takes it if it was asked for more often.

    The paper's window cache is WINDOW, its main cache a segmented LRU of PROBATION and PROTECTED;
    TinyLFU is a count-min sketch of 4-bit counters with minimal increment, halved after ``sample``
    additions a block of room (the paper's W/C), without the doorkeeper. The window's last node and
    probation's compete, and the one asked for more often stays; at a tie the latter.

    Closed under ancestors: the segments move any node, by last use, deeper first, so their sizes
    are as published, but the two that compete are the last evictable ones; where probation has
    none the protected segment's last competes, and where one side has none the other leaves.

    Where nodes take different room the segments are measured by it, their rooms rounded down to
    usual nodes; a request fills as much of the sample, and its node's count still grows by 1.
    """

    name = "wtinylfu"
    source = "W-TinyLFU, arXiv 1512.00727"
    parameters = {  # noqa: RUF012  # a class constant, typed in the base
        "window": Parameter(0.01, "share of the cache that the window has"),
        "protected": Parameter(0.8, "share of the main part that the protected segment has"),
        "counters": Parameter(16.0, "counters of the sketch a block of room", 4.0, most=4096.0),
        "sample": Parameter(
            10.0, "additions a block of room after which counts are halved", 1.0, most=1e6
        ),
    }
    begin = staticmethod(_begin)
    on_hit = staticmethod(_on_hit)
    on_insert = staticmethod(_on_insert)
    enter = staticmethod(_enter)
    leave = staticmethod(_leave)
    on_evict = staticmethod(_on_evict)
    on_release = staticmethod(_on_release)
    on_drop = staticmethod(_on_drop)
    forget = staticmethod(_forget)
    victim = staticmethod(_victim)

    def prepare(self, setup: Setup) -> Any:
        """Return a `WTinyLFUState` for ``setup``. O(N)."""
        nodes, capacity, unit = setup.nodes, setup.usual_nodes, setup.usual_room
        window = max(1, min(capacity, int(capacity * self.values["window"])))
        protected = int((capacity - window) * min(1.0, self.values["protected"]))
        links = empty_links(nodes + 1)
        links[nodes] = nodes
        return WTinyLFUState(
            empty_lanes(nodes, 3),
            links,
            np.zeros(2, np.int32),
            np.zeros(nodes, np.uint8),
            np.zeros(nodes, np.int64),
            empty_sketch(
                int(self.values["counters"] * min(capacity, nodes)),
                int(self.values["sample"] * capacity),
                unit,
                nodes,
            ),
            np.array([0, 0, 0, window * unit, protected * unit, 0, NONE], np.int64),
        )
