"""The optimum: what no policy can beat, and what a running request's blocks leave of it."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvsched.foundation.jit import hot
from kvsched.kernel.heap import KEY, Heap, heap_peek
from kvsched.kernel.table import NONE, Table
from kvsched.policy.base import RankedPolicy, Setup, ranked_columns


class OptState(NamedTuple):
    """A ranked state with the future."""

    heap: Heap
    touched: NDArray[np.int64]
    next_use: NDArray[np.int32]
    """(N,) the request that uses each node next, R if none does."""
    next_by_rank: NDArray[np.int32]
    """(B,) the same, for every touch by its rank."""


@hot
def next_uses(
    starts: NDArray[np.int64], chains: NDArray[np.int32], nodes: int, limit: NDArray[np.int64]
) -> NDArray[np.int32]:
    """Return (B,) by rank of touch, the next request that uses the node, R if none does. O(B).

    A request uses the first ``limit`` (R,) blocks of its chain: the whole of it, or what an
    engine's rules can hit.
    """
    requests = len(starts) - 1
    seen = np.full(nodes, requests, np.int32)
    found = np.empty(len(chains), np.int32)
    for request in range(requests - 1, -1, -1):
        low = starts[request]
        high = starts[request + 1]
        for at in range(low, high):
            node = chains[at]
            found[high - 1 - (at - low)] = seen[node]
            if at - low < limit[request]:
                seen[node] = request
    return found


def _on_touch(table: Table, state: OptState, node: int, rank: int) -> None:
    state.touched[node] = rank
    state.next_use[node] = state.next_by_rank[rank]


def _key(table: Table, state: OptState, node: int) -> int:
    return -int(state.next_use[node])


def victim_or_decline(table: Table, state: OptState, incoming: int, rank: int) -> int:
    """Name the candidate needed last, or decline if ``incoming`` is not needed before it."""
    last = heap_peek(state.heap)
    if last == NONE or -state.heap.entries[0, KEY] <= state.next_by_rank[rank]:
        return NONE
    return last


class OptFit(RankedPolicy):
    """Belady's rule for an engine's own pool: the candidate with the farthest next use leaves.

    A running request must hold its blocks, so everything that fits is stored. With blocks of
    equal size no policy of such a pool hits more blocks. A parent is never needed later than
    its child, so the choice is always a leaf.
    """

    name = "opt-fit"
    source = "Belady 1966, without the choice not to store"
    looks_ahead = True
    on_hit = staticmethod(_on_touch)
    on_insert = staticmethod(_on_touch)
    key = staticmethod(_key)

    def prepare(self, setup: Setup) -> Any:
        """Return an `OptState` that knows every next use. O(B). Raises UsageError when live."""
        trace = setup.future(self.name)
        limit = trace.chain_blocks if setup.hit_limit is None else setup.hit_limit
        future = next_uses(trace.starts, trace.chains, trace.nodes, limit)
        return OptState(*ranked_columns(setup), np.zeros(setup.nodes, np.int32), future)
