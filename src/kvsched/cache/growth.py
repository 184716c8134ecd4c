"""How a lease grows: blocks for its tokens, a copy of what it shares, names for what is full."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kvsched.cache import operations
from kvsched.cache.describing import announce
from kvsched.cache.lease import Lease
from kvsched.cache.partition import NO_SPACE, BadVictimError
from kvsched.cache.request import Move
from kvsched.cache.state import COMPUTING
from kvsched.cache.store import Home
from kvsched.foundation.errors import UsageError

if TYPE_CHECKING:
    from kvsched.cache.blocks import BlockManager

_NO_BLOCKS = np.zeros(0, np.int32)


@dataclass(frozen=True, slots=True)
class _Plan:
    """Keys of the blocks that become full, and what is behind them."""

    keys: NDArray[np.int64]
    tail: list[int] | None
    last_hash: bytes | None
    tokens: list[int] = field(default_factory=list)
    """Token ids of those blocks, where they are known."""


class Grower:
    """What `BlockManager` does to a lease that grows. The caller holds the lock."""

    def __init__(self, blocks: BlockManager) -> None:
        self.blocks = blocks
        self.block_size = blocks.block_size
        self.departures = blocks.departures
        self.maker = blocks.maker

    def grow(
        self,
        lease: Lease,
        tokens: int,
        ids: list[int] | None,
        hashes: Any,
        leases: Collection[Lease],
        now: float,
    ) -> tuple[list[int], list[Move]] | None:
        """Add tokens to a lease: return new blocks and moves, or None if there is no room.

        Raises UsageError for hashes that do not fit, with nothing changed.
        """
        size = self.block_size
        total = lease.tokens + tokens
        copied = self._must_copy(lease) if tokens else None
        plan = self._plan(lease, total, copied, ids, hashes)
        new = -(-total // size) - len(lease._blocks)
        wanted = new + (copied is not None)
        moves: list[Move] = []
        blocks: list[int] = []
        if wanted:
            taken = self._take(lease._home, wanted, now, moves)
            if taken is None:
                return None
            blocks = taken.tolist()
        if copied is not None:
            fresh = blocks.pop(0)
            moves.append(Move("copy", lease._blocks[copied], fresh))
            self._replace(lease, copied, fresh, leases, moves, now)
        lease._blocks.extend(blocks)
        lease.tokens = total
        lease._tail, lease._last_hash = plan.tail, plan.last_hash
        self._store(lease, plan, now)
        return blocks, moves

    def _plan(
        self, lease: Lease, total: int, copied: int | None, ids: list[int] | None, hashes: Any
    ) -> _Plan:
        """Work out the keys of the blocks that become full. Changes nothing."""
        size = self.block_size
        lost = lease.lost_from is not None
        if hashes is None and (ids is None or lease._tail is None or lost):
            # Nothing behind tokens that nobody named, or that are lost, can be found again.
            tail = lease._tail if total == lease.tokens else None
            return _Plan(self.maker.keys([]), tail, lease._last_hash)
        if hashes is None:
            behind = [*(lease._tail or []), *(ids or [])]
            made = self.maker.hash(lease.request, behind, lease._last_hash)
            last = made[-1] if made else lease._last_hash
            full = len(made) * size
            return _Plan(self.maker.keys(made), behind[full:], last, behind[:full])
        keys = self.maker.keys(hashes)
        start = len(lease._nodes)
        if copied is not None and copied < start:
            start -= 1
        if start + len(keys) > total // size:
            raise UsageError(
                f"{len(keys)} hashes for blocks from {start} on, but {total} tokens fill "
                f"{total // size} blocks"
            )
        if any(
            lease._blocks[at] in self.blocks.shared
            for at in range(start, min(start + len(keys), len(lease._blocks)))
            if at != copied
        ):
            raise UsageError("a block that a fork shares cannot be named: name it before the fork")
        return _Plan(keys[:0] if lost else keys, None, None)

    def _must_copy(self, lease: Lease) -> int | None:
        """Return the place of a partial last block that others may read, or None."""
        if lease.tokens % self.block_size == 0:
            return None
        last = len(lease._blocks) - 1
        if last < len(lease._nodes) or lease._blocks[last] in self.blocks.shared:
            return last
        return None

    def _replace(
        self,
        lease: Lease,
        place: int,
        fresh: int,
        leases: Collection[Lease],
        moves: list[Move],
        now: float,
    ) -> None:
        """Put a block of the lease's own where one stands that it only shares."""
        old = lease._blocks[place]
        lease._blocks[place] = fresh
        if place >= len(lease._nodes):
            self.blocks.unshare([old])
            return
        # A partial block that is cached stays as it is; the lease's chain now ends above it.
        partition = lease._home.partition
        node = lease._nodes[place:]
        keep = 1
        if partition.live.ready[node[0]] == COMPUTING and not any(
            other is not lease
            and other.hit_blocks <= place
            and other.holds(lease._home, int(node[0]), place)
            for other in leases
        ):
            # Nobody is to write it any more.
            self.departures.lose(lease, place, leases, now)
            keep = 0
        lease._nodes = lease._nodes[:place]
        lease._theirs = min(lease._theirs, place)
        if place:
            partition.share(int(lease._nodes[-1]))
        self.blocks.end(lease, node, _NO_BLOCKS, keep, moves, now, vouched=False)

    def _take(
        self, home: Home, blocks: int, now: float, moves: list[Move]
    ) -> NDArray[np.int32] | None:
        partition = home.partition
        if len(self.blocks.store.homes) > 1:
            _, need, room = partition.probe(partition.no_keys, NO_SPACE, blocks)
            if not self.blocks.give(home, need, room, 0, now, moves):
                return None
        taken = None
        try:
            taken = partition.take(blocks, 0, now)
            if taken is None:
                self.departures.take_back(moves, now)
                return None
            self.departures.settle(home, int(partition.report[operations.EVICTED]), moves, now)
        except BadVictimError as error:
            self.departures.drop(home, error.left, now)
            if taken is not None:
                partition.fail(_NO_BLOCKS, taken, 0, now)
            self.departures.take_back(moves, now)
            raise
        return taken

    def _store(self, lease: Lease, plan: _Plan, now: float) -> None:
        """Store full blocks of the lease's own under keys."""
        start = len(lease._nodes)
        keys = plan.keys
        count = len(keys)
        if not count:
            return
        mine = lease._blocks[start : start + count]
        home = lease._home
        chain = self.maker.make(lease.request)
        if home.second is not None:
            most = home.partition.capacity + 1
            home.second.partition.forget(keys, chain.space, lease.deepest, most)
        announce(home, lease.request, chain, now, again=True)
        there = home.partition.grow(
            lease.deepest, keys, chain.space, np.array(mine[:count], np.int32), now
        )
        first_new = start
        nodes = home.partition.out.nodes[:count].copy()
        for at in range(start, start + there):
            lease._own[at] = lease._blocks[at]
            first_new = at + 1
        lease._nodes = np.concatenate([lease._nodes, nodes])
        lease.stored_blocks += count - there
        self.blocks.counters.blocks_stored += count - there
        if there < count:
            tokens = plan.tokens[(first_new - start) * self.block_size :]
            self.blocks.tell_stored(lease, first_new, tokens[: (count - there) * self.block_size])
