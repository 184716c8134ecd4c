"""A second tier below a partition: host memory or disk, with a capacity and a policy of its own.

It shares the partition's numbers. A block that it holds has its parent in one of the two tiers, so
that what it holds can be reached; its own policy ranks blocks that have no child in it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvsched.cache import kernel
from kvsched.cache.chain import Chain
from kvsched.cache.columns import LiveColumns
from kvsched.cache.lease import Lease
from kvsched.cache.partition import Partition
from kvsched.cache.request import Move
from kvsched.cache.state import COMPUTING, LOST, READY, Pool
from kvsched.foundation.errors import UsageError
from kvsched.kernel.table import NONE
from kvsched.policy.base import Policy
from kvsched.policy.registry import make


@dataclass(frozen=True, slots=True, kw_only=True)
class TierSettings:
    """The second tier: how large, by which policy, and when it is written."""

    capacity_blocks: int
    policy: str | Policy | type[Policy] = "lru"
    write: str = "back"
    """``back``: a block is offloaded when it leaves the first tier; ``through``: when the request
    that computed it is released."""
    medium: str = "CPU"
    """Its name in events."""

    def __post_init__(self) -> None:
        blocks = self.capacity_blocks
        if isinstance(blocks, bool) or not isinstance(blocks, int) or not 0 < blocks < 2**31:
            raise UsageError(f"capacity_blocks must be from 1 to 2^31 - 1, not {blocks!r}")
        if self.write not in ("back", "through"):
            raise UsageError(f"write must be back or through, not {self.write!r}")


@dataclass(slots=True)
class Found:
    """Blocks of the second tier that continue what the first holds; held until they are loaded."""

    nodes: NDArray[np.int32]
    slots: NDArray[np.int32]


class SecondTier:
    """The second tier of one partition. The caller holds the lock."""

    def __init__(
        self, above: Partition, settings: TierSettings, pool: Pool, capacity: int, history: int
    ) -> None:
        self.settings = settings
        self.writes_through = settings.write == "through"
        self.partition = Partition(
            make(settings.policy),
            pool,
            capacity=capacity,
            limit=capacity,
            history=above.capacity + history,
            block_size=above.block_size,
            words=above.names.keys.shape[1],
            columns=LiveColumns(()),
            above=above,
        )
        above.live = above.live._replace(elsewhere=self.partition.live.table.resident)

    def hold_below(self, above: Partition, chain: Chain, now: float) -> Found | None:
        """Hold what continues a chain where the first tier ends; None if nothing does."""
        hits, _, _ = above.probe(chain.keys, chain.space, 0)
        base = int(above.report[kernel.DEEPEST])
        keys = chain.keys[hits:]
        own = self.partition
        # Numbers that are about to be reused are forgotten here too, while they are themselves.
        own.forget(keys, chain.space, base, above.capacity + 1)
        own.probe(keys, chain.space, 0, base=base)
        # What a degraded request is still to write cannot be loaded yet.
        more = int(own.report[kernel.WAITS])
        if not more:
            return None
        own.acquire(keys[:more], chain.space, 0, -1, now, own.block_size, base=base)
        return Found(own.out.nodes[:more].copy(), own.out.blocks[:more].copy())

    def let_go(self, found: Found, now: float) -> None:
        """End a hold."""
        self.partition.release(found.nodes, found.slots[:0], len(found.nodes), now)

    def load(self, found: Found, lease: Lease, hits: int, moves: list[Move]) -> int:
        """Say which blocks found are loaded where; return how many the lease has room for."""
        count = min(len(found.nodes), len(lease._nodes) - hits)
        keys = self.partition.names.keys
        for at in range(count):
            slot, block = int(found.slots[at]), lease._blocks[hits + at]
            moves.append(Move("load", slot, block, keys[found.nodes[at]].tobytes()))
        return count

    def keep(self, node: int, block: int, moves: list[Move], now: float) -> bool:
        """Keep a block that leaves the first tier, or is written through: offload it if need be.

        False if there is no room for it. Raises what the policy here is at fault with.
        """
        own = self.partition
        names, ready = own.names, own.live.ready
        parent = int(own.live.table.parent[node])
        key = names.keys[node : node + 1]
        space = names.space[node]
        tokens = int(own.live.table.tokens[node])
        own.acquire(key, space, 0, -1, now, tokens, base=parent)
        hits, stored = int(own.report[kernel.HITS]), int(own.report[kernel.STORED_BLOCKS])
        if hits + stored == 0:
            return False
        slot = int(own.out.blocks[0])
        if stored or ready[node] == LOST:
            moves.append(Move("offload", block, slot, key.tobytes()))
            ready[node] = READY
        own.fail(np.array([node], np.int32), own.out.blocks[:0], 1, now)
        return True

    def write_through(
        self, above: Partition, nodes: NDArray[np.int32], moves: list[Move], now: float
    ) -> None:
        """Keep a chain as far as it was computed, root first."""
        for node in nodes.tolist():
            if above.live.ready[node] != READY:
                return
            if not self.keep(node, int(above.live.block[node]), moves, now):
                return

    def spill(self, above: Partition, lease: Lease, chain: Chain, now: float) -> tuple[int, ...]:
        """Hold blocks here for what of a chain lies below a lease's last node, as far as fits.

        `end_spill` lets them go.
        """
        start = len(lease._nodes)
        keys = chain.keys[start:]
        own = self.partition
        above.forget(keys, chain.space, lease.deepest, own.capacity + 1)
        own.acquire(keys, chain.space, 0, -1, now, chain.last_tokens, base=lease.deepest)
        count = int(own.report[kernel.HITS]) + int(own.report[kernel.STORED_BLOCKS])
        lease._spilled = own.out.nodes[:count].copy()
        return tuple(own.out.blocks[:count].tolist())

    def end_spill(self, nodes: NDArray[np.int32], written: bool, now: float) -> None:
        """Let a lease's blocks here go: they can be loaded from now on, or were never written."""
        own = self.partition
        ready = own.live.ready
        if written:
            # What was discarded meanwhile has a name that is found no more.
            ready[nodes[ready[nodes] == COMPUTING]] = READY
        unwritten = np.flatnonzero(ready[nodes] != READY)
        keep = int(unwritten[0]) if len(unwritten) else len(nodes)
        own.fail(nodes, nodes[:0], keep, now)

    def cut(self, node: int, now: float) -> None:
        """Drop what is cached below a node that is in neither tier any more. O(cached · depth).

        Only a request that failed, a lifetime that ended, or a policy that declined leaves one.
        """
        table = self.partition.live.table
        if table.children[node] != 0 and not table.resident[node]:
            self._drop_below(node, now)

    def discard(self, node: int, now: float) -> None:
        """Drop a node, and all below it here. O(cached · depth).

        What a degraded lease holds stays, to be written; what cannot leave is found no more.
        """
        own = self.partition
        if own.live.table.children[node]:
            self._drop_below(node, now)
        if own.live.table.resident[node]:
            own.live.ready[node] = LOST
            own.drop(node, now)

    def discard_slots(self, slots: Collection[int], now: float) -> None:
        """Drop what is in some blocks here: their bytes are not what they should be. O(N)."""
        live = self.partition.live
        wrong = np.flatnonzero(np.isin(live.block, list(slots)) & (live.table.resident == 1))
        for node in wrong.tolist():
            if live.table.resident[node]:
                self.discard(node, now)

    def _drop_below(self, node: int, now: float) -> None:
        own = self.partition
        table = own.live.table
        cached = np.flatnonzero(table.resident)
        below = np.zeros(len(cached), np.bool_)
        above = table.parent[cached]
        while np.any(above != NONE):
            below |= above == node
            above = np.where(above == NONE, NONE, table.parent[above])
        found = cached[below]
        for each in found[np.argsort(-table.depth[found], kind="stable")].tolist():
            own.drop(each, now)
