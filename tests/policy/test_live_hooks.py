"""Every policy where requests overlap, grow, fail and are taken out, and where numbers recur."""

from __future__ import annotations

import numpy as np
import pytest
from factory import About, make_trace, traces
from hypothesis import given, settings
from hypothesis import strategies as st
from live_checks import check_all, check_cleared
from live_driver import Live
from live_script import play

import kvsched
from kvsched.foundation.errors import UsageError
from kvsched.kernel.hooks import HOOKS
from kvsched.policy import arc, s3fifo
from kvsched.policy.base import Policy
from kvsched.policy.lru import LRU, LiveLRU
from kvsched.policy.registry import find, make
from kvsched.replay.run import replay
from kvsched.trace.model import Trace

AHEAD = ("opt", "opt-fit")
HEAD = "priority:head_tokens=20:head_duration_s=60"
TOOLS = "ttl:lifetime_s=60:tool_lifetime_s=100"
CLAIMS = "tlru:threshold_tokens=40:next_prompt_tokens=8"
COSTS = "gdsf:attention_tokens=30"
LABELS = [*(name for name in kvsched.policies() if name not in AHEAD), HEAD, TOOLS, CLAIMS, COSTS]
FORGETFUL = [
    *("lru", "lfu", "slru", "chapter", "decay", "mru", "filo", "fifo", "priority", HEAD, "ttl"),
    *(TOOLS, "gdsf", COSTS, "sieve", "marconi"),
]
"""Policies that remember nothing of nodes that left."""

SEEDS = range(12)


# One request at a time.


def sequentially(trace: Trace, policy: Policy, capacity: int, compiled: bool = False) -> Live:
    """Run a trace through a live cache, each request released before the next begins."""
    live = Live(policy, capacity, trace.nodes, compiled=compiled)
    # A trace numbers nodes in the order in which its chains name them, stored or not.
    chains = [
        tuple(trace.chains[low:high].tolist())
        for low, high in zip(trace.starts[:-1], trace.starts[1:], strict=True)
    ]
    for chain in chains:
        for at, node in enumerate(chain):
            assert live.node_of(chain[: at + 1], int(trace.tokens[node])) == node
    assert trace.session is not None
    assert trace.type is not None
    assert trace.turn is not None
    assert trace.priority is not None
    for at, chain in enumerate(chains):
        live.now = float(trace.time_s[at])
        about = About(
            int(trace.session.codes[at]), int(trace.type.codes[at]), int(trace.priority[at])
        )
        lease = live.acquire(
            chain,
            about,
            turn=int(trace.turn[at]),
            answer=int(trace.output_tokens[at]),
            prompt=int(trace.input_tokens[at]),
        )
        live.release(lease)
    return live


def check_sequential(policy: Policy, trace: Trace, capacity: int, compiled: bool = False) -> None:
    found = replay(
        trace, make(policy.label), capacity, decisions=True, compiled=compiled, fast=False
    )
    live = sequentially(trace, policy, capacity, compiled)
    assert found.decisions is not None
    assert live.hits == found.request_hits.tolist(), "hits"
    assert [path[-1] for path in live.victims] == found.decisions.victim.tolist(), "victims"
    assert [path[-1] for path in live.incoming] == found.decisions.incoming.tolist()


@pytest.mark.parametrize("label", LABELS)
@settings(deadline=None, max_examples=40, derandomize=True)
@given(trace=traces(requests=24), capacity=st.integers(1, 9))
def test_one_at_a_time_decides_as_the_replay(label: str, trace: Trace, capacity: int) -> None:
    check_sequential(make(label), trace, capacity)


def longer_trace(seed: int) -> Trace:
    random = np.random.default_rng(seed)
    count = 120
    paths = [
        tuple(random.integers(0, 3, size=int(random.integers(1, 6))).tolist()) for _ in range(count)
    ]
    gaps = random.choice([0, 1, 20, 60, 61, 240], size=count).tolist()
    about = [
        About(*row)
        for row in zip(
            random.integers(-1, 3, size=count).tolist(),
            random.integers(-1, 3, size=count).tolist(),
            random.choice([0, 20, 35, 80], size=count).tolist(),
            strict=True,
        )
    ]
    return make_trace(paths, gaps, random.choice([0, 5, -3], size=count).tolist(), about)


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


def once_forgotten(live: Live, node: int) -> bool:
    """Whether a node is no ghost, and nobody claims it."""
    nowhere = {"arc": arc.NOWHERE, "s3fifo": s3fifo.NOWHERE}.get(live.policy.name)
    if nowhere is not None:
        return bool(live.state.where[node] == nowhere)
    return live.policy.name != "tlru" or bool(live.state.needed_by[node] == 0)


def check_recycled(policy: Policy, seed: int) -> None:
    """Compare a cache whose numbers recur with one that has a number for every node there is."""
    numbers = 9 + 3 if policy.label in FORGETFUL else 4 * 9
    again = play(policy, seed, numbers=numbers, may_forget=once_forgotten, steps=200)
    never = play(policy, seed, numbers=400, steps=200)
    assert again.forgotten > 20
    assert never.forgotten == 0
    assert again.hits == never.hits, "hits"
    assert again.victims == never.victims, "victims"


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


def needs_of(live: Live, path: tuple[int, ...]) -> list[int]:
    return [int(live.state.needed_by[live.number[path[: at + 1]]]) for at in range(len(path))]


def test_a_conversation_that_goes_on_keeps_its_claim() -> None:
    live = Live(make("tlru:threshold_tokens=24:next_prompt_tokens=8"), 12, 12)
    lease = live.acquire((0, 1), About(session=0), answer=0)
    assert needs_of(live, (0, 1)) == [1, 0], "32 tokens, of which 16 can be lost"
    live.extend(lease, (2, 3))
    assert needs_of(live, (0, 1, 2, 3)) == [1, 0, 0, 0]
    live.release(lease)
    assert needs_of(live, (0, 1, 2, 3)) == [1, 1, 1, 0], "64 tokens now"
    live.acquire((0, 1), About(session=0), answer=0)
    assert needs_of(live, (0, 1, 2, 3)) == [1, 0, 0, 0], "the next turn takes its place"


def test_a_later_request_of_the_conversation_has_the_claim() -> None:
    live = Live(make("tlru:threshold_tokens=16:next_prompt_tokens=16"), 12, 12)
    first = live.acquire((0, 1), About(session=0), answer=0)
    second = live.acquire((5,), About(session=0), answer=0)
    live.extend(first, (2,))
    live.release(first)
    assert needs_of(live, (0, 1, 2)) == [0, 0, 0]
    assert needs_of(live, (5,)) == [1]
    live.release(second)
    check_all(live)


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
    live = Live(make("pgdsf:attention_tokens=32"), 12, 12)
    lease = live.acquire((0, 1))
    other = live.acquire((5, 6, 7))
    live.extend(lease, (2, 3))
    costs = [int(live.state.cost[node]) / (1 << 24) for node in lease.nodes]
    # 32 tokens after none; 16 after 32; 16 after 48: 1 + (before + half of the tokens) / 32.
    assert costs == [1.5, 1.5, 2.25, 2.75]
    live.release(other)
    live.release(lease)
    assert live.acquire((0, 1, 4)).nodes
    assert live.state.cost[live.number[0, 1, 4]] / (1 << 24) == 1 + (32 + 8) / 32


def test_a_number_given_to_another_starts_without_a_count() -> None:
    from kvsched.kernel.sketch import sketch_count

    live = Live(make("wtinylfu"), 4, 12)
    for _ in range(5):
        live.release(live.acquire((0,)))
    node = live.number[0,]
    assert sketch_count(live.state.sketch, node) == 5
    live.drop(node)
    assert sketch_count(live.state.sketch, node) == 5, "a count outlives an eviction"
    live.forget(node)
    assert sketch_count(live.state.sketch, node) == 0


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


@pytest.mark.parametrize(("held", "left"), [((0,), (1,)), ((1,), (0,))])
def test_a_tools_lifetime_counts_from_its_own_release(
    held: tuple[int, ...], left: tuple[int, ...]
) -> None:
    """A tool's request ends after another began; each has the lifetime of its own class."""
    live = Live(make("ttl:lifetime_s=10:tool_lifetime_s=100"), 2, 12)
    leases = {
        path: live.acquire(path, About(type=1 if path == held else 0)) for path in ((0,), (1,))
    }
    live.now = 50.0
    live.release(leases[held])
    live.release(leases[left])
    live.now = 120.0
    live.acquire((2,))
    assert live.victims == [left]


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
