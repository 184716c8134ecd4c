"""Broken versions that take a particular turn of events: each fails the test that makes it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import test_admission
import test_leases
import test_policy_faults
import test_second_tier
import test_tenants
import test_waiting
from test_machine_can_fail import Mutant, break_it

from kvsched.cache import (
    admission,
    blocks,
    departures,
    eviction,
    kernel,
    lease,
    names,
    outbox,
    partition,
    second,
    serving,
    waiting,
)

CASES: dict[str, tuple[Mutant, Callable[[], None]]] = {
    "what left last is reused before what left first": (
        (names, "unname", "link_behind(names.idle, node, above)", "rest(live, above)"),
        test_leases.test_events_name_what_left_where_no_name_comes_again,
    ),
    "whoever stored the same second says that it is computed": (
        (
            blocks.BlockManager,
            "end",
            "ready[others[partition.live.locks[others] > 0]] = COMPUTING",
            "pass",
        ),
        test_leases.test_the_same_generated_twice_has_two_blocks_and_one_name,
    ),
    "a copy that failed is trusted": (
        (blocks.BlockManager, "distrust", "lease.lost_from = place", "pass"),
        test_second_tier.test_a_copy_that_fails_is_not_trusted,
    ),
    "what a request copied is lost with it": (
        (blocks.BlockManager, "first_uncomputed", " and at not in lease._own", ""),
        test_leases.test_who_copied_what_another_stored_takes_nothing_along_when_it_fails,
    ),
    "a lost block stays when its pin ends": (
        (eviction, "let_go", " and live.ready[node] != LOST", ""),
        test_tenants.test_a_pin_of_what_fails_keeps_nothing,
    ),
    "numbers of another tenant are one's own": (
        (lease.Lease, "holds", "self._home is home and ", ""),
        test_tenants.test_numbers_of_another_tenant_are_not_ones_own,
    ),
    "low priorities are like none": (
        (kernel, "_release", "live.expires[node] == UNSET", "False"),
        lambda: test_tenants.test_priorities_count_in_what_is_kept("lru"),
    ),
    "a cancelled request leaves others waiting": (
        (serving.Serving, "cancel", "self._pumped() if removed else []", "[]"),
        test_admission.test_who_leaves_the_list_lets_others_go,
    ),
    "a reserve is rounded up beside the prompt": (
        (admission.Gate, "_growth", "+ copied", "+ copied + 1"),
        lambda: test_admission.test_a_reserve_that_fits_an_empty_cache_is_admitted(3, 1),
    ),
    "what a copy takes is not reserved": (
        (admission.Gate, "_growth", "+ copied", ""),
        lambda: test_admission.test_a_reserve_that_fits_an_empty_cache_is_admitted(3, 2),
    ),
    "a request that can only borrow waits for ever": (
        (admission.Gate, "_fresh", "> self.cache.store.sure(home)", "> 10**9"),
        test_admission.test_a_request_that_can_only_borrow_does_not_wait_for_ever,
    ),
    "a tenant over its quota holds up all": (
        (admission.Gate, "_next", "settled is not None or not own", "True"),
        test_admission.test_a_tenant_over_its_quota_holds_up_nobody_but_itself,
    ),
    "big requests starve": (
        (waiting.WaitingList, "starved", "<= self.most_passes", "<= 10**9"),
        test_admission.test_a_big_request_is_not_starved_by_small_ones,
    ),
    "weights are ignored": (
        (waiting.WaitingList, "admitted", " / line.weight", ""),
        test_admission.test_tenants_take_turns_by_weight,
    ),
    "lines of tenants stay": (
        (waiting.WaitingList, "remove", "2 * len(self._waiting) + 64", "10**9"),
        test_admission.test_lines_of_tenants_are_forgotten,
    ),
    "who would load what failed does": (
        (outbox.Outbox, "_forget", "loads & wrong", "False"),
        test_waiting.test_what_a_failed_batch_was_to_write_is_not_loaded_by_those_behind_it,
    ),
    "callbacks nest": (
        (outbox.Calls, "make", "queue is not None", "False"),
        test_waiting.test_callbacks_that_release_do_not_nest,
    ),
    "what a policy's fault left taken is not given back": (
        (partition.Partition, "take", "self.fail(", "(lambda *_: None)("),
        lambda: test_policy_faults.test_a_bad_victim_in_extend(1),
    ),
    "offloads that nobody was given count": (
        (departures.Departures, "take_back", "self.discard(moves, now)", "pass"),
        test_policy_faults.test_a_bad_victim_after_another_tenant_gave,
    ),
    "what a failed request spilled stays": (
        (second.SecondTier, "end_spill", "if written:", "if True:"),
        test_second_tier.test_spilled_blocks_of_a_failure_are_dropped,
    ),
}


@pytest.mark.parametrize("what", CASES)
def test_a_broken_cache_fails(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant, test = CASES[what]
    test_policy_faults.SWITCH[:] = 0
    monkeypatch.setenv("KVSCHED_COMPILED", "0")
    test()
    test_policy_faults.SWITCH[:] = 0
    break_it(monkeypatch, mutant)
    with pytest.raises(BaseException):  # noqa: B017, PT011  # whatever shows a fault
        test()
