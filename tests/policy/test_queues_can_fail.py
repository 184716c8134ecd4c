"""Queue policies with one thing wrong: the plain references must tell each from the real one."""

from __future__ import annotations

import dataclasses
import functools
import sys
from typing import Any, NamedTuple

import numpy as np
import pytest
import queue_oracle
from contract import CHECKS, Run
from factory import About, make_trace, workload_of
from mutants import edited

import kvsched
from kvsched.foundation.jit import bind
from kvsched.policy.base import Policy
from kvsched.policy.registry import find
from kvsched.replay.run import replay
from kvsched.trace.model import Trace

CAPACITIES = (2, 4, 7, 12, 21)


def make_traces() -> list[Trace]:
    random = np.random.default_rng(7)
    made = []
    for at in range(36):
        count, longest, keys = 80, (1, 3, 6, 12)[at % 4], (24, 4, 3, 2)[at % 4]
        lengths = random.integers(1, longest + 1, size=count)
        paths = [tuple(random.integers(0, keys, size=length).tolist()) for length in lengths]
        gaps = random.choice([0, 1, 20, 60, 240], size=count).tolist()
        sessions, types = random.integers(-1, 4, size=count), random.integers(-1, 3, size=count)
        about = [About(*row) for row in zip(sessions.tolist(), types.tolist(), strict=True)]
        made.append(make_trace(paths, gaps, [0] * count, about))
    # At one moment a head is compared, used, and compared again.
    made.append(make_trace([(4,), (1, 2, 3), (6,), (1, 2, 3), (7,)], [0, 60, 60, 0, 0], [0] * 5))
    return made


class Variant(NamedTuple):
    policy: str
    function: str
    """Of the policy's module: what is wrong, and what in it."""
    before: str
    after: str


VARIANTS = {
    "a hand that starts at the tail each time": Variant(
        "sieve", "_pass", "state.hand[HAND] = state.place[node]", "state.hand[HAND] = START"
    ),
    "a hand that waits at the head": Variant(
        "sieve", "_on_insert", "if state.hand[AHEAD] == 0:", "if False:"
    ),
    "a queue with tails before heads": Variant(
        "sieve", "_on_insert", "state.hand[FIRST] + state.hand[NEXT] - 1 - rank", "rank"
    ),
    "a hit that moves": Variant(
        "sieve",
        "_on_hit",
        "state.visited[node] = 1",
        "state.visited[node] = 1; state.place[node] = rank",
    ),
    "a bit that is never set": Variant("sieve", "_on_hit", "= 1", "= 0"),
    "a counter without a limit": Variant(
        "s3fifo", "_on_hit", "if state.uses[node] < MOST_USES:", "if state.uses[node] < 200:"
    ),
    "a counter that moves along": Variant(
        "s3fifo", "_into", "state.uses[node] = 0", "state.uses[node] += 0"
    ),
    "a ghost that is forgotten at once": Variant(
        "s3fifo",
        "_forget",
        "state.counts[GHOST] > state.counts[GHOST_ROOM]",
        "state.counts[GHOST] > 0",
    ),
    "a ghost that is never forgotten": Variant(
        "s3fifo", "_forget", "state.counts[GHOST] > state.counts[GHOST_ROOM]", "False"
    ),
    "ancestors left behind in small": Variant(
        "s3fifo", "_from_small", "above = table.parent[above]", "above = NONE"
    ),
    "ancestors left behind when a ghost is stored": Variant(
        "s3fifo", "_on_insert", "        above = table.parent[node]\n", "        above = NONE\n"
    ),
    "main never asked first": Variant(
        "s3fifo", "_victim", "if counts[SMALL] < counts[SMALL_ROOM]:", "if False:"
    ),
    "main without another round": Variant(
        "s3fifo", "_from_main", "state.uses[node] > 0:", "state.uses[node] > 1:"
    ),
    "p in whole steps": Variant("arc", "_adapted", "max(1.0, two / one)", "max(1.0, two // one)"),
    "p that moves one way": Variant(
        "arc", "_adapted", "max(0.0, target - size * max(1.0, one / two))", "target"
    ),
    "a tie that a ghost of B2 does not break": Variant(
        "arc", "_victim", "state.where[incoming] == B2 and", "False and"
    ),
    "ghosts of B1 that stay": Variant(
        "arc", "_on_insert", "counts[T1] + counts[B1] > capacity", "counts[B1] > 1000"
    ),
    "a hit that stays in T1": Variant(
        "arc",
        "_on_hit",
        "state.where[node] = T2\n        state.counts[T2] += room",
        "state.counts[T1] += room",
    ),
    "all of T1 remembered": Variant(
        "arc",
        "_on_insert",
        "while counts[T1] + counts[B1] > capacity",
        "while counts[B1] > 0 and counts[T1] + counts[B1] > capacity + 1",
    ),
    "a tie that the newcomer wins": Variant(
        "wtinylfu", "_victim", "<= sketch_count", "< sketch_count"
    ),
    "a miss that is not counted": Variant(
        "wtinylfu", "_on_insert", "    _count(table, state, node, rank)\n", ""
    ),
    "a touch counted twice": Variant("wtinylfu", "_count", "state.counts[COUNTED] != rank", "True"),
    "a protected segment without a limit": Variant(
        "wtinylfu",
        "_put",
        "while state.counts[segment] > state.counts[ROOM + segment]:",
        "while segment == WINDOW and state.counts[segment] > state.counts[ROOM]:",
    ),
    "a cursor that stays on what moved": Variant(
        "wtinylfu", "_to_probation", "if node == state.cursor[segment]:", "if False:"
    ),
    "no protected segment asked": Variant(
        "wtinylfu", "_victim", "rival = lane_first(state.lanes, PROTECTED)", "rival = NONE"
    ),
    "shallow kept": Variant(
        "marconi", "_victim", "state.clock[ALPHA] * flops", "-state.clock[ALPHA] * flops"
    ),
    "recency as it is": Variant(
        "marconi",
        "_victim",
        "_share(state.likeness[lane, RECENCY], oldest, newest)",
        "state.likeness[lane, RECENCY]",
    ),
    "a head that is not looked at again": Variant(
        "marconi", "_enter", "    state.heads[lane] = STALE\n", ""
    ),
    "an age that stays while the head does": Variant(
        "marconi", "_begin", "state.heads[lane] = STALE", "pass"
    ),
    "classes too wide": Variant("marconi", "_class_of", "depth >= 8", "depth >= 2"),
    "an age that a hit does not start again": Variant(
        "marconi", "_on_touch", "state.used_s[node] = state.clock[NOW]", "state.used_s[node] += 0.0"
    ),
    "one class for all": Variant(
        "wild", "_on_touch", "kind = state.request_kind[int(state.clock[REQUEST])]", "kind = 0"
    ),
    "a chance that is not worked out again": Variant(
        "wild", "_begin", "        state.heads[kind] = STALE\n", ""
    ),
    "a life that is not learnt": Variant(
        "wild", "_begin", "if clock[LEFT] > 0.0:", "if clock[LEFT] > 1e9:"
    ),
    "reuses not counted": Variant(
        "wild",
        "_on_touch",
        "state.learnt[before, REUSES] += weight",
        "state.learnt[before, REUSES] += 0.0",
    ),
    "heads first": Variant(
        "wild", "_on_touch", "- int(table.depth[node])", "+ int(table.depth[node])"
    ),
    "the likeliest leaves": Variant("wild", "_victim", "chance < lowest", "chance > lowest"),
    "the future counted": Variant(
        "wild",
        "_on_touch",
        "state.clock[REQUEST])",
        "min(state.clock[REQUEST] + 1, len(state.request_kind) - 1))",
    ),
}


def broken(variant: Variant) -> type[Policy]:
    """The policy with the one function replaced, in every hook that calls it."""
    real = find(variant.policy)
    module = sys.modules[real.__module__]
    wrong = edited(getattr(module, variant.function), module, variant.before, variant.after)
    hooks: dict[str, Any] = {}
    for name, hook in real.hooks().items():
        if not callable(hook):
            continue
        if hook is getattr(module, variant.function):
            hooks[name] = staticmethod(wrong)
        else:
            hooks[name] = staticmethod(bind(hook, {variant.function: wrong}, compiled=False))
    return type("Broken", (real,), hooks)


TRACES = make_traces()


def agrees(policy: Policy, name: str, trace: Trace, capacity: int) -> bool:
    run = Run(trace, policy, capacity)
    if run.crash is not None:
        return False
    try:
        CHECKS["oracle"](run, name)
    except AssertionError:
        return False
    return True


@functools.cache
def real_agrees(name: str) -> bool:
    return all(
        agrees(find(name)(), name, trace, capacity)
        for trace in TRACES[:12]
        for capacity in CAPACITIES
    )


@pytest.mark.parametrize("what", VARIANTS)
def test_the_reference_tells_it_from_the_real_one(what: str) -> None:
    variant = VARIANTS[what]
    wrong = broken(variant)
    assert real_agrees(variant.policy)
    for trace in TRACES:
        for capacity in CAPACITIES:
            if not agrees(wrong(), variant.policy, trace, capacity):
                return
    pytest.fail(f"nobody noticed: {what}")


def test_every_queue_policy_was_seen_to_fail() -> None:
    assert {variant.policy for variant in VARIANTS.values()} == set(queue_oracle.QUEUES)


@pytest.mark.parametrize("name", kvsched.policies())
def test_a_second_call_names_the_same_victim(name: str) -> None:
    """As the contract of `victim` says: it may move its hand, but not its mind."""
    real = find(name)
    own = bind(real.victim, real.hooks(), compiled=False)
    calls = []

    class Twice:
        def __call__(self, *given: Any) -> int:
            first, second = int(own(*given)), int(own(*given))
            calls.append((first, second))
            return second

    asked = type("Asked", (real,), {"victim": Twice()})
    for trace in TRACES[:8]:
        for capacity in (4, 12):
            once = replay(trace, name, capacity, compiled=False, fast=False)
            twice = replay(trace, asked, capacity, compiled=False, fast=False)
            assert once.request_hits.tolist() == twice.request_hits.tolist()
    assert calls
    assert all(first == second for first, second in calls)


class BySeen(queue_oracle.Wild):
    """A node's class is how often it was used, up to eight times."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.seen: dict[int, int] = {}

    def kind_of(self, node: int) -> queue_oracle.Place:
        self.seen[node] = self.seen.get(node, 0) + 1
        return (min(8, self.seen[node]),)


class BySession(queue_oracle.Wild):
    """The turn is counted from the session."""

    def kind_of(self, node: int) -> queue_oracle.Place:
        session = self.work.session[self.now]
        turn = self.work.session[: self.now + 1].count(session) if session >= 0 else 1
        return (min(8, turn),)


@pytest.mark.parametrize(
    ("reference", "lacks"),
    [(BySeen, ("type", "turn", "session")), (BySession, ("type", "turn"))],
)
def test_wild_without_the_columns(
    reference: Any, lacks: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(queue_oracle.QUEUES, "other", reference)
    noticed = False
    for trace in TRACES[:16]:
        bare = dataclasses.replace(trace, **dict.fromkeys(lacks))
        for capacity in CAPACITIES:
            found = replay(bare, "wild", capacity, decisions=True, compiled=False)
            steps = queue_oracle.replay(workload_of(trace), "other", capacity)
            full = queue_oracle.replay(workload_of(trace), "wild", capacity)
            assert found.request_hits.tolist() == [step.hits for step in steps]
            assert found.decisions is not None
            left = [node for step in steps for node in step.evicted]
            assert found.decisions.victim.tolist() == left
            noticed |= steps != full
    assert noticed, "the classes would make no difference here"
