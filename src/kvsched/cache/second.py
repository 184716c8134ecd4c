"""A second tier below a partition: host memory or disk, with a capacity and a policy of its own.

It shares the partition's numbers. A block that it holds has its parent in one of the two tiers, so
that what it holds can be reached; its own policy ranks blocks that have no child in it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvsched.cache import operations
from kvsched.cache.chain import Chain
from kvsched.cache.columns import LiveColumns
from kvsched.cache.events import UNREACHABLE, WHY, Announcer
from kvsched.cache.lease import Lease
from kvsched.cache.partition import Partition
from kvsched.cache.request import Move
from kvsched.cache.state import COMPUTING, LOST, READY, Pool
from kvsched.foundation.errors import UsageError
from kvsched.kernel.table import NONE, below
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
        make(self.policy)

    @property
    def made(self) -> Policy:
        """The policy itself."""
        return make(self.policy)


@dataclass(slots=True)
class Found:
    """Blocks of the second tier that continue what the first holds; held until they are loaded."""

    nodes: NDArray[np.int32]
    slots: NDArray[np.int32]


class SecondTier:
    """The second tier of one partition. The caller holds the lock."""

    def __init__(
        self,
        above: Partition,
        settings: TierSettings,
        pool: Pool,
        capacity: int,
        history: int,
        told: Announcer,
    ) -> None:
        self.settings = settings
        self.told = told
        self.writes_through = settings.write == "through"
        self.partition = Partition(
            settings.made,
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
        base = int(above.report[operations.DEEPEST])
        keys = chain.keys[hits:]
        own = self.partition
        # Numbers that are about to be reused are forgotten here too, while they are themselves.
        own.forget(keys, chain.space, base, above.capacity + 1)
        own.probe(keys, chain.space, 0, base=base)
        # What a degraded request is still to write cannot be loaded yet.
        more = int(own.report[operations.WAITS])
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
        hits, stored = int(own.report[operations.HITS]), int(own.report[operations.STORED_BLOCKS])
        # What is lost, or still to be written by a degraded request, is brought all the same.
        fresh = hits + stored > 0 and ready[node] != READY
        self._tell(parent, [node] if fresh else [])
        if hits + stored == 0:
            return False
        slot = int(own.out.blocks[0])
        if fresh:
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
        count = int(own.report[operations.HITS]) + int(own.report[operations.STORED_BLOCKS])
        self._tell(lease.deepest, [])
        lease._spilled = own.out.nodes[:count].copy()
        return tuple(own.out.blocks[:count].tolist())

    def end_spill(self, nodes: NDArray[np.int32], written: bool, now: float) -> None:
        """Let a lease's blocks here go: they can be loaded from now on, or were never written."""
        own = self.partition
        ready = own.live.ready
        if written:
            # What was lost meanwhile is found no more, nor is what follows it.
            lost = np.flatnonzero(ready[nodes] == LOST)
            fresh = nodes[: lost[0]] if len(lost) else nodes
            fresh = fresh[ready[fresh] == COMPUTING]
            ready[fresh] = READY
            if len(fresh):
                parent = int(own.live.table.parent[fresh[0]])
                self._tell_stored(parent, fresh.tolist())
        unwritten = np.flatnonzero(ready[nodes] != READY)
        keep = int(unwritten[0]) if len(unwritten) else len(nodes)
        own.fail(nodes, nodes[:0], keep, now)
        count = int(own.report[operations.EVICTED])
        self._tell_removed(own.out.gone[:count].copy(), WHY[operations.UNCOMPUTED])
        # What others kept below something that was never written cannot be reached.
        left = nodes[keep:]
        left = left[own.live.table.resident[left] != 0]
        if len(left):
            self.lose(left, now)

    def _tell(self, parent: int, stored: list[int]) -> None:
        """Tell what the last call let leave, and what of a chain below ``parent`` it stored."""
        own = self.partition
        if not self.told.on:
            return
        out = own.out
        for at in range(int(own.report[operations.EVICTED])):
            self._tell_removed(out.gone[at : at + 1], WHY[out.gone_why[at]])
        self._tell_stored(parent, stored)

    def _tell_removed(self, nodes: NDArray[np.int32], why: str) -> None:
        """Tell of those that could be loaded: of others nobody was told that they were stored."""
        told = nodes[self.partition.live.ready[nodes] == READY]
        if len(told):
            self.told.removed(self.partition.names.keys[told], self.settings.medium, why)

    def _tell_stored(self, parent: int, stored: list[int]) -> None:
        if stored:
            keys = self.partition.names.keys
            above = None if parent == NONE else keys[parent]
            self.told.stored(keys[stored], above, self.settings.medium)

    def holds(self, node: int) -> bool:
        """Whether it has a block."""
        return bool(self.partition.live.table.resident[node])

    def cut(self, node: int, now: float) -> None:
        """Drop what is cached below a node that is in neither tier any more. O(cached · depth).

        Only a request that failed, a lifetime that ended, or a policy that declined leaves one.
        """
        table = self.partition.live.table
        if table.children[node] != 0 and not table.resident[node]:
            nodes = below(table, np.array([node]))
            self._tell_removed(nodes, UNREACHABLE)
            self._drop(nodes, now)

    def lose(self, nodes: NDArray[np.int32], now: float) -> None:
        """Drop nodes that are not to be trusted, and all below them. O(nodes), else as `cut`.

        What a degraded lease holds stays, to be written; what cannot leave is loaded no more.
        """
        table = self.partition.live.table
        if np.any(table.resident[nodes]) or np.any(table.children[nodes]):
            own = nodes[table.resident[nodes] != 0]
            own = own[np.argsort(-table.depth[own], kind="stable")]
            lost = np.concatenate([below(table, nodes), own])
            self._tell_removed(lost, WHY[operations.UNCOMPUTED])
            ready = self.partition.live.ready
            ready[own] = LOST
            ready[lost[ready[lost] == READY]] = LOST
            self._drop(lost, now)

    def lose_slots(self, slots: Collection[int], now: float) -> None:
        """Drop what is in some blocks here: their bytes are not what they should be. O(N)."""
        live = self.partition.live
        wrong = np.flatnonzero(np.isin(live.block, list(slots)) & (live.table.resident == 1))
        if len(wrong):
            self.lose(wrong.astype(np.int32), now)

    def _drop(self, nodes: NDArray[np.int32], now: float) -> None:
        own = self.partition
        for node in nodes.tolist():
            if own.live.table.resident[node]:
                own.drop(node, now)
