"""What each tenant may use and is sure of, what is kept longer, and what is pinned."""

from __future__ import annotations

import pytest
from live_cache import admitted, cache, hits, named, serve

from kvsched.cache import Outcome, Tenant
from kvsched.foundation.errors import UsageError

pytestmark = pytest.mark.usefixtures("plain")


def test_a_quota_is_never_passed() -> None:
    made = cache(10, tenants={"q": Tenant(quota_blocks=3)})
    for key in range(0, 30, 3):
        serve(made, key, key + 1, key + 2, tenant="q")
        assert made.store.homes["q"].partition.used == 3
    lease = admitted(made, named(50, 51, tenant="q"))
    assert lease.extend(2).outcome is Outcome.ADMIT
    assert lease.extend(1).outcome is Outcome.REJECT
    made.check()


def test_idle_share_is_borrowed_and_given_back_under_pressure() -> None:
    made = cache(10, tenants={"a": Tenant(guaranteed_blocks=4), "b": Tenant(guaranteed_blocks=4)})
    for key in range(10):
        serve(made, key, tenant="a")
    used = {name: home.partition.used for name, home in made.store.homes.items()}
    assert used == {"": 0, "a": 10, "b": 0}
    for key in range(20, 24):
        serve(made, key, tenant="b")
    for key in range(30, 32):
        serve(made, key)
    # What nobody is guaranteed goes to whoever asks, until it has as much of it as others.
    used = {name: home.partition.used for name, home in made.store.homes.items()}
    assert used == {"": 1, "a": 5, "b": 4}
    # What is guaranteed is not taken, whatever others ask for.
    for key in range(40, 60):
        serve(made, key)
    used = {name: home.partition.used for name, home in made.store.homes.items()}
    assert used == {"": 1, "a": 5, "b": 4}
    assert [hits(made, key, tenant="b") for key in range(20, 24)] == [1, 1, 1, 1]


def test_what_a_borrower_runs_with_comes_back_when_it_ends() -> None:
    made = cache(6, tenants={"g": Tenant(guaranteed_blocks=4)})
    borrowed = admitted(made, named(1, 2, 3, 4, 5))
    queued = made.acquire(named(1, 2, 3, tenant="g"))
    assert queued.outcome is Outcome.QUEUE
    made.release(borrowed)
    assert queued.ticket is not None
    assert queued.ticket.admission is not None
    made.check()
    assert made.store.homes["g"].partition.used == 3
    assert hits(made, 1, 2, 3, 4, 5) == 3


def test_two_without_guarantees_share_what_is_there() -> None:
    made = cache(12, tenants={"a": Tenant(quota_blocks=12), "b": Tenant(quota_blocks=12)})
    for key in range(12):
        serve(made, key, tenant="a")
    for key in range(12):
        serve(made, key, tenant="b")
    used = [made.store.homes[name].partition.used for name in "ab"]
    assert used == [6, 6]


def test_room_for_others_counts_what_must_stay_spare() -> None:
    """A reserve is looked for in what others could give, and not taken from them."""
    made = cache(8, tenants={"a": Tenant(guaranteed_blocks=1), "b": Tenant(guaranteed_blocks=1)})
    for key in range(8):
        serve(made, key, tenant="a")
    lease = admitted(made, named(1, 2, tenant="b", reserve_tokens=4))
    made.check()
    assert lease.extend(4).outcome is Outcome.ADMIT
    assert made.store.homes["a"].partition.used == 4
    made.check()


def test_shares_that_contradict_are_refused() -> None:
    with pytest.raises(UsageError, match="guaranteed blocks come to 9"):
        cache(8, tenants={"a": Tenant(guaranteed_blocks=4), "b": Tenant(guaranteed_blocks=5)})
    with pytest.raises(UsageError, match="above quota_blocks"):
        Tenant(quota_blocks=1, guaranteed_blocks=2)


@pytest.mark.parametrize("policy", ["lru", "sieve", "gdsf"])
def test_priorities_count_in_what_is_kept(policy: str) -> None:
    made = cache(4, policy=policy)
    serve(made, 1, priority=1)
    serve(made, 2)
    serve(made, 3, priority=-1)
    serve(made, 4)
    serve(made, 5)
    assert [hits(made, key) for key in (1, 2, 3, 4, 5)] == [1, 1, 0, 1, 1]
    serve(made, 6)
    serve(made, 7)
    assert hits(made, 1) == 1
    # The highest of its users' counts, from its first release on.
    serve(made, 1, priority=-5)
    serve(made, 8)
    serve(made, 9)
    assert hits(made, 1) == 1
    made.check()


def test_a_block_stored_again_has_no_priority_of_before() -> None:
    made = cache(2)
    serve(made, 1, priority=9)
    serve(made, 2, priority=9)
    serve(made, 3, priority=10)
    serve(made, 1)
    serve(made, 4)
    assert [hits(made, key) for key in (1, 3, 4)] == [0, 1, 1]


def test_lifetimes_end() -> None:
    made = cache(8)
    serve(made, 1, 2, lifetime_s=10.0)
    serve(made, 1, 3)
    serve(made, 4, 5, lifetime_s=50.0)
    assert made.drop_expired() == 0
    made.clock.now += 20.0  # type: ignore[attr-defined]
    assert made.drop_expired() == 1
    made.check()
    assert [hits(made, 1, 2), hits(made, 1, 3), hits(made, 4, 5)] == [1, 2, 2]
    made.clock.now += 50.0  # type: ignore[attr-defined]
    assert made.drop_expired() == 2
    assert made.cached_blocks == 2
    made.check()


def test_what_has_expired_leaves_first() -> None:
    made = cache(3)
    serve(made, 1)
    serve(made, 2, lifetime_s=1.0)
    serve(made, 3)
    made.clock.now += 5.0  # type: ignore[attr-defined]
    serve(made, 4)
    assert [hits(made, key) for key in (1, 2, 3, 4)] == [1, 0, 1, 1]


def test_pins_stay_within_caps_and_belong_to_their_owner() -> None:
    made = cache(8, max_pinned_blocks=4, tenants={"t": Tenant(max_pinned_blocks=2)})
    serve(made, 1, 2, 3)
    serve(made, 1, 2, 4)
    serve(made, 5, 6, tenant="t")
    one = made.pin(named(1, 2, 3), "me")
    # Shared blocks count once.
    two = made.pin(named(1, 2, 4), "you")
    assert made.pins.blocks == 4
    with pytest.raises(UsageError, match="at most 4 blocks may be pinned"):
        made.pin(named(5, tenant="t"), "me")
    with pytest.raises(UsageError, match="nothing of it is cached"):
        made.pin(named(77), "me")
    with pytest.raises(UsageError, match="owner must be text"):
        made.pin(named(1), "")
    for key in range(10, 30):
        serve(made, key)
    assert (hits(made, 1, 2, 3), hits(made, 1, 2, 4)) == (3, 3)
    assert made.unpin("nobody") == 0
    assert made.unpin("me") == 3
    with pytest.raises(UsageError, match="is not held"):
        made.unpin(one)
    for key in range(10, 30):
        serve(made, key)
    assert (hits(made, 1, 2, 3), hits(made, 1, 2, 4)) == (2, 3)
    made.unpin(two)
    serve(made, 5, 6, tenant="t")
    made.pin(named(5, 6, tenant="t"), "me")
    with pytest.raises(UsageError, match="tenant 't' may have 2 blocks pinned"):
        made.pin(named(5, tenant="t"), "me")
    made.check()


def test_a_pin_of_what_fails_keeps_nothing() -> None:
    made = cache(4)
    lease = admitted(made, named(1, 2))
    lease.computed(2)
    pin = made.pin(lease, "me")
    made.release(lease, failed=True)
    made.check()
    assert hits(made, 1, 2) == 1
    assert made.unpin(pin) == 2
    made.check()
    assert made.cached_blocks == 1
    assert made.counters.blocks_dropped == 1


def test_an_unpin_makes_room_for_those_that_wait() -> None:
    made = cache(4, max_pinned_blocks=4)
    serve(made, 1, 2, 3)
    pin = made.pin(named(1, 2, 3), "me")
    ticket = made.acquire(named(7, 8)).ticket
    assert ticket is not None
    # Callbacks are made without the lock: another thread may use the cache in one.
    locked: list[bool] = []
    ticket.when_settled(lambda _: locked.append(made.lock._is_owned()))  # type: ignore[attr-defined]
    made.unpin(pin)
    assert ticket.admission is not None
    assert locked == [False]


def test_a_policy_that_cannot_be_taken_changes_nothing() -> None:
    made = cache(4, request_fields=(), tenants={"t": Tenant(quota_blocks=2)})
    serve(made, 1, 2)
    with pytest.raises(UsageError, match="policy priority needs `priority`"):
        made.set_policy("priority")
    assert made.policy.name == "lru"
    assert {home.partition.policy.name for home in made.store.homes.values()} == {"lru"}
    serve(made, 3, 4)
    serve(made, 5)
    made.check()
    with pytest.raises(UsageError, match="cannot run live"):
        made.set_policy("opt")
    made.set_policy("lfu")
    serve(made, 6)
    made.check()


def test_numbers_of_another_tenant_are_not_ones_own() -> None:
    """Each tenant's partition counts from 0: a lease of the other's block 1 writes none of ours."""
    made = cache(20, tenants={"a": Tenant(quota_blocks=9), "b": Tenant(quota_blocks=9)})
    mine = admitted(made, named(1, 2, tokens=3, tenant="a"))
    other = admitted(made, named(1, 2, tokens=3, tenant="b"))
    assert mine._nodes.tolist() == other._nodes.tolist()
    mine.extend(1)
    assert other.lost_from is None
    assert made.lookup(named(1, 2, tokens=3, tenant="a")) == 2, "nobody is to write it any more"
    assert made.lookup(named(1, 2, tokens=3, tenant="b")) == 3
    made.release(mine)
    made.release(other)
    made.check()
