"""Every invariant of a live cache, in O(N)."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from kvsched.cache.names import home_of
from kvsched.cache.partition import Partition
from kvsched.cache.state import BLANK, CLOSED, FRESH, LIMIT, LOCKED, LOST, PINNED, RESIDENT, USED
from kvsched.cache.store import Home
from kvsched.foundation.errors import KvschedError
from kvsched.kernel.linked import AHEAD, BEHIND
from kvsched.kernel.table import NONE

if TYPE_CHECKING:
    from kvsched.cache.lease import Lease
    from kvsched.cache.scheduler import KVCacheScheduler


class BrokenInvariantError(KvschedError):
    """What a cache keeps contradicts itself: a fault of kvsched, or of a policy's hooks."""


def _require(holds: bool | np.bool_, what: str) -> None:
    if not holds:
        raise BrokenInvariantError(what)


def check(cache: KVCacheScheduler) -> None:
    """Raise BrokenInvariantError for the first rule that does not hold. O(N)."""
    store = cache.store
    leases = list(cache.leases.values())
    free = store.pool.free[: store.free]
    _require(len(set(free.tolist())) == len(free), "a block is twice in the pool")
    used: list[int] = []
    for home in store.homes.values():
        deepest = [lease.deepest for lease in leases if lease._home is home and len(lease._nodes)]
        pins = [int(pin._nodes[-1]) for pin in cache.pins.held.values() if pin._home is home]
        _check_partition(home.partition, deepest, pins, home.name)
        used.extend(_blocks_of(cache, home))
        if home.second is not None:
            spilled = [lease._spilled for lease in leases if lease._home is home]
            _check_second(home, [int(nodes[-1]) for nodes in spilled if len(nodes)])
    _require(len(set(used)) == len(used), "a block has two owners")
    _require(
        sorted([*used, *free.tolist()]) == list(range(store.capacity)),
        f"{len(used)} blocks in use and {len(free)} free are not the {store.capacity} there are",
    )
    for lease in leases:
        _require(not lease.released, f"lease {lease.id} is kept and released")
        _check_lease(lease._home.partition, lease)
    _require(cache.pins.blocks <= cache.settings.max_pinned_blocks, "too many blocks are pinned")
    waits = list(cache.gate.waiting)
    tokens = sum(cache.maker.make(ticket.request).tokens for ticket in waits)
    _require(tokens == cache.gate.waiting.tokens, "tokens that wait are miscounted")


def _blocks_of(cache: KVCacheScheduler, home: Home) -> list[int]:
    """Physical blocks of a home: of its nodes, and what its leases hold without a node."""
    live = home.partition.live
    resident = np.flatnonzero(live.table.resident)
    held: Counter[int] = Counter()
    for lease in cache.leases.values():
        if lease._home is home:
            held.update([*lease._own.values(), *lease._blocks[len(lease._nodes) :]])
    for block, holders in held.items():
        _require(
            cache.blocks.shared.get(block, 1) == holders,
            f"block {block} has {holders} holders, not {cache.blocks.shared.get(block, 1)}",
        )
    blocks = [*live.block[resident].tolist(), *held]
    _require(len(blocks) == home.partition.used, f"used blocks of {home.name!r} are miscounted")
    _require(len(blocks) <= live.counts[LIMIT], f"{home.name!r} has more blocks than its limit")
    return blocks


def _check_lease(partition: Partition, lease: Lease) -> None:
    table = partition.live.table
    above = NONE
    for at, node in enumerate(lease._nodes.tolist()):
        _require(table.resident[node] == 1, f"node {node} is held and not cached")
        _require(table.parent[node] == above, f"node {node} is not below {above}")
        expected = lease._own.get(at, int(partition.live.block[node]))
        _require(lease._blocks[at] == expected, f"block {at} of a lease is not its node's")
        above = node


def _check_partition(partition: Partition, deepest: list[int], pins: list[int], name: str) -> None:
    live, table = partition.live, partition.live.table
    resident = np.flatnonzero(table.resident)
    counts = live.counts
    _require(len(resident) == counts[RESIDENT], f"cached blocks of {name!r} are miscounted")
    _require(counts[USED] >= counts[RESIDENT], f"used blocks of {name!r} are miscounted")
    parents = table.parent[resident]
    _require(np.all(table.resident[parents[parents != NONE]] == 1), "a cached node's parent is not")
    _check_children(partition, resident)
    _check_locks(live.locks, partition, deepest + pins, int(counts[LOCKED]), "held")
    _check_locks(live.pins, partition, pins, int(counts[PINNED]), "pinned")
    leaves = (table.resident == 1) & (table.children == 0) & (live.locks == 0)
    _require(np.all((live.where != CLOSED) == leaves), "the evictable are not the free leaves")
    _require(np.all(live.block[table.resident == 0] == NONE), "a node that left has a block")
    _check_names(partition)


def _check_children(partition: Partition, resident: NDArray[np.int64]) -> None:
    table = partition.live.table
    expected = np.zeros(len(table.parent), np.int64)
    parents = table.parent[resident]
    np.add.at(expected, parents[parents != NONE], 1)
    _require(np.all(expected == table.children), "cached children are miscounted")


def expected_locks(partition: Partition, holds: list[int]) -> NDArray[np.int64]:
    """Return how often each node is held where ``holds`` are the ends of what is. O(N log N)."""
    table = partition.live.table
    expected = np.zeros(len(table.parent), np.int64)
    np.add.at(expected, np.array(holds, np.int64), 1)
    flat = partition.is_flat
    order = np.argsort(-table.depth, kind="stable")
    for held in [] if flat else order[expected[order] > 0].tolist():
        above = int(table.parent[held])
        while above != NONE:
            expected[above] += 1
            if expected[above] > 1:
                break
            above = int(table.parent[above])
    return expected


def _check_locks(
    locks: NDArray[np.int32], partition: Partition, holds: list[int], total: int, what: str
) -> None:
    expected = expected_locks(partition, holds)
    _require(np.all(expected == locks), f"nodes {what} are not those of the leases and pins")
    _require(np.count_nonzero(expected) == total, f"nodes {what} are miscounted")


def _check_names(partition: Partition) -> None:
    live, names = partition.live, partition.names
    table = live.table
    fresh = int(names.counts[FRESH])
    known = np.arange(fresh)
    kin = np.zeros(len(table.parent), np.int64)
    parents = table.parent[known[names.kin[:fresh] != BLANK]]
    np.add.at(kin, parents[parents != NONE], 1)
    blank = names.kin == BLANK
    _require(np.all(kin[~blank] == names.kin[~blank]), "known children are miscounted")
    _require(np.all(kin[blank] == 0), "a number that names nothing has known children")
    idle = set()
    ends = len(names.idle) - 1
    node = int(names.idle[ends, BEHIND])
    while node != ends:
        _require(node not in idle, "the list of idle numbers has a ring")
        idle.add(node)
        _require(names.idle[names.idle[node, BEHIND], AHEAD] == node, "idle numbers are torn")
        node = int(names.idle[node, BEHIND])
    resting = (table.resident[:fresh] == 0) & (live.elsewhere[:fresh] == 0) & (kin[:fresh] == 0)
    _require(idle == set(np.flatnonzero(resting).tolist()), "idle numbers are not those at rest")
    slots = names.slots[names.slots != NONE]
    listed = slots & ((1 << 32) - 1)
    _require(len(np.unique(listed)) == len(listed), "a number is twice in the index")
    _require(not np.any(blank[listed]), "a number that names nothing is in the index")
    hidden = np.setdiff1d(known, listed)
    _require(np.all(listed < fresh), "the index has a number that nobody used")
    _require(
        np.all((live.ready[hidden] == LOST) | (table.resident[hidden] == 0)),
        "a cached node cannot be found",
    )
    for entry in slots.tolist():
        number = entry & ((1 << 32) - 1)
        home = home_of(int(names.path[number]))
        _require(entry >> 32 == home, f"number {number} is in the index under another name")


def _check_second(home: Home, spilled: list[int]) -> None:
    second = home.second
    if second is None:
        return
    above, own = home.partition.live, second.partition.live
    resident = np.flatnonzero(own.table.resident)
    parents = own.table.parent[resident]
    parents = parents[parents != NONE]
    _require(
        np.all((own.table.resident[parents] == 1) | (above.table.resident[parents] == 1)),
        "a block of the second tier cannot be reached",
    )
    _require(len(resident) == own.counts[RESIDENT], "the second tier is miscounted")
    _check_locks(own.locks, second.partition, spilled, int(own.counts[LOCKED]), "held below")
    leaves = (own.table.resident == 1) & (own.table.children == 0) & (own.locks == 0)
    _require(np.all((own.where != CLOSED) == leaves), "the second tier's evictable are not leaves")
    _check_children(second.partition, resident)
    slots = own.block[resident]
    _require(len(np.unique(slots)) == len(slots), "a block of the second tier has two owners")
