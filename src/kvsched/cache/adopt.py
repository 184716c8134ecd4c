"""What a policy is told when it takes over a cache that is in use."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvsched.cache.state import IN_POLICY, RANK, Live
from kvsched.kernel.hooks import begin, enter, on_hit, on_insert, on_release, resume

MOST_USES = 16
"""Uses of a node that a new policy hears of."""


def adopt(live: Live, state: Any, by_storing: NDArray[np.int32], by_use: NDArray[np.int32]) -> None:
    """Tell a policy of all cached nodes: stored parents first, used as often, last used in order.

    ``by_storing`` and ``by_use`` (R,) order the cached nodes by storing and by last release, the
    oldest first. Ranks are given anew. O(R) calls of hooks, 16 a node at most.
    """
    table = live.table
    rank = int(live.counts[RANK])
    now = float(live.used_s[by_use[0]])
    for node in by_storing:
        begin(table, state, 0, now, rank)
        on_insert(table, state, int(node), rank)
        rank += 1
    for node in by_use:
        # What was never released has no time of its own yet.
        now = max(now, float(live.used_s[node]))
        for _ in range(min(int(live.uses[node]), MOST_USES) - 1):
            begin(table, state, 0, now, rank)
            on_hit(table, state, int(node), rank)
            rank += 1
        resume(table, state, 0, now, rank)
        on_release(table, state, int(node), rank)
        live.rank[node] = rank
        rank += 1
    live.counts[RANK] = rank
    for node in by_use:
        if live.where[node] == IN_POLICY:
            enter(table, state, int(node))


def orders(live: Live) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Return the cached nodes by storing and by last release. O(R log R)."""
    resident = np.flatnonzero(live.table.resident).astype(np.int32)
    by_storing = resident[np.argsort(live.stored[resident], kind="stable")]
    # What was never released is in use, and its rank and time are an earlier block's.
    by_use = resident[np.lexsort((live.rank[resident], live.uses[resident] == 0))]
    return by_storing, by_use
