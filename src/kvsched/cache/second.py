"""A second tier below a partition: host memory or disk, with a capacity and a policy of its own.

It shares the partition's numbers. A block that it holds has its parent in one of the two tiers, so
that what it holds can be reached; its own policy ranks blocks that have no child in it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvsched.cache import kernel
from kvsched.cache.chain import Chain
from kvsched.cache.columns import LiveColumns
from kvsched.cache.events import UNREACHABLE, WHY, Announcer
from kvsched.cache.lease import Lease
from kvsched.cache.partition import Partition
from kvsched.cache.request import Move
from kvsched.cache.state import READY, Pool
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
        # Numbers that are about to be reused are forgotten here too, while they are themselves.
        self.partition.forget(2 * len(chain.keys))
        hits, _, _ = above.probe(chain.keys, chain.space, 0)
        base = int(above.report[kernel.DEEPEST])
        keys = chain.keys[hits:]
        own = self.partition
        more, _, _ = own.probe(keys, chain.space, 0, base=base)
        if not more:
            return None
        own.acquire(keys[:more], chain.space, 0, -1, now, own.block_size, base=base)
        return Found(own.out.nodes[:more].copy(), own.out.blocks[:more].copy())

    def let_go(self, found: Found, now: float) -> None:
        """End a hold."""
        self.partition.release(found.nodes, found.slots[:0], len(found.nodes), now)

    def load(self, found: Found, lease: Lease, hits: int, moves: list[Move], now: float) -> int:
        """Say which held blocks are loaded where; return how many the lease has room for."""
        count = min(len(found.nodes), len(lease._nodes) - hits)
        keys = self.partition.names.keys
        for at in range(count):
            slot, block = int(found.slots[at]), lease._blocks[hits + at]
            moves.append(Move("load", slot, block, keys[found.nodes[at]].tobytes()))
        self.let_go(found, now)
        return count

    def keep(self, node: int, block: int, moves: list[Move], now: float) -> None:
        """Keep a block that leaves the first tier, or is written through: offload it if need be."""
        own = self.partition
        names = own.names
        parent = int(own.live.table.parent[node])
        key = names.keys[node : node + 1]
        space = names.space[node]
        tokens = int(own.live.table.tokens[node])
        own.acquire(key, space, 0, -1, now, tokens, base=parent)
        hits, stored = int(own.report[kernel.HITS]), int(own.report[kernel.STORED_BLOCKS])
        self._tell(parent, [node] * stored)
        if hits + stored == 0:
            return
        slot = int(own.out.blocks[0])
        own.release(np.array([node], np.int32), own.out.blocks[:0], 1, now)
        if stored:
            moves.append(Move("offload", block, slot, key.tobytes()))

    def write_through(
        self, above: Partition, nodes: NDArray[np.int32], moves: list[Move], now: float
    ) -> None:
        """Keep a chain as far as it was computed, root first."""
        for node in nodes.tolist():
            if above.live.ready[node] != READY:
                break
            self.keep(node, int(above.live.block[node]), moves, now)

    def spill(self, above: Partition, lease: Lease, chain: Chain, now: float) -> tuple[int, ...]:
        """Return blocks here for what of a chain lies below a lease's last node, as far as fits."""
        start = len(lease._nodes)
        keys = chain.keys[start:]
        own = self.partition
        above.forget(2 * len(keys))
        own.acquire(keys, chain.space, 0, -1, now, chain.last_tokens, base=lease.deepest)
        count = int(own.report[kernel.HITS]) + int(own.report[kernel.STORED_BLOCKS])
        nodes, slots = own.out.nodes[:count].copy(), own.out.blocks[:count].copy()
        self._tell(lease.deepest, nodes.tolist(), int(own.report[kernel.HITS]))
        if count:
            own.release(nodes, slots[:0], count, now)
        return tuple(slots.tolist())

    def _tell(self, parent: int, nodes: list[int], hits: int = 0) -> None:
        """Tell what the last call let leave, and what of a chain below ``parent`` it stored."""
        own = self.partition
        if not self.told.on:
            return
        keys, medium = own.names.keys, self.settings.medium
        for at in range(int(own.report[kernel.EVICTED])):
            self.told.removed([keys[own.out.gone[at]]], medium, WHY[own.out.gone_why[at]])
        stored = nodes[hits:]
        if stored:
            above = nodes[hits - 1] if hits else parent
            self.told.stored(keys[stored], None if above == NONE else keys[above], medium)

    def holds(self, node: int) -> bool:
        """Whether it has a block."""
        return bool(self.partition.live.table.resident[node])

    def cut(self, node: int, now: float) -> None:
        """Drop what is cached below a node that is in neither tier any more. O(cached · depth).

        Such a node was computed by a request that failed, or outlived its lifetime.
        """
        if self.partition.live.table.children[node]:
            self._drop(below(self.partition.live.table, np.array([node])), UNREACHABLE, now)

    def lose(self, nodes: NDArray[np.int32], now: float) -> None:
        """Drop nodes that are found no more, and all below them. O(nodes), else as `cut`."""
        table = self.partition.live.table
        if np.any(table.resident[nodes]) or np.any(table.children[nodes]):
            own = nodes[table.resident[nodes] != 0]
            own = own[np.argsort(-table.depth[own], kind="stable")]
            self._drop(np.concatenate([below(table, nodes), own]), WHY[kernel.UNCOMPUTED], now)

    def _drop(self, nodes: NDArray[np.int32], why: str, now: float) -> None:
        keys = self.partition.names.keys
        for node in nodes.tolist():
            self.partition.drop(node, now)
            self.told.removed([keys[node]], self.settings.medium, why)
