"""Admission in simulated time: by hand, what it promises, and what a broken rule would do."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
from factory import make_trace
from hypothesis import given
from hypothesis import settings as given_settings
from hypothesis import strategies as st
from serving import COST, dated, limits, plain, same, settings
from stepping import Stepping, check_moments

from kvsched.foundation.errors import UsageError
from kvsched.serve.admission import (
    ADMISSION,
    DEGRADE_ABOVE,
    MAX_WAITING,
    PAUSE_ABOVE,
    PAUSED,
    AdmissionSettings,
)
from kvsched.serve.asked import DEADLINE, QUEUE_FULL, QUEUE_TOKENS, REASONS, WAITED
from kvsched.serve.cost import linear_cost
from kvsched.serve.result import Simulation
from kvsched.serve.settings import Settings
from kvsched.serve.simulate import simulate
from kvsched.serve.state import FREE_BLOCKS, STEPS, State
from kvsched.serve.swap import SwapSettings
from kvsched.trace.model import Trace

STEP = linear_cost(1.0)
ONE_SEAT = Settings(num_gpu_blocks=100, max_num_seqs=1, max_num_batched_tokens=64)


def run(trace: Trace, told: Settings, limits: AdmissionSettings | None, **more: Any) -> Simulation:
    options = {"cost": STEP, "step_log": True, "compiled": False} | more
    return simulate(trace, told, admission=limits, **options)


def test_limit_on_requests_by_hand() -> None:
    trace = plain([(1, 5)] * 4)
    found = run(trace, ONE_SEAT, AdmissionSettings(max_waiting=2))
    assert found.reason.tolist() == [0, 0, 0, QUEUE_FULL]
    assert found.finished_s[:3].tolist() == [5, 10, 15]
    assert found.rejected_s[3] == 0
    assert np.isnan(found.rejected_s[:3]).all()
    none = run(trace, ONE_SEAT, AdmissionSettings(max_waiting=0))
    assert none.reason.tolist() == [0, *[QUEUE_FULL] * 3], "who is admitted at once never waits"
    assert none.summary()["rejected_because"] == {REASONS[QUEUE_FULL]: 3}


def test_a_request_is_decided_on_in_the_first_step_after_it_came() -> None:
    # The second comes while the first step runs, and is told when the next starts.
    trace = plain([(1, 5), (1, 5), (1, 5)], [0, 0, 7])
    trace = dataclasses.replace(trace, time_s=np.array([0, 0.5, 5.0]))
    found = run(trace, ONE_SEAT, AdmissionSettings(max_waiting=0))
    assert found.reason.tolist() == [0, QUEUE_FULL, 0]
    assert found.rejected_s[1] == 1
    assert found.scheduled_s[2] == 5, "the seat is free from 5 s on"


def test_limit_on_tokens_by_hand() -> None:
    found = run(
        plain([(1, 5), (2, 5), (3, 5), (1, 5)]), ONE_SEAT, AdmissionSettings(max_waiting_tokens=48)
    )
    assert found.reason.tolist() == [0, 0, QUEUE_TOKENS, 0], "a smaller one behind it may wait"


def test_limit_on_waiting_time_by_hand() -> None:
    trace = plain([(1, 5)] * 3)
    found = run(trace, ONE_SEAT, AdmissionSettings(max_queue_s=7))
    assert found.reason.tolist() == [0, 0, WAITED]
    assert found.rejected_s[2] == 8, "the first step that starts later than 7 s"
    edge = run(trace, ONE_SEAT, AdmissionSettings(max_queue_s=5))
    assert edge.finished.tolist() == [True, True, False], "5 s are not more than 5 s"
    assert edge.rejected_s[2] == 6


def test_deadlines_by_hand() -> None:
    trace = plain([(1, 5)] * 4, [1, 0, 0, 0])
    late = dataclasses.replace(trace, deadline_s=np.array([0.5, np.nan, 4.0, 100.0]))
    found = run(late, ONE_SEAT, AdmissionSettings(deadlines=True))
    assert found.reason.tolist() == [DEADLINE, 0, DEADLINE, 0]
    assert found.rejected_s[[0, 2]].tolist() == [0, 4], "the clock starts at the first request"
    assert found.finished_s[[1, 3]].tolist() == [5, 10]
    both = run(late, ONE_SEAT, AdmissionSettings(deadlines=True, max_queue_s=3.5))
    assert both.reason.tolist() == [DEADLINE, 0, DEADLINE, WAITED]
    assert run(late, ONE_SEAT, AdmissionSettings()).finished.all()
    with pytest.raises(UsageError, match="needs a column of the trace: deadline_s"):
        run(trace, ONE_SEAT, AdmissionSettings(deadlines=True))


# Prompts of 3 blocks, of 10: two are admitted. The first ends after 2 steps, the second after 5.
PRESSED = plain([(3, 2), (3, 5), (3, 2)])
TEN = Settings(num_gpu_blocks=10, max_num_seqs=8, max_num_batched_tokens=200)


def test_pause_by_hand() -> None:
    assert run(PRESSED, TEN, None).scheduled_s.tolist() == [0, 0, 0]
    # 6 of 10 blocks are used after two requests, 4 when one has ended, and then none.
    at_once = run(PRESSED, TEN, AdmissionSettings(pause_above=0.5))
    assert at_once.scheduled_s.tolist() == [0, 0, 2]
    assert at_once.summary()["paused_steps"] == 2
    later = run(PRESSED, TEN, AdmissionSettings(pause_above=0.5, resume_below=0.3))
    assert later.scheduled_s.tolist() == [0, 0, 5]
    assert later.summary()["paused_steps"] == 5
    edge = run(PRESSED, TEN, AdmissionSettings(pause_above=0.6, resume_below=0.3))
    assert edge.scheduled_s.tolist() == [0, 0, 0], "6 of 10 are not above 0.6"


def test_the_end_of_a_pause_is_seen_in_a_jump() -> None:
    # 4 blocks are used from 2 s on, and 5 from 17 s on: the pause is over before the third comes.
    trace = plain([(3, 2), (3, 60), (1, 2)], [0, 0, 30])
    limits = AdmissionSettings(pause_above=0.5, resume_below=0.45)
    for jumps in (True, False):
        found = run(trace, TEN, limits, jumps=jumps)
        assert found.scheduled_s.tolist() == [0, 0, 30]
        assert (found.jumped_steps > 0) is jumps


def test_a_pause_is_jumped_over() -> None:
    found = run(plain([(6, 40), (1, 2)]), TEN, AdmissionSettings(pause_above=0.5))
    assert found.scheduled_s.tolist() == [0, 40]
    assert found.summary()["paused_steps"] == 40
    assert found.jumped_steps > 20


def test_who_is_behind_one_that_waited_too_long_is_admitted_at_once() -> None:
    # The second lacks memory and is rejected at 3 s; the third may wait until 3.5 s.
    trace = plain([(3, 60), (9, 2), (1, 2)])
    trace = dataclasses.replace(trace, time_s=np.array([0, 0, 1.0]))
    for jumps in (True, False):
        found = run(trace, TEN, AdmissionSettings(max_queue_s=2.5), jumps=jumps)
        assert found.rejected_s[1] == 3
        assert found.scheduled_s[2] == 3


def test_degraded_requests_are_not_stored() -> None:
    # The first holds its blocks while the second comes; the third and the fourth ask them again.
    one, two = (1, 2, 3), (4, 5, 6)
    trace = make_trace([one, two, one, two], [0, 0, 50, 50], [1] * 4)
    trace = dataclasses.replace(trace, output_tokens=np.array([30, 30, 1, 1]))
    told = Settings(num_gpu_blocks=20, max_num_seqs=8, max_num_batched_tokens=200)
    limits = AdmissionSettings(degrade="unstored", degrade_above=0.1)
    for policy in (None, "lru"):
        stored = run(trace, told, None, policy=policy)
        assert stored.hit_tokens.tolist() == [0, 0, 48, 48]
        found = run(trace, told, limits, policy=policy)
        assert found.degraded.tolist() == [False, True, False, False]
        assert found.hit_tokens.tolist() == [0, 0, 48, 0]
        assert found.summary()["degraded"] == 1
        assert (found.finished_s == stored.finished_s).all()
    never = dataclasses.replace(limits, degrade_above=1.0)
    assert not run(trace, told, never).degraded.any()


def test_a_degraded_request_hits_what_others_stored() -> None:
    trace = make_trace([(1, 2, 3), (7, 8), (1, 2, 3)], [0, 50, 0], [1] * 3)
    told = Settings(num_gpu_blocks=20, max_num_seqs=8, max_num_batched_tokens=200)
    limits = AdmissionSettings(degrade="unstored", degrade_above=0.05)
    for policy in (None, "lru"):
        found = run(trace, told, limits, policy=policy)
        assert found.degraded.tolist() == [False, False, True]
        assert found.hit_tokens.tolist() == [0, 0, 48]


SWAPS = st.none() | st.builds(SwapSettings, st.integers(0, 20), st.just(1), st.just(2.0))


@given_settings(max_examples=80)
@given(dated(), settings(), limits(), SWAPS, st.sampled_from([None, "lru"]))
def test_every_step_is_sound(
    trace: Trace, told: Settings, given_limits: AdmissionSettings, swap: Any, policy: str | None
) -> None:
    Stepping(trace, told, STEP, given_limits, swap, policy).run()


@given_settings(max_examples=100)
@given(dated(), settings(), limits(), st.sampled_from(["fcfs", "priority"]), st.booleans())
def test_limits_hold(
    trace: Trace, told: Settings, given_limits: AdmissionSettings, order: str, ends: bool
) -> None:
    horizon = 40.0 if ends else None
    found = run(trace, told, given_limits, order=order, horizon_s=horizon)
    check_moments(found)
    if horizon is None:
        assert found.summary()["unfinished"] == 0


@given_settings(max_examples=100)
@given(
    dated(), settings(), limits(), SWAPS, st.sampled_from(["fcfs", "priority"]),
    st.none() | st.integers(1, 5), st.sampled_from([None, "lru"]),
)  # fmt: skip
def test_jumps_change_nothing(
    trace: Trace, told: Settings, given_limits: AdmissionSettings, swap: Any, order: str,
    concurrency: int | None, policy: str | None,
) -> None:  # fmt: skip
    more = {"cost": COST, "order": order, "concurrency": concurrency, "swap": swap}
    one = run(trace, told, given_limits, policy=policy, **more)
    other = run(trace, told, given_limits, policy=policy, jumps=False, **more)
    assert same(one, other)
    assert np.array_equal(one.rejected_s, other.rejected_s, equal_nan=True)
    assert (one.degraded == other.degraded).all()
    if concurrency is not None:
        total = one.summary()
        assert total["finished"] + total["rejected"] == total["requests"]


@given_settings(max_examples=40)
@given(dated(), settings())
def test_without_limits_nothing_changes(trace: Trace, told: Settings) -> None:
    assert same(run(trace, told, AdmissionSettings()), run(trace, told, None))


BUSY = plain([(1, 60), (2, 80), (3, 40), (1, 90)] * 5, [0, 1, 3, 1] * 5)
BUSY_SETTINGS = Settings(
    num_gpu_blocks=12, max_num_seqs=8, max_num_batched_tokens=64, enable_prefix_caching=False
)
LIMITS = AdmissionSettings(
    max_waiting=3, max_waiting_tokens=80, max_queue_s=100.0, degrade="unstored",
    degrade_above=0.3, pause_above=0.7, resume_below=0.4,
)  # fmt: skip


def no_hysteresis(state: State) -> bool:
    used = state.capacity[0] - state.counts[FREE_BLOCKS]
    state.gate.counts[PAUSED] = used > state.gate.marks[PAUSE_ABOVE]
    return bool(state.gate.counts[PAUSED])


def never_paused(state: State) -> bool:
    return False


def nobody(state: State, now: float) -> int:
    return -1


def one_too_many(state: State, now: float) -> int:
    state.gate.limits[MAX_WAITING] = 4
    return int(OVER_LIMIT(state, now))


def at_the_first(state: State, now: float) -> int:
    state.gate.limits[MAX_WAITING] = 2
    return int(OVER_LIMIT(state, now))


def in_no_hurry(state: State, now: float) -> int:
    return int(OVERDUE(state, now)) if state.counts[STEPS] % 8 == 0 else -1


def still_waits(state: State, request: int) -> None:
    if state.capacity[0] - state.counts[FREE_BLOCKS] > state.gate.marks[DEGRADE_ABOVE]:
        state.gate.unstored[request] = 1


OVER_LIMIT = ADMISSION["over_limit"]
OVERDUE = ADMISSION["overdue"]
BROKEN = {
    "it resumes at once": {"is_paused": no_hysteresis},
    "it never pauses": {"is_paused": never_paused},
    "nobody is refused": {"over_limit": nobody},
    "one too many waits": {"over_limit": one_too_many},
    "one too few waits": {"over_limit": at_the_first},
    "nobody waits for too long": {"overdue": nobody},
    "who waits for too long is told later": {"overdue": in_no_hurry},
    "who is admitted still counts as waiting": {"on_admit": still_waits},
}


def check_all(limits_: AdmissionSettings) -> None:
    Stepping(BUSY, BUSY_SETTINGS, STEP, limits_).run()
    check_moments(run(BUSY, BUSY_SETTINGS, limits_))


def test_the_workload_reaches_every_limit() -> None:
    check_all(LIMITS)
    found = run(BUSY, BUSY_SETTINGS, LIMITS)
    assert found.summary()["paused_steps"] > 50
    assert found.summary()["degraded"] > 3
    assert set(found.reason.tolist()) == {0, QUEUE_FULL}
    patient = dataclasses.replace(LIMITS, max_waiting=None)
    check_all(patient)
    assert {QUEUE_TOKENS} < set(run(BUSY, BUSY_SETTINGS, patient).reason.tolist())
    open_ = dataclasses.replace(patient, max_waiting_tokens=None)
    check_all(open_)
    assert set(run(BUSY, BUSY_SETTINGS, open_).reason.tolist()) == {0, WAITED}


def test_who_resumes_stays_what_it_was() -> None:
    # The second is admitted beside 3 blocks of 7, and resumes again and again beside 4 and more.
    told = Settings(
        num_gpu_blocks=7, max_num_seqs=8, max_num_batched_tokens=20,
        enable_prefix_caching=False, scheduler_reserve_full_isl=False,
    )  # fmt: skip
    trace = plain([(3, 40), (3, 40)])
    limits = AdmissionSettings(degrade="unstored", degrade_above=0.5)
    Stepping(trace, told, STEP, limits).run()
    found = run(trace, told, limits)
    assert found.preemptions[1] > 1
    assert not found.degraded.any()
    assert run(trace, told, dataclasses.replace(limits, degrade_above=0.4)).degraded[1]


@pytest.mark.parametrize("which", BROKEN)
def test_a_broken_rule_is_noticed(which: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, broken in BROKEN[which].items():
        monkeypatch.setitem(ADMISSION, name, broken)
    with pytest.raises(AssertionError):  # noqa: PT012  # one of the workloads notices
        check_all(LIMITS)
        check_all(dataclasses.replace(LIMITS, max_waiting=None, max_waiting_tokens=None))


def test_the_comparison_of_jumps_can_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    told = dataclasses.replace(LIMITS, max_waiting=None, max_waiting_tokens=None, pause_above=None,
                               resume_below=None)  # fmt: skip
    seat = dataclasses.replace(BUSY_SETTINGS, max_num_seqs=1)
    assert same(run(BUSY, seat, told), run(BUSY, seat, told, jumps=False))
    monkeypatch.setitem(ADMISSION, "next_decision_s", lambda state: 1e30)
    assert not same(run(BUSY, seat, told), run(BUSY, seat, told, jumps=False))


def test_compiled_is_plain() -> None:
    told = dataclasses.replace(LIMITS, max_waiting=6, max_waiting_tokens=300)
    more: dict[str, Any] = {"swap": SwapSettings(4, 1, 3.0), "cost": COST}
    dated_trace = dataclasses.replace(
        BUSY, deadline_s=BUSY.time_s + np.where(np.arange(len(BUSY)) % 3 == 0, 50.0, np.nan)
    )
    told = dataclasses.replace(told, deadlines=True)
    one = run(dated_trace, BUSY_SETTINGS, told, compiled=True, **more)
    other = run(dated_trace, BUSY_SETTINGS, told, compiled=False, **more)
    assert same(one, other)
    assert (one.reason == other.reason).all()
    assert np.array_equal(one.rejected_s, other.rejected_s, equal_nan=True)
    total = one.summary()
    assert min(total["rejected"], total["degraded"], total["paused_steps"], total["swaps"]) > 0


def test_faults_are_said_in_one_line() -> None:
    for given_, said in (
        ({"max_waiting": -1}, "max_waiting must be a whole number of at least 0, not -1"),
        ({"max_waiting_tokens": 1.5}, "max_waiting_tokens must be a whole number"),
        ({"max_queue_s": 0.0}, "max_queue_s must be a number above 0, not 0.0"),
        ({"max_queue_s": math.nan}, "max_queue_s must be a number above 0, not nan"),
        ({"degrade": "head", "degrade_above": 0.5}, "degrade must be unstored, not 'head'"),
        ({"degrade": "unstored"}, "degrade and degrade_above go together"),
        ({"degrade_above": 0.5}, "degrade and degrade_above go together"),
        ({"pause_above": 1.5}, "pause_above must be from 0 to 1, not 1.5"),
        ({"resume_below": 0.5}, "resume_below needs pause_above"),
        ({"pause_above": 0.5, "resume_below": 0.6}, r"at most pause_above \(0.5\), not 0.6"),
        ({"pause_above": 0.0}, "resume_below must be above 0"),
    ):
        with pytest.raises(UsageError, match=said):
            AdmissionSettings(**given_)
    assert AdmissionSettings(max_waiting=3).summary()["max_waiting"] == 3
