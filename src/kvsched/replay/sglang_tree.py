"""SGLang's radix tree over pages: nodes hold runs of pages, split, and leave whole.

A page is one node of the trace's forest, so it names its whole prefix: a run needs only its
deepest page and the depths at which it starts and ends, and a child is found without a
dictionary. Facts are from SGLang 0.5.23 (`srt/mem_cache/radix_cache.py`). Its default tree, the
`UnifiedRadixCache`, differs in one thing: the upper part of a split node keeps the creation time,
which only `fifo` and `filo` see, and its command line offers neither.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvsched.kernel.heap import Heap, empty_heap, heap_push, heap_remove
from kvsched.kernel.table import NONE

# Rules that the tests switch off, one at a time, to see that the recordings notice.
counted_on_insert = True
"""The hit count of a node rises when a request inserts it, not when one matches it."""
counted_once = True
"""A request counts a node once, however often it inserts it."""
split_copies = True
"""The upper part of a split node takes over its hit count and priority."""
split_is_new = True
"""The upper part of a split node is as new as the split; the lower keeps its age."""
remainder_touched = True
"""The lower part of a split node counts as used by the request that it differs from."""
priority_raised = True
"""Inserting raises the priority of the path to the request's."""

CLOCK = 0
SPARE = 1
FREE = 2
LOGGED = 3
STRATEGY = 4

LRU, LFU, FIFO, FILO, MRU, PRIORITY, SLRU = range(7)
STRATEGIES = ("lru", "lfu", "fifo", "filo", "mru", "priority", "slru")
"""SGLang's names of its eviction strategies, in the order of their numbers."""
PROTECTED_COUNT = 2
"""`slru` protects a node from this hit count on."""


class Tree(NamedTuple):
    """Columns over N pages and M radix nodes; numbers of radix nodes are used again."""

    parent: NDArray[np.int32]
    """(N,) page before each page."""
    owner: NDArray[np.int32]
    """(N,) radix node that holds each page, -1 outside the tree."""
    up: NDArray[np.int32]
    """(M,) parent, -1 under the root."""
    children: NDArray[np.int32]
    """(M,) number of children."""
    start: NDArray[np.int32]
    """(M,) depth of the first page of the run."""
    end: NDArray[np.int32]
    """(M,) depth after the last page of the run."""
    tail: NDArray[np.int32]
    """(M,) last page of the run."""
    used: NDArray[np.int64]
    """(M,) tick of last access."""
    created: NDArray[np.int64]
    """(M,) tick of creation."""
    hits: NDArray[np.int64]
    """(M,) hit count."""
    priority: NDArray[np.int64]
    """(M,) largest priority that was inserted."""
    leaves: Heap
    """Evictable leaves in the order of the strategy."""
    spare: NDArray[np.int32]
    """(M,) stack of unused numbers."""
    state: NDArray[np.int64]
    """(5,) the clock, numbers in the stack, free pages, decisions logged, the strategy."""


def empty_tree(parent: NDArray[np.int32], capacity: int, strategy: int) -> Tree:
    """Return an empty tree in a pool of ``capacity`` free pages. O(N)."""
    pages = len(parent)
    nodes = min(pages, capacity) + 1
    up, children, start, end, tail = (np.zeros(nodes, np.int32) for _ in range(5))
    used, created, hits, priority = (np.zeros(nodes, np.int64) for _ in range(4))
    return Tree(
        parent=parent,
        owner=np.full(pages, NONE, np.int32),
        up=up,
        children=children,
        start=start,
        end=end,
        tail=tail,
        used=used,
        created=created,
        hits=hits,
        priority=priority,
        leaves=empty_heap(nodes, nodes),
        spare=np.arange(nodes - 1, -1, -1, dtype=np.int32),
        state=np.array([0, nodes, capacity, 0, strategy], np.int64),
    )


def rank(tree: Tree, node: int) -> int:
    """Order of a leaf under the tree's strategy: the smallest leaves first."""
    strategy = tree.state[STRATEGY]
    if strategy == LRU:
        return int(tree.used[node])
    if strategy == MRU:
        return -int(tree.used[node])
    if strategy == FIFO:
        return int(tree.created[node])
    if strategy == FILO:
        return -int(tree.created[node])
    if strategy == LFU:
        return int(tree.hits[node])
    if strategy == SLRU:
        return 1 if tree.hits[node] >= PROTECTED_COUNT else 0
    return int(tree.priority[node])


def tie(tree: Tree, node: int) -> int:
    """Order among leaves of one rank."""
    return int(tree.used[node])


def enter(tree: Tree, node: int) -> None:
    """Make a leaf evictable. O(log M)."""
    heap_push(tree.leaves, node, rank(tree, node), tie(tree, node))


def _again(tree: Tree, node: int) -> None:
    """Rank a node anew if it is an evictable leaf: its key has changed."""
    if tree.leaves.place[node] >= 0:
        heap_remove(tree.leaves, node)
        enter(tree, node)


def _new(tree: Tree) -> int:
    """Return a node that is as new as now."""
    state = tree.state
    state[SPARE] -= 1
    node = int(tree.spare[state[SPARE]])
    state[CLOCK] += 2
    tree.used[node] = state[CLOCK] - 1
    tree.created[node] = state[CLOCK]
    return node


def _split(tree: Tree, node: int, chain: NDArray[np.int32], at: int) -> int:
    """Split ``node`` before depth ``at`` of ``chain``; return the upper part. O(its run)."""
    upper = _new(tree)
    if not split_is_new:
        tree.created[upper] = tree.created[node]
        tree.used[upper] = tree.used[node]
    tree.hits[upper] = tree.hits[node] if split_copies else 0
    tree.priority[upper] = tree.priority[node] if split_copies else 0
    tree.up[upper] = tree.up[node]
    tree.children[upper] = 1
    tree.start[upper] = tree.start[node]
    tree.end[upper] = at
    tree.tail[upper] = chain[at - 1]
    for depth in range(tree.start[node], at):
        tree.owner[chain[depth]] = upper
    tree.up[node] = upper
    tree.start[node] = at
    return upper


def _follow(tree: Tree, node: int, chain: NDArray[np.int32], length: int) -> int:
    """Return the depth at which ``chain`` leaves the run of ``node``. O(log run)."""
    end = tree.end[node]
    if end <= length and chain[end - 1] == tree.tail[node]:
        return int(end)
    low = tree.start[node] + 1
    high = min(int(end), length)
    while low < high:
        middle = (low + high) >> 1
        if tree.owner[chain[middle]] == node:
            low = middle + 1
        else:
            high = middle
    return int(low)


def match(tree: Tree, chain: NDArray[np.int32], length: int) -> int:
    """Return the deepest node of the longest prefix of ``chain[:length]`` in the tree, or NONE.

    Touches the path, and splits a node that the match ends in. O(nodes of the path + split).
    """
    tree.state[CLOCK] += 1
    now = tree.state[CLOCK]
    node = NONE
    at = 0
    while at < length and tree.owner[chain[at]] >= 0:
        below = int(tree.owner[chain[at]])
        before = tree.used[below]
        tree.used[below] = now
        at = _follow(tree, below, chain, length)
        if not counted_on_insert:
            tree.hits[below] += 1
        node = below
        if at < tree.end[below]:
            node = _split(tree, below, chain, at)
            if not remainder_touched:
                tree.used[below] = before
        _again(tree, below)
        if node != below:
            break
    return node


def insert(
    tree: Tree, chain: NDArray[np.int32], length: int, inserted: int, priority: int
) -> tuple[int, int]:
    """Insert ``chain[:length]``; return how many of these pages were there, and the last node.

    Nodes that end within the first ``inserted`` pages were counted by this request before. The
    new node is not evictable until `enter`. O(nodes of the path + pages that are new).
    """
    tree.state[CLOCK] += 1
    now = tree.state[CLOCK]
    seen = inserted if counted_once else 0
    node = NONE
    at = 0
    while at < length and tree.owner[chain[at]] >= 0:
        below = int(tree.owner[chain[at]])
        before = tree.used[below]
        tree.used[below] = now
        at = _follow(tree, below, chain, length)
        node = below
        if at < tree.end[below]:
            node = _split(tree, below, chain, at)
            if not remainder_touched:
                tree.used[below] = before
        if priority_raised and tree.priority[node] < priority:
            tree.priority[node] = priority
        if counted_on_insert and at > seen:
            tree.hits[node] += 1
        _again(tree, below)
    if at == length:
        return at, node
    new = _new(tree)
    tree.hits[new] = 1
    tree.priority[new] = priority
    tree.up[new] = node
    tree.children[new] = 0
    tree.start[new] = at
    tree.end[new] = length
    tree.tail[new] = chain[length - 1]
    for depth in range(at, length):
        tree.owner[chain[depth]] = new
    if node != NONE:
        tree.children[node] += 1
        if tree.leaves.place[node] >= 0:
            heap_remove(tree.leaves, node)
    return at, new
