"""What an explanation says of a prefix is what then happens, and reads as sentences."""

from __future__ import annotations

import dataclasses
import itertools
import re
from typing import Any

import pytest
from random_run import BLOCK, Run, hash_of, hashes_of, make_cache, second

from kvsched.cache import KVCacheScheduler, Outcome, Request, Tenant, explain
from kvsched.cache.explain import Explanation
from kvsched.foundation.errors import UsageError
from kvsched.policy.registry import built_in, find

pytestmark = pytest.mark.usefixtures("plain")

POLICIES = [name for name in built_in() if not find(name).looks_ahead]


def chain(names: str) -> list[bytes]:
    return [name.encode() * 8 for name in names]


def small(policy: str = "lru", **settings: Any) -> KVCacheScheduler:
    return make_cache(policy, tenants={}, **settings)


def use(cache: KVCacheScheduler, names: str, **more: Any) -> None:
    with cache.acquire(Request(hashes=chain(names), **more)):
        pass


def busy(policy: str, seed: int) -> tuple[KVCacheScheduler, Run]:
    cache = small(policy, capacity=20)
    run = Run(cache, seed, tenants=("",), spaces=({},))
    run.steps(120)
    while len(run.leases) > 1 and run.draw.random() < 0.9:
        run._release()
    cache.time[0] += 6.0  # type: ignore[attr-defined]
    return cache, run


def stored_when_it_left(cache: KVCacheScheduler, request: Request, hits: int) -> int | None:
    """Store prompts of one block until a prefix hits less; how many, or None if it never does."""
    for number in itertools.count(1):
        admission = cache.acquire(Request(hashes=[hash_of((9, number))]))
        if admission.lease is None:
            return None
        if cache.lookup(request) < hits * BLOCK:
            return number
    raise AssertionError


@pytest.mark.parametrize("policy", POLICIES)
def test_a_prefix_leaves_when_it_is_said(policy: str) -> None:
    left = stays = 0
    for seed in range(4):
        cache, run = busy(policy, seed)
        paths = sorted({path for path, _, _ in run.asked})
        for path in run.draw.sample(paths, 4):
            cache, _ = busy(policy, seed)
            said = cache.explain(hashes_of(path))
            request = Request(hashes=hashes_of(path))
            assert said.cached_tokens == cache.lookup(request)
            if not said.cached_blocks:
                assert said.standing == "missing"
                continue
            if policy == "wild" and said.leaves_at is not None:
                # It learns from each prompt: see the ledger.
                continue
            when = stored_when_it_left(cache, request, said.cached_blocks)
            assert when == said.leaves_at
            left += when is not None
            stays += when is None
    assert left > 0 or policy == "wild"
    assert left + stays > 0


def test_a_wrong_explanation_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    real = explain.copy_page

    def shifted(*given: Any) -> Any:
        def turn() -> Any:
            page = real(*given)()
            order = page.first.order._replace(free=page.first.order.free + 1)
            return page._replace(first=page.first._replace(order=order))

        return turn

    monkeypatch.setattr(explain, "copy_page", shifted)
    with pytest.raises(AssertionError):
        test_a_prefix_leaves_when_it_is_said("lru")


def test_where_a_prefix_stands() -> None:
    cache = small(capacity=12)
    use(cache, "abc")
    use(cache, "abd")
    assert cache.explain(chain("xy")).standing == "missing"
    assert cache.explain(chain("abc")).standing == "evictable"
    found = cache.explain(chain("ab"))
    assert (found.standing, found.deepest and found.deepest.children) == ("inner", 2)
    lease = cache.acquire(Request(hashes=chain("abd"))).lease
    assert lease is not None
    assert cache.explain(chain("abd")).standing == "held"
    assert cache.explain(chain("ab")).standing == "held"
    pin = cache.pin(lease, "ops")
    found = cache.explain(chain("abd"))
    assert "held by 1 lease and pinned by ops: it cannot leave" in str(found)
    cache.release(lease)
    assert cache.explain(chain("abd")).standing == "pinned"
    cache.unpin(pin)
    assert cache.explain(chain("abd")).standing == "evictable"


def test_before_are_those_that_leave_first() -> None:
    cache = small(capacity=10)
    for names in ("a", "b", "c", "d", "e", "f", "g"):
        use(cache, names)
    said = cache.explain(chain("g"))
    assert [row.block_hash for row in said.before] == chain("abcde")
    assert (said.blocks_before, said.leaves_at, said.lends) == (6, 10, False)
    assert cache.explain(chain("a")).before == ()
    assert "It is the next to leave. It leaves when 4 blocks" in str(cache.explain(chain("a")))
    tenants = {"apart": Tenant(quota_blocks=6)}
    assert make_cache(tenants=tenants).explain(chain("a")).lends


def test_ranked_policies_say_their_key() -> None:
    lfu = small("lfu")
    use(lfu, "a")
    use(lfu, "a")
    said = lfu.explain(chain("a"))
    assert said.key == 2
    assert "orders it by 2" in str(said)
    chapter = small("chapter")
    use(chapter, "a")
    key = chapter.explain(chain("a")).key
    assert key == pytest.approx(1 + 0.5 - 0.25 / 16)
    queue = small("s3fifo")
    use(queue, "a")
    said = queue.explain(chain("a"))
    assert (said.key, said.rank) == (None, None)
    assert "no single number" in str(said)


def test_keys_order_as_blocks_leave() -> None:
    for policy in ("lru", "lfu", "gdsf", "slru", "decay"):
        cache = small(policy)
        draw = Run(cache, 5).draw
        for at in range(40):
            cache.time[0] = float(at)  # type: ignore[attr-defined]
            use(cache, draw.choice("abcdefg"))
        rows = cache.snapshot(order="leaving")
        said = [cache.explain([row.block_hash]) for row in rows]  # type: ignore[list-item]
        keys = [(each.key, each.rank) for each in said]
        assert keys == sorted(keys)  # type: ignore[type-var]
        assert len({each.rank for each in said}) == len(said)


def test_levels_and_lifetimes_are_said() -> None:
    cache = small()
    use(cache, "a", priority=2, lifetime_s=10.0)
    use(cache, "b", priority=-1)
    cache.time[0] = 4.0  # type: ignore[attr-defined]
    said = str(cache.explain(chain("a")))
    assert "Its level is 2: it leaves when nothing of a lower level can." in said
    assert "Its lifetime has 6 s left." in said
    assert "Its level is -1: it leaves before all of level 0." in str(cache.explain(chain("b")))
    cache.time[0] = 11.0  # type: ignore[attr-defined]
    said = str(cache.explain(chain("a")))
    assert "Its lifetime is over" in said
    assert "It is the next to leave." in said
    assert "(lifetime)" in str(cache.explain(chain("b")))


def test_what_is_missing_is_known_or_not() -> None:
    cache = small(capacity=2, history_blocks=2)
    use(cache, "ab")
    cache.time[0] = 3.0  # type: ignore[attr-defined]
    use(cache, "cd")
    said = cache.explain(chain("abx"))
    missing = said.missing
    assert missing is not None
    assert (missing.depth, missing.known, missing.uses, missing.idle_s) == (0, True, 1, 3.0)
    assert (missing.left_s, missing.left_by) == (None, None)
    assert "its number is still known: 1 request used it before it left, the last 3 s ago" in str(
        said
    )
    use(cache, "ef")
    use(cache, "gh")
    missing = cache.explain(chain("ab")).missing
    assert missing is not None
    assert not missing.known
    assert "never stored, or is forgotten" in str(cache.explain(chain("ab")))
    assert cache.explain(chain("gh")).missing is None


def test_the_second_tier_is_counted() -> None:
    cache = small(capacity=3, second_tier=second(blocks=8))
    use(cache, "abc")
    use(cache, "d")
    said = cache.explain(chain("abcx"))
    assert (said.cached_blocks, said.second_blocks) == (2, 1)
    assert "2 of 4 blocks are in the first tier" in str(said)
    assert "the second tier has 1 more behind them" in str(said)
    assert said.missing is not None
    assert said.missing.depth == 3


def test_requests_are_taken_as_they_are_and_nothing_changes() -> None:
    cache = small()
    ids = list(range(10))
    with cache.acquire(Request(token_ids=ids, cache_salt="s")):
        pass
    metrics = cache.metrics()
    cache.take_events()
    said = cache.explain(Request(token_ids=ids, cache_salt="s"))
    assert (said.blocks, said.tokens, said.cached_blocks, said.cached_tokens) == (2, 10, 2, 8)
    assert cache.explain(Request(token_ids=ids)).cached_blocks == 0
    assert "no full block" in str(cache.explain(Request(token_ids=[1])))
    assert (cache.metrics(), cache.take_events()) == (metrics, [])
    with pytest.raises(UsageError, match="hash"):
        cache.explain(["text"])  # type: ignore[list-item]


def test_views_for_people() -> None:
    cache = small()
    use(cache, "abc")
    said = cache.explain(chain("abcd"))
    assert "<caption>lru: why a prefix is kept</caption>" in said._repr_html_()
    assert "missing" in cache.explain(chain("x"))._repr_html_()
    for line in str(said).splitlines():
        assert re.fullmatch(r"[A-Z0-9].*\.", line), line
        assert not re.search(r"  |,,|\.\.|None|True|False", line), line
    assert {field.name for field in dataclasses.fields(Explanation)} >= {"key", "before", "missing"}
    assert cache.acquire(Request(hashes=chain("abc"))).outcome is Outcome.ADMIT
