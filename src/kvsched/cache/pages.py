"""One home's blocks at one moment, with who holds them and in which order they leave."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvsched.cache.events import GPU
from kvsched.cache.leaving import Copy, Leaving, copy_of, leaving
from kvsched.cache.state import Live
from kvsched.cache.store import Home
from kvsched.kernel.table import NONE

if TYPE_CHECKING:
    from kvsched.cache.scheduler import KVCacheScheduler


class Columns(NamedTuple):
    """What rows tell of a tier's blocks, (N+1,) each by number; `state` says what each means."""

    parent: NDArray[np.int32]
    depth: NDArray[np.int32]
    tokens: NDArray[np.int32]
    begins: NDArray[np.int64]
    keys: NDArray[np.int64]
    """(N+1, W)"""
    resident: NDArray[np.uint8]
    children: NDArray[np.int32]
    block: NDArray[np.int32]
    uses: NDArray[np.int64]
    used_s: NDArray[np.float64]
    level: NDArray[np.int32]
    expires: NDArray[np.int64]
    ready: NDArray[np.uint8]


def _columns(live: Live) -> Columns:
    table = live.table
    return Columns(
        table.parent.copy(),
        table.depth.copy(),
        table.tokens.copy(),
        table.begins.copy(),
        live.names.keys.copy(),
        table.resident.copy(),
        table.children.copy(),
        live.block.copy(),
        live.uses.copy(),
        live.used_s.copy(),
        live.level.copy(),
        live.expires.copy(),
        live.ready.copy(),
    )


class Tier(NamedTuple):
    """One tier of a home."""

    medium: str
    now: float
    """As the tier counts it."""
    columns: Columns
    order: Leaving
    place: NDArray[np.int64]
    """(N+1,) 1 for what leaves next; 0 for what does not leave."""
    why: NDArray[np.uint8]
    """(N+1,) why it leaves."""

    def holds(self, node: int) -> bool:
        """Whether it has a block."""
        return bool(self.columns.resident[node])


class Page(NamedTuple):
    """One home: a tenant with blocks of its own, or all others together."""

    name: str
    first: Tier
    second: Tier | None
    leases: NDArray[np.int64]
    """(N+1,) leases whose chain each number is in."""
    owners: dict[int, set[str]]
    """Owners of the pins of each number that is pinned."""

    def cached(self) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
        """Return (N+1,) whether either tier has a block, and how many cached ones follow it."""
        columns = self.first.columns
        there = columns.resident != 0
        if self.second is not None:
            there |= self.second.columns.resident != 0
        children = np.zeros(len(there), np.int64)
        parents = columns.parent[there]
        np.add.at(children, parents[parents != NONE], 1)
        return there, children


def open_page(cache: KVCacheScheduler, home: Home) -> Page:
    """Return what a home keeps now, and in which order it leaves. O(N log N)."""
    return copy_page(cache, home)()


def copy_page(cache: KVCacheScheduler, home: Home) -> Callable[[], Page]:
    """Copy what a home keeps; what is returned works the order out, once, without the lock.

    O(N), then O(N log N); as much memory as the home's own state.
    """
    with cache.lock:
        now = cache.now()
        parts = [(home.partition, GPU)]
        if home.second is not None:
            parts.append((home.second.partition, home.second.settings.medium))
        copies = [
            (medium, _columns(partition.live), copy_of(partition, now))
            for partition, medium in parts
        ]
        leases = np.zeros(len(home.partition.live.block), np.int64)
        for lease in cache.leases.values():
            if lease._home is home:
                leases[lease._nodes] += 1
        owners: dict[int, set[str]] = {}
        for pin in cache.pins.held.values():
            for node in pin._nodes.tolist() if pin._home is home else ():
                owners.setdefault(node, set()).add(pin.owner)

    def order() -> Page:
        tiers = [_tier(*each) for each in copies]
        return Page(home.name, tiers[0], tiers[1] if len(tiers) > 1 else None, leases, owners)

    return order


def _tier(medium: str, columns: Columns, copied: Copy) -> Tier:
    now = copied.now
    order = leaving(copied)
    place = np.zeros(len(columns.parent), np.int64)
    why = np.zeros(len(columns.parent), np.uint8)
    place[order.nodes] = np.arange(1, len(order.nodes) + 1)
    why[order.nodes] = order.why
    return Tier(medium, now, columns, order, place, why)
