"""Every policy where requests overlap, grow, fail and are taken out, and where numbers recur."""

from __future__ import annotations

import numpy as np
import pytest
from factory import About, traces
from hypothesis import given, settings
from hypothesis import strategies as st
from live_checks import check_all, check_cleared
from live_driver import Live
from live_scenarios import (
    CLAIMS,
    FORGETFUL,
    LABELS,
    TOOLS,
    check_claim_goes_on,
    check_count_is_forgotten,
    check_filled_costs,
    check_later_request,
    check_own_lifetime,
    check_recycled,
    check_sequential,
    longer_trace,
    needs_of,
)
from live_script import play

import kvsched
from kvsched.foundation.errors import UsageError
from kvsched.kernel.hooks import HOOKS
from kvsched.policy.lru import LRU, LiveLRU
from kvsched.policy.registry import find, make
from kvsched.trace.model import Trace

SEEDS = range(12)


# One request at a time.


@pytest.mark.parametrize("label", LABELS)
@settings(deadline=None, max_examples=40, derandomize=True)
@given(trace=traces(requests=24), capacity=st.integers(1, 9))
def test_one_at_a_time_decides_as_the_replay(label: str, trace: Trace, capacity: int) -> None:
    check_sequential(make(label), trace, capacity)


@pytest.mark.parametrize("label", LABELS)
def test_compiled_decides_the_same(label: str) -> None:
    check_sequential(make(label), longer_trace(1), 12, compiled=True)
    plain, compiled = (play(make(label), 5, compiled=compiled) for compiled in (False, True))
    assert plain.victims
    assert compiled.victims == plain.victims
    assert compiled.hits == plain.hits


# Requests that overlap.


@pytest.mark.parametrize("label", LABELS)
def test_structures_hold(label: str) -> None:
    left = 0
    for seed in SEEDS:
        live = play(make(label), seed, watch=check_all, sessionless=seed % 2 == 0)
        left += len(live.victims)
        live.clear()
        check_cleared(live, Live(make(label), 9, 12))
    assert left > 100


@pytest.mark.parametrize("label", [*FORGETFUL, "arc", "s3fifo", "tlru", CLAIMS])
def test_numbers_used_again_change_nothing(label: str) -> None:
    for seed in SEEDS:
        check_recycled(make(label), seed)


@pytest.mark.parametrize("label", LABELS)
def test_ranks_may_grow_for_ever(label: str) -> None:
    for seed in range(4):
        late, early = (play(make(label), seed, first_rank=first) for first in (1 << 61, 0))
        assert late.victims == early.victims
        assert late.hits == early.hits


@pytest.mark.parametrize("label", LABELS)
def test_only_the_policy_decides_where_nothing_is_hostile(label: str) -> None:
    for seed in range(4):
        live = play(make(label), seed, watch=check_all, hostile=False)
        assert len(live.victims) > 5


# What a release, a resume, a drop and a forgotten number mean.


def two_that_overlap(label: str) -> Live:
    """A begins before B and ends after it; then both wait."""
    live = Live(make(label), 4, 12)
    first = live.acquire((0, 0))
    second = live.acquire((1, 1))
    live.release(second)
    live.release(first)
    return live


LAST_RELEASED_STAYS = ("lru", "lfu", "slru", "chapter", "decay", "arc", "marconi", "gdsf", "pgdsf")


@pytest.mark.parametrize("label", [*LAST_RELEASED_STAYS, "priority", "ttl", "tlru"])
def test_a_release_is_the_last_use(label: str) -> None:
    live = two_that_overlap(label)
    live.acquire((2,))
    assert live.victims == [(1, 1)], "B was released first"


def test_what_was_used_last_leaves_first_in_mru() -> None:
    live = two_that_overlap("mru")
    live.acquire((2,))
    assert live.victims == [(0, 0)]


@pytest.mark.parametrize(("label", "victim"), [("fifo", (0, 0)), ("filo", (1, 1))])
def test_a_release_is_nothing_to_the_order_of_storing(label: str, victim: tuple[int, ...]) -> None:
    live = two_that_overlap(label)
    live.acquire((2,))
    assert live.victims == [victim]


def test_nobody_leaves_while_all_is_held() -> None:
    for label in LABELS:
        live = Live(make(label), 3, 12)
        held = live.acquire((0, 1, 2))
        assert live.acquire((3, 4)).nodes == [], label
        live.release(held)
        assert len(live.acquire((3, 4)).nodes) == 2, label


def test_a_conversation_that_goes_on_keeps_its_claim() -> None:
    check_claim_goes_on(make("tlru"))


def test_a_later_request_of_the_conversation_has_the_claim() -> None:
    check_later_request(make("tlru"))


def test_a_forgotten_tip_leaves_the_claim_on_what_is_above() -> None:
    live = Live(make("tlru:threshold_tokens=16:next_prompt_tokens=16"), 12, 12)
    path = (0, 1, 2)
    for session in (0, 1):
        live.release(live.acquire(path, About(session=session), answer=0))
    assert needs_of(live, path) == [2, 2, 2]
    gone = live.number[path]
    live.drop(gone)
    assert needs_of(live, path) == [2, 2, 2], "as after an eviction"
    live.forget(gone)
    assert needs_of(live, path[:2]) == [2, 2]
    live.release(live.acquire((7,), About(session=0), answer=0))
    assert needs_of(live, path[:2]) == [1, 1], "one of the two went elsewhere"


def test_a_block_that_decoding_filled_costs_what_it_costs_by_itself() -> None:
    check_filled_costs(make("pgdsf"))


def test_a_number_given_to_another_starts_without_a_count() -> None:
    check_count_is_forgotten(make("wtinylfu"))


def test_a_clock_that_stands_still_is_no_one_moment_for_ever() -> None:
    live = Live(make("wild"), 4, 12)
    live.release(live.acquire((0, 0)))
    assert live.state.moment.tolist() == [0, 4]
    live.release(live.acquire((1,)))
    assert live.state.moment.tolist() == [0, 6]
    live.rank += 1 << 31
    live.release(live.acquire((1,)))
    assert live.state.moment[0] > 0
    live.acquire((2, 2))
    assert live.victims == [(0, 0)]


def test_a_tools_lifetime_counts_from_its_own_release() -> None:
    """Its request ends while another runs; each has the lifetime of its own class."""
    check_own_lifetime(make("ttl"))


# What a policy says of itself.


def test_lru_runs_live_in_a_heap() -> None:
    live = make("lru").live_form()
    assert type(live) is LiveLRU
    assert (live.name, live.label, live.source) == ("lru", "lru", LRU.source)
    assert make("arc").live_form().label == "arc"
    own = type("Own", (LRU,), {"name": "own"})
    with pytest.raises(UsageError, match="policy own does not track leaves"):
        own().live_form()


@pytest.mark.parametrize(
    ("label", "said"),
    [
        ("opt", "policy opt needs the whole trace: it cannot run live"),
        ("opt-fit", "policy opt-fit needs the whole trace: it cannot run live"),
        ("marconi:alpha=auto", "policy marconi:alpha=auto: alpha=auto is tuned by replaying"),
    ],
)
def test_what_cannot_run_live_says_so_in_one_line(label: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        make(label).live_form()
    assert str(caught.value).startswith(said)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("label", LABELS)
def test_columns_are_kept_as_they_are(label: str) -> None:
    """What a cache writes into them later is what the policy reads."""
    live = Live(make(label), 4, 12)
    arrays = [
        column if isinstance(column, np.ndarray) else column.codes
        for column in live.columns.values()
    ]
    own = [value for value in live.state if isinstance(value, np.ndarray)]
    kept = sum(any(each is array for each in own) for array in arrays)
    expected = {"priority": 1, "ttl": 0, "tlru": 3, "wild": 2, "pgdsf": 1}
    assert kept == expected.get(live.policy.name, 0) + (label == TOOLS)


def test_a_policy_without_a_resume_has_its_begin() -> None:
    assert set(HOOKS) == set(find("lru").hooks())
    for name in kvsched.policies():
        own = find(name).hooks()
        assert (own["resume"] is own["begin"]) == (name not in ("tlru", "pgdsf")), name


def test_a_live_setup_needs_no_column_that_it_is_not_given() -> None:
    lacks = ("session", "type", "turn", "priority")
    for label in LABELS:
        policy = make(label)
        if not policy.needed():
            live = play(policy, 3, watch=check_all, lacks=lacks)
            assert live.victims, label
