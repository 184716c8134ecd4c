"""What becomes of blocks that leave the first tier: counted, told, and kept in the second."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from kvsched.cache import operations
from kvsched.cache.events import GPU, WHY, Announcer
from kvsched.cache.lease import Lease
from kvsched.cache.metrics import Counters
from kvsched.cache.partition import BadVictimError, Left
from kvsched.cache.request import Move
from kvsched.cache.state import LOST, READY
from kvsched.cache.store import Home, Store
from kvsched.kernel.table import below

FAILED = WHY[operations.UNCOMPUTED]


class Departures:
    """Sees to blocks that left, or are found no more. The caller holds the lock."""

    def __init__(self, store: Store, counters: Counters, told: Announcer) -> None:
        self.store = store
        self.counters = counters
        self.told = told

    def settle(self, home: Home, count: int, moves: list[Move] | None, now: float) -> None:
        """See to what a partition's last call let leave. O(count).

        ``moves`` gets what the second tier keeps of it; None lets it keep nothing. Raises what the
        second tier's policy is at fault with; all is told by then.
        """
        if not count:
            return
        if self.told.on or home.second is not None:
            self.keep(home, home.partition.left(count), moves, now)
        else:
            self._count(home.partition.out.gone_why[:count].tobytes())

    def keep(self, home: Home, left: list[Left], moves: list[Move] | None, now: float) -> None:
        """See to what left, as `settle` does."""
        second, ready = home.second, home.partition.live.ready
        fault = None
        for each in left if second is not None and moves is not None else ():
            try:
                if fault is None and ready[each.node] == READY:
                    second.keep(each.node, each.block, moves, now)  # type: ignore[union-attr, arg-type]
            except BadVictimError as error:
                error.left.clear()
                fault = error
        self.drop(home, left, now)
        if fault is not None:
            raise fault

    def drop(self, home: Home, left: list[Left], now: float) -> None:
        """Count and tell what left; nothing is kept below what is in no tier now."""
        self._count(bytes(each.why for each in left))
        ready = home.partition.live.ready
        for each in left:
            if home.second is not None:
                home.second.cut(each.node, now)
            # What is lost was told of when it was.
            if ready[each.node] != LOST:
                self.told.removed([each.key], GPU, WHY[each.why])

    def _count(self, whys: bytes) -> None:
        self.counters.blocks_evicted += len(whys)
        self.counters.blocks_expired += whys.count(operations.BY_LIFETIME)
        self.counters.blocks_dropped += whys.count(operations.UNCOMPUTED)

    def take_back(self, moves: list[Move], now: float) -> None:
        """Forget what moves that nobody will carry would have brought."""
        self.discard(moves, now)
        moves.clear()

    def discard(self, moves: Iterable[Move], now: float) -> set[int]:
        """Forget what the offloads among moves that failed would have brought; return where to."""
        slots = {move.target for move in moves if move.kind == "offload"}
        if slots:
            for home in self.store.homes.values():
                if home.second is not None:
                    home.second.lose_slots(slots, now)
        return slots

    def lose(self, lease: Lease, first: int, leases: Iterable[Lease], now: float) -> list[Lease]:
        """Distrust a lease's nodes from ``first`` on, and all that is cached below them.

        They are found no more, in either tier; what nobody holds is dropped. Returns other leases
        that hold any of them. O(leases), and O(N) where others stored something below.
        """
        home = lease._home
        partition = home.partition
        bad = int(lease._nodes[first])
        hit = [other for other in leases if other is not lease and other.holds(home, bad, first)]
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
