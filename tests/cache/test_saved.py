"""A cache that was saved and restored decides as the one that went on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from live_scenarios import LABELS

from kvsched.cache import KVCacheScheduler, Request, Tenant, TierSettings
from kvsched.foundation.errors import UsageError
from kvsched.policy.base import Policy

SETTINGS: dict[str, Any] = {
    "when_oversize": "degrade",
    "when_full": "degrade",
    "hash_algorithm": "xxhash_cbor",
    "hash_bytes": 16,
}
TENANTS = {
    "a": Tenant(quota_blocks=12, second_tier_blocks=4, max_pinned_blocks=6),
    "b": Tenant(guaranteed_blocks=5, weight=2.0),
    "c\ud800": Tenant(weight=3.0),
}


class Clock:
    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def random_request(random: np.random.Generator, *, salt: bool = True) -> Request:
    """Draw a request among few prefixes, with every column that policies read."""
    path = random.integers(0, 3, size=int(random.integers(1, 9))).tolist()
    return Request(
        hashes=path,
        tokens=16 * len(path) - int(random.integers(0, 16)),
        tenant=("", "a", "b", "c\ud800")[random.integers(0, 4)],
        cache_salt="s" if salt and random.integers(0, 4) == 0 else None,
        priority=int(random.integers(-1, 2)),
        lifetime_s=(None, 5.0, 40.0)[random.integers(0, 3)],
        session=(None, "x", "y", "z\udfff")[random.integers(0, 4)],
        type=(None, "chat", "tool", "api")[random.integers(0, 4)],
        model=("m", None)[random.integers(0, 2)],
        output_tokens=int(random.integers(0, 50)),
        deadline_s=None,
    )


def step(
    cache: KVCacheScheduler, clock: Clock, random: np.random.Generator, held: list[Any]
) -> Any:
    """Do one random operation; return all that can be seen of it."""
    clock.now += float(random.integers(0, 4))
    what = int(random.integers(0, 12))
    if what < 6:
        admission = cache.acquire(random_request(random))
        lease = admission.lease
        if lease is None:
            return admission.outcome, admission.reason
        if random.integers(0, 2):
            held.append(lease)
        else:
            lease.close(failed=bool(random.integers(0, 6) == 0))
        return (
            admission.outcome, lease.hit_blocks, lease.loaded_blocks, lease.block_ids, lease.moves,
            lease.stored_blocks,
        )  # fmt: skip
    if what < 8 and held:
        lease = held.pop(int(random.integers(0, len(held))))
        return lease.block_ids, cache.release(lease, failed=bool(random.integers(0, 5) == 0))
    if what == 8 and held:
        lease = held[int(random.integers(0, len(held)))]
        cache.computed(lease, int(random.integers(lease.computed_tokens, lease.tokens + 1)))
        grown = cache.extend(lease, int(random.integers(1, 20)))
        return grown.outcome, grown.block_ids, grown.moves
    if what == 9 and len(cache.pins.held) < 3:
        try:
            return cache.pin(random_request(random), "me\udc80").blocks
        except UsageError as error:
            return str(error)
    if what == 10:
        return cache.drop_expired()
    return cache.unpin("me\udc80") if random.integers(0, 3) == 0 else cache.metrics()


def play(
    cache: KVCacheScheduler, clock: Clock, seed: int, steps: int, *, check: bool = False
) -> tuple[list[Any], list[Any]]:
    random = np.random.default_rng(seed)
    held: list[Any] = []
    seen = []
    for _ in range(steps):
        seen.append(step(cache, clock, random, held))
        if check:
            cache.check()
    return seen, held


def made(label: str | Policy | type[Policy], clock: Clock, tiers: int = 2) -> KVCacheScheduler:
    second = TierSettings(capacity_blocks=14, policy="fifo", write="back", medium="disk")
    return KVCacheScheduler(
        30,
        16,
        label,
        tenants=TENANTS if tiers == 2 else None,
        second_tier=second if tiers == 2 else None,
        clock=clock,
        history_blocks=40,
        **SETTINGS,
    )


def all_released(held: list[Any], cache: KVCacheScheduler) -> None:
    for lease in held:
        cache.release(lease, failed=True)


def arrays_of(cache: KVCacheScheduler, path: Path) -> bytes:
    cache.save(path)
    return path.read_bytes()


# The same decisions.


@pytest.mark.parametrize("label", LABELS)
@settings(deadline=None, max_examples=8, derandomize=True)
@given(seed=st.integers(0, 10_000), steps=st.integers(0, 90), away=st.integers(-(2**20), 2**20))
def test_it_goes_on_as_the_original(
    tmp_path_factory: pytest.TempPathFactory, label: str, seed: int, steps: int, away: int
) -> None:
    path = tmp_path_factory.mktemp("saved") / "cache"
    clock = Clock(100.0)
    cache = made(label, clock)
    _, held = play(cache, clock, seed, steps)
    all_released(held, cache)
    cache.save(path)
    other = Clock(clock.now + away)
    again = KVCacheScheduler.restore(path, clock=other)
    assert again.restored is not None
    assert again.restored.learnt_anew == ()
    again.check()
    first, held = play(cache, clock, seed + 1, 60)
    second, others = play(again, other, seed + 1, 60, check=True)
    assert first == second
    for one, two in zip(held, others, strict=True):
        cache.release(one)
        again.release(two)
    assert cache.metrics() == again.metrics()
    assert [each.blocks for each in cache.pins.held.values()] == [
        each.blocks for each in again.pins.held.values()
    ]
