"""An indexed heap of evictable nodes: no stale records, no rebuild inside an operation.

The root may be a hole for a moment: evicting the smallest leaves one, and the parent that
becomes evictable next, often the new smallest, drops into it without a sift from the end.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvsched.kernel.table import NONE

KEY = 0
TIE = 1
NODE = 2

SIZE = 0
HOLE = 1


class Heap(NamedTuple):
    """A binary min-heap ordered by (key, tie)."""

    entries: NDArray[np.int64]
    """(C, 3) rows of key, tie, node."""
    place: NDArray[np.int32]
    """(N,) row of each node in the heap, -1 outside it."""
    counts: NDArray[np.int64]
    """(2,) rows in use, and 1 while the root is a hole."""


def empty_heap(nodes: int, room: int) -> Heap:
    """Return a heap for at most ``room`` of ``nodes`` nodes at a time. O(N)."""
    rows = min(room, nodes) + 1
    return Heap(
        np.zeros((rows, 3), np.int64), np.full(nodes, NONE, np.int32), np.zeros(2, np.int64)
    )


def _set(heap: Heap, row: int, key: int, tie: int, node: int) -> None:
    heap.entries[row, KEY] = key
    heap.entries[row, TIE] = tie
    heap.entries[row, NODE] = node
    heap.place[node] = row


def _sift_up(heap: Heap, row: int, key: int, tie: int, node: int) -> None:
    entries = heap.entries
    while row > 0:
        above = (row - 1) >> 1
        above_key = entries[above, KEY]
        if above_key < key or (above_key == key and entries[above, TIE] < tie):
            break
        _set(heap, row, above_key, entries[above, TIE], entries[above, NODE])
        row = above
    _set(heap, row, key, tie, node)


def _sift_down(heap: Heap, row: int, key: int, tie: int, node: int) -> None:
    entries = heap.entries
    size = heap.counts[SIZE]
    while True:
        below = 2 * row + 1
        if below >= size:
            break
        below_key = entries[below, KEY]
        below_tie = entries[below, TIE]
        if below + 1 < size:
            other_key = entries[below + 1, KEY]
            other_tie = entries[below + 1, TIE]
            if other_key < below_key or (other_key == below_key and other_tie < below_tie):
                below += 1
                below_key = other_key
                below_tie = other_tie
        if key < below_key or (key == below_key and tie < below_tie):
            break
        _set(heap, row, below_key, below_tie, entries[below, NODE])
        row = below
    _set(heap, row, key, tie, node)


def _fill_hole(heap: Heap) -> None:
    heap.counts[HOLE] = 0
    last = heap.counts[SIZE] - 1
    heap.counts[SIZE] = last
    if last > 0:
        entries = heap.entries
        _sift_down(heap, 0, entries[last, KEY], entries[last, TIE], entries[last, NODE])


def heap_push(heap: Heap, node: int, key: int, tie: int) -> None:
    """Add a node that is not in the heap. O(log n); O(1) into the hole of a root."""
    if heap.counts[HOLE]:
        heap.counts[HOLE] = 0
        _sift_down(heap, 0, key, tie, node)
        return
    row = heap.counts[SIZE]
    heap.counts[SIZE] = row + 1
    _sift_up(heap, row, key, tie, node)


def heap_peek(heap: Heap) -> int:
    """Return the node with the smallest (key, tie), or NONE. O(1); O(log n) after the root left."""
    if heap.counts[HOLE]:
        _fill_hole(heap)
    if heap.counts[SIZE] == 0:
        return NONE
    return int(heap.entries[0, NODE])


def heap_remove(heap: Heap, node: int) -> None:
    """Take a node out from wherever it is. O(log n)."""
    if heap.counts[HOLE]:
        _fill_hole(heap)
    row = heap.place[node]
    heap.place[node] = NONE
    if row == 0:
        heap.counts[HOLE] = 1
        return
    last = heap.counts[SIZE] - 1
    heap.counts[SIZE] = last
    if row == last:
        return
    entries = heap.entries
    key = entries[last, KEY]
    tie = entries[last, TIE]
    above = (row - 1) >> 1
    above_key = entries[above, KEY]
    if above_key > key or (above_key == key and entries[above, TIE] > tie):
        _sift_up(heap, row, key, tie, entries[last, NODE])
    else:
        _sift_down(heap, row, key, tie, entries[last, NODE])
