"""Policies of the registry under an engine's rules: against a plain replay of the definition."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np
import oracle
import pytest
from factory import BLOCK, make_trace, traces, workload_of
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsched.foundation.jit import bind
from kvsched.kernel.table import empty_table
from kvsched.policy.base import Setup
from kvsched.policy.registry import make
from kvsched.replay.loop import Limits, replay_loop
from kvsched.replay.run import new_columns, new_limits, replay
from kvsched.replay.vllm import VLLM
from kvsched.trace.model import Labels, Trace

POLICIES = ("lru", "fifo", "lfu", "slru", "chapter", "decay", "mru", "filo", "opt-fit", "opt")
"""What they remember is in `oracle.Memory`; the loop is the same for all others."""


@st.composite
def conversations(draw: st.DrawFn) -> Trace:
    """Draw a small trace with answers of every length, and sometimes sessions."""
    trace = draw(traces(requests=16, length=5, keys=2))
    count = len(trace)
    tokens = st.sampled_from([0, 1, 2, 11, 12, 16, 17, 33, 60])
    outputs = draw(st.lists(tokens, min_size=count, max_size=count))
    session = trace.session
    if draw(st.booleans()):
        codes = draw(st.lists(st.integers(-1, 2), min_size=count, max_size=count))
        session = Labels(np.array(codes, np.int32), ("a", "b", "c"))
    return dataclasses.replace(trace, output_tokens=np.array(outputs, np.int64), session=session)


WORK = {
    "trace": conversations(),
    "capacity": st.integers(1, 14),
    "cache_generated": st.sampled_from([True, True, False]),
}


@dataclass
class Limited(oracle.Workload):
    """Next uses are those that can be hits."""

    limit: list[int] = dataclasses.field(default_factory=list)

    def next_use(self, node: int, after: int) -> float:
        for request in range(after + 1, len(self.chains)):
            if node in self.chains[request][: self.limit[request]]:
                return request
        return oracle.NEVER


@dataclass
class Step:
    hits: int
    stored: int
    evicted: list[int]
    refused: bool = False
    again: int = 0
    """Resident blocks that it cannot hit, and computes again."""


def plain(rules: VLLM, policy: str, capacity: int) -> list[Step]:
    """Replay by the definition alone: slow, with sets."""
    held = rules.held
    work = Limited(**vars(workload_of(held.trace)), limit=held.limit.tolist())
    chains = work.chains
    world = oracle.World(work, capacity * BLOCK, BLOCK)
    key = oracle.KEYS[policy]
    resident: dict[int, Any] = {}
    steps = []
    for now, chain in enumerate(chains):
        if len(chain) > capacity:
            steps.append(Step(0, 0, [], True))
            continue
        kept = int(held.kept[now])
        world.now = now
        at = 0
        while at < len(chain) and chain[at] in resident:
            resident[chain[at]].touched = (now, -at)
            resident[chain[at]].uses += 1
            resident[chain[at]].times.append(work.time_s[now])
            at += 1
        hits = min(at, work.limit[now])
        step = Step(hits, 0, [], again=at - hits)
        room = 0
        while at < len(chain):
            if len(resident) + room == capacity:
                inner = {work.parent[node] for node in resident}
                free = [n for n in resident if n not in inner and n not in chain]
                victim = min(free, key=lambda n: key(world, n, resident[n]))
                needed = work.next_use(chain[at], now)
                if policy == "opt" and work.next_use(victim, now) <= needed:
                    break
                del resident[victim]
                step.evicted.append(victim)
            if at < kept:
                place = (now, -at)
                resident[chain[at]] = oracle.Memory(place, place, times=[work.time_s[now]])
                step.stored += 1
            else:
                room += 1
            at += 1
        steps.append(step)
    return steps


@pytest.mark.parametrize("policy", POLICIES)
@settings(deadline=None, max_examples=120, derandomize=True)
@given(**WORK)
def test_every_policy_equals_the_definition(
    policy: str, trace: Trace, capacity: int, cache_generated: bool
) -> None:
    rules = VLLM(trace, cache_generated=cache_generated)
    result = rules.replay(policy, capacity, decisions=True, compiled=False)
    steps = plain(rules, policy, capacity)
    assert result.request_hits.tolist() == [step.hits for step in steps]
    assert result.request_stored.tolist() == [step.stored for step in steps]
    assert result.request_refused.tolist() == [step.refused for step in steps]
    assert result.decisions is not None
    assert result.decisions.victim.tolist() == [n for step in steps for n in step.evicted]
    assert (result.request_hits <= rules.ceiling()).all()
    assert (rules.ceiling() <= rules.seen()).all()


@pytest.mark.parametrize("policy", ["lru", "lfu", "opt"])
@settings(deadline=None, max_examples=40, derandomize=True)
@given(**WORK)
def test_compiled_equals_plain(
    policy: str, trace: Trace, capacity: int, cache_generated: bool
) -> None:
    rules = VLLM(trace, cache_generated=cache_generated)
    for name in (policy, None):
        compiled = rules.replay(name, capacity, decisions=True, compiled=True)
        slow = rules.replay(name, capacity, decisions=True, compiled=False)
        assert compiled.request_hits.tolist() == slow.request_hits.tolist()
        assert compiled.summary() == slow.summary()
        assert compiled.decisions is not None
        assert slow.decisions is not None
        assert compiled.decisions.victim.tolist() == slow.decisions.victim.tolist()


def test_lru_over_nodes_is_the_free_list_where_no_duplicate_arises() -> None:
    tally = {"same": 0, "evicting": 0, "with duplicates": 0}

    @settings(deadline=None, max_examples=300, derandomize=True, database=None)
    @given(**WORK)
    def check(trace: Trace, capacity: int, cache_generated: bool) -> None:
        rules = VLLM(trace, cache_generated=cache_generated)
        if any(step.again for step in plain(rules, "lru", capacity)):
            tally["with duplicates"] += 1
            return
        own = rules.replay(None, capacity, decisions=True, compiled=False)
        nodes = rules.replay("lru", capacity, decisions=True, compiled=False)
        for name in ("request_hits", "request_stored", "request_evictions", "request_refused"):
            assert getattr(own, name).tolist() == getattr(nodes, name).tolist()
        assert own.decisions is not None
        assert nodes.decisions is not None
        assert own.decisions.victim.tolist() == nodes.decisions.victim.tolist()
        tally["same"] += 1
        tally["evicting"] += own.evictions > 0

    check()
    assert tally["same"] > 60
    assert tally["evicting"] > 20
    assert tally["with duplicates"] > 20


def test_a_duplicate_takes_a_block_of_the_pool_and_no_second_node() -> None:
    # Twice a prompt of exactly two blocks, then one that goes on: block 2 is there twice.
    trace = make_trace([(1, 2), (1, 2), (3,), (1, 2, 4)], [1] * 4, [0] * 4)
    trace = dataclasses.replace(trace, output_tokens=np.ones(4, np.int64))
    rules = VLLM(trace)
    # The pool gives up a copy of 2 for 3, then 3 for 4; nodes leave room for 3 at once.
    assert [step.again for step in plain(rules, "lru", 3)] == [0, 1, 0, 0]
    assert rules.replay(None, 3).evictions == 2
    assert rules.replay("lru", 3).evictions == 1


BROKEN: dict[str, Any] = {
    "the cap is off": lambda limits: limits._replace(hit=np.full_like(limits.hit, 99)),
    "room is stored": lambda limits: limits._replace(kept=np.full_like(limits.kept, 99)),
}


@pytest.mark.parametrize("which", [*BROKEN, "limits are not asked for"])
def test_a_broken_limit_is_noticed(which: str) -> None:
    trace = make_trace([(1, 2), (1, 2), (3, 4), (1, 2)], [1] * 4, [0, 0, 5, 0])
    rules = VLLM(dataclasses.replace(trace, output_tokens=np.array([1, 9, 9, 9], np.int64)))
    right = plain(rules, "lru", 4)
    held = rules.held.trace
    limits = new_limits(rules.held.limit, rules.held.kept)
    policy = make("lru")

    def run(given_limits: Limits, limited: bool) -> list[tuple[int, int]]:
        counts, log = new_columns(4, 0)
        state = policy.prepare(Setup(held.nodes, 4, BLOCK, held))
        table = empty_table(held.parent, held.depth, held.tokens)
        loop = bind(replay_loop, {**policy.hooks(), "limited": limited}, compiled=False)
        arrays = (held.time_s, held.starts, held.chains)
        loop(table, state, 4, *arrays, counts, log, given_limits)
        return list(zip(counts.hits.tolist(), counts.evicted.tolist(), strict=True))

    wanted = [(step.hits, len(step.evicted)) for step in right]
    assert run(limits, True) == wanted
    broken = BROKEN.get(which, lambda limits: limits)(limits)
    assert run(broken, which in BROKEN) != wanted


@settings(deadline=None, max_examples=100, derandomize=True)
@given(**WORK)
def test_without_answers_and_caps_the_rules_are_generic(
    trace: Trace, capacity: int, cache_generated: bool
) -> None:
    """Prompts of full blocks and a token, one token generated: only room and refusals differ."""
    starts = trace.starts
    trace = dataclasses.replace(
        trace,
        input_tokens=np.diff(starts) * BLOCK + 1,
        output_tokens=np.ones(len(trace), np.int64),
    )
    rules = VLLM(trace, cache_generated=cache_generated)
    assert rules.ceiling().tolist() == replay(trace, "lru", 10_000).request_hits.tolist()
    unlimited = rules.replay("lru", 10_000, compiled=False)
    assert unlimited.request_hits.tolist() == rules.ceiling().tolist()
