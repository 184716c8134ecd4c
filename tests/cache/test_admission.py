"""Who runs, who waits, who runs with less, who does not run: each with its reason."""

from __future__ import annotations

from typing import Any

import pytest
from live_cache import admitted, cache, hits, named

from kvsched.cache import Admission, KVCacheScheduler, Lease, Outcome, Tenant, TierSettings

pytestmark = pytest.mark.usefixtures("plain")


def full(capacity: int = 4, **settings: Any) -> tuple[KVCacheScheduler, Lease]:
    """A cache that one request holds, but one block."""
    made = cache(capacity, **settings)
    return made, admitted(made, named(*range(100, 99 + capacity)))


def run(made: KVCacheScheduler, admission: Admission) -> None:
    assert admission.lease is not None
    made.release(admission.lease)


def told(admission: Admission) -> tuple[str, str]:
    return admission.outcome.value, admission.reason


def test_admit_and_queue_and_its_turn() -> None:
    made, held = full()
    queued = made.acquire(named(1, 2))
    assert told(queued) == ("queue", "the blocks it needs are held by others")
    assert told(made.acquire(named(3, 4))) == ("queue", "others wait before it")
    made.release(held)
    assert queued.ticket is not None
    assert queued.ticket.admission is not None
    assert told(queued.ticket.admission) == ("admit", "its turn came")
    assert made.waiting == 0
    made.check()


def test_what_fits_may_pass_those_that_wait_for_more() -> None:
    made, _ = full(tenants={"other": Tenant(weight=2.0)})
    assert told(made.acquire(named(1, 2)))[0] == "queue"
    assert told(made.acquire(named(3, tenant="other"))) == ("admit", "its turn came")
    # Within a tenant the order holds.
    assert told(made.acquire(named(5)))[0] == "queue"


@pytest.mark.parametrize(
    ("settings", "about", "reason"),
    [
        ({"when_full": "reject"}, {}, "the blocks it needs are held by others"),
        ({"max_waiting": 0}, {},
         "the queue is full: 0 wait; the blocks it needs are held by others"),
        ({"max_waiting_tokens": 3}, {},
         "the queue is full: 0 tokens wait; the blocks it needs are held by others"),
        ({}, {"deadline_s": 99.0}, "its deadline has passed"),
        ({}, {"reserve_tokens": 5},
         "it needs 2 blocks and room for 5 more tokens, and at most 4 can ever be held"),
        ({"tenants": {"t": Tenant(quota_blocks=1)}}, {"tenant": "t"},
         "it needs 2 blocks, and at most 1 can ever be held"),
        ({"tenants": {"t": Tenant(guaranteed_blocks=3)}}, {},
         "it needs 2 blocks, and 1 are left beside what others are guaranteed"),
    ],
)  # fmt: skip
def test_reject(settings: dict[str, Any], about: dict[str, Any], reason: str) -> None:
    made, _ = full(**settings)
    assert told(made.acquire(named(1, 2, **about))) == ("reject", reason)
    assert made.waiting == 0
    made.check()


def test_a_spent_quota_rejects_or_queues() -> None:
    tenants = {
        "r": Tenant(quota_blocks=2),
        "q": Tenant(quota_blocks=2, over_quota="queue"),
    }
    made = cache(8, tenants=tenants, when_full="reject")
    first = admitted(made, named(1, 2, tenant="r"))
    assert told(made.acquire(named(3, tenant="r"))) == (
        "reject", "the quota of tenant 'r' has no room now",
    )  # fmt: skip
    # What hits takes nothing more.
    admitted(made, named(1, 2, tenant="r"))
    admitted(made, named(1, 2, tenant="q"))
    queued = made.acquire(named(3, tenant="q"))
    assert told(queued) == ("queue", "the quota of tenant 'q' has no room now")
    # Others are not held up by it, nor do they wait where none is to wait.
    assert told(made.acquire(named(5, 6, 7)))[0] == "admit"
    assert told(made.acquire(named(8, 9)))[0] == "reject"
    made.release(first)
    assert made.waiting == 1


def test_one_block_too_many_of_hits_that_nobody_held() -> None:
    """Blocks that hit count when they are held from now on."""
    made = cache(8, tenants={"r": Tenant(quota_blocks=3)})
    made.release(admitted(made, named(1, 2, tenant="r")))
    admitted(made, named(9, tenant="r"))
    assert told(made.acquire(named(1, 2, 3, tenant="r"))) == (
        "reject", "the quota of tenant 'r' has no room now",
    )  # fmt: skip


def test_degrade_to_the_head_that_fits() -> None:
    made, held = full(when_full="degrade", degrade="head")
    lease = made.acquire(named(1, 2, 3, tokens=6)).lease
    assert lease is not None
    assert (lease.outcome.value, lease.reason) == (
        "degrade", "the blocks it needs are held by others: the head that fits is stored",
    )  # fmt: skip
    assert (lease.tokens, lease.prompt_blocks, len(lease.block_ids)) == (2, 3, 1)
    assert lease.extend(1).reason == "a degraded request holds no room to grow"
    made.check()
    made.release(lease)
    made.release(held)
    assert hits(made, 1, 2, 3) == 1


def test_degrade_without_storing() -> None:
    made, held = full(5, when_full="degrade", degrade="unstored")
    made.release(admitted(made, named(1)))
    lease = made.acquire(named(1, 2, 3)).lease
    assert lease is not None
    assert lease.reason == "the blocks it needs are held by others: what is missing is not stored"
    assert (lease.hit_blocks, len(lease.block_ids), lease.stored_blocks) == (1, 1, 0)
    made.release(lease)
    made.release(held)
    made.check()
    assert hits(made, 1, 2, 3) == 1


def test_degrade_to_the_tier() -> None:
    made, held = full(
        5, when_full="degrade", degrade="tier", second_tier=TierSettings(capacity_blocks=4)
    )
    made.release(admitted(made, named(1)))
    lease = made.acquire(named(1, 2, 3)).lease
    assert lease is not None
    assert lease.reason.endswith("what is missing is stored in the second tier")
    assert lease.spilled == (0, 1)
    made.check()
    made.release(lease)
    made.release(held)
    again = admitted(made, named(1, 2, 3))
    assert (again.hit_blocks, again.loaded_blocks) == (3, 2)
    assert [move.source for move in again.moves if move.kind == "load"] == [0, 1]
    made.check()


def test_oversize_is_rejected_or_degraded_in_the_middle_of_a_batch() -> None:
    for how, outcome in (("reject", "reject"), ("degrade", "degrade")):
        made = cache(4, when_oversize=how)
        found = made.acquire_all([named(1), named(*range(10, 17)), named(2)])
        assert [each.outcome.value for each in found][1] == outcome
        assert "it needs 7 blocks, and at most 4 can ever be held" in found[1].reason
        made.check()


def test_the_reserve_is_kept_when_it_is_admitted() -> None:
    made = cache(4)
    held = admitted(made, named(1, reserve_tokens=6))
    # It fits beside, though not with what it may add itself.
    assert told(made.acquire(named(2, 3, reserve_tokens=3)))[0] == "queue"
    made.release(held)
    assert made.waiting == 0


@pytest.mark.parametrize(("tokens", "keys"), [(3, 1), (3, 2), (4, 2), (1, 0)])
def test_a_reserve_that_fits_an_empty_cache_is_admitted(tokens: int, keys: int) -> None:
    """Else it would wait for ever, and all others behind it."""
    for capacity in range(1, 6):
        for reserve in range(8):
            made = cache(capacity)
            request = named(*range(keys), tokens=tokens, reserve_tokens=reserve)
            outcome = made.acquire(request).outcome
            named_whole = tokens % 2 == 1 and keys == (tokens + 1) // 2
            most = (tokens + reserve + 1) // 2 + (named_whole and reserve > 0)
            assert outcome is (Outcome.ADMIT if most <= capacity else Outcome.REJECT)
            if outcome is Outcome.ADMIT:
                (lease,) = made.leases.values()
                lease.computed(tokens)
                assert lease.extend(reserve).outcome is Outcome.ADMIT


def test_the_watermark_holds_while_others_run() -> None:
    made = cache(10, watermark=0.3)
    first = admitted(made, named(*range(10)))
    made.release(first)
    held = admitted(made, named(1, 2))
    assert told(made.acquire(named(*range(20, 26))))[0] == "queue"
    made.release(held)
    assert made.waiting == 0


def order_of(made: KVCacheScheduler, held: Lease, *requests: Any) -> list[str]:
    """Queue requests, make room, and return the order in which they ran."""
    ran: list[str] = []
    for request in requests:
        ticket = made.acquire(request).ticket
        assert ticket is not None

        def tell(admission: Admission, name: str = request.id) -> None:
            ran.append(name)
            run(made, admission)

        ticket.when_settled(tell)
    made.release(held)
    made.check()
    return ran


def test_priority_then_deadline_then_arrival() -> None:
    made, held = full(4)
    keys = iter(range(4))
    ran = order_of(
        made, held,
        *(named(next(keys), 50, 51, 52, id=name, **about) for name, about in (
            ("late", {}), ("later", {}), ("due", {"deadline_s": 500.0}),
            ("high", {"priority": 1}),
        )),
    )  # fmt: skip
    assert ran == ["high", "due", "late", "later"]


def test_tenants_take_turns_by_weight() -> None:
    made, held = full(4, tenants={"heavy": Tenant(weight=2.0), "light": Tenant(weight=1.0)})
    ran = order_of(
        made, held,
        *(named(*(100 * at + each for each in range(4)), id=tenant[0], tenant=tenant)
          for at, tenant in enumerate(["heavy"] * 12 + ["light"] * 6)),
    )  # fmt: skip
    for upto in range(3, 18):
        heavy = ran[:upto].count("h")
        assert abs(heavy - 2 * (upto - heavy)) <= 3, ran


def test_a_big_request_is_not_starved_by_small_ones() -> None:
    made, held = full(4, max_passes=5)
    big = made.acquire(named(1, 2, 3, 4, id="big")).ticket
    assert big is not None
    running = [held]
    passed = 0
    for key in range(1_000, 1_050):
        admission = made.acquire(named(key, priority=9))
        if admission.lease is not None:
            running.append(admission.lease)
            passed += 1
        if running:
            made.release(running.pop(0))
        if big.admission is not None:
            break
    assert big.admission is not None
    assert big.admission.outcome is Outcome.ADMIT
    assert 5 <= passed <= 8


def test_without_a_limit_of_passes_it_would_be() -> None:
    made, held = full(4, max_passes=10_000)
    big = made.acquire(named(1, 2, 3, 4)).ticket
    assert big is not None
    running = [held]
    for key in range(1_000, 1_050):
        admission = made.acquire(named(key, priority=9))
        assert admission.lease is not None
        running.append(admission.lease)
        made.release(running.pop(0))
    assert big.admission is None


def test_a_tenant_over_its_quota_holds_up_nobody_but_itself() -> None:
    made = cache(8, max_passes=0, tenants={"q": Tenant(quota_blocks=2, over_quota="queue")})
    admitted(made, named(1, 2, tenant="q"))
    ticket = made.acquire(named(3, 4, tenant="q")).ticket
    assert ticket is not None
    for key in range(10, 20):
        admission = made.acquire(named(key))
        assert admission.lease is not None, admission
        made.release(admission.lease)
    assert ticket.admission is None


def test_a_request_that_can_only_borrow_does_not_wait_for_ever() -> None:
    made = cache(4, tenants={"g": Tenant(guaranteed_blocks=2)})
    # While the share is not used it can be lent.
    made.release(admitted(made, named(1, 2, 3, 4)))
    made.release(admitted(made, named(5, 6, tenant="g")))
    # Cached blocks of the guaranteed are never given, so this would wait for nothing.
    assert told(made.acquire(named(7, 8, 9))) == (
        "reject", "it needs 3 blocks, and 2 are left beside what others are guaranteed",
    )  # fmt: skip
    assert told(made.acquire(named(7, 8)))[0] == "admit"


def test_deadlines_pass_while_they_wait() -> None:
    made, held = full()
    ticket = made.acquire(named(1, 2, deadline_s=105.0)).ticket
    after = made.acquire(named(3, 4)).ticket
    assert ticket is not None
    assert after is not None
    made.clock.now = 105.0  # type: ignore[attr-defined]
    assert made.poll() == []
    made.clock.now = 106.0  # type: ignore[attr-defined]
    (settled,) = made.poll()
    assert settled is ticket.admission
    assert told(settled) == ("reject", "its deadline has passed")
    made.release(held)
    assert after.admission is not None
    made.check()


def test_who_leaves_the_list_lets_others_go() -> None:
    made, _ = full(4, max_passes=0)
    big = made.acquire(named(1, 2, 3, 4)).ticket
    assert big is not None
    small = made.acquire(named(9)).ticket
    assert small is not None
    assert big.cancel()
    assert small.admission is not None
    assert not big.cancel()
    assert not small.cancel()
    made.check()


def test_lines_of_tenants_are_forgotten() -> None:
    made, _ = full(4)
    made.acquire(named(1, 2, 3, 4))
    for number in range(900):
        admission = made.acquire(named(7, tenant=f"t{number}"))
        assert admission.lease is not None
        made.release(admission.lease)
    assert len(made.gate.waiting._lines) < 200
    cancelled = [made.acquire(named(5, 6, tenant=f"u{number}")).ticket for number in range(500)]
    for ticket in cancelled:
        assert ticket is not None
        assert ticket.cancel()
    waiting = made.gate.waiting
    assert len(waiting._order) + len(waiting._deadlines) + len(waiting._lines) < 300
    assert len(waiting) == 1
