"""S3-FIFO: three static queues."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvsched.kernel.hooks import weighted
from kvsched.kernel.lanes import Lanes, empty_lanes, lane_first, lane_push, lane_remove
from kvsched.kernel.linked import AHEAD, Links, empty_links, link_behind, unlink
from kvsched.kernel.table import NONE, Table
from kvsched.kernel.weight import taken
from kvsched.policy.base import Policy, Setup
from kvsched.policy.parameters import Parameter

SMALL = 0
MAIN = 1
GHOST = 2
NOWHERE = 3

SMALL_ROOM = 3
GHOST_ROOM = 4
THRESHOLD = 5
CHOSEN = 6
NEXT = 7
LAST_RANK = 8
MOVED_RANK = 9

MOST_USES = 3
FIRST_MOVE = 1 << 32
"""More than the ancestors that an insertion takes along: what moves comes behind them."""


class S3FIFOState(NamedTuple):
    """Two queues of evictable nodes, and a ghost queue."""

    lanes: Lanes
    """SMALL and MAIN, by place."""
    ghost: Links
    where: NDArray[np.uint8]
    """(N,) SMALL, MAIN, GHOST or NOWHERE."""
    uses: NDArray[np.uint8]
    """(N,) hits since the node came into its queue, at most 3."""
    place: NDArray[np.int64]
    """(N, 2) order of insertion into its queue: a rank, and a number among those of one rank. What
    main reinserts comes right after the request before."""
    counts: NDArray[np.int64]
    """(10,) what SMALL, MAIN and GHOST take; room of the first and the last; hits that lead to
    main; the node chosen to leave; the next number of what moves; the last rank of this request and
    of the one before."""


def _begin(table: Table, state: S3FIFOState, request: int, now: float, last_rank: int) -> None:
    state.counts[CHOSEN] = NONE
    state.counts[MOVED_RANK] = state.counts[LAST_RANK]
    state.counts[LAST_RANK] = last_rank
    if weighted:
        # Several may have left for a node that was not stored in the end.
        _forget(table, state)


def _on_hit(table: Table, state: S3FIFOState, node: int, rank: int) -> None:
    if state.uses[node] < MOST_USES:
        state.uses[node] += 1


def _into(table: Table, state: S3FIFOState, node: int, queue: int, rank: int, number: int) -> None:
    state.where[node] = queue
    state.counts[queue] += taken(table, node)
    state.uses[node] = 0
    state.place[node, 0] = rank
    state.place[node, 1] = number


def _forget_ghost(table: Table, state: S3FIFOState, node: int) -> None:
    if state.where[node] == GHOST:
        unlink(state.ghost, node)
        state.counts[GHOST] -= taken(table, node)
        state.where[node] = NOWHERE


def _forget(table: Table, state: S3FIFOState) -> None:
    """Delete the oldest nodes of GHOST until it has room."""
    while state.counts[GHOST] > state.counts[GHOST_ROOM]:
        _forget_ghost(table, state, int(state.ghost[len(state.ghost) - 1, AHEAD]))


def _on_insert(table: Table, state: S3FIFOState, node: int, rank: int) -> None:
    counts = state.counts
    if state.where[node] != GHOST:
        _into(table, state, node, SMALL, rank, 0)
    else:
        unlink(state.ghost, node)
        counts[GHOST] -= taken(table, node)
        number = 0
        _into(table, state, node, MAIN, rank, number)
        above = table.parent[node]
        while above != NONE and state.where[above] == SMALL:
            counts[SMALL] -= taken(table, above)
            number += 1
            _into(table, state, above, MAIN, rank, number)
            above = table.parent[above]
    _forget(table, state)


def _enter(table: Table, state: S3FIFOState, node: int) -> None:
    place = state.place
    lane_push(state.lanes, state.where[node], node, place[node, 0], place[node, 1])


def _leave(table: Table, state: S3FIFOState, node: int) -> None:
    lane_remove(state.lanes, node)
    if state.counts[CHOSEN] == node:
        state.counts[CHOSEN] = NONE


def _on_drop(table: Table, state: S3FIFOState, node: int) -> None:
    state.counts[state.where[node]] -= taken(table, node)
    state.where[node] = NOWHERE


def _move(table: Table, state: S3FIFOState, node: int) -> None:
    """Put a node of either queue at the head of main."""
    state.counts[state.where[node]] -= taken(table, node)
    _into(table, state, node, MAIN, state.counts[MOVED_RANK], state.counts[NEXT])
    state.counts[NEXT] += 1


def _from_small(table: Table, state: S3FIFOState) -> int:
    node = lane_first(state.lanes, SMALL)
    while node != NONE and state.uses[node] >= state.counts[THRESHOLD]:
        lane_remove(state.lanes, node)
        above = node
        while above != NONE and state.where[above] == SMALL:
            _move(table, state, above)
            above = table.parent[above]
        _enter(table, state, node)
        node = lane_first(state.lanes, SMALL)
    return node


def _from_main(table: Table, state: S3FIFOState) -> int:
    node = lane_first(state.lanes, MAIN)
    while node != NONE and state.uses[node] > 0:
        uses = state.uses[node] - 1
        lane_remove(state.lanes, node)
        _move(table, state, node)
        state.uses[node] = uses
        _enter(table, state, node)
        node = lane_first(state.lanes, MAIN)
    return node


def _victim(table: Table, state: S3FIFOState, incoming: int, rank: int) -> int:
    counts = state.counts
    if counts[CHOSEN] == NONE:
        node = NONE
        if counts[SMALL] < counts[SMALL_ROOM]:
            node = _from_main(table, state)
        if node == NONE:
            node = _from_small(table, state)
        if node == NONE:
            node = _from_main(table, state)
        counts[CHOSEN] = node
    return int(counts[CHOSEN])


def _on_evict(table: Table, state: S3FIFOState, node: int) -> None:
    lane_remove(state.lanes, node)
    state.counts[CHOSEN] = NONE
    room = taken(table, node)
    state.counts[state.where[node]] -= room
    if state.where[node] == SMALL:
        link_behind(state.ghost, len(state.ghost) - 1, node)
        state.counts[GHOST] += room
        state.where[node] = GHOST
    else:
        state.where[node] = NOWHERE


class S3FIFO(Policy):
    """New nodes pass a small FIFO; what is used there moves to a main FIFO that gives more rounds.

    The paper's S, M and G are SMALL, MAIN and GHOST, its ``freq`` is `uses`. A victim comes from S
    while S holds its share or more: its tail moves to M if it has ``threshold`` hits, else leaves
    and is remembered in G, which is as long as M. M's tail goes round again while it has hits, one
    fewer each time. What G remembers is stored in M. A sweep of S ends with one node gone and may
    leave M above its share, as in the authors' own simulator; the paper's pseudocode would drop
    another node then.

    Closed under ancestors: both queues offer evictable nodes only, at their old place. Their sizes
    count every node. A node that moves to M, or is stored there, takes along its ancestors in S,
    which were used at least as often; so M too is closed under ancestors, and all of S can leave.
    Where one queue has nothing to offer the other is asked.

    Where nodes take different room the three are measured by it, and shares rounded down to usual
    nodes.
    """

    name = "s3fifo"
    source = "S3-FIFO, SOSP'23"
    parameters = {  # noqa: RUF012  # a class constant, typed in the base
        "small": Parameter(0.1, "share of the cache that the small queue has"),
        "ghost": Parameter(
            1.0, "nodes remembered after they left, as a share of the main queue", most=1e3
        ),
        "threshold": Parameter(
            2.0, "hits in the small queue that lead to the main one", 1.0, most=1e6
        ),
    }
    begin = staticmethod(_begin)
    on_hit = staticmethod(_on_hit)
    on_insert = staticmethod(_on_insert)
    enter = staticmethod(_enter)
    leave = staticmethod(_leave)
    on_evict = staticmethod(_on_evict)
    on_drop = staticmethod(_on_drop)
    forget = staticmethod(_forget_ghost)
    victim = staticmethod(_victim)

    def prepare(self, setup: Setup) -> Any:
        """Return an `S3FIFOState` for ``setup``. O(N)."""
        nodes, capacity, unit = setup.nodes, setup.usual_nodes, setup.usual_room
        small = max(1, min(capacity, int(capacity * self.values["small"])))
        ghost = int((capacity - small) * self.values["ghost"])
        threshold = int(self.values["threshold"])
        return S3FIFOState(
            empty_lanes(nodes, 2),
            empty_links(nodes),
            np.full(nodes, NOWHERE, np.uint8),
            np.zeros(nodes, np.uint8),
            np.zeros((nodes, 2), np.int64),
            np.array(
                [0, 0, 0, small * unit, ghost * unit, threshold, NONE, FIRST_MOVE, NONE, NONE]
            ),
        )
