"""An engine of a run: how it is made, bound to its hooks, and driven until it stops."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvsched.foundation.blame import Suspect, blamed_on
from kvsched.foundation.errors import KvschedError, UsageError
from kvsched.foundation.jit import bind, entry_point, is_kept
from kvsched.kernel.heap import heap_peek
from kvsched.kernel.table import empty_table
from kvsched.policy.base import Policy, Setup
from kvsched.policy.registry import make
from kvsched.replay.vllm import FreeList
from kvsched.serve.admission import ADMISSION, AdmissionSettings
from kvsched.serve.asked import Asked
from kvsched.serve.cost import Cost, StepCost
from kvsched.serve.loop import (
    DONE,
    HORIZON,
    LIVELOCK,
    LOG_FULL,
    MISPLACED,
    MISQUEUED,
    MORE,
    NO_VICTIM,
    STALLED,
    TURNED,
    run_steps,
)
from kvsched.serve.nodes import MEMORY
from kvsched.serve.orders.base import QueueOrder
from kvsched.serve.settings import Settings
from kvsched.serve.state import (
    FAULT,
    FREE_BLOCKS,
    LOG_COLUMNS,
    RUNNING_COUNT,
    STEPS,
    TOKEN_STEP,
    Rules,
    State,
    new_state,
    waiting_count,
)
from kvsched.serve.swap import SWAP, SwapSettings
from kvsched.serve.traffic import Coming
from kvsched.trace.model import Trace

AT_ONCE = 1 << 18
"""Steps between two looks at whether somebody has interrupted."""
ROWS = 1 << 12
"""Rows that the step log begins with."""


COMPILING = "compiling"
"""What a `Report` is told of."""
Report = Callable[[str, int, int], None]
"""Told (what, done, all)."""


class StalledError(KvschedError):
    """Nobody runs, somebody waits, and no later step would admit anyone."""


class LivelockError(KvschedError):
    """Requests preempt each other without end: no later step would give one a token."""


_loops: dict[tuple[Any, ...], Callable[..., int]] = {}


def bound_loop(
    order: type[QueueOrder],
    cost: StepCost,
    policy: Policy | None,
    compiled: bool,
    more: Mapping[str, Any] | None = None,
) -> Callable[..., int]:
    """Return the loop with an order's hooks, a step's cost and a policy's hooks in it.

    Bound once a process. Without a policy the memory is vLLM's block pool. ``more`` are the names
    of `ADMISSION` and `SWAP` where they are used.
    """
    names = {**order.hooks(), **cost.bound(), **(more or {})}
    how = (order, *cost.bound().values(), None if policy is None else type(policy), compiled)
    how += tuple((more or {}).values())
    if policy is not None:
        names |= {**MEMORY, **policy.hooks()}
    if how not in _loops:
        _loops[how] = bind(run_steps, names, compiled)
    return _loops[how]


def is_compiled(
    order: type[QueueOrder],
    cost: StepCost,
    policy: Policy | None,
    more: Mapping[str, Any] | None = None,
) -> bool:
    """Whether `bound_loop` compiled has been compiled in this process, or is kept on disk."""
    loop: Any = bound_loop(order, cost, policy, True, more)
    if loop.signatures:
        return True
    names = {**order.hooks(), **cost.bound(), **(more or {})}
    if policy is not None:
        names |= {**MEMORY, **policy.hooks()}
    return is_kept(run_steps, names)


def find_eviction(policy: str | Policy | type[Policy] | None, trace: Trace) -> Policy | None:
    """Return who decides what leaves; None for vLLM's own free list."""
    if policy is None or policy in (FreeList, FreeList.name) or isinstance(policy, FreeList):
        return None
    chosen = make(policy).live_form()
    chosen.check(trace)
    return chosen


def memory_of(asked: Asked, policy: Policy | None, settings: Settings) -> dict[str, Any]:
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
    with blamed_on([Suspect("policy", policy)], "its prepare fails"):
        return {"table": table, "policy": policy.prepare(setup)}


def advance(
    loop: Callable[..., int],
    state: State,
    rules: Rules,
    own: Any,
    cost: Cost,
    until_s: float,
    jumps: bool,
) -> State:
    """Run until it stops by itself; return the state, whose step log may have grown.

    Raises StalledError, LivelockError, and UsageError where an order or a policy is at fault.
    """
    while True:
        status = int(loop(state, rules, own, cost, AT_ONCE, until_s, jumps))
        if status in (DONE, HORIZON, TURNED):
            return state
        if status == LOG_FULL:
            more = np.zeros((len(state.log), LOG_COLUMNS))
            state = state._replace(log=np.concatenate([state.log, more]))
        elif status == STALLED:
            raise StalledError(_stalled(state))
        elif status == LIVELOCK:
            raise LivelockError(_livelocked(state))
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


def _stalled(state: State) -> str:
    waiting = waiting_count(state)
    head = heap_peek(state.waiting)
    return (
        f"stalled after {int(state.counts[STEPS]):,} steps, at {state.clock[0]:.6g} s: "
        f"{waiting:,} requests wait and none can be admitted; first is request {head} (from 0) "
        f"with {int(state.progress.tokens[head]):,} tokens, {int(state.counts[FREE_BLOCKS]):,} of "
        f"{int(state.capacity[0]):,} blocks are free, {int(state.counts[RUNNING_COUNT]):,} run"
    )


def _livelocked(state: State) -> str:
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
        f"{waiting_count(state):,} wait, {int(counts[FREE_BLOCKS]):,} of "
        f"{int(state.capacity[0]):,} blocks are free. "
        "Give the order a tie break, or the engine more blocks"
    )


@dataclass(frozen=True, eq=False)
class Engines:
    """What all engines of a run share."""

    asked: Asked
    coming: Coming
    settings: Settings
    rules: Rules
    order: QueueOrder
    cost: StepCost
    policy: Policy | None
    admission: AdmissionSettings | None
    swap: SwapSettings | None
    step_log: bool
    jumps: bool
    compiled: bool

    @property
    def more(self) -> dict[str, Any]:
        """Hooks of the parts that are used."""
        gate = {} if self.admission is None else ADMISSION
        return {**gate, **({} if self.swap is None else SWAP)}

    @functools.cached_property
    def loop(self) -> Callable[..., int]:
        """The loop with all hooks in it."""
        return bound_loop(type(self.order), self.cost, self.policy, self.compiled, self.more)

    @property
    def suspects(self) -> list[Suspect]:
        """Whose hooks are in the loop."""
        policy = [] if self.policy is None else [Suspect("policy", self.policy)]
        return [Suspect("order", self.order), *policy]

    def prepare_order(self) -> Any:
        """Return the order's own arrays. Raises UsageError where a user's order fails."""
        with blamed_on([Suspect("order", self.order)], "its prepare fails"):
            return self.order.prepare(self.asked.trace)

    def compile(self, arguments: tuple[Any, ...], report: Report | None) -> Callable[..., int]:
        """Return the loop compiled for such arguments, as `entry_point` does.

        ``report`` is told before and after, unless it is compiled or kept on disk. Raises
        UsageError for a hook of a user's own that does not compile.
        """
        order, policy = type(self.order), self.policy
        if not self.compiled or is_compiled(order, self.cost, policy, self.more):
            report = None
        if report is not None:
            report(COMPILING, 0, 1)
        with blamed_on(self.suspects, "its hooks fail"):
            loop = entry_point(self.loop, arguments)
        if report is not None:
            report(COMPILING, 1, 1)
        return loop

    def new(self, known: int) -> State:
        """Return an engine without a request, of whose arrivals so many are known. O(R + N + C)."""
        asked, settings = self.asked, self.settings
        rows = ROWS if self.step_log else 0
        state = new_state(
            asked.work, self.coming.arrival_s, known, asked.held.trace.nodes,
            settings.num_gpu_blocks, self.rules, rows, arrivals=self.coming.arrivals,
            **memory_of(asked, self.policy, settings),
        )  # fmt: skip
        if self.admission is not None:
            gate = self.admission.gate(asked.trace, settings.num_gpu_blocks)
            state = state._replace(gate=gate)
        if self.swap is not None:
            tier = self.swap.tier(len(asked.trace), self.rules.block_size)
            state = state._replace(tier=tier)
        return state
