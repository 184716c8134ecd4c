"""The ledger's order is what really leaves, under every policy; and what its rows say."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from random_run import BLOCK, Run, hash_of, make_cache, second

from kvsched.cache import KVCacheScheduler, Outcome, Request, Tenant, kernel, leaving, pages
from kvsched.cache.events import BlockRemoved
from kvsched.policy.registry import built_in, find

POLICIES = [name for name in built_in() if not find(name).looks_ahead]
CHANGED = [
    "decay:half_life_s=5:size_weight=1",
    "gdsf:attention_tokens=16",
    "priority:head_tokens=8:head_duration_s=10",
    "ttl:lifetime_s=10:tool_lifetime_s=2",
    "tlru:threshold_tokens=8:next_prompt_tokens=4",
    "s3fifo:small=0.4",
    "marconi:alpha=1",
    "wtinylfu:window=0.3",
]
BY_SHARES = ("arc", "s3fifo", "wtinylfu", "wild")
"""Policies that choose otherwise where blocks are taken and nothing is stored."""

Left = list[tuple[Any, str | None]]


def busy(policy: str, seed: int, **settings: Any) -> KVCacheScheduler:
    """A cache in the middle of things: some chains held, pinned, of levels, with lifetimes."""
    cache = make_cache(policy, **settings)
    run = Run(cache, seed, tenants=("", "other", "apart") if settings.get("tenants") else ("",))
    run.steps(150)
    while len(run.leases) > 1 and run.draw.random() < 0.9:
        run._release()
    cache.time[0] += 6.0  # type: ignore[attr-defined]
    cache.check()
    return cache


def told(cache: KVCacheScheduler, tenant: str = "") -> Left:
    rows = cache.snapshot(order="leaving", tenant=tenant)
    return [(row.block_hash, row.leaves_by) for row in rows if row.place is not None]


def removed(cache: KVCacheScheduler) -> Left:
    return [
        (block_hash, event.reason)
        for event in cache.take_events()
        if isinstance(event, BlockRemoved)
        for block_hash in event.block_hashes
    ]


def fresh() -> Iterator[bytes]:
    return (hash_of((9, number)) for number in itertools.count())


def one_by_one(cache: KVCacheScheduler, tenant: str = "") -> Left:
    """Store prompts of one new block each, which stay, until there is no room."""
    cache.take_events()
    left: Left = []
    for block_hash in fresh():
        admission = cache.acquire(Request(hashes=[block_hash], tenant=tenant))
        left += removed(cache)
        if admission.lease is None:
            break
    return left


def as_one(cache: KVCacheScheduler, tenant: str = "") -> Left:
    """Store one prompt of as many new blocks as can be had."""
    cache.take_events()
    store = cache.store
    partition = store.home_of(tenant).partition
    free = min(store.free, 10**9 if not tenant else 6 - partition.used)
    room = free + partition.resident - partition.locked
    hashes = list(itertools.islice(fresh(), room))
    assert cache.acquire(Request(hashes=hashes, tenant=tenant)).outcome is Outcome.ADMIT
    return removed(cache)


def decoded(cache: KVCacheScheduler, tenant: str = "") -> Left:
    """Let a lease that holds nothing take block after block that nobody names."""
    cache.take_events()
    lease = cache.acquire(Request(hashes=[], tenant=tenant)).lease
    assert lease is not None
    while lease.extend(BLOCK).outcome is Outcome.ADMIT:
        pass
    return removed(cache)


@pytest.mark.parametrize("policy", [*POLICIES, *CHANGED])
def test_the_order_is_what_leaves_block_by_block(policy: str) -> None:
    evicted = 0
    for seed in range(6):
        expected = told(busy(policy, seed))
        evicted += len(expected)
        assert one_by_one(busy(policy, seed)) == expected
        assert as_one(busy(policy, seed)) == expected
        if policy.partition(":")[0] not in BY_SHARES:
            assert decoded(busy(policy, seed)) == expected
    assert evicted > 20


@pytest.mark.parametrize("policy", POLICIES)
def test_the_order_holds_within_a_quota(policy: str) -> None:
    settings: dict[str, Any] = {
        "capacity": 1000,
        "tenants": {"apart": Tenant(quota_blocks=6, guaranteed_blocks=2)},
    }
    evicted = 0
    for seed in range(8):
        expected = told(busy(policy, seed, **settings), "apart")
        evicted += len(expected)
        assert one_by_one(busy(policy, seed, **settings), "apart") == expected
    assert evicted > 10


@pytest.mark.parametrize("policy", POLICIES)
def test_looking_changes_nothing(policy: str) -> None:
    looked, other = (busy(policy, 3, second_tier=second()) for _ in range(2))
    looked.snapshot()
    looked.check()
    looked.snapshot(by="prefix")
    assert one_by_one(looked) == one_by_one(other)


def test_under_lru_the_order_holds_where_what_is_stored_is_released_at_once() -> None:
    cache = busy("lru", 1)
    rows = cache.snapshot(order="leaving")
    expected = [
        (row.block_hash, row.leaves_by)
        for row in itertools.takewhile(lambda row: row.level <= 0, rows)
    ]
    assert len(expected) > 3
    cache.take_events()
    for block_hash in itertools.islice(fresh(), cache.capacity_blocks):
        with cache.acquire(Request(hashes=[block_hash])):
            pass
    assert removed(cache)[: len(expected)] == expected


def test_what_takes_blocks_without_storing_can_choose_otherwise() -> None:
    differ = {
        policy
        for policy in BY_SHARES
        for seed in range(60)
        if decoded(busy(policy, seed)) != told(busy(policy, seed))
    }
    assert differ == set(BY_SHARES)


# The check fails where the ledger is wrong.


def _ignores_begin(at: leaving.Copy) -> leaving.Leaving:
    out = leaving.new_out(at.capacity)
    keys = at.live.names.keys[:0].copy()
    at.operate(
        at.live, at.state, at.pool, out, keys, leaving.NOBODY, kernel.EVICT, -1, 0,
        at.capacity, 0, at.now, 0, leaving.NEVER, BLOCK, BLOCK,
    )  # fmt: skip
    count = int(out.report[kernel.EVICTED])
    return leaving.Leaving(out.gone[:count].copy(), out.gone_why[:count].copy(), 0)


def _by_time(at: leaving.Copy) -> leaving.Leaving:
    right = _right(at)
    order = at.live.used_s[right.nodes].argsort(kind="stable")
    return right._replace(nodes=right.nodes[order], why=right.why[order])


def _no_lifetimes(at: leaving.Copy) -> leaving.Leaving:
    return _right(at._replace(now=-1.0))


_right = leaving.leaving


def _differs(policy: str, broken: Callable[[leaving.Copy], leaving.Leaving]) -> bool:
    patch = pytest.MonkeyPatch()
    with patch.context() as context:
        context.setattr(pages, "leaving", broken)
        expected = [told(busy(policy, seed)) for seed in range(12)]
    return any(one_by_one(busy(policy, seed)) != expected[seed] for seed in range(12))


@pytest.mark.parametrize(
    ("policy", "broken"),
    [
        ("ttl:lifetime_s=10:tool_lifetime_s=2", _ignores_begin),
        ("arc", _ignores_begin),
        ("lfu", _by_time),
        ("lru", _no_lifetimes),
    ],
)
def test_a_broken_order_is_noticed(
    policy: str, broken: Callable[[leaving.Copy], leaving.Leaving]
) -> None:
    assert not _differs(policy, _right)
    assert _differs(policy, broken)
