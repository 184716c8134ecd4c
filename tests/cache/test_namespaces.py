"""A namespace never sees another's blocks: salt, adapter, revision and tenant, in both tiers."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_run import BLOCK, make_cache, second

from kvsched.cache import KVCacheScheduler, Request, chain
from kvsched.cache.request import space_of
from kvsched.foundation.errors import UsageError

PARTS = ("cache_salt", "lora_name", "model_revision", "tenant")
VALUES = (None, "a", "b", "ab")
IDS = tuple(range(1, 3 * BLOCK + 1))
HASHES = tuple(bytes([value]) * 32 for value in (1, 2, 3))


def named(values: tuple[str | None, ...]) -> dict[str, Any]:
    found: dict[str, Any] = dict(zip(PARTS, values, strict=True))
    found["tenant"] = found["tenant"] or ""
    return found


def ask(by_ids: bool, blocks: int = 3, **more: Any) -> Request:
    if by_ids:
        return Request(token_ids=list(IDS[: blocks * BLOCK]), **more)
    return Request(hashes=HASHES[:blocks], **more)


def hits(cache: KVCacheScheduler, request: Request) -> int:
    """What a request hits in both tiers."""
    with cache.acquire(request) as lease:
        return lease.hit_blocks


def sees(one: dict[str, Any], two: dict[str, Any], by_ids: bool) -> bool:
    """Whether what one namespace stored is hit in another, in the first tier or the second."""
    cache = make_cache(capacity=3, tenants={}, second_tier=second(blocks=8))
    with cache.acquire(ask(by_ids, **one)):
        pass
    first = cache.lookup(ask(by_ids, **two)) > 0
    # All of it is pushed into the second tier by a third, and looked for there.
    with cache.acquire(Request(hashes=[99, 98, 97], cache_salt="third", tenant="third")):
        pass
    cache.check()
    return first or hits(cache, ask(by_ids, **two)) > 0


def pairs() -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Namespaces that differ in one part, or where two parts change places."""
    found = []
    for at, (value, other) in itertools.product(range(4), itertools.permutations(VALUES, 2)):
        one, two = [None] * 4, [None] * 4  # type: list[str | None], list[str | None]
        one[at], two[at] = value, other
        found.append((named(tuple(one)), named(tuple(two))))
    for first, later in itertools.permutations(range(4), 2):
        one, two = [None] * 4, [None] * 4
        one[first], two[later] = "a", "a"
        found.append((named(tuple(one)), named(tuple(two))))
        one, two = [None] * 4, [None] * 4
        one[first], one[later] = "a", "b"
        two[first], two[later] = "b", "a"
        found.append((named(tuple(one)), named(tuple(two))))
    return found


@pytest.mark.parametrize("by_ids", [False, True], ids=["hashes", "ids"])
def test_no_pair_sees_each_other(by_ids: bool) -> None:
    for one, two in pairs():
        assert not sees(one, two, by_ids), (one, two)


@pytest.mark.parametrize("by_ids", [False, True], ids=["hashes", "ids"])
def test_a_namespace_sees_its_own(by_ids: bool) -> None:
    for values in itertools.product((None, "a"), repeat=4):
        assert sees(named(values), named(values), by_ids)


def test_a_space_that_is_ignored_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chain, "space_of", lambda *parts: np.zeros(2, np.int64))
    assert all(sees(one, two, False) for one, two in pairs())
    # Token ids are hashed with salt, adapter and revision; a tenant is in the space alone.
    alike = [(one, two) for one, two in pairs() if sees(one, two, True)]
    assert alike == [
        (one, two)
        for one, two in pairs()
        if all(one[part] == two[part] for part in PARTS if part != "tenant")
    ]


def test_parts_that_run_together_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = named(("a", "bc", None, None)), named(("ab", "c", None, None))
    assert not sees(one, two, False)
    monkeypatch.setattr(
        chain, "space_of", lambda *parts: space_of("".join(part or "" for part in parts))
    )
    assert sees(one, two, False)


def test_tenants_share_where_they_are_not_isolated() -> None:
    cache = make_cache(tenants={}, isolate_tenants=False)
    with cache.acquire(ask(False, tenant="a")):
        pass
    assert cache.lookup(ask(False, tenant="b")) == 3 * BLOCK
    assert cache.lookup(ask(False, tenant="b", cache_salt="s")) == 0


def test_an_empty_name_is_none() -> None:
    assert sees(named(("", "", "", None)), named((None, None, None, None)), False)
    assert not sees(named(("", "a", None, None)), named(("a", "", None, None)), False)


NAMES = st.sampled_from(VALUES)
SPACE = st.tuples(NAMES, NAMES, NAMES, NAMES)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(SPACE, st.integers(1, 3), st.booleans()), min_size=1, max_size=25),
    st.booleans(),
)
def test_hits_are_those_of_the_namespace_alone(
    asked: list[tuple[tuple[str | None, ...], int, bool]], grow: bool
) -> None:
    """In a cache that holds all, each hits exactly what its own namespace asked for before."""
    cache = make_cache(capacity=400, tenants={})
    stored: dict[Any, int] = {}
    for values, blocks, by_ids in asked:
        request = ask(by_ids, blocks, **named(values))
        # Hashes that were handed in and those of token ids never meet.
        own = (values, by_ids)
        assert cache.lookup(request) == min(stored.get(own, 0), blocks) * BLOCK
        with cache.acquire(request) as lease:
            assert lease.hit_blocks == min(stored.get(own, 0), blocks)
            if grow and by_ids and blocks < 3:
                lease.extend(list(IDS[blocks * BLOCK : (blocks + 1) * BLOCK]))
            stored[own] = max(stored.get(own, 0), lease.tokens // BLOCK)
    cache.check()


@pytest.mark.parametrize("by_ids", [True, False])
def test_an_adapter_of_another_path_is_another(by_ids: bool) -> None:
    one = {"lora_name": "a", "lora_path": "here"}
    assert sees(one, one, by_ids)
    for other in ({"lora_name": "a", "lora_path": "there"}, {"lora_name": "a"}):
        assert not sees(one, other, by_ids)
        assert not sees(other, one, by_ids)
    with pytest.raises(UsageError, match="lora_path needs lora_name"):
        ask(by_ids, lora_path="here")
