"""A simulation made step by step, and all that admission and swap promise checked after each."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from kvsched.serve.admission import (
    ADMISSION,
    PAUSED_STEPS,
    WAIT,
    WAIT_TOKENS,
    AdmissionSettings,
)
from kvsched.serve.asked import DEADLINE, NO_REASON, QUEUE_FULL, QUEUE_TOKENS, WAITED, prepare
from kvsched.serve.cost import StepCost
from kvsched.serve.engine import bound_loop, find_eviction, memory_of
from kvsched.serve.loop import DONE, MORE
from kvsched.serve.orders.fcfs import FCFS
from kvsched.serve.result import Simulation
from kvsched.serve.settings import Settings
from kvsched.serve.state import (
    ADMITTED_NOW,
    FREE_BLOCKS,
    LOG_FREE,
    LOG_RUNNING,
    LOG_START_S,
    LOG_TOKENS,
    PREEMPTED_NOW,
    RAN,
    RECOMPUTED,
    REJECTED,
    STEPS,
    WAITING,
    State,
    new_state,
    waiting_count,
)
from kvsched.serve.swap import CAPACITY, SWAP, USED, SwapSettings
from kvsched.trace.model import Trace

MOST_STEPS = 5000
"""No workload of the tests takes so many, unless a rule is broken."""


def blocks_of(tokens: int) -> int:
    return -(-tokens // 16)


class Stepping:
    """One run; `run` checks after every step."""

    def __init__(
        self,
        trace: Trace,
        told: Settings,
        cost: StepCost,
        admission: AdmissionSettings | None = None,
        swap: SwapSettings | None = None,
        policy: str | None = None,
    ) -> None:
        asked = prepare(trace, told)
        chosen = find_eviction(policy, trace)
        self.told = told
        self.admission = admission
        self.rules = told.rules(16, closed_loop=False)
        self.capacity = told.num_gpu_blocks
        memory = memory_of(asked, chosen, told)
        arrivals = trace.time_s - trace.time_s[0]
        nodes = asked.held.trace.nodes
        self.state: State = new_state(
            asked.work, arrivals, len(trace), nodes, self.capacity, self.rules, MOST_STEPS, **memory
        )
        self.state.progress.status[asked.reason != NO_REASON] = REJECTED
        more: dict[str, Any] = {}
        if admission is not None:
            more |= ADMISSION
            self.state = self.state._replace(gate=admission.gate(asked.trace, self.capacity))
        if swap is not None:
            more |= SWAP
            self.state = self.state._replace(tier=swap.tier(len(trace), 16))
        self.loop = bound_loop(FCFS, cost, chosen, False, more)
        self.cost = cost.arrays()
        self.reached = np.zeros(len(trace), np.int64)
        self.again = 0
        self.paused = False
        self.paused_steps = 0
        self.unstored = np.zeros(len(trace), np.bool_)
        share = None if admission is None else admission.degrade_above
        self.degrade_above = np.inf if share is None else share * self.capacity

    def run(self) -> State:
        state = self.state
        status = MORE
        while status != DONE:
            before = int(state.counts[STEPS])
            assert before < MOST_STEPS - 1, "it goes on without end"
            now = float(state.clock[0])
            status = self.loop(state, self.rules, np.zeros(0), self.cost, 1, np.inf, False)
            assert status in (MORE, DONE), status
            assert state.clock[0] >= now
            if state.counts[STEPS] > before:
                self.check_step(state.log[before])
        assert self.again == self.recomputed()
        assert state.counts[FREE_BLOCKS] == self.capacity
        if state.tier is not None:
            assert state.tier.counts[USED] == 0
        return state

    def recomputed(self) -> int:
        progress = self.state.progress
        last = np.minimum(progress.computed, progress.reached) - progress.hit
        return int(self.state.counts[RECOMPUTED] + np.maximum(last, 0).sum())

    def check_step(self, row: Any) -> None:
        state = self.state
        assert 0 <= row[LOG_FREE] <= self.capacity
        assert row[LOG_TOKENS] <= self.told.max_num_batched_tokens
        for request, tokens in self.ran():
            after = int(state.progress.computed[request])
            self.again += max(min(after, int(self.reached[request])) - (after - tokens), 0)
            self.reached[request] = max(after, self.reached[request])
        if self.admission is not None:
            self.check_limits()
            if not self.told.enable_prefix_caching:
                self.check_pause(row)
        if state.tier is not None:
            self.check_tier()

    def ran(self) -> list[tuple[int, int]]:
        count = self.state.counts[RAN]
        return list(
            zip(
                self.state.ran[:count].tolist(),
                self.state.ran_tokens[:count].tolist(),
                strict=True,
            )
        )

    def check_limits(self) -> None:
        state, told = self.state, self.admission
        assert told is not None
        waits = (state.progress.status == WAITING) & (state.progress.scheduled_s < 0)
        tokens = int(state.work.prompt[waits].sum())
        assert state.gate.counts[WAIT] == waits.sum()
        assert state.gate.counts[WAIT_TOKENS] == tokens
        assert told.max_waiting is None or waits.sum() <= told.max_waiting
        assert told.max_waiting_tokens is None or tokens <= told.max_waiting_tokens

    def look(self, used: float) -> bool:
        told = self.admission
        assert told is not None
        if told.pause_above is None:
            return False
        below = told.pause_above if told.resume_below is None else told.resume_below
        if used > told.pause_above * self.capacity:
            self.paused = True
        elif used < below * self.capacity:
            self.paused = False
        return self.paused

    def check_pause(self, row: Any) -> None:
        """Nothing is shared, so what was used before each admission is known."""
        state = self.state
        ran = dict(self.ran())
        admitted = state.admitted[: state.counts[ADMITTED_NOW]].tolist()
        took = [blocks_of(int(state.progress.hit[each]) + ran[each]) for each in admitted]
        used = self.capacity - row[LOG_FREE] - sum(took)
        for request, blocks in zip(admitted, took, strict=True):
            assert not self.look(used), "a pause admits nobody"
            if state.progress.scheduled_s[request] == row[LOG_START_S]:
                self.unstored[request] = used > self.degrade_above
            used += blocks
        assert (state.gate.unstored == self.unstored).all()
        told_now = state.gate.rejected_s == row[LOG_START_S]
        refused = told_now & np.isin(state.gate.reason, (QUEUE_FULL, QUEUE_TOKENS))
        may = (
            waiting_count(state) + refused.sum() > 0
            and row[LOG_RUNNING] < self.told.max_num_seqs
            and row[LOG_TOKENS] < self.told.max_num_batched_tokens
            and state.counts[PREEMPTED_NOW] == 0
        )
        if self.look(used) and may:
            self.paused_steps += 1
        assert state.gate.counts[PAUSED_STEPS] == self.paused_steps

    def check_tier(self) -> None:
        state = self.state
        progress, tier = state.progress, state.tier
        inside = (progress.status == WAITING) & (progress.computed > 0)
        held = -(-progress.computed[inside] // 16)
        assert (tier.blocks[inside] == held).all()
        assert tier.counts[USED] == held.sum() == tier.blocks.sum()
        assert tier.counts[USED] <= tier.counts[CAPACITY]


def waiting_at(found: Simulation, moment: float) -> np.ndarray:
    """(R,) who has come, was never admitted and is not rejected, from the moments alone."""
    came = found.arrival_s <= moment
    told = ~(found.rejected_s > moment) & ~np.isnan(found.rejected_s)
    never = found.rejected & np.isnan(found.rejected_s)
    return came & ~(found.scheduled_s <= moment) & ~told & ~never


def check_moments(found: Simulation) -> None:
    """The limits hold, and each rejection has its reason, by the moments of the result alone."""
    told = found.admission
    assert told is not None
    assert found.step_log is not None
    total = found.summary()
    assert total["finished"] + total["rejected"] + total["unfinished"] == total["requests"]
    assert sum(total["rejected_because"].values()) == total["rejected"]
    assert ((found.reason > 0) == found.rejected).all()
    assert np.isnan(found.scheduled_s[found.rejected]).all()
    assert not (found.generated_tokens[found.rejected] > 0).any()
    most = math.inf if told.max_waiting is None else told.max_waiting
    most_tokens = math.inf if told.max_waiting_tokens is None else told.max_waiting_tokens
    prompts = found.trace.input_tokens
    patience = math.inf if told.max_queue_s is None else told.max_queue_s
    for start in found.step_log[:, LOG_START_S]:
        waits = waiting_at(found, start)
        assert waits.sum() <= most
        assert prompts[waits].sum() <= most_tokens
        # Due moments are whole microseconds, rounded up.
        assert (start - found.arrival_s[waits] <= patience + 1e-6).all()
    for request in np.flatnonzero(~np.isnan(found.rejected_s)):
        moment = found.rejected_s[request]
        waits = waiting_at(found, moment)
        waited = moment - found.arrival_s[request]
        assert waited >= 0
        reason = found.reason[request]
        if reason == QUEUE_FULL:
            assert waits.sum() == most
        elif reason == QUEUE_TOKENS:
            assert prompts[waits].sum() + prompts[request] > most_tokens
        elif reason == WAITED:
            assert waited > (told.max_queue_s or 0)
        else:
            assert reason == DEADLINE
            assert found.trace.deadline_s is not None
            assert moment > found.trace.deadline_s[request] - found.trace.time_s[0]
    if told.max_queue_s is not None:
        begun = ~np.isnan(found.scheduled_s)
        assert (found.queued_s[begun] <= told.max_queue_s).all()
