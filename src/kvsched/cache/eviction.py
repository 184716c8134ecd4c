"""Which nodes may leave, who leaves next, and what leaving does."""

from __future__ import annotations

from typing import Any

from kvsched.cache.names import is_idle, rest
from kvsched.cache.operations import BY_LEVEL, BY_LIFETIME, BY_POLICY, UNCOMPUTED
from kvsched.cache.state import (
    CLOSED,
    FREE,
    IN_LEVELS,
    IN_POLICY,
    LOST,
    NEVER,
    RANK,
    RESIDENT,
    UNSET,
    USED,
    Live,
    Out,
    Pool,
)
from kvsched.kernel.heap import SIZE, heap_peek, heap_push, heap_remove
from kvsched.kernel.hooks import enter, leave, on_drop, on_evict, victim
from kvsched.kernel.table import NONE


def open_node(live: Live, state: Any, node: int) -> None:
    """A resident node has become evictable."""
    if live.expires[node] != NEVER:
        heap_push(live.due, node, live.expires[node], live.rank[node])
    if live.level[node] == 0:
        live.where[node] = IN_POLICY
        enter(live.table, state, node)
    else:
        live.where[node] = IN_LEVELS
        heap_push(live.levels, node, live.level[node], live.rank[node])


def close_node(live: Live, state: Any, node: int) -> None:
    """An evictable node is held, gets a child, or leaves by no choice of the policy."""
    if live.due.counts[SIZE] > 0 and live.due.place[node] != NONE:
        heap_remove(live.due, node)
    if live.where[node] == IN_POLICY:
        leave(live.table, state, node)
    else:
        heap_remove(live.levels, node)
    live.where[node] = CLOSED


def choose(live: Live, state: Any, incoming: int, rank: int, now_us: int, expired: bool) -> int:
    """Return who leaves next, or NONE: what has expired, low levels, the policy's, high levels."""
    node = heap_peek(live.due)
    if node != NONE and live.expires[node] <= now_us:
        return int(node)
    if expired:
        return NONE
    first = heap_peek(live.levels)
    if first != NONE and live.level[first] < 0:
        return int(first)
    node = victim(live.table, state, incoming, rank)
    return int(first) if node == NONE else int(node)


def is_open(live: Live, node: int) -> bool:
    """Whether a number is that of a node that may leave. O(1)."""
    return bool(0 <= node < len(live.where) and live.where[node] != CLOSED)


def why_leaves(live: Live, node: int, now_us: int) -> int:
    """Return why an evictable node leaves, by the numbers in `operations`. O(1)."""
    if live.expires[node] <= now_us:
        return BY_LIFETIME
    return BY_LEVEL if live.where[node] == IN_LEVELS else BY_POLICY


def remove(live: Live, state: Any, pool: Pool, out: Out, node: int, gone: int, why: int) -> None:
    """Take a node out of the cache: an evictable one, or one that was never opened."""
    if why == BY_POLICY:
        if live.due.counts[SIZE] > 0 and live.due.place[node] != NONE:
            heap_remove(live.due, node)
        live.where[node] = CLOSED
        on_evict(live.table, state, node)
    else:
        if live.where[node] != CLOSED:
            close_node(live, state, node)
        on_drop(live.table, state, node)
    out.gone[gone] = node
    out.gone_blocks[gone] = live.block[node]
    out.gone_why[gone] = why
    pool.free[pool.counts[FREE]] = live.block[node]
    pool.counts[FREE] += 1
    live.table.resident[node] = 0
    live.block[node] = NONE
    live.rank[node] = live.counts[RANK]
    live.level[node] = 0
    live.expires[node] = UNSET
    live.counts[RESIDENT] -= 1
    live.counts[USED] -= 1
    parent = int(live.table.parent[node])
    if parent != NONE:
        live.table.children[parent] -= 1
    if is_idle(live, node):
        rest(live, node)


def is_free_leaf(live: Live, node: int) -> bool:
    """Whether a node is resident, has no resident child, and nobody holds it. O(1)."""
    table = live.table
    return bool(table.children[node] == 0 and live.locks[node] == 0 and table.resident[node] != 0)


def open_above(live: Live, state: Any, node: int) -> None:
    """The parent of a node that left may be evictable now."""
    parent = int(live.table.parent[node])
    if parent != NONE and is_free_leaf(live, parent):
        open_node(live, state, parent)


def let_go(live: Live, state: Any, pool: Pool, out: Out, keep: int, length: int) -> int:
    """Open the end of a chain that was released, or drop it from its end up. Returns how many."""
    gone = 0
    at = length
    while at > 0:
        node = int(out.nodes[at - 1])
        if not is_free_leaf(live, node):
            break
        if at <= keep and live.ready[node] != LOST:
            open_node(live, state, node)
            break
        remove(live, state, pool, out, node, gone, UNCOMPUTED)
        gone += 1
        at -= 1
    if gone > 0 and at == 0:
        open_above(live, state, int(out.nodes[0]))
    return gone
