"""Nodes that take different room: every policy against itself, plain references, and bounds."""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import queue_oracle
from factory import About, make_trace, traces, workload_of
from hypothesis import given, settings
from hypothesis import strategies as st
from mutants import edited

import kvsched
from kvsched.foundation.errors import UsageError
from kvsched.foundation.jit import bind
from kvsched.kernel.table import empty_table
from kvsched.policy.base import Policy, Setup
from kvsched.policy.registry import find, make
from kvsched.replay.loop import Counts, Decisions, replay_loop
from kvsched.replay.run import replay
from kvsched.trace.load import load_trace
from kvsched.trace.model import Trace
from kvsched.trace.sample import sample

POLICIES = kvsched.policies()
WITHOUT_COLUMNS = {"priority": "priority:head_tokens=1024"}
"""What runs instead where a trace lacks a column that a policy's default needs."""
LARGEST_BLOCK = 16


@dataclass(frozen=True, eq=False, repr=False)
class Weighted(Trace):
    """A trace whose nodes take ``rooms`` of a capacity."""

    rooms: Any = None
    weighted = True
    slack = 0

    @property
    def room(self) -> Any:
        return self.rooms

    @property
    def usual_room(self) -> int:  # type: ignore[override]
        return max(1, round(float(self.rooms.mean()))) if len(self.rooms) else 1


def weigh(trace: Trace, rooms: Any) -> Weighted:
    """The same trace, its nodes taking ``rooms`` (N,)."""
    same = {each.name: getattr(trace, each.name) for each in dataclasses.fields(Trace)}
    return Weighted(**same, rooms=np.asarray(rooms, np.int64))


def all_alike(trace: Trace, room: int) -> Weighted:
    return weigh(trace, np.full(trace.nodes, room))


def in_tokens(trace: Trace, size: int) -> tuple[Trace, Trace]:
    """The forest with blocks of ``size`` tokens each, as equal blocks and as unequal ones."""
    prompts = size * np.diff(trace.starts)
    tokens = np.full(trace.nodes, size, np.int32)
    equal = dataclasses.replace(trace, tokens=tokens, input_tokens=prompts, block_size=size)
    return equal, dataclasses.replace(equal, block_size=0)


def decided(trace: Trace, policy: str | Policy, capacity: int) -> dict[str, list[int]]:
    found = replay(trace, policy, capacity, decisions=True, compiled=False, fast=False)
    assert found.decisions is not None
    return {
        "hits": found.request_hits.tolist(),
        "stored": found.request_stored.tolist(),
        "victims": found.decisions.victim.tolist(),
        "incoming": found.decisions.incoming.tolist(),
    }


WORK = {
    "trace": traces(requests=30, length=5, keys=3),
    "room": st.sampled_from([2, 3, 7, 10, 64]),
    "capacity": st.integers(1, 24),
}


@pytest.mark.parametrize("name", POLICIES)
@settings(deadline=None, max_examples=30, derandomize=True)
@given(**WORK)
def test_rooms_all_alike_change_nothing(name: str, trace: Trace, room: int, capacity: int) -> None:
    """Every node of ``room`` in a cache of as many rooms: the same decisions as blocks of 1."""
    assert decided(all_alike(trace, room), name, room * capacity) == decided(trace, name, capacity)


@pytest.mark.parametrize("name", POLICIES)
@settings(deadline=None, max_examples=20, derandomize=True)
@given(**WORK)
def test_unequal_blocks_of_one_size_are_equal_blocks(
    name: str, trace: Trace, room: int, capacity: int
) -> None:
    equal, unequal = in_tokens(trace, room)
    assert decided(unequal, name, room * capacity) == decided(equal, name, capacity)


def fixed_traces() -> list[Trace]:
    random = np.random.default_rng(11)
    made = []
    for at in range(12):
        longest, keys = ((1, 40), (3, 5), (6, 3))[at % 3]
        lengths = random.integers(1, longest + 1, size=300)
        paths = [tuple(random.zipf(1.4, size=length) % keys) for length in lengths]
        gaps = random.choice([0, 1, 20, 60], size=300).tolist()
        sessions, types = random.integers(-1, 4, size=300), random.integers(-1, 3, size=300)
        about = [About(*row) for row in zip(sessions.tolist(), types.tolist(), strict=True)]
        made.append(make_trace([tuple(map(int, path)) for path in paths], gaps, [0] * 300, about))
    return made


TRACES = fixed_traces()
BROKEN: dict[str, tuple[str, str, str, str]] = {
    "a small queue measured in nodes": (
        "s3fifo", "_into", "state.counts[queue] += taken(table, node)", "state.counts[queue] += 1",
    ),
    "a ghost measured in nodes": (
        "s3fifo", "_forget", "state.counts[GHOST] > state", "state.counts[GHOST] > 3 * state",
    ),
    "p in the unit of the capacity": (
        "arc", "_victim", "int(state.counts[USUAL])", "1",
    ),
    "T1 measured in nodes": (
        "arc", "_on_insert", "    counts[T1] += room\n", "    counts[T1] += 1\n",
    ),
    "B1 measured in nodes": (
        "arc", "_on_evict", "state.counts[came_from + B1] += room", "state.counts[came_from] += 0",
    ),
    "a window measured in nodes": (
        "wtinylfu", "_put", "state.counts[segment] += taken(table, node)",
        "state.counts[segment] += 1",
    ),
    "a sample measured in nodes": (
        "wtinylfu", "_count", "sketch_add(state.sketch, node, taken(table, node))",
        "sketch_add(state.sketch, node, 1)",
    ),
    "a life over as many units as nodes": (
        "wild", "_on_evict", "room = float(taken(table, node))", "room = 1.0",
    ),
    "reuses in the unit of the capacity": (
        "wild", "_on_touch", "usual_nodes(taken(table, node), int(state.clock[USUAL]))",
        "float(taken(table, node))",
    ),
}  # fmt: skip


def broken(name: str, function: str, before: str, after: str) -> type[Policy]:
    """The policy with one function replaced, in every hook that calls it."""
    real = find(name)
    module = sys.modules[real.__module__]
    wrong = edited(getattr(module, function), module, before, after)
    hooks: dict[str, Any] = {}
    for each, hook in real.hooks().items():
        if callable(hook):
            own = hook is getattr(module, function)
            bound = wrong if own else bind(hook, {function: wrong}, compiled=False)
            hooks[each] = staticmethod(bound)
    return type("Broken", (real,), hooks)


def one_unit(name: str) -> type[Policy]:
    """The policy that rounds its shares to units of the capacity, and not to usual nodes."""

    class Broken(find(name)):  # type: ignore[misc]
        def prepare(self, setup: Setup) -> Any:
            return super().prepare(dataclasses.replace(setup, usual_room=1))

    return Broken


def same_when_alike(made: Callable[[], Policy], name: str) -> bool:
    for trace in TRACES:
        for capacity in (5, 11, 24):
            for room in (3, 10):
                try:
                    found = decided(all_alike(trace, room), made(), room * capacity)
                except (IndexError, UsageError):  # a fault of a hook is blamed on the policy
                    return False
                if found != decided(trace, name, capacity):
                    return False
    return True


@pytest.mark.parametrize("what", BROKEN)
def test_what_counts_nodes_is_noticed(what: str) -> None:
    wrong = broken(*BROKEN[what])
    assert not same_when_alike(wrong, BROKEN[what][0])


@pytest.mark.parametrize("name", ["s3fifo", "wtinylfu", "wild"])
def test_shares_of_units_are_noticed(name: str) -> None:
    assert same_when_alike(lambda: make(name), name)
    assert not same_when_alike(one_unit(name), name)


@pytest.mark.parametrize("name", sorted(queue_oracle.QUEUES))
@settings(deadline=None, max_examples=60, derandomize=True)
@given(
    trace=traces(requests=40, length=5, keys=3),
    rooms=st.lists(st.integers(1, 12), min_size=1, max_size=6),
    capacity=st.integers(1, 90),
)
def test_mixed_rooms_are_as_the_reference_says(
    name: str, trace: Trace, rooms: list[int], capacity: int
) -> None:
    work = weigh(trace, [rooms[node % len(rooms)] for node in range(trace.nodes)])
    steps = queue_oracle.replay(
        workload_of(work), name, capacity, work.rooms.tolist(), work.usual_room
    )
    found = decided(work, name, capacity)
    assert found["hits"] == [step.hits for step in steps]
    assert found["stored"] == [step.stored for step in steps]
    assert found["victims"] == [node for step in steps for node in step.evicted]


def ghosts_after(
    policy: type[Policy], trace: Weighted, capacity: int, watch: Callable[[Any, Any], None]
) -> None:
    """Call ``watch(table, state)`` whenever a request begins, once the policy knows of it."""
    made = policy()
    state = made.prepare(
        Setup(trace.nodes, capacity, trace.unit_tokens, trace, usual_room=trace.usual_room)
    )
    table = empty_table(trace.parent, trace.depth, trace.tokens, trace.room)
    hooks = {**made.hooks(), "weighted": True}
    own = bind(hooks["begin"], hooks, compiled=False)

    def begin(*given: Any) -> None:
        own(*given)
        watch(table, state)

    class Watched:
        """No plain function: `bind` leaves it as it is."""

        def __call__(self, *given: Any) -> None:
            begin(*given)

    counts = Counts(*(np.zeros(len(trace), np.int32) for _ in range(3)))
    log = Decisions(np.empty(0, np.int32), np.empty(0, np.int32))
    loop = bind(replay_loop, {**hooks, "begin": Watched()}, compiled=False)
    loop(table, state, capacity, trace.time_s, trace.starts, trace.chains, counts, log)


def mixed() -> list[Weighted]:
    random = np.random.default_rng(5)
    return [weigh(trace, random.integers(1, 30, trace.nodes)) for trace in TRACES]


def check_ghosts(policy: type[Policy], name: str) -> int:
    """Hold what is remembered to its bounds; return the most that was, over all traces."""
    most = 0
    for trace in mixed():
        for capacity in (7, 60, 333):

            def watch(table: Any, state: Any, trace: Weighted = trace, c: int = capacity) -> None:
                nonlocal most
                held = [int(trace.rooms[state.where == at].sum()) for at in range(4)]
                if name == "arc":
                    assert held[0] + held[1] <= c, "T1 and T2"
                    assert held[0] + held[2] <= c, "T1 and B1"
                    assert sum(held) <= 2 * c, "all four"
                    assert held == state.counts[:4].tolist(), "what is counted is there"
                    most = max(most, held[2] + held[3])
                else:
                    assert held[0] + held[1] <= c, "small and main"
                    assert held[2] <= c, "ghost"
                    assert held[:3] == state.counts[:3].tolist(), "what is counted is there"
                    most = max(most, held[2])

            ghosts_after(policy, trace, capacity, watch)
    return most


@pytest.mark.parametrize("name", ["arc", "s3fifo"])
def test_ghosts_stay_bounded(name: str) -> None:
    assert check_ghosts(find(name), name) > 100


@pytest.mark.parametrize(
    "wrong",
    [
        ("s3fifo", "_forget", "state.counts[GHOST] > state.counts[GHOST_ROOM]", "False"),
        ("s3fifo", "_begin", "_forget(table, state)", "pass"),
        ("arc", "_on_insert", "while counts[T1] + counts[B1] >", "if counts[T1] + counts[B1] >"),
        ("arc", "_on_insert", "> 2 * capacity", "> 3 * capacity"),
    ],
)
def test_ghosts_without_a_bound_are_noticed(wrong: tuple[str, str, str, str]) -> None:
    with pytest.raises(AssertionError):
        check_ghosts(broken(*wrong), wrong[0])


@functools.cache
def chunks(path: Path) -> Trace:
    return load_trace(path)


def lacks(trace: Trace, name: str) -> bool:
    return bool(make(name).missing(trace))


@pytest.mark.parametrize("name", POLICIES)
def test_unequal_chunks_replay_under_every_policy(name: str, shared_traces: Path) -> None:
    """RAGPulse, at capacities from less than a usual chunk to nearly all."""
    trace = chunks(shared_traces / "ragpulse")
    if lacks(trace, name):
        name = WITHOUT_COLUMNS[name]
    assert not lacks(trace, name)
    hits = []
    for capacity in (100, 30_000, 1_000_000, 15_000_000):
        found = replay(trace, name, capacity, compiled=False)
        assert 0 <= found.resident_blocks <= capacity
        hits.append(found.hit_tokens)
    assert hits[0] < hits[1] <= hits[2] <= hits[3]
    assert hits[3] == replay(trace, "lru", 15_000_000).hit_tokens, "all fits: the ceiling"


@pytest.mark.parametrize("name", POLICIES)
def test_samples_replay_under_every_policy(name: str) -> None:
    for trace in TRACES[:3]:
        taken = sample(trace, 3)
        for capacity in (2, 17, 80):
            found = replay(taken, name, capacity, compiled=False)
            assert 0 <= found.resident_blocks <= capacity


def test_a_sampled_chain_leaves_no_gaps_in_the_order_of_storing() -> None:
    """SIEVE's queue is a chain after a chain, whatever was left out of each."""
    paths = [tuple(range(at, at + 9)) for at in range(0, 40, 3)]
    taken = sample(make_trace(paths, [1] * len(paths), [0] * len(paths)), 2, seed=1)
    state: Any = make("sieve").prepare(Setup(taken.nodes, 1000, 16, taken))
    policy = make("sieve")
    counts = Counts(*(np.zeros(len(taken), np.int32) for _ in range(3)))
    log = Decisions(np.empty(0, np.int32), np.empty(0, np.int32))
    table = empty_table(taken.parent, taken.depth, taken.tokens, taken.room, taken.begins)
    loop = bind(replay_loop, {**policy.hooks(), "weighted": True}, compiled=False)
    loop(table, state, 1000, taken.time_s, taken.starts, taken.chains, counts, log)
    first = np.unique(taken.chains, return_index=True)[1]
    assert state.place.tolist() == first.tolist(), "the place of its first reference"
