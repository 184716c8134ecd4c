"""The timed simulation: a trace, an engine's settings, a step's time; what each request saw."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

from kvsched.foundation.blame import Suspect, blamed_on
from kvsched.foundation.errors import UsageError
from kvsched.foundation.jit import bind, compilation_enabled, entry_point
from kvsched.policy.base import Policy
from kvsched.replay.run import check_capacity
from kvsched.serve.admission import AdmissionSettings
from kvsched.serve.arrivals import turn_rejected
from kvsched.serve.asked import NO_REASON, prepare
from kvsched.serve.blocks import hit_blocks
from kvsched.serve.cost import StepCost
from kvsched.serve.engine import AT_ONCE, Engines, Report, advance, find_eviction
from kvsched.serve.jump import clear_until_s
from kvsched.serve.nodes import MEMORY
from kvsched.serve.orders.base import QueueOrder
from kvsched.serve.orders.registry import make_order
from kvsched.serve.replicas import Hooks, Replicas, for_replica
from kvsched.serve.result import Simulation
from kvsched.serve.routing.base import Routing
from kvsched.serve.routing.registry import make_routing
from kvsched.serve.settings import Settings
from kvsched.serve.state import (
    COUNTS,
    FINISHED,
    LOGGED,
    NEVER_S,
    RECOMPUTED,
    REJECTED,
    RUNNING,
    Float64s,
    State,
)
from kvsched.serve.swap import SwapSettings
from kvsched.serve.traffic import Traffic, plan
from kvsched.trace.model import Trace

ENGINES = 4096
"""The most replicas: each has arrays of its own for all requests and blocks."""


def simulate(
    trace: Trace,
    settings: Settings,
    *,
    cost: StepCost,
    order: str | QueueOrder | type[QueueOrder] = "fcfs",
    policy: str | Policy | type[Policy] | None = None,
    admission: AdmissionSettings | None = None,
    swap: SwapSettings | None = None,
    speedup: float = 1.0,
    rate: float | None = None,
    burstiness: float = 1.0,
    seed: int = 0,
    concurrency: int | None = None,
    sessions: bool = False,
    think_s: float | None = None,
    apart_s: float = 0.0,
    data_parallel_size: int = 1,
    routing: str | Routing | type[Routing] | None = None,
    horizon_s: float | None = None,
    step_log: bool = False,
    jumps: bool = True,
    compiled: bool | None = None,
    report: Report | None = None,
) -> Simulation:
    """Serve ``trace`` step by step, as vLLM v1's scheduler does.

    Requests arrive at the trace's times over ``speedup``; or at a ``rate`` with its ``burstiness``
    and ``seed``; or, with a ``concurrency``, each when one before it has ended. With ``sessions``
    a later turn waits for the answer before it, and thinks; ``apart_s`` is the least time between
    two arrivals of a closed loop (`kvsched.serve.traffic.Traffic`).
    ``data_parallel_size`` engines, each with ``settings``, share the requests as ``routing`` says
    (`kvsched.serve.routing`), None as vLLM does.
    ``cost`` gives the seconds of a step (`kvsched.serve.cost`).
    ``policy`` decides which cached block leaves, None as vLLM's free list. ``admission`` limits who
    waits and who is admitted; a preempted request is computed again, or with ``swap`` moved to a
    second tier and back.
    ``horizon_s`` ends the run; who has not ended then is unfinished. ``step_log`` keeps a row a
    step. ``jumps=False`` makes every step by itself: the same result, later.
    ``report`` is told (what, done, all) where the loop has to be compiled first.

    What can never fit is rejected before the run. Cost: O(running) a step, and O(1) a block that
    moves. Memory: 16 bytes a block of every request, and 20 a node and an engine. Raises
    UsageError for settings that cannot be, StalledError or LivelockError where an engine would
    never go on.
    """
    chosen = make_order(order)
    chosen.check(trace)
    check_capacity(settings.num_gpu_blocks)
    if horizon_s is not None and not (
        isinstance(horizon_s, int | float) and math.isfinite(horizon_s) and horizon_s > 0
    ):
        raise UsageError(f"the horizon must be above 0 s, not {horizon_s!r}")
    traffic = Traffic(speedup, rate, burstiness, seed, concurrency, sessions, think_s, apart_s)
    if apart_s and not (data_parallel_size == 1 and routing is None):
        raise UsageError("arrivals are kept apart for one engine alone")
    asked = prepare(trace, settings)
    coming = plan(trace, traffic)
    rules = settings.rules(trace.block_size, closed_loop=traffic.closed_loop)
    engines = Engines(
        asked, coming, settings, rules, chosen, cost, find_eviction(policy, trace), admission, swap,
        step_log, jumps, compilation_enabled() if compiled is None else compiled,
    )  # fmt: skip
    horizon = np.inf if horizon_s is None else float(horizon_s)
    if _check_replicas(data_parallel_size) == 1 and routing is None:
        found = _result(engines, _alone(engines, horizon, report), horizon_s)
    else:
        routes = make_routing("least-loaded" if routing is None else routing)
        state, replicas = _together(engines, data_parallel_size, routes, horizon, report)
        found = dataclasses.replace(
            _result(engines, state, horizon_s), routing=routes, replicas=data_parallel_size,
            replica=replicas.replica, step_replica=replicas.step_replica if step_log else None,
        )  # fmt: skip
    return found


def _alone(engines: Engines, horizon_s: float, report: Report | None) -> State:
    """Run one engine."""
    state = engines.new(engines.coming.known)
    state.progress.status[engines.asked.reason != NO_REASON] = REJECTED
    own = engines.prepare_order()
    cost = engines.cost.arrays()
    engines.compile((state, engines.rules, own, cost, AT_ONCE, horizon_s, engines.jumps), report)
    with blamed_on(engines.suspects, "its hooks fail"):
        state = advance(engines.loop, state, engines.rules, own, cost, horizon_s, engines.jumps)
    if math.isfinite(horizon_s):
        turn_rejected(state, engines.rules, horizon_s)
    return state


def _together(
    engines: Engines, count: int, routing: Routing, horizon_s: float, report: Report | None
) -> tuple[State, Replicas]:
    """Run several engines; return one state with all that they did."""
    trace, rules, jumps = engines.asked.trace, engines.rules, engines.jumps
    states = [engines.new(0) for _ in range(count)]
    states[0].progress.status[engines.asked.reason != NO_REASON] = REJECTED
    states = [for_replica(states[0], state) for state in states]
    owns = [engines.prepare_order() for _ in states]
    cost = engines.cost.arrays()
    like = (states[0], rules, owns[0], cost, AT_ONCE, horizon_s, jumps)
    loop = engines.compile(like, report)

    def go(engine: int, state: State, until_s: float) -> State:
        return advance(loop, state, rules, owns[engine], cost, until_s, jumps)

    look_up: Any = hit_blocks if engines.policy is None else MEMORY["hit_blocks"]
    hits = bind(look_up, None, engines.compiled)
    hits = entry_point(hits, (states[0], 0, trace.block_size))
    clear = bind(clear_until_s, {**engines.cost.bound(), **engines.more}, engines.compiled)
    clear = entry_point(clear, (states[0], rules, cost, horizon_s))

    def clear_until(state: State, until_s: float) -> float:
        return clear(state, rules, cost, until_s)

    with blamed_on([Suspect("routing", routing)], "its prepare fails"):
        routing.prepare(trace, count)
    hooks = Hooks(go, hits, clear_until)
    replicas = Replicas(states, rules, engines.coming, routing, hooks)
    with blamed_on(engines.suspects, "its hooks fail"):
        return replicas.run(horizon_s), replicas


def _last_recomputed(state: State) -> int:
    """Tokens computed again since the last preemption of those that ran on to now. O(R)."""
    progress = state.progress
    ran = (progress.status == FINISHED) | (progress.status == RUNNING)
    again = np.minimum(progress.computed, progress.reached) - progress.hit
    return int(np.maximum(again[ran], 0).sum())


def _check_replicas(count: object) -> int:
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= ENGINES:
        raise UsageError(
            f"data_parallel_size must be a whole number from 1 to {ENGINES:,}, not {count!r}"
        )
    return count


def _result(engines: Engines, state: State, horizon_s: float | None) -> Simulation:
    progress = state.progress
    asked = engines.asked

    def moments(column: Float64s) -> Float64s:
        return np.where(column == NEVER_S, np.nan, column)

    counts = state.counts[:COUNTS].copy()
    return Simulation(
        trace=asked.trace,
        settings=engines.settings,
        order=engines.order,
        policy=engines.policy,
        status=progress.status,
        reason=asked.reason if state.gate is None else asked.reason | state.gate.reason,
        arrival_s=moments(progress.arrival_s),
        scheduled_s=moments(progress.scheduled_s),
        first_token_s=moments(progress.first_token_s),
        finished_s=moments(progress.finished_s),
        hit_tokens=progress.first_hit,
        generated_tokens=np.maximum(progress.tokens - asked.work.prompt, 0),
        preemptions=progress.preemptions,
        counts=counts,
        end_s=float(state.clock[0]),
        horizon_s=horizon_s,
        step_log=state.log[: counts[LOGGED]].copy() if len(state.log) else None,
        recomputed_tokens=int(counts[RECOMPUTED]) + _last_recomputed(state),
        admission=engines.admission,
        swap=engines.swap,
        gate=state.gate,
        tier=state.tier,
    )
