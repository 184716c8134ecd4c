"""The blocks of a cache: partitions that share physical blocks, and who gives when one needs."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np

from kvsched.cache.columns import LiveColumns
from kvsched.cache.events import Announcer
from kvsched.cache.partition import BadVictimError, Left, Partition
from kvsched.cache.second import SecondTier, TierSettings
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
    second: SecondTier | None = None

    @property
    def most(self) -> int:
        """How many blocks one request of the tenant could ever hold."""
        return self.partition.capacity

    def shift(self, seconds: float) -> None:
        """Count every moment as so much later than the clock says."""
        self.partition.shift_s = seconds
        if self.second is not None:
            self.second.partition.shift_s = seconds

    @property
    def excess(self) -> int:
        """Physical blocks in use above the guarantee."""
        return self.partition.used - self.tenant.guaranteed_blocks

    @property
    def lendable(self) -> int:
        """Blocks that it could give to others now."""
        partition = self.partition
        return max(0, min(self.excess, partition.resident - partition.locked))


def home_sizes(tenant: Tenant, capacity: int, history: int | None) -> tuple[int, int, int]:
    """Return a partition's blocks, those that left and are remembered, and second-tier blocks."""
    quota = tenant.quota_blocks
    most = capacity if quota is None else min(quota, capacity)
    return most, most if history is None else max(history, most), tenant.second_tier_blocks


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
        fields: Collection[str] | None = None,
        second: TierSettings | None = None,
        *,
        told: Announcer,
    ) -> None:
        self.told = told
        self.capacity = capacity
        self.block_size = block_size
        self.words = words
        self.history = history
        self.policy = policy
        self.fields = fields
        self.second = second
        self.shift_s = 0.0
        self.pool: Pool = new_pool(capacity)
        self.second_pool = new_pool(0 if second is None else second.capacity_blocks)
        lent = sum(tenant.second_tier_blocks for tenant in tenants.values())
        total = 0 if second is None else second.capacity_blocks
        if lent > total:
            raise UsageError(
                f"tenants have {lent:,} blocks of the second tier, which has {total:,}"
            )
        common = Tenant(second_tier_blocks=total - lent)
        self.tenants: dict[str, Tenant] = {}
        self.homes: dict[str, Home] = {COMMON: self._new_home(COMMON, common)}
        for name, tenant in tenants.items():
            self.add_tenant(name, tenant)

    def _new_home(self, name: str, tenant: Tenant) -> Home:
        capacity, history, slots = home_sizes(tenant, self.capacity, self.history)
        partition = Partition(
            self.policy,
            self.pool,
            capacity=capacity,
            limit=capacity,
            history=history + slots,
            block_size=self.block_size,
            words=self.words,
            columns=LiveColumns(self.fields),
        )
        home = Home(name, partition, tenant)
        if slots and self.second is not None:
            home.second = SecondTier(
                partition, self.second, self.second_pool, slots, history, self.told
            )
        home.shift(self.shift_s)
        return home

    def shift(self, seconds: float) -> None:
        """Count every moment as so much later than the clock says. O(tenants)."""
        self.shift_s = seconds
        for home in self.homes.values():
            home.shift(seconds)

    def add_tenant(self, name: str, tenant: Tenant) -> None:
        """Settle what a tenant may use; it gets blocks of its own if it has a limit or a share.

        Raises UsageError for one that is settled, and where guarantees exceed the cache.
        """
        if name in self.tenants:
            raise UsageError(f"tenant {name!r} is settled already")
        sure = tenant.guaranteed_blocks + sum(
            home.tenant.guaranteed_blocks for home in self.homes.values()
        )
        if sure > self.capacity:
            raise UsageError(
                f"tenant {name!r}: guaranteed blocks come to {sure:,}, and the cache has "
                f"{self.capacity:,}"
            )
        if name == COMMON and tenant.is_apart:
            raise UsageError("tenants without a name share what is left: give a name to limit one")
        if tenant.is_apart:
            self.homes[name] = self._new_home(name, tenant)
        self.tenants[name] = tenant

    def home_of(self, tenant: str) -> Home:
        """Return where a tenant's blocks live: apart, or among all that have no limit."""
        return self.homes.get(tenant) or self.homes[COMMON]

    def tenant(self, name: str) -> Tenant:
        """Return a tenant's settings: the usual ones where it has none of its own."""
        return self.tenants.get(name) or Tenant()

    def set_policy(self, policy: Policy) -> None:
        """Rank every partition of the first tier by another policy. O(N log N).

        Raises what the policy raises, with the one before ranking all of them as it did.
        """
        try:
            for home in self.homes.values():
                home.partition.change_policy(policy)
        except BaseException:
            for home in self.homes.values():
                if home.partition.policy is not self.policy:
                    home.partition.change_policy(self.policy)
            raise
        self.policy = policy

    def clear(self) -> None:
        """Forget everything; nothing may be held. O(N)."""
        self.pool.free[:] = np.arange(self.capacity - 1, -1, -1, dtype=np.int32)
        self.pool.counts[FREE] = self.capacity
        slots = len(self.second_pool.free)
        self.second_pool.free[:] = np.arange(slots - 1, -1, -1, dtype=np.int32)
        self.second_pool.counts[FREE] = slots
        for name, home in list(self.homes.items()):
            self.homes[name] = self._new_home(name, home.tenant)

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

    def sure(self, home: Home) -> int:
        """Return how many blocks a request of a tenant gets for certain once others have ended.

        More can only be lent, while others do not use what they are guaranteed. O(tenants).
        """
        others = sum(
            each.tenant.guaranteed_blocks for each in self.homes.values() if each is not home
        )
        return min(home.most, self.capacity - others)

    def is_over_quota(self, home: Home, need: int, room: int) -> bool:
        """Whether a tenant's own limit keeps ``need`` blocks from it, with ``room`` as probed."""
        if home.tenant.quota_blocks is None:
            return False
        headroom = self._headroom(home)
        return need - (room - min(self.free, headroom)) > headroom

    def _headroom(self, home: Home) -> int:
        """Blocks that a tenant's limit lets it take from the pool."""
        return max(0, int(home.partition.live.counts[LIMIT]) - home.partition.used)

    def _lendable(self, home: Home) -> int:
        """Blocks that others than ``home`` could give. O(tenants)."""
        return sum(each.lendable for each in self.homes.values() if each is not home)

    def borrowable(self, home: Home) -> int:
        """Return how many blocks more than its own partition says a tenant could have."""
        if len(self.homes) == 1:
            return 0
        headroom = self._headroom(home)
        return min(self.free + self._lendable(home), headroom) - min(self.free, headroom)

    def make_room(self, home: Home, need: int, room: int, now: float, gone: list[Gone]) -> None:
        """Let others give what ``home`` takes from the pool beyond its own fair part.

        ``need`` blocks, for ``room`` of which its own partition could see to by itself. Whoever is
        most above its guarantee gives first, the tenant that asks among them. What left is added to
        ``gone``, also where a policy fails on the way. The caller has made sure that all fits.
        O(tenants · blocks) at worst.
        """
        headroom = self._headroom(home)
        own = room - min(self.free, headroom)
        own -= max(0, need - headroom)
        wanted = min(need, headroom) - self.free
        asking = home.excess + need
        while wanted > 0:
            givers = [each for each in self.homes.values() if each is not home and each.lendable]
            giver = max(givers, key=lambda each: (each.excess, each.name), default=None)
            if giver is None or (own >= wanted and asking - wanted >= giver.excess):
                break
            part = max(1, (giver.excess - asking + wanted) // 2) if own >= wanted else wanted
            try:
                left = giver.partition.evict(min(part, wanted, giver.lendable), now)
            except BadVictimError as error:
                gone.append((giver, error.left))
                raise
            if not left:
                break
            gone.append((giver, giver.partition.left(left)))
            wanted -= left


Gone = tuple[Home, list[Left]]
"""Blocks that left a home."""
