"""The timed simulation: a trace, an engine's settings, a step's time; what each request saw."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from kvsched.foundation.errors import KvschedError, UsageError
from kvsched.foundation.jit import bind, compilation_enabled
from kvsched.kernel.heap import heap_peek
from kvsched.kernel.table import empty_table
from kvsched.policy.base import Policy, Setup
from kvsched.policy.registry import make
from kvsched.replay.run import check_capacity
from kvsched.replay.vllm import FreeList
from kvsched.serve.asked import NO_REASON, Asked, prepare
from kvsched.serve.cost import Cost, StepCost
from kvsched.serve.loop import (
    DONE,
    HORIZON,
    LOG_FULL,
    MISPLACED,
    MISQUEUED,
    MORE,
    NO_VICTIM,
    STALLED,
    run_steps,
)
from kvsched.serve.nodes import MEMORY
from kvsched.serve.orders.base import QueueOrder
from kvsched.serve.orders.registry import make_order
from kvsched.serve.result import Simulation
from kvsched.serve.settings import Settings
from kvsched.serve.state import (
    COUNTS,
    FAULT,
    FREE_BLOCKS,
    KNOWN_ARRIVALS,
    LOG_COLUMNS,
    LOGGED,
    NEVER_S,
    REJECTED,
    RUNNING_COUNT,
    STEPS,
    Float64s,
    Rules,
    State,
    new_state,
    waiting_count,
)
from kvsched.trace.model import Trace

AT_ONCE = 1 << 18
"""Steps between two looks at whether somebody has interrupted."""
ROWS = 1 << 12
"""Rows that the step log begins with."""


class StalledError(KvschedError):
    """Nobody runs, somebody waits, and no later step would admit anyone."""


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


def _arrivals(trace: Trace, speedup: float, concurrency: int | None) -> tuple[Float64s, int]:
    """Return (R,) arrivals, and how many of them are known at the start."""
    if concurrency is None:
        if not (math.isfinite(speedup) and speedup > 0):
            raise UsageError(f"speedup must be above 0, not {speedup:g}")
        return (trace.time_s - trace.time_s[0]) / speedup, len(trace)
    if isinstance(concurrency, bool) or not isinstance(concurrency, int) or concurrency < 1:
        raise UsageError(f"concurrency must be a whole number of at least 1, not {concurrency!r}")
    return np.zeros(len(trace)), min(concurrency, len(trace))


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
    """Run to the end; return the state, whose step log may have grown."""
    while True:
        status = int(loop(state, rules, own, cost, AT_ONCE, horizon, jumps))
        if status in (DONE, HORIZON):
            return state
        if status == LOG_FULL:
            more = np.zeros((len(state.log), LOG_COLUMNS))
            state = state._replace(log=np.concatenate([state.log, more]))
        elif status == STALLED:
            raise StalledError(_stalled(state, capacity))
        elif status == MISPLACED:
            raise UsageError("the order named a place in the running list that does not exist")
        elif status == MISQUEUED:
            raise UsageError("the order named a request that does not wait")
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


def simulate(
    trace: Trace,
    settings: Settings,
    *,
    cost: StepCost,
    order: str | QueueOrder | type[QueueOrder] = "fcfs",
    policy: str | Policy | type[Policy] | None = None,
    speedup: float = 1.0,
    concurrency: int | None = None,
    horizon_s: float | None = None,
    step_log: bool = False,
    jumps: bool = True,
    compiled: bool | None = None,
) -> Simulation:
    """Serve ``trace`` with one engine, step by step, as vLLM v1's scheduler does.

    Requests arrive at the trace's times over ``speedup``, or, with a ``concurrency``, each when
    one before it has ended. ``cost`` gives the seconds of a step (`kvsched.serve.cost`).
    ``policy`` decides which cached block leaves, None as vLLM's free list.
    ``horizon_s`` ends the run; who has not ended then is unfinished. ``step_log`` keeps a row a
    step. ``jumps=False`` makes every step by itself: the same result, later.

    What can never fit is rejected before the run. Cost: O(running) a step, and O(1) a block that
    moves. Memory: 16 bytes a block of every request, and 20 a node. Raises UsageError for
    settings that cannot be, StalledError where the engine would never go on.
    """
    chosen = make_order(order)
    chosen.check(trace)
    capacity = check_capacity(settings.num_gpu_blocks)
    if horizon_s is not None and not horizon_s > 0:
        raise UsageError(f"the horizon must be above 0 s, not {horizon_s:g}")
    asked = prepare(trace, settings)
    arrival_s, known = _arrivals(trace, speedup, concurrency)
    rules = settings.rules(trace.block_size, closed_loop=concurrency is not None)
    rows = ROWS if step_log else 0
    evicts = _eviction(policy, trace)
    memory = _memory(asked, evicts, settings)
    nodes = asked.held.trace.nodes
    state = new_state(asked.work, arrival_s, known, nodes, capacity, rules, rows, **memory)
    state.progress.status[asked.reason != NO_REASON] = REJECTED
    compiled = compilation_enabled() if compiled is None else compiled
    loop = bound_loop(type(chosen), cost, evicts, compiled)
    horizon = np.inf if horizon_s is None else float(horizon_s)
    own = chosen.prepare(asked.trace)
    state = _run(loop, state, rules, own, cost.arrays(), horizon, jumps, capacity)
    return _result(asked, settings, chosen, evicts, state, horizon_s)


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

    arrived = np.arange(len(asked.trace)) < state.counts[KNOWN_ARRIVALS]
    counts = state.counts[:COUNTS].copy()
    return Simulation(
        trace=asked.trace,
        settings=settings,
        order=order,
        policy=policy,
        status=progress.status,
        reason=asked.reason,
        arrival_s=np.where(arrived, progress.arrival_s, np.nan),
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
