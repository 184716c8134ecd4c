"""Numbers by (parent, key): open addressing with linear probing, and no tombstones.

A chain of hashes would name a block alone; the parent is part of the name all the same, so that
hashes of a block's content alone are as safe to hand in.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvsched.cache.state import BLANK, FRESH, NAMES, Live, Names
from kvsched.kernel.hooks import forget
from kvsched.kernel.linked import AHEAD, BEHIND, link_behind, unlink
from kvsched.kernel.table import NONE

HALF = (1 << 30) - 1
LOW = (1 << 32) - 1
FACTORS = (1_103_515_245, 1_597_334_677, 747_796_405)
PRIME = (1 << 61) - 1


def home_of(parent: int, keys: NDArray[np.int64], row: int) -> int:
    """Return 31 bits that spread (parent, key). O(1)."""
    # Below 2^62 all along: the same compiled and plain.
    word = int(keys[row, 0]) & ((1 << 60) - 1)
    mixed = (word & HALF) * FACTORS[0] % PRIME
    mixed = (mixed ^ (word >> 30)) % (1 << 30) * FACTORS[1] + (mixed >> 30)
    mixed += (int(parent) + 1) * FACTORS[2]
    mixed ^= mixed >> 29
    mixed = (mixed & HALF) * FACTORS[1] + (mixed >> 30)
    return int((mixed ^ (mixed >> 31)) & 0x7FFFFFFF)


def _is(
    live: Live,
    node: int,
    parent: int,
    keys: NDArray[np.int64],
    row: int,
    space: NDArray[np.int64],
) -> bool:
    if live.table.parent[node] != parent:
        return False
    names = live.names
    for word in range(names.keys.shape[1]):
        if names.keys[node, word] != keys[row, word]:
            return False
    if parent != NONE:
        return True
    return bool(names.space[node, 0] == space[0] and names.space[node, 1] == space[1])


def find(
    live: Live, parent: int, keys: NDArray[np.int64], row: int, space: NDArray[np.int64]
) -> int:
    """Return the number known under (parent, ``keys[row]``), or NONE. O(1) expected."""
    slots = live.names.slots
    mask = len(slots) - 1
    home = home_of(parent, keys, row)
    at = home & mask
    while slots[at] != NONE:
        entry = int(slots[at])
        if entry >> 32 == home and _is(live, entry & LOW, parent, keys, row, space):
            return entry & LOW
        at = (at + 1) & mask
    return NONE


def add(names: Names, node: int, home: int) -> None:
    """Put a number into the index, under a name that is not in it. O(1) expected."""
    slots = names.slots
    mask = len(slots) - 1
    at = home & mask
    while slots[at] != NONE:
        at = (at + 1) & mask
    slots[at] = (home << 32) | int(node)


def hide(live: Live, node: int) -> None:
    """Take a number out of the index, if it is there: it is found no more. O(1) expected."""
    names = live.names
    slots = names.slots
    mask = len(slots) - 1
    home = home_of(int(live.table.parent[node]), names.keys, node)
    at = home & mask
    while slots[at] != NONE and (int(slots[at]) & LOW) != node:
        at = (at + 1) & mask
    if slots[at] == NONE:
        return
    gap = at
    while True:
        at = (at + 1) & mask
        if slots[at] == NONE:
            break
        wanted = (int(slots[at]) >> 32) & mask
        # It moves back unless its own place lies behind the gap.
        if ((at - wanted) & mask) >= ((at - gap) & mask):
            slots[gap] = slots[at]
            gap = at
    slots[gap] = NONE


def is_idle(live: Live, node: int) -> bool:
    """Whether a known number holds nothing and names no parent of a known one. O(1)."""
    return bool(
        live.table.resident[node] == 0 and live.elsewhere[node] == 0 and live.names.kin[node] == 0
    )


def rest(live: Live, node: int) -> None:
    """Let a number that has just become idle wait for another use, behind all others. O(1)."""
    idle = live.names.idle
    link_behind(idle, int(idle[len(idle) - 1, AHEAD]), node)


def wake(live: Live, node: int) -> None:
    """Take an idle number back into use. O(1)."""
    unlink(live.names.idle, node)


def known(
    live: Live, parent: int, keys: NDArray[np.int64], space: NDArray[np.int64], length: int
) -> int:
    """Return how many keys of a chain below ``parent`` have a number. O(1) expected for each."""
    at = 0
    while at < length:
        parent = find(live, parent, keys, at, space)
        if parent == NONE:
            break
        at += 1
    return at


def unname(live: Live, node: int) -> int:
    """Have an idle number name nothing; its parent, idle by that, comes next. O(1) expected.

    The row of the table stays as it was until the number is given to another.
    """
    names = live.names
    hide(live, node)
    names.kin[node] = BLANK
    above = int(live.table.parent[node])
    if above != NONE:
        names.kin[above] -= 1
        if is_idle(live, above):
            # It left when its child did: what left later must not be reused before it.
            link_behind(names.idle, node, above)
    return node


def name(
    live: Live,
    state: object,
    parent: int,
    keys: NDArray[np.int64],
    row: int,
    space: NDArray[np.int64],
    tokens: int,
    block_size: int,
) -> int:
    """Give a number to (parent, ``keys[row]``), which is unknown; it holds nothing yet.

    The one idle for longest is forgotten where all were used, a child before its parent. O(1)
    expected, beside `forget`.
    """
    table, names = live.table, live.names
    if names.counts[FRESH] < names.counts[NAMES]:
        node = int(names.counts[FRESH])
        names.counts[FRESH] += 1
    else:
        node = int(names.idle[len(names.idle) - 1, BEHIND])
        forget(table, state, node)
        if names.kin[node] != BLANK:
            unname(live, node)
        names.kin[node] = 0
        wake(live, node)
    table.parent[node] = parent
    table.tokens[node] = tokens
    for word in range(names.keys.shape[1]):
        names.keys[node, word] = keys[row, word]
    names.space[node, 0] = 0
    names.space[node, 1] = 0
    if parent == NONE:
        names.space[node, 0] = space[0]
        names.space[node, 1] = space[1]
        table.depth[node] = 0
        table.begins[node] = 0
    else:
        names.kin[parent] += 1
        table.depth[node] = table.depth[parent] + 1
        table.begins[node] = table.begins[parent] + block_size
    add(names, node, home_of(parent, keys, row))
    return node
