"""A cache put in order after an exception in the middle of a change: a hook's, or an interrupt.

What leases and pins hold stays, and what is known to be computed in the first tier, as far as it is
whole. Policies learn anew what is cached. Moves of the broken change were never given: the second
tier keeps only what degraded requests are still to write.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from kvsched.cache.check import expected_locks
from kvsched.cache.names import is_idle, reindex, rest
from kvsched.cache.partition import Partition
from kvsched.cache.state import (
    BLANK,
    CLOSED,
    FREE,
    FRESH,
    IN_LEVELS,
    IN_POLICY,
    LOCKED,
    LOST,
    PINNED,
    READY,
    RESIDENT,
    UNSET,
    USED,
    Pool,
)
from kvsched.foundation.errors import KvschedError
from kvsched.kernel.table import NONE

if TYPE_CHECKING:
    from kvsched.cache.serving import Serving
    from kvsched.cache.store import Home

Chains = Sequence[NDArray[np.int32]]

_log = logging.getLogger("kvsched.cache")


def mend(cache: Serving, error: BaseException) -> None:
    """Put a cache in order after what broke off a change of it.

    Errors of kvsched's own are raised where nothing is half done.
    """
    if not isinstance(error, KvschedError):
        recover(cache)


def recover(cache: Serving) -> None:
    """Put a cache in order. O(N log N). The caller holds the lock."""
    store = cache.store
    private = {id(home): _private(cache, home) for home in store.homes.values()}
    together = sum(private.values(), Counter[int]())
    cache.blocks.shared = {block: holders for block, holders in together.items() if holders > 1}
    used, below = set(together), set[int]()
    for home in store.homes.values():
        leases = [lease for lease in cache.leases.values() if lease._home is home]
        pins = [pin._nodes for pin in cache.pins.held.values() if pin._home is home]
        chains = [*(lease._nodes for lease in leases), *pins]
        partition, second = home.partition, home.second
        spilled = [lease._spilled for lease in leases]
        _keep(partition, chains, set(together))
        if second is not None:
            _keep(second.partition, spilled, None)
            _count(second.partition, spilled, [], 0)
            below |= _blocks(second.partition)
        _count(partition, chains, pins, len(private[id(home)]))
        used |= _blocks(partition)
        _rename(partition)
        _learn(partition)
        if second is not None:
            _learn(second.partition)
    _refill(store.pool, used)
    _refill(store.second_pool, below)


def _private(cache: Serving, home: Home) -> Counter[int]:
    """Return blocks that leases of a home hold without a node, and how many hold each."""
    block = home.partition.live.block
    found: Counter[int] = Counter()
    for lease in cache.leases.values():
        if lease._home is home:
            for at, node in enumerate(lease._nodes.tolist()):
                if int(block[node]) != lease._blocks[at]:
                    lease._own[at] = lease._blocks[at]
            found.update([*lease._own.values(), *lease._blocks[len(lease._nodes) :]])
    return found


def _blocks(partition: Partition) -> set[int]:
    live = partition.live
    return set(live.block[live.table.resident == 1].tolist())


def _keep(partition: Partition, chains: Chains, claimed: Collection[int] | None) -> None:
    """Keep what chains hold and, unless ``claimed`` is None, what is computed and has a block."""
    live, table = partition.live, partition.live.table
    held = {node for chain in chains for node in chain.tolist()}
    keep = np.zeros(len(table.parent), np.bool_)
    taken = {int(live.block[node]) for node in held}
    keep[list(held)] = True
    if claimed is not None:
        taken |= set(claimed)
        computed = np.flatnonzero((table.resident == 1) & (live.ready == READY))
        for node in computed[np.argsort(table.depth[computed], kind="stable")].tolist():
            above, block = int(table.parent[node]), int(live.block[node])
            if not keep[node] and block not in taken and (above == NONE or keep[above]):
                keep[node] = block != NONE
                taken.add(block)
    gone = ~keep
    table.resident[:] = keep
    live.block[gone] = NONE
    live.level[gone] = 0
    live.expires[gone] = UNSET


def _count(partition: Partition, chains: Chains, pins: Chains, private: int) -> None:
    """Work out children, holds and counts from what is kept."""
    live, table = partition.live, partition.live.table
    parents = table.parent[table.resident == 1]
    table.children[:] = 0
    np.add.at(table.children, parents[parents != NONE], 1)
    live.locks[:] = expected_locks(partition, [int(chain[-1]) for chain in chains if len(chain)])
    live.pins[:] = expected_locks(partition, [int(chain[-1]) for chain in pins])
    live.counts[RESIDENT] = np.count_nonzero(table.resident)
    live.counts[LOCKED] = np.count_nonzero(live.locks)
    live.counts[PINNED] = np.count_nonzero(live.pins)
    live.counts[USED] = live.counts[RESIDENT] + private


def _rename(partition: Partition) -> None:
    """Work out the index, known children, and idle numbers: by last use, children first."""
    live, names, table = partition.live, partition.names, partition.live.table
    known = np.arange(int(names.counts[FRESH]))
    named = known[names.kin[known] != BLANK]
    parents = table.parent[named]
    names.kin[named] = 0
    np.add.at(names.kin, parents[parents != NONE], 1)
    listed = np.zeros(len(table.parent), np.uint8)
    listed[named[live.ready[named] != LOST]] = 1
    reindex(names, listed)
    names.idle[len(names.idle) - 1] = len(names.idle) - 1
    for node in known[names.kin[known] == BLANK].tolist():
        rest(live, node)
    for node in named[np.lexsort((-table.depth[named], live.rank[named]))].tolist():
        if is_idle(live, node):
            rest(live, node)


def _learn(partition: Partition) -> None:
    """Have the policy learn what is cached; where it cannot, nothing may leave by it."""
    live, table = partition.live, partition.live.table
    leaves = (table.resident == 1) & (table.children == 0) & (live.locks == 0)
    live.where[:] = CLOSED
    live.where[leaves] = np.where(live.level[leaves] == 0, IN_POLICY, IN_LEVELS)
    for heap in (live.due, live.levels):
        heap.counts[:] = 0
        heap.place[:] = NONE
    try:
        partition.change_policy(partition.policy)
    except Exception:  # noqa: BLE001  # a policy's hooks may raise anything
        _log.exception("policy %s cannot learn what is cached", partition.policy.label)


def _refill(pool: Pool, used: Collection[int]) -> None:
    free = [block for block in range(len(pool.free) - 1, -1, -1) if block not in used]
    pool.free[: len(free)] = free
    pool.counts[FREE] = len(free)
