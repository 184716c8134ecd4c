"""Numbers by (parent, key): open addressing with linear probing, and no tombstones.

A chain of hashes would name a block alone; the parent is part of the name all the same, so that
hashes of a block's content alone are as safe to hand in.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvsched.cache.state import BLANK, FRESH, NAMES, RANK, Live, Names, Out
from kvsched.kernel.hooks import forget
from kvsched.kernel.linked import AHEAD, BEHIND, link_behind, unlink
from kvsched.kernel.table import NONE

HALF = (1 << 30) - 1
LOW = (1 << 32) - 1
WORD = (1 << 60) - 1
FACTORS = (1_103_515_245, 1_597_334_677, 747_796_405)
PRIME = (1 << 61) - 1


def path_below(path: int, word: int) -> int:
    """Return the 61-bit hash of a path from that of its parent and a word of its key. O(1)."""
    # Below 2^62 all along: the same compiled and plain.
    mixed = (path ^ (word & WORD)) + FACTORS[2]
    low, high = mixed & HALF, (mixed >> 30) & HALF
    return (low * FACTORS[0] + high * FACTORS[1]) % PRIME


def path_of_key(path: int, keys: NDArray[np.int64], row: int) -> int:
    """Return the hash of a path from that of its parent and its key. O(words).

    Every word counts: hashes of some embedders differ in their last bytes alone.
    """
    mixed = int(keys[row, 0])
    for word in range(1, keys.shape[1]):
        # Shifted, so that equal words do not undo each other.
        mixed ^= int(keys[row, word]) >> word
    return path_below(path, mixed)


def path_of_space(space: NDArray[np.int64]) -> int:
    """Return the hash that the paths of a namespace begin with. O(1)."""
    return path_below(path_below(0, int(space[0])), int(space[1]))


def home_of(path: int) -> int:
    """Return the 31 bits of a path's hash that the index goes by. O(1)."""
    return int((path ^ (path >> 30)) & 0x7FFFFFFF)


def lay_paths(
    live: Live,
    out: Out,
    base: int,
    keys: NDArray[np.int64],
    space: NDArray[np.int64],
    length: int,
) -> int:
    """Write the hash of each path of a chain below ``base`` into ``out.paths``. O(length).

    All of them are known before any is looked up, so that what is read of the index comes from
    memory at once and not one after another: half the time of a request in a cache of 100,000
    blocks. The returned sum keeps the reads from being left out.
    """
    names = live.names
    mask = len(names.slots) - 1
    path = path_of_space(space) if base == NONE else int(names.path[base])
    seen = 0
    # A chain may be longer than all that could ever be held of it.
    for at in range(min(length, len(out.paths))):
        path = path_of_key(path, keys, at)
        out.paths[at] = path
        seen ^= int(names.slots[home_of(path) & mask])
    return seen


def look_ahead(live: Live, numbers: int) -> int:
    """Read of the index what forgetting the next ``numbers`` idle ones needs. O(numbers)."""
    names = live.names
    mask = len(names.slots) - 1
    if names.counts[FRESH] + numbers <= names.counts[NAMES]:
        return 0
    ends = len(names.idle) - 1
    first = int(names.idle[ends, BEHIND])
    node = first
    seen = 0
    while numbers > 0 and node != ends:
        seen ^= int(names.slots[home_of(int(names.path[node])) & mask])
        above = int(live.table.parent[node])
        if above != NONE and names.kin[above] == 1 and live.table.resident[above] == 0:
            node = above
        else:
            first = int(names.idle[first, BEHIND])
            node = first
        numbers -= 1
    return seen


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
    live: Live,
    parent: int,
    keys: NDArray[np.int64],
    row: int,
    space: NDArray[np.int64],
    path: int,
) -> int:
    """Return the number known under (parent, ``keys[row]``), or NONE. O(1) expected.

    ``path``: the hash of its path.
    """
    slots = live.names.slots
    mask = len(slots) - 1
    home = home_of(path)
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
    home = home_of(int(names.path[node]))
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


def reindex(names: Names, listed: NDArray[np.uint8]) -> None:
    """Index the numbers that are ``listed`` anew, and no other. O(N) expected."""
    names.slots[:] = NONE
    for node in range(len(listed)):
        if listed[node] != 0:
            add(names, node, home_of(int(names.path[node])))


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
    path = path_of_space(space) if parent == NONE else int(live.names.path[parent])
    while at < length:
        path = path_of_key(path, keys, at)
        parent = find(live, parent, keys, at, space, path)
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
        # It left when its last child did, or soon after, and goes next: chains are forgotten whole,
        # and what is written next lies beside in memory. What left in this call has not been told
        # of, and goes last.
        if is_idle(live, above):
            if live.rank[above] < live.counts[RANK]:
                link_behind(names.idle, node, above)
            else:
                rest(live, above)
    return node


def name(
    live: Live,
    state: object,
    parent: int,
    keys: NDArray[np.int64],
    row: int,
    space: NDArray[np.int64],
    path: int,
    tokens: int,
    block_size: int,
) -> int:
    """Give a number to (parent, ``keys[row]``), which is unknown; it holds nothing yet.

    The one idle for longest is forgotten where all were used, then its parent if that is idle now.
    So numbers are reused of which no block was cached when the call began: there are as many of
    them as the cache can hold. O(1) expected, beside `forget`.
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
    names.path[node] = path
    add(names, node, home_of(path))
    return node
