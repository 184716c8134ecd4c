"""The sequential replay: the kernel that asks a policy's hooks."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvsched.kernel.hooks import (
    begin,
    enter,
    leave,
    limited,
    on_evict,
    on_hit,
    on_insert,
    track_leaves,
    victim,
    weighted,
)
from kvsched.kernel.table import NONE, Table


class Counts(NamedTuple):
    """What happened, by request."""

    hits: NDArray[np.int32]
    """(R,) blocks hit."""
    stored: NDArray[np.int32]
    """(R,) blocks stored."""
    evicted: NDArray[np.int32]
    """(R,) blocks that left to make room."""


class Decisions(NamedTuple):
    """Who left for whom, in order; of length 0 when nobody asked."""

    victim: NDArray[np.int32]
    incoming: NDArray[np.int32]


class Limits(NamedTuple):
    """What an engine lets each request hit and store; its chain is all that it holds at most."""

    hit: NDArray[np.int64]
    """(R,) blocks from the root that can be hit."""
    kept: NDArray[np.int64]
    """(R,) blocks from the root that can be stored; what follows takes room while it runs."""
    refused: NDArray[np.bool_]
    """(R,) filled: whether the request can never fit, and so did not run."""
    known: NDArray[np.int32]
    """(R,) filled: blocks from the root that were resident at look-up, hittable or not."""


def _is_evictable(table: Table, node: int, pinned: int) -> bool:
    """Whether a policy's victim may leave, ``pinned`` being this request's deepest block."""
    if node < 0 or node >= len(table.resident) or table.resident[node] == 0:
        return False
    return not track_leaves or (table.children[node] == 0 and node != pinned)


def _evict(table: Table, state: Any, node: int, pinned: int) -> None:
    """Take a node out; its parent may become evictable."""
    on_evict(table, state, node)
    table.resident[node] = 0
    if track_leaves:
        orphan = table.parent[node]
        if orphan != NONE:
            table.children[orphan] -= 1
            if table.children[orphan] == 0 and orphan != pinned:
                enter(table, state, orphan)


def replay_loop(
    table: Table,
    state: Any,
    capacity: int,
    time_s: NDArray[np.float64],
    starts: NDArray[np.int64],
    chains: NDArray[np.int32],
    counts: Counts,
    decisions: Decisions,
    limits: Any = None,
) -> int:
    """Replay every request against a cache of ``capacity`` blocks; return what is in use.

    Where nodes are ``weighted``, capacity and use are in the unit of the table's ``room``. Where an
    engine has ``limited`` what a request hits and stores, ``limits`` are its `Limits`: blocks that
    are resident and cannot be hit are touched all the same, as the request computes them again.

    Stops at a victim that is not evictable, and returns -1 - request: compiled code has no bounds
    checks, and a policy may be anyone's. Fills ``counts``, and ``decisions`` as far as it has
    room. O(B) calls of hooks.
    """
    resident = table.resident
    children = table.children
    used = 0
    logged = 0
    for request in range(len(starts) - 1):
        low = starts[request]
        high = starts[request + 1]
        # Touches rank by (request, deeper first): the root gets high - 1, the deepest block low.
        ranks = low + high - 1
        if limited and high - low > capacity:
            limits.refused[request] = True
            continue
        begin(table, state, request, time_s[request], high - 1)
        at = low
        while at < high and resident[chains[at]] != 0:
            on_hit(table, state, chains[at], ranks - at)
            at += 1
        counts.hits[request] = at - low
        if limited:
            limits.known[request] = at - low
            counts.hits[request] = min(at - low, limits.hit[request])
        pinned = chains[at - 1] if at > low else NONE
        if track_leaves and pinned != NONE and children[pinned] == 0:
            leave(table, state, pinned)
        evicted = 0
        first_missing = at
        while at < high:
            node = chains[at]
            need = int(table.room[node]) if weighted else 1
            while used + need > capacity:
                too_large = weighted and need > capacity
                leaving = NONE if too_large else victim(table, state, node, ranks - at)
                if leaving == NONE:
                    break
                if not _is_evictable(table, leaving, pinned):
                    return -1 - request
                _evict(table, state, leaving, pinned)
                used -= int(table.room[leaving]) if weighted else 1
                if logged < len(decisions.victim):
                    decisions.victim[logged] = leaving
                    decisions.incoming[logged] = node
                    logged += 1
                evicted += 1
            if used + need > capacity:
                break
            used += need
            if limited and at - low >= limits.kept[request]:
                at += 1
                continue
            resident[node] = 1
            if track_leaves and pinned != NONE:
                children[pinned] += 1
            on_insert(table, state, node, ranks - at)
            pinned = node
            at += 1
        if limited and at - low > limits.kept[request]:
            used -= at - low - limits.kept[request]
            at = low + limits.kept[request]
        counts.stored[request] = at - first_missing
        counts.evicted[request] = evicted
        if track_leaves and pinned != NONE and children[pinned] == 0:
            enter(table, state, pinned)
    return used
