"""Pins: chains that stay until their owner lets them go, within limits."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvsched.cache.chain import ChainMaker
from kvsched.cache.lease import Lease
from kvsched.cache.request import Request
from kvsched.cache.store import Home, Store
from kvsched.foundation.errors import UsageError


@dataclass(frozen=True, slots=True, eq=False)
class Pin:
    """A pinned chain. Give it back to `KVCacheScheduler.unpin`."""

    number: int
    owner: str
    blocks: int
    """Blocks of the chain."""
    tenant: str
    _home: Home
    _nodes: NDArray[np.int32]


class Pins:
    """All pins of a cache. The caller holds the lock."""

    def __init__(self, store: Store, maker: ChainMaker, most: int) -> None:
        self.store = store
        self.maker = maker
        self.most = most
        self.held: dict[int, Pin] = {}
        self._number = 0

    @property
    def count(self) -> int:
        """Pins that are held."""
        return len(self.held)

    @property
    def blocks(self) -> int:
        """Distinct blocks that are pinned."""
        return sum(home.partition.pinned for home in self.store.homes.values())

    def add(self, what: Request | Lease, owner: str) -> Pin:
        """Pin what is cached of a chain. Raises UsageError beyond a limit, with nothing changed."""
        if not isinstance(owner, str) or not owner:
            raise UsageError(f"a pin's owner must be text, not {owner!r}")
        if isinstance(what, Lease):
            home, nodes, tenant = what._home, what._nodes, what.tenant
        elif not isinstance(what, Request):
            raise UsageError(f"a Request or a Lease is needed, not {type(what).__name__}")
        else:
            tenant = what.tenant
            home = self.store.home_of(tenant)
            chain = self.maker.make(what)
            hits, _, _ = home.partition.probe(chain.keys, chain.space, 0)
            nodes = home.partition.out.nodes[:hits].copy()
        if not len(nodes):
            raise UsageError("nothing of it is cached, so nothing can be pinned")
        limit = self.store.tenant(tenant).max_pinned_blocks
        if limit is not None:
            pinned = sum(pin.blocks for pin in self.held.values() if pin.tenant == tenant)
            if pinned + len(nodes) > limit:
                raise UsageError(
                    f"tenant {tenant!r} may have {limit:,} blocks pinned: {pinned:,} are, and "
                    f"this chain has {len(nodes):,}"
                )
        others = self.blocks - home.partition.pinned
        if not home.partition.pin(int(nodes[-1]), self.most - others):
            raise UsageError(
                f"at most {self.most:,} blocks may be pinned (max_pinned_blocks): {self.blocks:,} "
                f"are, and this chain has {len(nodes):,}"
            )
        pin = Pin(self._number, owner, len(nodes), tenant, home, nodes.copy())
        self._number += 1
        self.held[pin.number] = pin
        return pin

    def remove(self, what: Pin | str) -> list[Pin]:
        """Take a pin, or all of an owner's, off the list: `BlockManager.unpin` ends each.

        Raises UsageError for one that is not held.
        """
        ended: Iterable[Pin]
        if isinstance(what, str):
            ended = [pin for pin in self.held.values() if pin.owner == what]
        elif not isinstance(what, Pin):
            raise UsageError(f"a Pin or its owner's name is needed, not {type(what).__name__}")
        elif self.held.get(what.number) is not what:
            raise UsageError(f"pin {what.number} of {what.owner!r} is not held")
        else:
            ended = [what]
        for pin in ended:
            del self.held[pin.number]
        return list(ended)
