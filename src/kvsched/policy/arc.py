"""ARC: the adaptive replacement cache."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvsched.kernel.lanes import Lanes, empty_lanes, lane_first, lane_push, lane_remove
from kvsched.kernel.linked import AHEAD, Links, empty_links, link_behind, unlink
from kvsched.kernel.table import NONE, Table
from kvsched.policy.base import Policy, Setup

T1 = 0
T2 = 1
B1 = 2
B2 = 3
NOWHERE = 4

INCOMING = 4
CAPACITY = 5

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
    """(6,) nodes in T1, T2, B1, B2; the node to be stored; the capacity."""
    target: NDArray[np.float64]
    """(2,) p, the share of T1 in blocks; and what it becomes when the victim leaves."""


def _on_hit(table: Table, state: ARCState, node: int, rank: int) -> None:
    state.touched[node] = rank
    state.counts[state.where[node]] -= 1
    state.where[node] = T2
    state.counts[T2] += 1


def _enter(table: Table, state: ARCState, node: int) -> None:
    lane_push(state.lanes, state.where[node], node, state.touched[node], 0)


def _leave(table: Table, state: ARCState, node: int) -> None:
    lane_remove(state.lanes, node)


def _adapted(state: ARCState, incoming: int) -> float:
    """Return p as the paper's cases II and III move it."""
    target = float(state.target[NOW])
    one, two = float(state.counts[B1]), float(state.counts[B2])
    if state.where[incoming] == B1:
        return min(float(state.counts[CAPACITY]), target + max(1.0, two / one))
    if state.where[incoming] == B2:
        return max(0.0, target - max(1.0, one / two))
    return target


def _victim(table: Table, state: ARCState, incoming: int, rank: int) -> int:
    """The paper's REPLACE, and the part of case IV that takes from T1 alone."""
    counts = state.counts
    target = _adapted(state, incoming)
    state.target[PENDING] = target
    counts[INCOMING] = incoming
    above = counts[T1] > target or (state.where[incoming] == B2 and counts[T1] == target)
    full = counts[T1] == counts[CAPACITY] and state.where[incoming] == NOWHERE
    one = lane_first(state.lanes, T1)
    two = lane_first(state.lanes, T2)
    if one == NONE or (two != NONE and not (above or full)):
        return two
    return one


def _forget(state: ARCState, ghosts: int) -> None:
    """Delete the LRU node of B1 or B2."""
    oldest = state.ghosts[len(state.where) + ghosts - B1, AHEAD]
    unlink(state.ghosts, oldest)
    state.counts[ghosts] -= 1
    state.where[oldest] = NOWHERE


def _on_evict(table: Table, state: ARCState, node: int) -> None:
    counts = state.counts
    capacity = counts[CAPACITY]
    remembered = True
    if state.where[counts[INCOMING]] == NOWHERE:
        first = counts[T1] + counts[B1]
        if first == capacity:
            remembered = bool(counts[T1] < capacity)
            if remembered:
                _forget(state, B1)
        elif first + counts[T2] + counts[B2] == 2 * capacity:
            _forget(state, B2)
    state.target[NOW] = state.target[PENDING]
    lane_remove(state.lanes, node)
    came_from = int(state.where[node])
    counts[came_from] -= 1
    if remembered:
        ghosts = came_from + B1
        link_behind(state.ghosts, len(state.where) + came_from, node)
        counts[ghosts] += 1
        state.where[node] = ghosts
    else:
        state.where[node] = NOWHERE


def _on_insert(table: Table, state: ARCState, node: int, rank: int) -> None:
    state.touched[node] = rank
    was = state.where[node]
    if was == NOWHERE:
        state.where[node] = T1
        state.counts[T1] += 1
        return
    unlink(state.ghosts, node)
    state.counts[was] -= 1
    state.where[node] = T2
    state.counts[T2] += 1


class ARC(Policy):
    """Nodes used once and nodes used again, each by last use, and shares that follow regrets.

    T1, T2, B1, B2, p and the four cases are the paper's, p a real number. It moves when a node
    that B1 or B2 remembers is stored, once the victim leaves, and not for a node that is declined.

    Closed under ancestors: T1 and T2 offer evictable nodes only, by last use, and every node
    counts for their sizes; where REPLACE wants one that has nothing to offer, the other gives.
    |T1| + |B1| ≤ c and the sum of all four ≤ 2c hold as in the paper, whichever gives.
    """

    name = "arc"
    source = "ARC, FAST'03"
    on_hit = staticmethod(_on_hit)
    on_insert = staticmethod(_on_insert)
    enter = staticmethod(_enter)
    leave = staticmethod(_leave)
    on_evict = staticmethod(_on_evict)
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
            np.array([0, 0, 0, 0, NONE, setup.capacity_blocks], np.int64),
            np.zeros(2),
        )
