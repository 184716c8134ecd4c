"""ARC: the adaptive replacement cache."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvsched.kernel.lanes import Lanes, empty_lanes, lane_first, lane_push, lane_remove
from kvsched.kernel.linked import AHEAD, Links, empty_links, link_behind, unlink
from kvsched.kernel.table import NONE, Table
from kvsched.kernel.weight import taken, usual_nodes
from kvsched.policy.base import Policy, Setup

T1 = 0
T2 = 1
B1 = 2
B2 = 3
NOWHERE = 4

ASKED = 4
CAPACITY = 5
USUAL = 6

NOW = 0
PENDING = 1


class ARCState(NamedTuple):
    """T1 and T2 as lanes of evictable nodes, B1 and B2 as lists."""

    lanes: Lanes
    """T1 and T2, by last use."""
    ghosts: Links
    """B1 and B2: row N is the ends of the first, row N+1 of the second."""
    where: NDArray[np.uint8]
    """(N,) T1, T2, B1, B2 or NOWHERE."""
    touched: NDArray[np.int64]
    """(N,) rank of the last touch."""
    counts: NDArray[np.int64]
    """(7,) what T1, T2, B1 and B2 take; the rank of the touch that a victim was named for last;
    the capacity; what a usual node takes."""
    target: NDArray[np.float64]
    """(2,) p, the share of T1 in usual nodes; and what it becomes when the node that is asked for
    is stored."""


def _on_hit(table: Table, state: ARCState, node: int, rank: int) -> None:
    state.touched[node] = rank
    if state.where[node] == T1:
        room = taken(table, node)
        state.counts[T1] -= room
        state.where[node] = T2
        state.counts[T2] += room


def _enter(table: Table, state: ARCState, node: int) -> None:
    lane_push(state.lanes, state.where[node], node, state.touched[node], 0)


def _leave(table: Table, state: ARCState, node: int) -> None:
    lane_remove(state.lanes, node)


def _adapted(table: Table, state: ARCState, incoming: int, rank: int) -> float:
    """Return p as the paper's cases II and III move it, worked out once a touch."""
    counts = state.counts
    target = float(state.target[NOW])
    where = state.where[incoming]
    if where == NOWHERE:
        return target
    if counts[ASKED] != rank:
        counts[ASKED] = rank
        one, two = float(counts[B1]), float(counts[B2])
        size = usual_nodes(taken(table, incoming), int(counts[USUAL]))
        if where == B1:
            most = usual_nodes(int(counts[CAPACITY]), int(counts[USUAL]))
            state.target[PENDING] = min(most, target + size * max(1.0, two / one))
        else:
            state.target[PENDING] = max(0.0, target - size * max(1.0, one / two))
    return float(state.target[PENDING])


def _victim(table: Table, state: ARCState, incoming: int, rank: int) -> int:
    """The paper's REPLACE; the part of case IV that takes from T1 alone has an empty T2."""
    target = _adapted(table, state, incoming, rank)
    size = usual_nodes(int(state.counts[T1]), int(state.counts[USUAL]))
    above = size > target or (state.where[incoming] == B2 and size == target)
    one = lane_first(state.lanes, T1)
    two = lane_first(state.lanes, T2)
    if one == NONE or (two != NONE and not above):
        return two
    return one


def _on_evict(table: Table, state: ARCState, node: int) -> None:
    lane_remove(state.lanes, node)
    came_from = int(state.where[node])
    room = taken(table, node)
    state.counts[came_from] -= room
    link_behind(state.ghosts, len(state.where) + came_from, node)
    state.counts[came_from + B1] += room
    state.where[node] = came_from + B1


def _on_release(table: Table, state: ARCState, node: int, rank: int) -> None:
    state.touched[node] = rank


def _on_drop(table: Table, state: ARCState, node: int) -> None:
    state.counts[state.where[node]] -= taken(table, node)
    state.where[node] = NOWHERE


def _forget_ghost(table: Table, state: ARCState, node: int) -> None:
    if state.where[node] != NOWHERE:
        unlink(state.ghosts, node)
        state.counts[state.where[node]] -= taken(table, node)
        state.where[node] = NOWHERE


def _forget(table: Table, state: ARCState, ghosts: int) -> None:
    """Delete the LRU node of B1 or B2."""
    _forget_ghost(table, state, int(state.ghosts[len(state.where) + ghosts - B1, AHEAD]))


def _on_insert(table: Table, state: ARCState, node: int, rank: int) -> None:
    counts = state.counts
    room = taken(table, node)
    state.touched[node] = rank
    was = state.where[node]
    if was != NOWHERE:
        state.target[NOW] = _adapted(table, state, node, rank)
        unlink(state.ghosts, node)
        counts[was] -= room
        state.where[node] = T2
        counts[T2] += room
        return
    capacity = counts[CAPACITY]
    state.where[node] = T1
    counts[T1] += room
    while counts[T1] + counts[B1] > capacity:
        _forget(table, state, B1)
    while counts[T1] + counts[B1] + counts[T2] + counts[B2] > 2 * capacity:
        _forget(table, state, B2)


class ARC(Policy):
    """Nodes used once and nodes used again, each by last use, and shares that follow regrets.

    T1, T2, B1, B2, p and the four cases are the paper's, p a real number. It moves when a node
    that B1 or B2 remembers is stored, and not for a node that is declined. Ghosts are forgotten
    once the victim is among them, so one that the paper does not remember is forgotten at once.

    Closed under ancestors: T1 and T2 offer evictable nodes only, by last use, and every node
    counts for their sizes; where REPLACE wants one that has nothing to offer, the other gives.
    |T1| + |B1| ≤ c and the sum of all four ≤ 2c hold as in the paper, whichever gives. Where nodes
    take different room the four are measured by it, and p moves by that of the node stored.
    """

    name = "arc"
    source = "ARC, FAST'03"
    on_hit = staticmethod(_on_hit)
    on_insert = staticmethod(_on_insert)
    enter = staticmethod(_enter)
    leave = staticmethod(_leave)
    on_evict = staticmethod(_on_evict)
    on_release = staticmethod(_on_release)
    on_drop = staticmethod(_on_drop)
    forget = staticmethod(_forget_ghost)
    victim = staticmethod(_victim)

    def prepare(self, setup: Setup) -> Any:
        """Return an `ARCState` for ``setup``. O(N)."""
        nodes = setup.nodes
        ghosts = empty_links(nodes + 1)
        ghosts[nodes] = nodes
        return ARCState(
            empty_lanes(nodes, 2),
            ghosts,
            np.full(nodes, NOWHERE, np.uint8),
            np.zeros(nodes, np.int64),
            np.array([0, 0, 0, 0, NONE, setup.capacity_blocks, setup.usual_room], np.int64),
            np.zeros(2),
        )
