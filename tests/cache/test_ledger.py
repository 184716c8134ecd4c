"""The ledger's order is what really leaves, under every policy; and what its rows say."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from random_run import BLOCK, Run, hash_of, make_cache, second
from rich.console import Console

from kvsched.cache import KVCacheScheduler, Outcome, Request, Tenant, leaving, operations, pages
from kvsched.cache.events import BlockRemoved
from kvsched.foundation.errors import UsageError
from kvsched.policy.registry import built_in, find

pytestmark = pytest.mark.usefixtures("plain")

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
BY_SHARES = ("arc", "s3fifo", "wtinylfu")
"""Policies that may choose otherwise where blocks are taken and nothing is stored."""
LEARNS = "wild"
"""Learns from each prompt: what many of them let leave may be another order."""

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
        if policy != LEARNS:
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
        stored = as_one if policy == LEARNS else one_by_one
        assert stored(busy(policy, seed, **settings), "apart") == expected
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
    for policy in ("arc", "s3fifo:small=0.4", "wtinylfu"):
        assert any(
            decoded(busy(policy, seed, capacity=40)) != told(busy(policy, seed, capacity=40))
            for seed in range(60)
        )


def test_many_prompts_can_teach_what_one_does_not() -> None:
    assert any(
        one_by_one(busy(LEARNS, seed, capacity=40)) != told(busy(LEARNS, seed, capacity=40))
        for seed in range(60)
    )


# The check fails where the ledger is wrong.


def _ignores_begin(at: leaving.Copy) -> leaving.Leaving:
    out = leaving.new_out(at.capacity)
    keys = at.live.names.keys[:0].copy()
    at.operate(
        at.live, at.state, at.pool, out, keys, leaving.NOBODY, operations.EVICT, -1, 0,
        at.capacity, 0, at.now, 0, leaving.NEVER, BLOCK, BLOCK,
    )  # fmt: skip
    count = int(out.report[operations.EVICTED])
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


# What rows say.


def tell(names: str) -> list[bytes]:
    return [name.encode() * 8 for name in names]


def small(**settings: Any) -> KVCacheScheduler:
    return make_cache(tenants={}, **settings)


def test_rows_say_what_was_done() -> None:
    cache = small(capacity=12)
    time = cache.time  # type: ignore[attr-defined]
    with cache.acquire(Request(hashes=tell("ab"), tokens=2 * BLOCK - 1)):
        time[0] = 1.0
    with cache.acquire(Request(hashes=tell("acd"), priority=2, lifetime_s=10.0)):
        time[0] = 3.0
    held = cache.acquire(Request(hashes=tell("ace"))).lease
    assert held is not None
    cache.fork(held)
    cache.pin(Request(hashes=tell("ac")), "ops")
    cache.pin(Request(hashes=tell("a")), "batch")
    time[0] = 8.0
    rows = {row.block_hash: row for row in cache.snapshot()}
    assert list(rows) == [*tell("a"), *tell("c"), *tell("e"), *tell("d"), *tell("b")]
    a, b, c, d, e = (rows[name] for name in tell("abcde"))
    assert [row.depth for row in (a, b, c, d, e)] == [0, 1, 1, 2, 2]
    assert [row.first_token for row in (a, b, c, d, e)] == [0, 4, 4, 8, 8]
    assert [row.tokens for row in (a, b, c, d, e)] == [4, 3, 4, 4, 4]
    assert [row.uses for row in (a, b, c, d, e)] == [2, 1, 1, 1, 0]
    assert [row.idle_s for row in (a, b, c, d, e)] == [5.0, 7.0, 5.0, 5.0, None]
    assert [row.level for row in (a, b, c, d, e)] == [2, 0, 2, 2, 0]
    # One that has no lifetime keeps a block for good.
    assert [row.lifetime_left_s for row in (a, b, c, d, e)] == [None, None, 5.0, 5.0, None]
    assert [row.leases for row in (a, b, c, d, e)] == [2, 0, 2, 0, 2]
    assert [row.pinned_by for row in (a, b, c)] == [("batch", "ops"), (), ("ops",)]
    assert [row.children for row in (a, b, c, d, e)] == [2, 0, 2, 0, 0]
    assert [row.place for row in (a, b, c, d, e)] == [None, 1, None, 2, None]
    assert [row.leaves_by for row in (b, d, e)] == ["policy", "level", None]
    assert [row.state for row in (a, d, e)] == ["ready", "ready", "computing"]
    assert {row.block_id for row in rows.values()} == set(range(5))
    assert all(row.tiers == ("GPU",) and row.home == "" for row in rows.values())
    time[0] = 20.0
    first = cache.snapshot(order="leaving")[0]
    assert (first.block_hash, first.leaves_by, first.lifetime_left_s) == (
        tell("d")[0],
        "lifetime",
        0.0,
    )


def test_prefixes_are_ends_of_chains() -> None:
    cache = small(capacity=12)
    for names in ("abc", "abd", "x"):
        with cache.acquire(Request(hashes=tell(names))):
            pass
    found = cache.snapshot(by="prefix")
    assert [row.last.block_hash for row in found] == [*tell("x"), *tell("d"), *tell("c")]
    assert [(row.blocks, row.tokens, row.own_blocks) for row in found] == [
        (1, 4, 1),
        (3, 12, 1),
        (3, 12, 1),
    ]
    assert [row.gone_place for row in found] == [5, 2, 1]
    cache.release(cache.acquire(Request(hashes=tell("xyz"))).lease)  # type: ignore[arg-type]
    row = cache.snapshot(1, by="prefix")[0]
    assert (row.last.block_hash, row.own_blocks, row.gone_place) == (tell("z")[0], 3, 7)


def test_both_tiers_are_told_apart() -> None:
    cache = small(capacity=4, second_tier=second("through", blocks=6))
    for names in ("abc", "de", "f"):
        with cache.acquire(Request(hashes=tell(names))):
            pass
    rows = cache.snapshot()
    assert [row.tiers for row in rows] == [("GPU", "CPU")] * 4 + [("CPU",)] * 2
    assert [row.block_hash for row in rows[4:]] == [*tell("b"), *tell("c")]
    assert [row.block_id for row in rows[4:]] == [None, None]
    assert [row.place for row in rows] == [4, 3, 2, 1, None, None]
    # c was used there last when it left the first tier for d, b when it did for f.
    second_order = sorted(rows, key=lambda row: row.second_place or 0)
    assert [row.block_hash for row in second_order] == tell("cedbaf")
    assert [row.second_place for row in second_order] == [1, 2, 3, 4, 5, 6]


def test_homes_stand_beside_each_other_and_apart() -> None:
    cache = make_cache(capacity=40)
    for tenant, names in (("apart", "abc"), ("", "de"), ("other", "f")):
        with cache.acquire(Request(hashes=tell(names), tenant=tenant)):
            pass
    assert [row.home for row in cache.snapshot(order="leaving")] == ["apart", ""] * 2 + [
        "apart",
        "",
    ]
    assert [row.block_hash for row in cache.snapshot(tenant="apart")] == tell("abc")
    assert len(cache.snapshot(tenant="other")) == 3, "it shares with all that have none"


def test_a_lost_block_is_in_the_ledger_until_nobody_holds_it() -> None:
    cache = small()
    failing = cache.acquire(Request(hashes=tell("ab"))).lease
    other = cache.acquire(Request(hashes=tell("ab"))).lease
    assert failing is not None
    assert other is not None
    cache.release(failing, failed=True)
    assert [row.state for row in cache.snapshot()] == ["lost", "lost"]
    cache.release(other)
    assert len(cache.snapshot()) == 0


def test_views_for_people() -> None:
    cache = small(capacity=80)
    for names in ("[red]", "b" * 30):
        with cache.acquire(Request(hashes=tell(names), lifetime_s=5.0)) as lease:
            cache.pin(lease, "[bold]ops")
    ledger = cache.snapshot()
    console = Console(width=120, record=True)
    with console.capture() as capture:
        console.print(ledger.to_table(limit=3))
    assert "[bold]ops" in capture.get()
    assert "3 of 35 rows" in capture.get()
    assert "life s" in repr(ledger)
    assert "level" not in repr(ledger), "a column that says nothing is left out"
    assert len(repr(ledger).splitlines()) == 22
    html = ledger._repr_html_()
    assert html.count("<tr>") == 21
    assert "[bold]ops" in html
    assert repr(small().snapshot()) == "lru: 0 blocks, those kept longest first"
    assert "<caption>" in small().snapshot(by="prefix")._repr_html_()


def test_limits_and_wrong_words() -> None:
    cache = busy("lru", 1)
    whole = list(cache.snapshot())
    assert list(cache.snapshot(3)) == whole[:3]
    assert list(cache.snapshot(3, order="leaving")) == whole[::-1][:3]
    assert len(cache.snapshot(0)) == 0
    for wrong in ({"by": "tenant"}, {"order": "random"}, {"limit": -1}, {"limit": True}):
        with pytest.raises(UsageError, match="must be"):
            cache.snapshot(**wrong)  # type: ignore[arg-type]
