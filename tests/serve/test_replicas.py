"""Replicas: one is as none, each is as if it were alone, and a routing sees what is so."""

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
from serving import COST, in_sessions, plain, same, settings, work

from kvsched.foundation.errors import UsageError
from kvsched.foundation.jit import bind
from kvsched.policy.registry import built_in
from kvsched.serve import simulate as simulating
from kvsched.serve.asked import NO_REASON, prepare
from kvsched.serve.cost import Cost, linear_cost
from kvsched.serve.loop import DONE, run_steps
from kvsched.serve.orders.fcfs import FCFS
from kvsched.serve.replicas import Replicas
from kvsched.serve.result import Simulation
from kvsched.serve.routing.base import Engines, Routing
from kvsched.serve.routing.registry import routing_names
from kvsched.serve.routing.round_robin import RoundRobin
from kvsched.serve.settings import Settings
from kvsched.serve.simulate import simulate
from kvsched.serve.state import (
    ASKED,
    LOG_RUNNING,
    LOG_START_S,
    REJECTED,
    Arrivals,
    Rules,
    State,
    new_state,
)
from kvsched.trace.model import Trace

SECOND = linear_cost(1.0)
TOLD = Settings(num_gpu_blocks=100, max_num_seqs=8, max_num_batched_tokens=64)
PLAIN_LOOP = bind(run_steps, {**FCFS.hooks(), **COST.bound()}, False)
HOW: list[dict[str, Any]] = [
    {},
    {"speedup": 5.0},
    {"rate": 0.3},
    {"concurrency": 3},
    {"sessions": True},
    {"sessions": True, "think_s": 0.0, "rate": 1.0},
    {"sessions": True, "concurrency": 2},
]
COLUMNS = ("scheduled_s", "first_token_s", "finished_s", "hit_tokens", "preemptions")


@st.composite
def talks(draw: st.DrawFn) -> Trace:
    trace = draw(work())
    count = len(trace)
    return in_sessions(trace, draw(st.lists(st.integers(-1, 3), min_size=count, max_size=count)))


@given_settings(max_examples=80)
@given(
    talks(),
    settings(),
    st.sampled_from(HOW),
    st.sampled_from([None, "lru"]),
    st.sampled_from([None, 40.0]),
)
def test_one_replica_is_an_engine(
    trace: Trace, told: Settings, how: dict[str, Any], policy: str | None, horizon: float | None
) -> None:
    more: dict[str, Any] = {
        "cost": COST, "policy": policy, "horizon_s": horizon, "step_log": True, "compiled": False,
        **how,
    }  # fmt: skip
    engine = simulate(trace, told, **more)
    replica = simulate(trace, told, routing="round-robin", **more)
    assert same(engine, replica)
    assert engine.replica is None
    assert replica.replica is not None
    assert (replica.replica[replica.finished] == 0).all()


def alone(found: Simulation, told: Settings, engine: int, trace: Trace) -> dict[str, Any]:
    """What an engine does by itself with the arrivals that it had."""
    assert found.replica is not None
    asked = prepare(trace, told)
    mine = np.flatnonzero(found.replica == engine)
    arrival_s = np.where(np.isnan(found.arrival_s), -1.0, found.arrival_s)
    count = len(trace)
    arrivals = Arrivals(
        firsts=mine[np.argsort(arrival_s[mine], kind="stable")].astype(np.int32),
        follows=np.full(count, -1, np.int32),
        think_s=np.zeros(count),
        due=np.zeros(0, np.int32),
        ended=np.zeros(0, np.int32),
        ended_s=np.zeros(0),
    )
    rules = told.rules(trace.block_size, closed_loop=False)
    nodes = asked.held.trace.nodes
    state = new_state(
        asked.work, arrival_s, len(mine), nodes, told.num_gpu_blocks, rules, arrivals=arrivals
    )
    state.progress.status[asked.reason != NO_REASON] = REJECTED
    state.counts[ASKED] = len(mine)
    status = PLAIN_LOOP(state, rules, np.zeros(0), COST.arrays(), 1 << 30, np.inf, False)
    assert status == DONE
    progress = state.progress
    return {
        "scheduled_s": progress.scheduled_s,
        "first_token_s": progress.first_token_s,
        "finished_s": progress.finished_s,
        "hit_tokens": progress.first_hit,
        "preemptions": progress.preemptions,
    }


def is_alone(found: Simulation, told: Settings, trace: Trace) -> bool:
    """Whether every replica did what it would have done by itself."""
    assert found.replica is not None
    for engine in range(found.replicas):
        mine = found.replica == engine
        for name, column in alone(found, told, engine, trace).items():
            its = getattr(found, name)[mine]
            if not np.array_equal(np.where(np.isnan(its), -1, its), column[mine]):
                return False
    return True


def follows(found: Simulation, how: dict[str, Any]) -> bool:
    """Whether in a closed loop the k-th that begins does so at the k-th end, in time order."""
    if "concurrency" not in how or how.get("sessions"):
        return True
    ends = np.where(found.rejected, found.arrival_s, found.finished_s)
    begun = found.arrival_s[how["concurrency"] :]
    return bool(np.array_equal(begun, np.sort(ends)[: len(begun)]))


@dataclasses.dataclass
class Seen:
    """What a routing saw when a request arrived."""

    request: int
    outstanding: list[int]
    waiting: list[int]


class Watching(Routing):
    """It notes what it sees, and routes by a number of the request."""

    name = "watching"

    def prepare(self, trace: Trace, replicas: int) -> None:
        self.seen: list[Seen] = []

    def route(self, request: int, engines: Engines) -> int:
        count = len(engines)
        waiting = [engines.waiting(engine) for engine in range(count)]
        self.seen.append(Seen(request, list(engines.outstanding), waiting))
        return (request * 7 // 3) % count


def sees_what_is_so(found: Simulation) -> bool:
    """Whether what a routing saw of who is outstanding, and who waits, is what has come out."""
    routing, replica = found.routing, found.replica
    assert isinstance(routing, Watching)
    assert replica is not None
    before: list[int] = []
    for seen in routing.seen:
        now = found.arrival_s[seen.request]
        there = np.array([r for r in before if not found.rejected[r]], np.int64)
        out = there[~(found.finished_s[there] <= now)]
        expected = np.bincount(replica[out], minlength=found.replicas)
        if seen.outstanding != expected.tolist():
            return False
        queued = out[~(found.scheduled_s[out] < now)]
        least = np.bincount(replica[queued], minlength=found.replicas)
        clear = found.preemptions.sum() == 0 and not found.rejected.any()
        if clear and seen.waiting != least.tolist():
            return False
        before.append(seen.request)
    return sorted(before) == list(range(len(found.trace)))


@given_settings(max_examples=60)
@given(
    talks(),
    settings(),
    st.sampled_from(HOW),
    st.integers(2, 4),
    st.sampled_from(routing_names()),
)
def test_each_replica_is_alone(
    trace: Trace, told: Settings, how: dict[str, Any], count: int, routing: str
) -> None:
    more: dict[str, Any] = {"cost": COST, "data_parallel_size": count, "compiled": False, **how}
    found = simulate(trace, told, routing=Watching, step_log=True, **more)
    total = found.summary()
    assert total["finished"] + total["rejected"] == len(trace)
    assert (found.queued_s[found.finished] >= 0).all()
    assert (found.ttft_s[found.finished] > found.queued_s[found.finished]).all()
    assert is_alone(found, told, trace)
    assert follows(found, how)
    assert sees_what_is_so(found)
    assert found.step_log is not None
    assert found.step_replica is not None
    assert len(found.step_log) == len(found.step_replica) == found.steps
    assert (np.diff(found.step_log[:, LOG_START_S]) >= 0).all()
    first = simulate(trace, told, routing=routing, **more)
    again = simulate(trace, told, routing=routing, jumps=False, **more)
    assert is_alone(first, told, trace)
    assert same(first, again)
    assert np.array_equal(first.replica, again.replica)


def too_far(self: Any, until_s: float) -> bool:
    """Engines run on though another's end may bring an arrival."""
    for engine, start in enumerate(self._starts):
        if start < until_s:
            self._go(engine, until_s)
    turned = self._turned
    self._turned = False
    return bool(turned)


def not_at_all(self: Any, until_s: float) -> bool:
    """Engines stand still until all are routed."""
    if until_s < math.inf:
        return False
    return bool(RIGHT(self, until_s))


RIGHT = Replicas._advance


def never_ends(state: State, rules: Rules, cost: Cost, until_s: float) -> float:
    """Nobody ends before the horizon."""
    return until_s


@pytest.mark.parametrize("broken", [too_far, not_at_all, never_ends])
def test_the_checks_of_replicas_can_fail(broken: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = plain([(1, 9), (2, 30), (1, 5), (3, 12), (1, 7)] * 4, [0, 2, 3, 1, 9] * 4)

    def holds(how: dict[str, Any]) -> bool:
        found = simulate(
            trace, TOLD, cost=COST, routing=Watching, data_parallel_size=2, compiled=False, **how
        )
        return is_alone(found, TOLD, trace) and follows(found, how) and sees_what_is_so(found)

    assert all(holds(how) for how in ({}, {"concurrency": 3}))
    if broken is never_ends:
        monkeypatch.setattr(simulating, "clear_until_s", broken)
    else:
        monkeypatch.setattr(Replicas, "_advance", broken)
    assert not all(holds(how) for how in ({}, {"concurrency": 3}))


def test_two_by_hand() -> None:
    # A second a step, 3 tokens each: three requests at 0, 1 and 1.5 s, in turn to two engines.
    trace = plain([(1, 3), (1, 3), (1, 3), (1, 3)], [0, 1, 1, 7])
    found = simulate(
        trace, TOLD, cost=SECOND, data_parallel_size=2, routing="round-robin", step_log=True,
        compiled=False,
    )  # fmt: skip
    assert found.replica is not None
    assert found.replica.tolist() == [0, 1, 0, 1]
    assert found.finished_s.tolist() == [3, 4, 5, 12]
    assert found.step_log is not None
    assert found.step_replica is not None
    # Engine 0 steps from 0 to 5 s, engine 1 from 1 to 4 and from 9 to 12.
    assert found.step_log[:, LOG_START_S].tolist() == [0, 1, 1, 2, 2, 3, 3, 4, 9, 10, 11]
    assert found.step_replica.tolist() == [0, 0, 1, 0, 1, 0, 1, 0, 1, 1, 1]
    assert found.step_log[:, LOG_RUNNING].tolist() == [1, 1, 1, 2, 1, 1, 1, 1, 1, 1, 1]
    assert found.end_s == 12
    assert found.summary()["steps"] == 11


def test_a_session_of_two_replicas_by_hand() -> None:
    trace = in_sessions(plain([(1, 3), (1, 4), (1, 3), (1, 3)]), [0, 1, 0, 1])
    found = simulate(
        trace, TOLD, cost=SECOND, data_parallel_size=2, routing="round-robin", sessions=True,
        think_s=0.5, compiled=False,
    )  # fmt: skip
    assert found.replica is not None
    assert found.arrival_s.tolist() == [0, 0, 3.5, 4.5]
    assert found.replica.tolist() == [0, 1, 0, 1]
    assert found.finished_s.tolist() == [3, 4, 6.5, 7.5]


@pytest.mark.parametrize("how", [{}, {"concurrency": 3}, {"sessions": True}])
@pytest.mark.parametrize("horizon", [0.5, 20.0, 60.0])
def test_the_horizon_ends_all_replicas(how: dict[str, Any], horizon: float) -> None:
    trace = in_sessions(plain([(1, 9), (2, 30), (1, 5)] * 4, [0, 5, 9] * 4), [0, 1, 2] * 4)
    found = simulate(
        trace, TOLD, cost=COST, data_parallel_size=2, horizon_s=horizon, compiled=False, **how
    )
    assert found.replica is not None
    total = found.summary()
    assert total["finished"] + total["unfinished"] == 12
    assert total["unfinished"] > 0
    arrived = found.arrival_s < horizon
    assert (found.replica[arrived] >= 0).all()
    assert (found.replica[~arrived] == -1).all()
    assert not (found.scheduled_s >= horizon).any()


def test_compiled_is_plain() -> None:
    trace = in_sessions(
        plain([(1, 60), (2, 80), (3, 40), (1, 90)] * 5, [0, 1, 3, 1] * 5), [0, 1, 2, 3] * 5
    )
    told = Settings(num_gpu_blocks=12, max_num_seqs=8, max_num_batched_tokens=64)
    for how in ({}, {"sessions": True}):
        more: dict[str, Any] = {
            "cost": COST, "data_parallel_size": 2, "routing": "prefix-aware", "step_log": True,
            **how,
        }  # fmt: skip
        one = simulate(trace, told, compiled=True, **more)
        other = simulate(trace, told, compiled=False, **more)
        assert same(one, other)
        assert np.array_equal(one.replica, other.replica)
        assert np.array_equal(one.step_replica, other.step_replica)


class Looking(RoundRobin):
    """Round robin over engines that wait for each other."""

    looks = True


@given_settings(max_examples=40)
@given(talks(), settings(), st.sampled_from(HOW), st.sampled_from([None, 40.0]))
def test_who_does_not_look_need_not_wait(
    trace: Trace, told: Settings, how: dict[str, Any], horizon: float | None
) -> None:
    more: dict[str, Any] = {
        "cost": COST, "data_parallel_size": 3, "horizon_s": horizon, "compiled": False, **how
    }  # fmt: skip
    one = simulate(trace, told, routing=RoundRobin, **more)
    other = simulate(trace, told, routing=Looking, **more)
    assert same(one, other)
    assert np.array_equal(one.replica, other.replica)


@pytest.mark.parametrize("policy", [name for name in built_in() if not name.startswith("opt")])
def test_replicas_share_nothing_of_a_policy(policy: str) -> None:
    # The same requests once, and twice, so that each of two engines gets all of them.
    rng = np.random.default_rng(3)
    paths = [tuple(10 * root + block for block in range(3)) for root in rng.integers(0, 6, 24)]
    gaps = rng.integers(0, 60, 24).tolist()
    once = make_trace(paths, gaps, [5] * 24)
    pairs = [path for path in paths for _ in range(2)]
    twice = make_trace(pairs, [gap for each in gaps for gap in (each, 0)], [5] * 48)
    assert once.turn is not None
    twice = dataclasses.replace(twice, turn=once.turn.repeat(2))
    told = Settings(num_gpu_blocks=11, max_num_seqs=8, max_num_batched_tokens=64)
    more: dict[str, Any] = {"cost": SECOND, "policy": policy, "compiled": False}
    engine = simulate(once, told, **more)
    pair = simulate(twice, told, data_parallel_size=2, routing="round-robin", **more)
    for name in COLUMNS:
        for which in (0, 1):
            assert np.array_equal(getattr(pair, name)[which::2], getattr(engine, name)), name
    assert (
        0
        < engine.hit_tokens.sum()
        < simulate(once, dataclasses.replace(told, num_gpu_blocks=99), **more).hit_tokens.sum()
    )


class Outside(Routing):
    """It names an engine that does not exist."""

    name = "outside"

    def route(self, request: int, engines: Engines) -> int:
        return len(engines)


def test_what_cannot_be_is_said() -> None:
    trace = plain([(1, 3)])
    for more, said in (
        ({"data_parallel_size": 0}, "data_parallel_size must be a whole number from 1 to 4,096"),
        ({"data_parallel_size": True}, "data_parallel_size must be"),
        ({"data_parallel_size": 2, "routing": "random"}, r"unknown routing random \(known: round"),
        (
            {"data_parallel_size": 2, "routing": Outside},
            "named engine 2 for request 0; there are 2",
        ),
    ):
        with pytest.raises(UsageError, match=said):
            simulate(trace, TOLD, cost=COST, compiled=False, **more)
