"""The timed simulation: a trace, an engine's settings, a step's time; what each request saw."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from kvsched.foundation.errors import KvschedError, UsageError
from kvsched.foundation.jit import bind, compilation_enabled, entry_point
from kvsched.kernel.heap import heap_peek
from kvsched.kernel.table import empty_table
from kvsched.policy.base import Policy, Setup
from kvsched.policy.registry import make
from kvsched.replay.run import check_capacity
from kvsched.replay.vllm import FreeList
from kvsched.serve.arrivals import turn_rejected
from kvsched.serve.asked import NO_REASON, Asked, prepare
from kvsched.serve.blocks import hit_blocks
from kvsched.serve.cost import Cost, StepCost
from kvsched.serve.jump import clear_until_s
from kvsched.serve.loop import (
    DONE,
    HORIZON,
    LIVELOCK,
    LOG_FULL,
    MISPLACED,
    MORE,
    NO_VICTIM,
    STALLED,
    TURNED,
    run_steps,
)
from kvsched.serve.nodes import MEMORY
from kvsched.serve.orders.base import QueueOrder
from kvsched.serve.orders.registry import make_order
from kvsched.serve.replicas import Hooks, Replicas, for_replica, merge
from kvsched.serve.result import Simulation
from kvsched.serve.routing.base import Routing
from kvsched.serve.routing.registry import make_routing
from kvsched.serve.settings import Settings
from kvsched.serve.state import (
    COUNTS,
    FAULT,
    FREE_BLOCKS,
    LOG_COLUMNS,
    LOGGED,
    NEVER_S,
    REJECTED,
    RUNNING_COUNT,
    STEPS,
    TOKEN_STEP,
    Float64s,
    Rules,
    State,
    new_state,
    waiting_count,
)
from kvsched.serve.traffic import Traffic, plan
from kvsched.trace.model import Trace

AT_ONCE = 1 << 18
"""Steps between two looks at whether somebody has interrupted."""
ROWS = 1 << 12
"""Rows that the step log begins with."""


class StalledError(KvschedError):
    """Nobody runs, somebody waits, and no later step would admit anyone."""


class LivelockError(KvschedError):
    """Requests preempt each other without end: no later step would give one a token."""


_loops: dict[tuple[Any, ...], Callable[..., int]] = {}


def bound_loop(
    order: type[QueueOrder], cost: StepCost, policy: Policy | None, compiled: bool
) -> Callable[..., int]:
    """Return the loop with an order's hooks, a step's cost and a policy's hooks in it.

    Bound once a process. Without a policy the memory is vLLM's block pool.
    """
    names = {**order.hooks(), **cost.bound()}
    how = (order, *cost.bound().values(), None if policy is None else type(policy), compiled)
    if policy is not None:
        names |= {**MEMORY, **policy.hooks()}
    if how not in _loops:
        _loops[how] = bind(run_steps, names, compiled)
    return _loops[how]


def _eviction(policy: str | Policy | type[Policy] | None, trace: Trace) -> Policy | None:
    """Return who decides what leaves; None for vLLM's own free list."""
    if policy is None or policy in (FreeList, FreeList.name) or isinstance(policy, FreeList):
        return None
    chosen = make(policy).live_form()
    chosen.check(trace)
    return chosen


def _memory(asked: Asked, policy: Policy | None, settings: Settings) -> dict[str, Any]:
    """Return what `new_state` needs for the memory: blocks, or a policy's arrays over nodes."""
    held = asked.held.trace
    if policy is None:
        # No more blocks are ever used than are asked for: with as many nobody is preempted.
        return {"blocks": min(settings.num_gpu_blocks, max(held.references, 1))}
    setup = Setup(
        held.nodes,
        settings.num_gpu_blocks,
        held.block_size,
        held,
        hit_limit=asked.work.limit,
    )
    table = empty_table(held.parent, held.depth, held.tokens)
    return {"table": table, "policy": policy.prepare(setup)}


def _run(
    loop: Callable[..., int],
    state: State,
    rules: Rules,
    own: Any,
    cost: Cost,
    horizon: float,
    jumps: bool,
    capacity: int,
) -> State:
    """Run until it stops by itself; return the state, whose step log may have grown."""
    while True:
        status = int(loop(state, rules, own, cost, AT_ONCE, horizon, jumps))
        if status in (DONE, HORIZON, TURNED):
            return state
        if status == LOG_FULL:
            more = np.zeros((len(state.log), LOG_COLUMNS))
            state = state._replace(log=np.concatenate([state.log, more]))
        elif status == STALLED:
            raise StalledError(_stalled(state, capacity))
        elif status == LIVELOCK:
            raise LivelockError(_livelocked(state, capacity))
        elif status == MISPLACED:
            raise UsageError("the order named a place in the running list that does not exist")
        elif status == NO_VICTIM:
            request = int(state.counts[FAULT]) - 1
            raise UsageError(
                f"the policy's victim for request {request} (from 0) is no evictable node: return "
                "a resident leaf that nobody holds"
            )
        elif status != MORE:
            raise AssertionError(f"the loop ended with {status}")


def _stalled(state: State, capacity: int) -> str:
    waiting = waiting_count(state)
    head = heap_peek(state.waiting)
    return (
        f"stalled after {int(state.counts[STEPS]):,} steps, at {state.clock[0]:.6g} s: "
        f"{waiting:,} requests wait and none can be admitted; first is request {head} (from 0) "
        f"with {int(state.progress.tokens[head]):,} tokens, {int(state.counts[FREE_BLOCKS]):,} of "
        f"{capacity:,} blocks are free, {int(state.counts[RUNNING_COUNT]):,} run"
    )


def _livelocked(state: State, capacity: int) -> str:
    counts = state.counts
    running = state.running[: counts[RUNNING_COUNT]]
    shown = ", ".join(
        f"{request} ({int(state.progress.computed[request]):,} of "
        f"{int(state.progress.tokens[request]):,} tokens computed, preempted "
        f"{int(state.progress.preemptions[request]):,} times)"
        for request in running[:3]
    )
    return (
        f"livelock after {int(counts[STEPS]):,} steps, at {state.clock[0]:.6g} s: requests preempt "
        f"each other, and none has gained a token for {int(counts[STEPS] - counts[TOKEN_STEP]):,} "
        f"steps; {len(running):,} run: {shown}{' …' if len(running) > 3 else ''}; "
        f"{waiting_count(state):,} wait, {int(counts[FREE_BLOCKS]):,} of {capacity:,} blocks are "
        "free. Give the order a tie break, or the engine more blocks"
    )


def simulate(
    trace: Trace,
    settings: Settings,
    *,
    cost: StepCost,
    order: str | QueueOrder | type[QueueOrder] = "fcfs",
    policy: str | Policy | type[Policy] | None = None,
    speedup: float = 1.0,
    rate: float | None = None,
    burstiness: float = 1.0,
    seed: int = 0,
    concurrency: int | None = None,
    sessions: bool = False,
    think_s: float | None = None,
    data_parallel_size: int = 1,
    routing: str | Routing | type[Routing] | None = None,
    horizon_s: float | None = None,
    step_log: bool = False,
    jumps: bool = True,
    compiled: bool | None = None,
) -> Simulation:
    """Serve ``trace`` step by step, as vLLM v1's scheduler does.

    Requests arrive at the trace's times over ``speedup``; or at a ``rate`` with its ``burstiness``
    and ``seed``; or, with a ``concurrency``, each when one before it has ended. With ``sessions``
    a later turn waits for the answer before it, and thinks (`kvsched.serve.traffic.Traffic`).
    ``data_parallel_size`` engines, each with ``settings``, share the requests as ``routing`` says
    (`kvsched.serve.routing`), None as vLLM does.
    ``cost`` gives the seconds of a step (`kvsched.serve.cost`).
    ``policy`` decides which cached block leaves, None as vLLM's free list.
    ``horizon_s`` ends the run; who has not ended then is unfinished. ``step_log`` keeps a row a
    step. ``jumps=False`` makes every step by itself: the same result, later.

    What can never fit is rejected before the run. Cost: O(running) a step, and O(1) a block that
    moves. Memory: 16 bytes a block of every request, and 20 a node and an engine. Raises
    UsageError for settings that cannot be, StalledError or LivelockError where an engine would
    never go on.
    """
    chosen = make_order(order)
    missing = [name for name in chosen.needs if getattr(trace, name, None) is None]
    if missing:
        raise UsageError(f"order {chosen.name} needs a column of the trace: {', '.join(missing)}")
    capacity = check_capacity(settings.num_gpu_blocks)
    if horizon_s is not None and not horizon_s > 0:
        raise UsageError(f"the horizon must be above 0 s, not {horizon_s:g}")
    traffic = Traffic(speedup, rate, burstiness, seed, concurrency, sessions, think_s)
    asked = prepare(trace, settings)
    coming = plan(trace, traffic)
    rules = settings.rules(trace.block_size, closed_loop=traffic.closed_loop)
    rows = ROWS if step_log else 0
    evicts = _eviction(policy, trace)
    compiled = compilation_enabled() if compiled is None else compiled
    loop = bound_loop(type(chosen), cost, evicts, compiled)
    horizon = np.inf if horizon_s is None else float(horizon_s)
    arrays = cost.arrays()

    def engine(known: int) -> State:
        memory = _memory(asked, evicts, settings)
        return new_state(
            asked.work, coming.arrival_s, known, asked.held.trace.nodes, capacity, rules, rows,
            arrivals=coming.arrivals, **memory,
        )  # fmt: skip

    if _check_replicas(data_parallel_size) == 1 and routing is None:
        state = engine(coming.known)
        state.progress.status[asked.reason != NO_REASON] = REJECTED
        own = chosen.prepare(asked.trace)
        state = _run(loop, state, rules, own, arrays, horizon, jumps, capacity)
        if horizon_s is not None:
            turn_rejected(state, rules, horizon)
        return _result(asked, settings, chosen, evicts, state, horizon_s)

    states = [engine(0) for _ in range(data_parallel_size)]
    states[0].progress.status[asked.reason != NO_REASON] = REJECTED
    states = [for_replica(states[0], state) for state in states]
    owns = [chosen.prepare(asked.trace) for _ in states]
    loop = entry_point(loop, (states[0], rules, owns[0], arrays, AT_ONCE, horizon, jumps))

    def advance(engine: int, state: State, until_s: float) -> State:
        return _run(loop, state, rules, owns[engine], arrays, until_s, jumps, capacity)

    look_up: Any = hit_blocks if evicts is None else MEMORY["hit_blocks"]
    hits = bind(look_up, None, compiled)
    hits = entry_point(hits, (states[0], 0, trace.block_size))
    clear = bind(clear_until_s, cost.bound(), compiled)
    clear = entry_point(clear, (states[0], rules, arrays, horizon))

    def clear_until(state: State, until_s: float) -> float:
        return clear(state, rules, arrays, until_s)

    routes = make_routing("least-loaded" if routing is None else routing)
    routes.prepare(asked.trace, data_parallel_size)
    replicas = Replicas(states, rules, coming, routes, Hooks(advance, hits, clear_until))
    state, step_replica = merge(replicas.run(horizon))
    found = _result(asked, settings, chosen, evicts, state, horizon_s)
    return dataclasses.replace(
        found, routing=routes, replicas=data_parallel_size, replica=replicas.replica,
        step_replica=step_replica if step_log else None,
    )  # fmt: skip


def _check_replicas(count: object) -> int:
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise UsageError(f"data_parallel_size must be a whole number of at least 1, not {count!r}")
    return count


def _result(
    asked: Asked,
    settings: Settings,
    order: QueueOrder,
    policy: Policy | None,
    state: State,
    horizon_s: float | None,
) -> Simulation:
    progress = state.progress

    def moments(column: Float64s) -> Float64s:
        return np.where(column == NEVER_S, np.nan, column)

    counts = state.counts[:COUNTS].copy()
    return Simulation(
        trace=asked.trace,
        settings=settings,
        order=order,
        policy=policy,
        status=progress.status,
        reason=asked.reason,
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
    )
