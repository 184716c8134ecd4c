"""The timed simulation: a trace, an engine's settings, a step's time; what each request saw."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvsched.foundation.errors import KvschedError, UsageError
from kvsched.foundation.jit import bind, compilation_enabled
from kvsched.kernel.heap import heap_peek
from kvsched.kernel.table import empty_table
from kvsched.policy.base import Policy, Setup
from kvsched.policy.registry import make
from kvsched.replay.generated import Held, computed_tokens, held_blocks
from kvsched.replay.run import check_capacity
from kvsched.replay.vllm import FreeList
from kvsched.serve.cost import Cost, StepCost
from kvsched.serve.loop import (
    DONE,
    HORIZON,
    LOG_FULL,
    MISPLACED,
    MORE,
    NO_VICTIM,
    STALLED,
    run_steps,
)
from kvsched.serve.nodes import MEMORY
from kvsched.serve.orders.base import QueueOrder
from kvsched.serve.orders.registry import make_order
from kvsched.serve.settings import Settings
from kvsched.serve.state import (
    COUNTS,
    EMPTY_STEPS,
    EVICTIONS,
    FAULT,
    FINISHED,
    FREE_BLOCKS,
    JUMPED,
    KNOWN_ARRIVALS,
    LOG_COLUMNS,
    LOGGED,
    NEVER_S,
    PREEMPTIONS,
    REJECTED,
    RUNNING_COUNT,
    STEPS,
    TOKENS,
    Rules,
    State,
    Work,
    new_state,
    waiting_count,
)
from kvsched.trace.model import Trace

Float64s = NDArray[np.float64]
Int64s = NDArray[np.int64]

AT_ONCE = 1 << 18
"""Steps between two looks at whether somebody has interrupted."""
ROWS = 1 << 12
"""Rows that the step log begins with."""

NO_REASON = 0
EMPTY_PROMPT = 1
PROMPT_TOO_LONG = 2
NEVER_FITS = 3
NOT_IN_ONE_STEP = 4

REASONS = {
    NO_REASON: "",
    EMPTY_PROMPT: "its prompt is empty",
    PROMPT_TOO_LONG: "its prompt reaches max_model_len",
    NEVER_FITS: "it needs more blocks than there are",
    NOT_IN_ONE_STEP: "without chunked prefill it needs more than max_num_batched_tokens",
}
"""Why a request is rejected."""


class StalledError(KvschedError):
    """Nobody runs, somebody waits, and no later step would admit anyone."""


@dataclass(frozen=True)
class Asked:
    """What the engine is asked, before it runs: every request's work, and who is rejected."""

    trace: Trace
    """With the answers cut to ``max_model_len``, and no answer empty."""
    work: Work
    held: Held
    """Nodes of all that requests hold, and what is stored of each."""
    reason: NDArray[np.int8]
    """(R,) why each is rejected before the run, 0 where it is not."""


def prepare(trace: Trace, settings: Settings) -> Asked:
    """Return what ``trace`` asks of an engine. O(B). Raises UsageError for unequal blocks."""
    if trace.unequal:
        raise UsageError("an engine has blocks of one size; the trace's are unequal")
    if len(trace) == 0:
        raise UsageError("the trace has no request to simulate")
    output = np.maximum(trace.output_tokens, 1)
    reason = np.zeros(len(trace), np.int8)
    reason[trace.input_tokens < 1] = EMPTY_PROMPT
    if settings.max_model_len is not None:
        too_long = trace.input_tokens >= settings.max_model_len
        reason[too_long] = PROMPT_TOO_LONG
        left = np.maximum(settings.max_model_len - trace.input_tokens, 1)
        output = np.minimum(output, left)
    cut = dataclasses.replace(trace, output_tokens=output)
    held = held_blocks(cut, cache_generated=settings.cache_generated)
    needed = held.trace.chain_blocks
    reason[(reason == NO_REASON) & (needed > settings.num_gpu_blocks)] = NEVER_FITS
    if not settings.enable_chunked_prefill:
        most = computed_tokens(cut) > settings.max_num_batched_tokens
        reason[(reason == NO_REASON) & most] = NOT_IN_ONE_STEP
    count = len(trace)
    priority = np.zeros(count, np.int64)
    if trace.priority is not None:
        priority -= trace.priority
    cached = settings.enable_prefix_caching
    nothing = np.zeros(count, np.int64)
    work = Work(
        prompt=cut.input_tokens.astype(np.int64),
        output=output.astype(np.int64),
        priority=priority,
        starts=held.trace.starts,
        chains=held.trace.chains,
        limit=held.limit if cached else nothing,
        kept=held.kept if cached else nothing,
    )
    return Asked(cut, work, held, reason)


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


@dataclass(frozen=True, eq=False, repr=False)
class Simulation:
    """What a simulated engine did. Moments are seconds on the trace's clock, NaN where none.

    R requests in the trace's order; every one is finished, rejected (`reason` says why) or
    unfinished.
    """

    trace: Trace
    """With answers cut to ``max_model_len`` and at least 1 token, as they were simulated."""
    settings: Settings
    order: QueueOrder
    policy: Policy | None
    """Who decided what left; None for vLLM's own free list."""
    status: NDArray[np.int8]
    """(R,) `kvsched.serve.state`'s EXPECTED, WAITING, RUNNING, FINISHED or REJECTED."""
    reason: NDArray[np.int8]
    """(R,) why it was rejected, a key of `REASONS`."""
    arrival_s: Float64s
    scheduled_s: Float64s
    """(R,) start of the first step that it was in."""
    first_token_s: Float64s
    finished_s: Float64s
    hit_tokens: Int64s
    """(R,) prompt tokens hit when it was first admitted."""
    generated_tokens: Int64s
    preemptions: NDArray[np.int32]
    counts: Int64s
    """(COUNTS,) totals, by the names in `kvsched.serve.state`."""
    end_s: float
    """When the last step ended."""
    horizon_s: float | None
    step_log: Float64s | None
    """(steps, LOG_COLUMNS) one row a step, where it was asked for."""

    @property
    def finished(self) -> NDArray[np.bool_]:
        """(R,) whether each has finished."""
        found: NDArray[np.bool_] = self.status == FINISHED
        return found

    @property
    def rejected(self) -> NDArray[np.bool_]:
        """(R,) whether each was rejected."""
        found: NDArray[np.bool_] = self.status == REJECTED
        return found

    @property
    def unfinished(self) -> NDArray[np.bool_]:
        """(R,) whether each was neither finished nor rejected at the horizon."""
        return ~self.finished & ~self.rejected

    @property
    def queued_s(self) -> Float64s:
        """(R,) seconds from arrival to the first step, NaN where none."""
        waited: Float64s = self.scheduled_s - self.arrival_s
        return waited

    @property
    def ttft_s(self) -> Float64s:
        """(R,) seconds from arrival to the first token, NaN where none."""
        waited: Float64s = self.first_token_s - self.arrival_s
        return waited

    @property
    def latency_s(self) -> Float64s:
        """(R,) seconds from arrival to the last token, NaN where none."""
        waited: Float64s = self.finished_s - self.arrival_s
        return waited

    @functools.cached_property
    def tpot_s(self) -> Float64s:
        """(R,) mean seconds between two tokens of an answer, NaN where it has fewer than two."""
        between = self.trace.output_tokens - 1
        found = np.full(len(between), np.nan)
        np.divide(self.finished_s - self.first_token_s, between, out=found, where=between > 0)
        return found

    @property
    def steps(self) -> int:
        """Steps that were made."""
        return int(self.counts[STEPS])

    @property
    def jumped_steps(self) -> int:
        """Steps of these that were passed in jumps."""
        return int(self.counts[JUMPED])

    def summary(self) -> dict[str, Any]:
        """Return the totals: requests by outcome, and why; steps, tokens, preemptions."""
        rejected = {
            REASONS[code]: int((self.reason[self.rejected] == code).sum())
            for code in REASONS
            if code != NO_REASON and (self.reason[self.rejected] == code).any()
        }
        return {
            "requests": len(self.status),
            "finished": int(self.finished.sum()),
            "rejected": int(self.rejected.sum()),
            "rejected_because": rejected,
            "unfinished": int(self.unfinished.sum()),
            "steps": self.steps,
            "empty_steps": int(self.counts[EMPTY_STEPS]),
            "computed_tokens": int(self.counts[TOKENS]),
            "generated_tokens": int(self.generated_tokens.sum()),
            "hit_tokens": int(self.hit_tokens.sum()),
            "preemptions": int(self.counts[PREEMPTIONS]),
            "evictions": int(self.counts[EVICTIONS]),
            "end_s": self.end_s,
        }

    def __repr__(self) -> str:
        found = self.summary()
        return (
            f"<Simulation {self.order.name}: {found['finished']:,} of {found['requests']:,} "
            f"requests finished in {self.steps:,} steps, {self.end_s:,.1f} s>"
        )


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
    missing = [name for name in chosen.needs if getattr(trace, name, None) is None]
    if missing:
        raise UsageError(f"order {chosen.name} needs a column of the trace: {', '.join(missing)}")
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
