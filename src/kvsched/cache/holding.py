"""Holds and pins of nodes: each counts once on the deepest node, and keeps its ancestors."""

from __future__ import annotations

from kvsched.cache.state import FLAT, LOCKED, PINNED, Live
from kvsched.kernel.table import NONE


def lock(live: Live, node: int) -> None:
    """Hold a node, and so its ancestors. O(those that were not held)."""
    while node != NONE:
        live.locks[node] += 1
        if live.locks[node] > 1:
            return
        live.counts[LOCKED] += 1
        if live.counts[FLAT] != 0:
            return
        node = int(live.table.parent[node])


def unlock(live: Live, node: int) -> None:
    """End one hold of a node, and so of its ancestors. O(those that are not held now)."""
    while node != NONE:
        live.locks[node] -= 1
        if live.locks[node] > 0:
            return
        live.counts[LOCKED] -= 1
        if live.counts[FLAT] != 0:
            return
        node = int(live.table.parent[node])


def pin(live: Live, node: int, most: int) -> bool:
    """Count a node and its ancestors as pinned, unless more than ``most`` blocks were then."""
    new = 0
    at = node
    while at != NONE and live.pins[at] == 0:
        new += 1
        at = int(live.table.parent[at])
    if live.counts[PINNED] + new > most:
        return False
    live.counts[PINNED] += new
    at = node
    while at != NONE:
        live.pins[at] += 1
        if live.pins[at] > 1:
            break
        at = int(live.table.parent[at])
    return True


def unpin(live: Live, node: int) -> None:
    """End one pin of a node, and so of its ancestors. O(those that are not pinned now)."""
    while node != NONE:
        live.pins[node] -= 1
        if live.pins[node] > 0:
            return
        live.counts[PINNED] -= 1
        node = int(live.table.parent[node])
