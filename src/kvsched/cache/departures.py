"""What becomes of blocks that leave the first tier: counted, told, and kept in the second."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from kvsched.cache import kernel
from kvsched.cache.events import GPU, WHY, Announcer
from kvsched.cache.lease import Lease
from kvsched.cache.metrics import Counters
from kvsched.cache.request import Move
from kvsched.cache.state import LOST, READY
from kvsched.cache.store import Gone, Home, take_gone
from kvsched.kernel.table import below

FAILED = WHY[kernel.UNCOMPUTED]


class Departures:
    """Sees to blocks that left, or are found no more. The caller holds the lock."""

    def __init__(self, counters: Counters, told: Announcer) -> None:
        self.counters = counters
        self.told = told

    def settle(self, home: Home, count: int, moves: list[Move] | None, now: float) -> None:
        """See to what a partition's last call let leave. O(count).

        ``moves`` gets what the second tier keeps of it; None lets it keep nothing.
        """
        if count:
            self._count(home.partition.out.gone_why[:count].tobytes())
            if self.told.on or home.second is not None:
                self._left(take_gone(home, count), moves, now)

    def settle_all(self, gone: Sequence[Gone], moves: list[Move], now: float) -> None:
        """See to what left several partitions."""
        self._count(bytes(each.why for each in gone))
        self._left(gone, moves, now)

    def _count(self, whys: bytes) -> None:
        self.counters.blocks_evicted += len(whys)
        self.counters.blocks_expired += whys.count(kernel.BY_LIFETIME)
        self.counters.blocks_dropped += whys.count(kernel.UNCOMPUTED)

    def _left(self, gone: Iterable[Gone], moves: list[Move] | None, now: float) -> None:
        for each in gone:
            second = each.home.second
            ready = each.home.partition.live.ready[each.node]
            if second is not None and ready == READY and moves is not None:
                second.keep(each.node, each.block, moves, now)
            elif second is not None and not second.holds(each.node):
                second.cut(each.node, now)
            # What is lost was told of when it was.
            if ready != LOST:
                self.told.removed([each.key], GPU, WHY[each.why])

    def lose(self, lease: Lease, first: int, leases: Iterable[Lease], now: float) -> list[Lease]:
        """Distrust a lease's nodes from ``first`` on, and all that is cached below them.

        They are found no more, in either tier; what nobody holds is dropped. Returns other leases
        that hold any of them. O(leases), and O(N) where others stored something below.
        """
        home = lease._home
        partition = home.partition
        bad = int(lease._nodes[first])
        hit = [
            other
            for other in leases
            if other is not lease
            and other._home is home
            and len(other._nodes) > first
            and int(other._nodes[first]) == bad
        ]
        chains = [lease._nodes[first:], *(other._nodes[first:] for other in hit)]
        lost = np.unique(np.concatenate(chains))
        table = partition.live.table
        loose = _NOTHING
        if int(table.children[lost].sum()) > len(lost) - 1:
            loose = below(table, lost)
        lost = np.concatenate([lost, loose])
        fresh = lost[partition.live.ready[lost] != LOST]
        for at in range(0, len(fresh), partition.capacity):
            partition.lose(fresh[at : at + partition.capacity], 0)
        for other in hit:
            other.lost_from = first if other.lost_from is None else min(other.lost_from, first)
        if len(fresh):
            self.told.removed(partition.names.keys[fresh], GPU, FAILED)
        if home.second is not None:
            home.second.lose(lost, now)
        for node in loose.tolist():
            if partition.live.locks[node] == 0:
                self.settle(home, partition.drop(node, now), None, now)
        return hit


_NOTHING: NDArray[np.int32] = np.zeros(0, np.int32)
