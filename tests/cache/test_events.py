"""The stream of events: a mirror kept from it alone equals the cache; vLLM reads it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from random_run import BLOCK, Run, hash_of, make_cache, second

from kvsched.cache import KVCacheScheduler
from kvsched.cache.events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    CacheEvent,
)
from kvsched.cache.state import LOST
from kvsched.kernel.table import NONE

Mirrored = Counter[tuple[str | None, Any]]

SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "back": {"second_tier": second()},
    "through": {"second_tier": second("through", "fifo", 6)},
    "tier": {"second_tier": second(), "when_full": "degrade", "when_oversize": "degrade",
             "degrade": "tier"},
    "head": {"when_full": "degrade", "when_oversize": "degrade"},
    "queue": {"when_full": "queue"},
    "alone": {"tenants": {}},
}  # fmt: skip


class Mirror:
    """What can be hit, by the events of vLLM alone: how often each hash is in each medium."""

    def __init__(self) -> None:
        self.cached: Mirrored = Counter()

    def hear(self, events: Iterable[CacheEvent]) -> None:
        for event in events:
            if isinstance(event, AllBlocksCleared):
                self.cached.clear()
            elif isinstance(event, BlockStored):
                self.cached.update((event.medium, each) for each in event.block_hashes)
                above = event.parent_block_hash
                assert above is None or sum(self.cached[at, above] for at in ("GPU", "CPU"))
            elif isinstance(event, BlockRemoved):
                for each in event.block_hashes:
                    self.cached[event.medium, each] -= 1
                    assert self.cached[event.medium, each] >= 0, "removed what was not there"
        self.cached += Counter()


def reachable(cache: KVCacheScheduler) -> Mirrored:
    """What can be hit, by the cache's own columns: resident, not lost, and so all before it."""
    found: Mirrored = Counter()
    for home in cache.store.homes.values():
        live = home.partition.live
        table = live.table
        first = (table.resident == 1) & (live.ready != LOST)
        own = np.zeros_like(first)
        medium = ""
        if home.second is not None:
            own = home.second.partition.live.table.resident == 1
            medium = home.second.settings.medium
        for node in np.flatnonzero(first | own).tolist():
            above = int(table.parent[node])
            here, below = bool(first[node]), bool(own[node])
            while above != NONE and (here or below):
                here &= bool(first[above])
                below &= bool(first[above] | own[above])
                above = int(table.parent[above])
            key = cache.maker.to_hash(home.partition.names.keys[node])
            if here:
                found["GPU", key] += 1
            if below:
                found[medium, key] += 1
    return found


def looked_up(run: Run) -> Counter[Any]:
    """How many namespaces' look-ups end at or behind each path that was ever asked for."""
    cache = run.cache
    found: set[tuple[Any, ...]] = set()
    for path, space, tenant in run.asked:
        request = run.request(path, space, tenant)
        if cache.lookup(request) >= len(path) * BLOCK:
            found.add((tuple(cache.maker.make(request).space.tolist()), tenant == "apart", path))
    return Counter(hash_of(path) for _, _, path in found)


def follow(cache: KVCacheScheduler, seed: int, steps: int, **more: Any) -> Run:
    """Run, comparing the mirror with the cache after each operation."""
    mirror = Mirror()

    def after(what: str) -> None:
        mirror.hear(cache.take_events())
        assert mirror.cached == reachable(cache), what
        cache.check()
        if not run.ids:
            named = Counter({key: n for (at, key), n in mirror.cached.items() if at == "GPU"})
            assert named == looked_up(run), what

    run = Run(cache, seed, after=after, **more)
    run.steps(steps)
    run.end()
    return run


@pytest.mark.parametrize("ids", [False, True], ids=["hashes", "ids"])
@pytest.mark.parametrize("name", SETTINGS)
def test_a_mirror_of_the_events_is_the_cache(name: str, ids: bool) -> None:
    did: Counter[str] = Counter()
    for seed in range(6):
        capacity = (6, 16, 40)[seed % 3]
        cache = make_cache(capacity=capacity, **SETTINGS[name])
        run = follow(cache, seed, 150, ids=ids, policies=("lru", "arc", "sieve", "gdsf"))
        did.update(run.did)
        assert cache.events.lost == 0
    assert min(did[what] for what in ("fail", "fork", "extend", "expire", "clear", "policy")) > 0
