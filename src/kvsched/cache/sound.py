"""Whether arrays that came from a file can be those of a cache: what compiled code relies on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kvsched.cache.partition import Partition
from kvsched.cache.state import FREE, FRESH, NAMES, RESIDENT, USED
from kvsched.kernel.heap import NODE, SIZE, Heap
from kvsched.kernel.table import NONE

if TYPE_CHECKING:
    from kvsched.cache.scheduler import KVCacheScheduler


def unsound(cache: KVCacheScheduler) -> str:
    """Return what is wrong, or nothing. O(N).

    Every number must be one that there is, every chain end at a root, and every block have one
    place. What a policy keeps for itself is not looked into.
    """
    store = cache.store
    pools: list[tuple[Any, int, list[NDArray[np.int32]]]] = [
        (store.pool, store.capacity, []),
        (store.second_pool, len(store.second_pool.free), []),
    ]
    for home in store.homes.values():
        parts = [home.partition] if home.second is None else [home.partition, home.second.partition]
        for tier, partition in enumerate(parts):
            fault = _of_partition(partition, tier)
            if fault:
                return fault
            live = partition.live
            pools[tier][2].append(live.block[live.table.resident == 1])
    for tier, (pool, blocks, used) in enumerate(pools):
        free = int(pool.counts[FREE])
        if not 0 <= free <= blocks:
            return f"tier {tier + 1} has {free:,} free blocks of {blocks:,}"
        found = np.concatenate([pool.free[:free], *used])
        if not _within(found, 0, blocks) or len(np.unique(found)) != len(found):
            return f"a block of tier {tier + 1} has two places"
    return ""


def _within(numbers: NDArray[Any], least: int, below: int) -> bool:
    return not len(numbers) or (int(numbers.min()) >= least and int(numbers.max()) < below)


def _of_partition(partition: Partition, tier: int) -> str:
    live = partition.live
    table, counts = live.table, live.counts
    rows = len(live.block)
    if tier == 0:
        fresh, most = int(partition.names.counts[FRESH]), int(partition.names.counts[NAMES])
        if most != rows - 1 or not 0 <= fresh <= most:
            return f"{fresh:,} of {most:,} numbers are in use, and there are {rows - 1:,}"
        parent = table.parent[:fresh]
        if not _within(parent, NONE, fresh):
            return "a parent is no node"
        depth = np.where(parent == NONE, 0, table.depth[parent] + 1)
        # So that every walk from parent to parent ends.
        if np.any(table.depth[:fresh] != depth):
            return "a chain does not end at a root"
        if not _within(partition.names.idle, 0, rows + 1):
            return "an idle number is no node"
    fresh = int(partition.names.counts[FRESH])
    if np.any(table.resident > 1) or np.any(table.resident[fresh:]):
        return "a cached node has no name"
    resident = int(np.count_nonzero(table.resident))
    if resident != counts[RESIDENT] or counts[USED] < resident or resident > partition.capacity:
        return "the cached blocks are miscounted"
    for heap in (live.levels, live.due):
        if not _is_heap(heap, rows):
            return "the order of what can leave is torn"
    return ""


def _is_heap(heap: Heap, rows: int) -> bool:
    size = int(heap.counts[SIZE])
    if not 0 <= size <= len(heap.entries) or not _within(heap.place, NONE, max(size, 1)):
        return False
    return _within(heap.entries[:size, NODE], 0, rows)
