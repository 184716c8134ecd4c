"""The blocks of a cache: partitions that share physical blocks, and who gives when one needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvsched.cache.columns import LiveColumns
from kvsched.cache.partition import Partition
from kvsched.cache.state import FREE, LIMIT, Pool, new_pool
from kvsched.cache.tenants import Tenant
from kvsched.foundation.errors import UsageError
from kvsched.policy.base import Policy

COMMON = ""


@dataclass(slots=True, eq=False)
class Home:
    """Where the blocks of a tenant live, and what it is sure of."""

    name: str
    partition: Partition
    tenant: Tenant

    @property
    def excess(self) -> int:
        """Physical blocks in use above the guarantee."""
        return self.partition.used - self.tenant.guaranteed_blocks

    @property
    def lendable(self) -> int:
        """Blocks that it could give to others now."""
        partition = self.partition
        return max(0, min(self.excess, partition.resident - partition.locked))


class Store:
    """Partitions by tenant over one pool of physical blocks. The caller holds the lock."""

    def __init__(
        self,
        policy: Policy,
        capacity: int,
        block_size: int,
        words: int,
        history: int | None,
        tenants: Mapping[str, Tenant],
    ) -> None:
        self.capacity = capacity
        self.block_size = block_size
        self.words = words
        self.history = history
        self.policy = policy
        self.pool: Pool = new_pool(capacity)
        self.homes: dict[str, Home] = {COMMON: self._new_home(COMMON, Tenant())}
        for name, tenant in tenants.items():
            self.add_tenant(name, tenant)

    def _new_home(self, name: str, tenant: Tenant) -> Home:
        quota = tenant.quota_blocks
        capacity = self.capacity if quota is None else min(quota, self.capacity)
        history = capacity if self.history is None else max(self.history, capacity)
        partition = Partition(
            self.policy,
            self.pool,
            capacity=capacity,
            limit=capacity,
            history=history,
            block_size=self.block_size,
            words=self.words,
            columns=LiveColumns(),
        )
        return Home(name, partition, tenant)

    def add_tenant(self, name: str, tenant: Tenant) -> None:
        """Give a tenant blocks of its own. Raises UsageError where guarantees exceed the cache."""
        if name in self.homes and name != COMMON:
            raise UsageError(f"tenant {name!r} has blocks of its own already")
        sure = tenant.guaranteed_blocks + sum(
            home.tenant.guaranteed_blocks for home in self.homes.values() if home.name != name
        )
        if sure > self.capacity:
            raise UsageError(
                f"tenant {name!r}: guaranteed blocks come to {sure:,}, and the cache has "
                f"{self.capacity:,}"
            )
        if name == COMMON:
            home = self.homes[COMMON]
            home.tenant = tenant
            home.partition.live.counts[LIMIT] = tenant.quota_blocks or self.capacity
            return
        self.homes[name] = self._new_home(name, tenant)

    def home_of(self, tenant: str) -> Home:
        """Return where a tenant's blocks live: apart, or among all that have no limit."""
        return self.homes.get(tenant) or self.homes[COMMON]

    @property
    def free(self) -> int:
        """Physical blocks that hold nothing."""
        return int(self.pool.counts[FREE])

    @property
    def used(self) -> int:
        """Physical blocks in use."""
        return self.capacity - self.free

    @property
    def resident(self) -> int:
        """Blocks that are cached, held or not."""
        return sum(home.partition.resident for home in self.homes.values())

    @property
    def held(self) -> int:
        """Physical blocks that cannot be had: held by requests or pins."""
        return self.used - sum(
            home.partition.resident - home.partition.locked for home in self.homes.values()
        )

    def most(self, home: Home) -> int:
        """Return how many blocks one request of a tenant could ever hold."""
        limit = int(home.partition.live.counts[LIMIT])
        sure = sum(other.tenant.guaranteed_blocks for other in self.homes.values())
        del sure  # Guarantees are lent while idle: an idle cache gives all.
        return min(limit, self.capacity)

    def make_room(self, home: Home, blocks: int, spare: int, now: float) -> list[Gone]:
        """Let others give what ``home`` needs beyond the pool and its own fair part.

        Whoever is most above its guarantee gives first, the tenant that asks among them. Returns
        what left. Does nothing where all fits, or cannot.
        """
        gone: list[Gone] = []
        if len(self.homes) == 1:
            return gone
        short = min(blocks, int(home.partition.live.counts[LIMIT]) - home.partition.used)
        short -= self.free
        own = home.partition
        wanted = short
        while wanted > 0:
            asking = home.excess + short if own.resident > own.locked else -1
            givers = [each for each in self.homes.values() if each is not home and each.lendable]
            giver = max(givers, key=lambda each: (each.excess, each.name), default=None)
            if giver is None or (asking > giver.excess and own.resident - own.locked >= wanted):
                break
            part = min(wanted, giver.lendable, max(1, (giver.excess - asking) // 2))
            left = giver.partition.evict(part, now)
            gone.extend(take_gone(giver, left))
            wanted -= left
            if not left:
                break
        return gone


@dataclass(frozen=True, slots=True)
class Gone:
    """A block that left."""

    home: Home
    node: int
    block: int
    why: int
    key: NDArray[np.int64]


def take_gone(home: Home, count: int) -> list[Gone]:
    """Return what a partition's last call let leave. O(count)."""
    out: Any = home.partition.out
    keys = home.partition.names.keys
    return [
        Gone(
            home,
            int(out.gone[at]),
            int(out.gone_blocks[at]),
            int(out.gone_why[at]),
            keys[out.gone[at]].copy(),
        )
        for at in range(count)
    ]
