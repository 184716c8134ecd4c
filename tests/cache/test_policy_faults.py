"""Policies that break their contract half-way: nothing stays held, and what left is known."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest
from live_cache import admitted, cache, hits, named, serve

from kvsched.cache import KVCacheScheduler, Outcome, Tenant, TierSettings
from kvsched.cache.partition import BadVictimError
from kvsched.kernel.heap import heap_peek
from kvsched.kernel.table import NONE, Table
from kvsched.policy.base import RankedPolicy, RankedState, Setup
from kvsched.policy.lru import LRU

SWITCH: Any = np.zeros(2, np.int64)
"""Victims that are still named rightly, and what is said afterwards: 1 a bad one, 2 none."""


pytestmark = pytest.mark.usefixtures("plain")


@pytest.fixture(autouse=True)
def no_fault() -> None:
    SWITCH[:] = 0


def _victim(table: Table, state: RankedState, incoming: int, rank: int) -> int:
    if SWITCH[1] != 0:
        if SWITCH[0] == 0:
            return 0 if SWITCH[1] == 1 else NONE
        SWITCH[0] -= 1
    return heap_peek(state.heap)


def _key(table: Table, state: RankedState, node: int) -> int:
    return int(state.touched[node])


class Faulty(RankedPolicy):
    """LRU that names a bad victim, or none, once it is told to."""

    name: ClassVar[str] = "faulty"
    victim: ClassVar[Any] = staticmethod(_victim)
    key: ClassVar[Any] = staticmethod(_key)

    def prepare(self, setup: Setup) -> Any:
        return super().prepare(setup)


def sound(made: KVCacheScheduler, running: int = 0) -> None:
    made.check()
    assert len(made.leases) == running


def break_after(victims: int, how: int = 1) -> None:
    SWITCH[:] = (victims, how)


@pytest.mark.parametrize("how", [1, 2])
@pytest.mark.parametrize("after", [0, 1, 2])
def test_a_bad_victim_in_acquire(after: int, how: int) -> None:
    made = cache(6, policy=Faulty)
    # Number 0 is held: no victim.
    held = admitted(made, named(1))
    for key in range(10, 15):
        serve(made, key)
    break_after(after, how)
    with pytest.raises(BadVictimError, match="policy faulty: "):
        made.acquire(named(2, 3, 4, tokens=10))
    sound(made, 1)
    assert made.cached_blocks == 6 - after
    assert hits(made, 2) == 0
    SWITCH[:] = 0
    admitted(made, named(2, 3, 4, tokens=10))
    sound(made, 2)
    assert hits(made, 1) == 1
    assert held.lost_from is None


@pytest.mark.parametrize("how", [1, 2])
def test_a_bad_victim_in_extend(how: int) -> None:
    made = cache(6, policy=Faulty)
    lease = admitted(made, named(1))
    for key in range(10, 15):
        serve(made, key)
    break_after(1, how)
    with pytest.raises(BadVictimError):
        lease.extend(8)
    sound(made, 1)
    assert (lease.tokens, len(lease.block_ids)) == (2, 1)
    SWITCH[:] = 0
    assert lease.extend(8).outcome is Outcome.ADMIT
    sound(made, 1)


def test_a_bad_victim_of_another_tenant() -> None:
    made = cache(6, policy=Faulty, tenants={"a": Tenant(guaranteed_blocks=1)})
    admitted(made, named(1, tenant="a"))
    for key in range(10, 15):
        serve(made, key, tenant="a")
    break_after(1)
    with pytest.raises(BadVictimError):
        made.acquire(named(2, 3, 4))
    sound(made, 1)
    SWITCH[:] = 0
    admitted(made, named(2, 3, 4))
    sound(made, 2)


def test_a_bad_victim_where_what_left_was_to_be_offloaded() -> None:
    made = cache(4, policy=Faulty, second_tier=TierSettings(capacity_blocks=8))
    admitted(made, named(1))
    serve(made, 2, 3, 4)
    break_after(2)
    with pytest.raises(BadVictimError):
        made.acquire(named(5, 6, 7))
    sound(made, 1)
    SWITCH[:] = 0
    # Its moves were never given, so nothing of it is loaded.
    again = admitted(made, named(2, 3, 4))
    assert (again.hit_blocks, again.loaded_blocks) == (1, 0)
    sound(made, 2)


def test_a_bad_victim_after_another_tenant_gave() -> None:
    made = cache(
        6, policy=Faulty, second_tier=TierSettings(capacity_blocks=4),
        tenants={"a": Tenant(guaranteed_blocks=1, second_tier_blocks=4)},
    )  # fmt: skip
    admitted(made, named(1))
    serve(made, 7)
    for key in range(10, 14):
        serve(made, key, tenant="a")
    break_after(3)
    with pytest.raises(BadVictimError):
        made.acquire(named(2, 3, 4, 5))
    sound(made, 1)
    SWITCH[:] = 0
    for key in range(10, 14):
        again = admitted(made, named(key, tenant="a"))
        assert again.loaded_blocks == 0, "nobody was given the move that offloads it"
        made.release(again)
    sound(made, 1)


@pytest.mark.parametrize("how", [1, 2])
def test_a_bad_victim_below(how: int) -> None:
    made = cache(3, second_tier=TierSettings(capacity_blocks=2, policy=Faulty))
    serve(made, 1, 2, 3)
    admitted(made, named(4, 5))
    sound(made, 1)
    break_after(0, how)
    if how == 1:
        SWITCH[1] = 1
        with pytest.raises(BadVictimError):
            made.acquire(named(6))
        sound(made, 1)
    else:
        admitted(made, named(6))
        sound(made, 2)


def test_a_bad_victim_below_while_it_spills() -> None:
    made = cache(
        2, when_full="degrade", degrade="tier",
        second_tier=TierSettings(capacity_blocks=2, policy=Faulty),
    )  # fmt: skip
    serve(made, 1, 2)
    held = admitted(made, named(3, 4))
    assert [move.kind for move in held.moves] == ["offload"] * 2
    break_after(0)
    with pytest.raises(BadVictimError):
        made.acquire(named(5, 6))
    sound(made, 1)
    made.release(held)
    sound(made)
    assert made.free_blocks == 2


def test_a_bad_victim_for_one_that_waited_is_its_own() -> None:
    made = cache(4, policy=Faulty)
    # A pin keeps number 0 held.
    serve(made, 9)
    made.pin(named(9), "me")
    held = admitted(made, named(1, 2, 3))
    one, two = made.acquire(named(5, 6)).ticket, made.acquire(named(7)).ticket
    assert one is not None
    assert two is not None
    break_after(0)
    made.release(held)
    assert one.admission is not None
    assert one.admission.outcome is Outcome.REJECT
    assert one.admission.reason.startswith("policy faulty: its victim is no evictable node")
    assert two.admission is not None
    sound(made)


def test_a_policy_that_fails_in_a_batch_leaves_nothing_of_it() -> None:
    made = cache(6, policy=Faulty)
    pinned = made.pin(admitted(made, named(1)), "me")
    made.release(next(iter(made.leases.values())))
    for key in range(10, 15):
        serve(made, key)
    break_after(1)
    with pytest.raises(BadVictimError):
        made.acquire_all([named(2), named(3), named(4)])
    sound(made)
    made.unpin(pinned)
    assert made.free_blocks == 6


def test_a_lease_is_no_victim_for_a_policy_that_is_right() -> None:
    """The same calls, with LRU itself: what the tests above see is the fault."""
    made = cache(6, policy=LRU)
    admitted(made, named(1))
    for key in range(10, 15):
        serve(made, key)
    admitted(made, named(2, 3, 4, tokens=10))
    sound(made, 2)


HOOKS = ("begin", "resume", "on_hit", "on_insert", "enter", "leave", "on_evict", "on_release",
         "on_drop", "forget", "victim")  # fmt: skip
COUNT = [0]
"""Calls of a hook until it raises; below 0 it never does."""


def _raising(name: str) -> Any:
    own = LRU.live_form(LRU())
    hook = type(own).hooks()[name]

    def raising(*arguments: Any) -> Any:
        COUNT[0] -= 1
        if COUNT[0] == 0:
            raise KeyError(name)
        return hook(*arguments)

    return staticmethod(raising)


def _policy(name: str) -> Any:
    base = type(LRU().live_form())
    return type("Raising", (base,), {"name": "raising", name: _raising(name)})()


def _play(made: KVCacheScheduler, seed: int) -> int:
    """Use a cache until a hook raises; check it then, and use it on. Returns how often one did."""
    numbers = np.random.default_rng(seed)
    faults = 0
    for _ in range(60):
        keys = [int(each) for each in numbers.integers(0, 2, int(numbers.integers(1, 4)))]
        what = int(numbers.integers(0, 5))
        lease = next(iter(made.leases.values()), None)
        try:
            if lease is None or (what == 0 and len(made.leases) < 3):
                made.acquire(named(*(10 * key + at for at, key in enumerate(keys))))
            elif what == 1 and lease.outcome is Outcome.ADMIT:
                lease.extend(len(keys), hashes=None)
            elif what == 2:
                lease.fork()
            else:
                made.release(lease, failed=bool(numbers.integers(0, 3) == 0))
        except KeyError:
            faults += 1
            COUNT[0] = -1
            made.check()
    COUNT[0] = -1
    for lease in list(made.leases.values()):
        made.release(lease)
    made.check()
    assert made.free_blocks == made.capacity_blocks
    return faults


@pytest.mark.parametrize("tier", [False, True])
@pytest.mark.parametrize("name", HOOKS)
def test_a_hook_that_raises_anywhere(name: str, tier: bool) -> None:
    second = TierSettings(capacity_blocks=4) if tier else None
    faults = 0
    for at in range(1, 25):
        COUNT[0] = -1
        made = cache(
            6, policy=_policy(name), second_tier=second, when_full="reject", history_blocks=0,
            tenants={"t": Tenant(quota_blocks=3)},
        )  # fmt: skip
        COUNT[0] = at
        faults += _play(made, at)
    COUNT[0] = -1
    assert faults > 0 or name in ("on_drop", "forget")


def test_an_interrupt_in_a_hook_keeps_what_is_computed_and_held() -> None:
    made = cache(6, policy=_policy("on_insert"))
    COUNT[0] = -1
    serve(made, 1, 2)
    held = admitted(made, named(3))
    COUNT[0] = 2
    with pytest.raises(KeyError):
        made.acquire(named(1, 4, 5))
    made.check()
    assert list(made.leases.values()) == [held]
    assert (hits(made, 1, 2), hits(made, 3), hits(made, 1, 4)) == (2, 1, 1)
    COUNT[0] = -1
    assert serve(made, 1, 4, 5) == 1


def test_growth_that_breaks_off_is_not_trusted() -> None:
    made = cache(6, policy=_policy("on_insert"))
    COUNT[0] = -1
    lease = admitted(made, named(1, 2))
    COUNT[0] = 1
    with pytest.raises(KeyError):
        lease.extend(2, hashes=[3])
    COUNT[0] = -1
    made.check()
    assert lease.lost_from == 2
    made.release(lease)
    made.check()
    assert hits(made, 1, 2, 3) == 2


def test_one_that_waited_is_told_that_the_policy_failed() -> None:
    made = cache(2, policy=_policy("on_insert"))
    COUNT[0] = -1
    held = admitted(made, named(1, 2))
    ticket = made.acquire(named(3, 4)).ticket
    assert ticket is not None
    COUNT[0] = 1
    made.release(held)
    COUNT[0] = -1
    assert ticket.admission is not None
    assert ticket.admission.reason == "a policy failed: 'on_insert'"
    made.check()
    assert made.free_blocks == 2


def test_a_policy_that_cannot_learn_is_not_taken() -> None:
    made = cache(6, tenants={"t": Tenant(quota_blocks=3)})
    serve(made, 1, 2)
    serve(made, 3, 4, tenant="t")
    held = admitted(made, named(5))
    for at in range(1, 8):
        COUNT[0] = at
        with pytest.raises(KeyError):
            made.set_policy(_policy("on_insert" if at < 6 else "begin"))
        assert made.policy.name == "lru"
        made.check()
    COUNT[0] = -1
    serve(made, 6, 7)
    made.release(held)
    made.check()
