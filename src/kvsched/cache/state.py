"""Everything that a live cache keeps of its blocks, as columns over node numbers.

A number stands for one block of one prefix, known by (parent number, key). What left keeps its
number as history, so that a policy may remember it, until the number is needed for another.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvsched.kernel.heap import Heap, empty_heap
from kvsched.kernel.linked import Links, empty_links
from kvsched.kernel.table import NONE, Table

NEVER = 2**62
"""Expiry in microseconds of a block that outlives every moment."""
UNSET = -1
"""Expiry of a block that no request has released yet."""

CLOSED = 0
IN_POLICY = 1
IN_LEVELS = 2

COMPUTING = 0
READY = 1
LOST = 2

FRESH = 0
NAMES = 1

RESIDENT = 0
LOCKED = 1
PINNED = 2
USED = 3
LIMIT = 4
RANK = 5
STORED = 6
FLAT = 7
COUNTS = 8

FREE = 0
REPORT = 8

BLANK = -1
"""In place of known children: a number that names nothing any more, and waits to be reused."""


class Names(NamedTuple):
    """Which numbers are known, by (parent, key), and which may be given to others."""

    keys: NDArray[np.int64]
    """(N+1, W) hash of each block, in words."""
    space: NDArray[np.int64]
    """(N+1, 2) digest of the namespace, for roots; else 0."""
    path: NDArray[np.int64]
    """(N+1,) hash of the namespace and all keys from the root down."""
    slots: NDArray[np.int64]
    """(S,) open addressing: 31 bits of hash above the number; -1 where empty. S ≥ 2 N."""
    kin: NDArray[np.int32]
    """(N+1,) known children of each number, or BLANK."""
    idle: Links
    """(N+2, 2) numbers that hold no block and have no known child, the one to reuse first at the
    head."""
    counts: NDArray[np.int64]
    """(2,) the first number never used, and N."""


class Pool(NamedTuple):
    """Physical blocks that nobody uses; shared by all partitions of a tier."""

    free: NDArray[np.int32]
    """(C,) a stack of block ids."""
    counts: NDArray[np.int64]
    """(1,) how many it holds."""


class Live(NamedTuple):
    """One partition of one tier: what it holds, and what keeps it there."""

    table: Table
    names: Names
    block: NDArray[np.int32]
    """(N+1,) physical block, -1 for none."""
    locks: NDArray[np.int32]
    """(N+1,) leases and pins that end here, plus locked children: above 0 it cannot leave."""
    pins: NDArray[np.int32]
    """(N+1,) the same for pins alone."""
    elsewhere: NDArray[np.uint8]
    """(N+1,) 1 while another tier holds the node."""
    rank: NDArray[np.int64]
    """(N+1,) rank of the last release; of what left, the next rank at that moment."""
    stored: NDArray[np.int64]
    """(N+1,) order of storing, parents first."""
    used_s: NDArray[np.float64]
    """(N+1,) second of the last use."""
    uses: NDArray[np.int64]
    """(N+1,) uses since it was stored, which counts 1."""
    level: NDArray[np.int32]
    """(N+1,) retention priority: the highest of its users'."""
    expires: NDArray[np.int64]
    """(N+1,) microsecond at which its lifetime ends, NEVER, or UNSET before a first release."""
    ready: NDArray[np.uint8]
    """(N+1,) COMPUTING, READY, or LOST."""
    where: NDArray[np.uint8]
    """(N+1,) CLOSED, or evictable: IN_POLICY or, of another level than 0, IN_LEVELS."""
    levels: Heap
    """Evictable nodes of another level than 0, by (level, rank)."""
    due: Heap
    """Evictable nodes with a lifetime, by its end."""
    counts: NDArray[np.int64]
    """(8,) resident, locked and pinned nodes; physical blocks in use and the most that may be; the
    next rank; nodes ever stored; 1 in a tier that may hold a node without its parent."""


class Out(NamedTuple):
    """Where a call of the kernel reads what it is given and writes what it did."""

    nodes: NDArray[np.int32]
    """(C,) nodes of the chain in order."""
    blocks: NDArray[np.int32]
    """(C,) physical blocks in order."""
    paths: NDArray[np.int64]
    """(C,) hash of the path to each block of the chain."""
    gone: NDArray[np.int32]
    """(C,) nodes that left."""
    gone_blocks: NDArray[np.int32]
    """(C,) the blocks that they had."""
    gone_why: NDArray[np.uint8]
    """(C,) why: see `kvsched.cache.operations`."""
    report: NDArray[np.int64]
    """(8,) numbers: see `kvsched.cache.operations`."""


def new_names(numbers: int, words: int) -> Names:
    """Return an index that knows nothing, with room for ``numbers``. O(N)."""
    slots = 1 << max(4, (2 * numbers - 1).bit_length())
    return Names(
        np.zeros((numbers + 1, words), np.int64),
        np.zeros((numbers + 1, 2), np.int64),
        np.zeros(numbers + 1, np.int64),
        np.full(slots, NONE, np.int64),
        np.zeros(numbers + 1, np.int32),
        empty_links(numbers + 1),
        np.array([0, numbers], np.int64),
    )


def new_pool(blocks: int) -> Pool:
    """Return a pool of free blocks, the lowest id on top. O(C)."""
    return Pool(np.arange(blocks - 1, -1, -1, dtype=np.int32), np.array([blocks], np.int64))


def new_table(numbers: int) -> Table:
    """Return a table of unknown nodes, one more than there are numbers. O(N)."""
    rows = numbers + 1
    return Table(
        np.full(rows, NONE, np.int32),
        np.zeros(rows, np.int32),
        np.zeros(rows, np.int32),
        np.zeros(rows, np.uint8),
        np.zeros(rows, np.int32),
        np.zeros(0, np.int32),
        np.zeros(rows, np.int64),
    )


def new_live(table: Table, names: Names, capacity: int, limit: int) -> Live:
    """Return an empty partition of at most ``capacity`` resident blocks. O(N)."""
    rows = len(table.parent)
    counts = np.zeros(COUNTS, np.int64)
    counts[LIMIT] = limit
    return Live(
        table,
        names,
        np.full(rows, NONE, np.int32),
        np.zeros(rows, np.int32),
        np.zeros(rows, np.int32),
        np.zeros(rows, np.uint8),
        np.zeros(rows, np.int64),
        np.zeros(rows, np.int64),
        np.zeros(rows, np.float64),
        np.zeros(rows, np.int64),
        np.zeros(rows, np.int32),
        np.full(rows, UNSET, np.int64),
        np.zeros(rows, np.uint8),
        np.zeros(rows, np.uint8),
        empty_heap(rows, capacity),
        empty_heap(rows, capacity),
        counts,
    )


def new_out(capacity: int) -> Out:
    """Return room for one call. O(C)."""
    rows = capacity + 2
    return Out(
        np.zeros(rows, np.int32),
        np.zeros(rows, np.int32),
        np.zeros(rows, np.int64),
        np.zeros(rows, np.int32),
        np.zeros(rows, np.int32),
        np.zeros(rows, np.uint8),
        np.zeros(REPORT, np.int64),
    )
