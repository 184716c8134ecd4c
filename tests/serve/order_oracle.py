"""What each order must do, in plain words over sets and lists, beside the loop that does it."""

from __future__ import annotations

import dataclasses
from fractions import Fraction
from typing import Any

import numpy as np

from kvsched.foundation.jit import bind
from kvsched.kernel.table import NONE
from kvsched.lesson.decode_order.solution import score
from kvsched.serve.asked import NO_REASON, prepare
from kvsched.serve.cost import StepCost
from kvsched.serve.engine import find_eviction, memory_of
from kvsched.serve.loop import DONE, run_steps
from kvsched.serve.nodes import MEMORY
from kvsched.serve.orders.base import QueueOrder
from kvsched.serve.schedule import schedule_waiting
from kvsched.serve.settings import Settings
from kvsched.serve.state import (
    ADMITTED_NOW,
    PREEMPTED_NOW,
    REJECTED,
    RUNNING_COUNT,
    WAITING,
    State,
    new_state,
)
from kvsched.trace.model import Trace


class Oracle:
    """Follows who waits; a subclass says who must go before whom."""

    def __init__(self, trace: Trace, told: Settings, order: QueueOrder) -> None:
        self.trace = trace
        self.told = told
        self.order = order
        self.seen: set[int] = set()
        self.returned: set[int] = set()
        """Who was preempted."""
        self.queue: list[int] = []
        """Who waits, as they came; the preempted at the end."""
        self.entries: dict[int, int] = {}
        """When each came, again after a preemption."""
        self.entered = 0

    def arrives(self, state: State, request: int) -> None:
        """A request waits for the first time."""

    def follow(self, state: State) -> None:
        status = state.progress.status
        came = [r for r in range(len(self.trace)) if status[r] == WAITING and r not in self.seen]
        back = state.preempted[: state.counts[PREEMPTED_NOW]].tolist()
        # Who arrived in this step and who was preempted in it: a request cannot be both.
        for request in [*came, *back]:
            self.seen.add(request)
            if request in back:
                self.returned.add(request)
            else:
                self.arrives(state, request)
            self.entries[request] = self.entered
            self.entered += 1
            self.queue.append(request)

    def sort(self, state: State, now: float) -> None:
        """Bring the queue into the order in which it must be admitted."""

    def admits(self, state: State, request: int) -> bool:
        """Whether ``request`` may be the next of those that wait."""
        return request == self.queue[0]

    def took(self, state: State, request: int) -> None:
        self.queue.remove(request)

    def hits(self, state: State, request: int) -> int:
        """Tokens of full blocks from the root that are cached, the last token never."""
        size = self.trace.block_size
        if not self.told.enable_prefix_caching:
            return 0
        length = int(state.progress.tokens[request])
        low = state.work.starts[request]
        most = min((length - 1) // size, int(state.work.kept[request]))
        if state.progress.preemptions[request] == 0:
            most = min(most, int(state.work.limit[request]))
        chain = state.work.chains[low : low + most].tolist()
        there = state.pool.first != NONE if state.table is None else state.table.resident != 0
        cached = [bool(there[node]) for node in chain]
        return size * (cached.index(False) if False in cached else len(cached))


class InPlace(Oracle):
    """SGLang's: a list that is sorted in place, duplicates of an uncached prefix last."""

    def later(self, state: State) -> set[int]:
        same = int(self.order.values["same_prefix"])
        size = self.trace.block_size
        seen: set[tuple[int, ...]] = set()
        found = set()
        for request in self.queue:
            if self.hits(state, request) > same:
                continue
            low = state.work.starts[request]
            blocks = int(state.work.prompt[request]) // size
            chain = [n for n in state.work.chains[low : low + blocks] if n < self.trace.nodes]
            prefixes = [tuple(chain[: n + 1]) for n in range(len(chain))]
            if size * sum(prefix in seen for prefix in prefixes) >= max(same, 1):
                found.add(request)
            else:
                seen.update(prefixes)
        return found


class LPM(InPlace):
    def sort(self, state: State, now: float) -> None:
        if len(self.queue) > self.order.values["longest"]:
            return
        later = self.later(state)
        self.queue.sort(key=lambda r: float("inf") if r in later else float(-self.hits(state, r)))


class SPF(InPlace):
    def sort(self, state: State, now: float) -> None:
        later = self.later(state)
        left = {r: int(state.progress.tokens[r]) - self.hits(state, r) for r in self.queue}
        self.queue.sort(key=lambda r: (r in later, max(1, left[r]), self.entries[r]))


class EDF(Oracle):
    def sort(self, state: State, now: float) -> None:
        given, ttft = self.trace.deadline_s, self.order.values["ttft_s"]

        def deadline(r: int) -> float:
            has = ttft
            if given is not None and not np.isnan(given[r]):
                has = given[r] - self.trace.time_s[r]
            return round(float(state.progress.arrival_s[r] + has), 4)

        self.queue.sort(key=lambda r: (deadline(r), r))


class ByScore(Oracle):
    def sort(self, state: State, now: float) -> None:
        priority = self.trace.priority
        self.scores = {
            r: score(
                {
                    "phase": "prefill",
                    # What hits of an answer, after a preemption, is no share of the prompt.
                    "cached": min(1.0, self.hits(state, r) / int(state.work.prompt[r])),
                    "priority": 0 if priority is None else int(priority[r]),
                    "arrival_s": float(state.progress.arrival_s[r]),
                },
                now,
            )
            for r in self.queue
        }

    def admits(self, state: State, request: int) -> bool:
        # Scores are compared in millionths.
        best = max(self.scores[r] for r in self.queue)
        equals = [r for r in self.queue if abs(self.scores[r] - best) < 1e-12]
        if request in equals and len(equals) > 1 and request != min(equals):
            return False
        return self.scores[request] >= best - 3e-6


class Fair(Oracle):
    def __init__(self, trace: Trace, told: Settings, order: Any) -> None:
        super().__init__(trace, told, order)
        codes, names = trace.tenant  # type: ignore[misc]
        self.tenant = [int(code) for code in codes]
        self.weight = {
            code: Fraction(order.weights.get(name, 1.0)) for code, name in enumerate(names)
        } | {-1: Fraction(1)}
        self.counter = dict.fromkeys(self.weight, Fraction(0))
        self.charged = [0] * len(trace)
        self.last_left: int | None = None
        self.prompted: set[int] = set()

    def follow(self, state: State) -> None:
        cost = Fraction(self.order.values["generated_cost"])
        for r in sorted(self.seen):
            computed = max(int(state.progress.tokens[r] - state.work.prompt[r]) - 1, 0)
            if state.progress.finished_s[r] >= 0:
                computed = int(state.work.output[r]) - 1
            fresh = computed - self.charged[r]
            self.charged[r] += fresh
            self.counter[self.tenant[r]] += cost * fresh / self.weight[self.tenant[r]]
        super().follow(state)

    def arrives(self, state: State, request: int) -> None:
        mine = self.tenant[request]
        there = {self.tenant[r] for r in self.queue}
        if mine not in there:
            if there:
                least = min(self.counter[each] for each in there)
                self.counter[mine] = max(self.counter[mine], least)
            elif self.last_left is not None:
                self.counter[mine] = max(self.counter[mine], self.counter[self.last_left])

    def first(self, tenant: int) -> int:
        """The last that was preempted, else the first to arrive."""
        mine = [r for r in self.queue if self.tenant[r] == tenant]
        back = [r for r in mine if r in self.returned]
        return max(back, key=lambda r: self.entries[r]) if back else min(mine)

    def admits(self, state: State, request: int) -> bool:
        heads = [self.first(tenant) for tenant in {self.tenant[r] for r in self.queue}]
        tie = state.progress.tie
        return request == min(heads, key=lambda r: (self.counter[self.tenant[r]], tie[r]))

    def took(self, state: State, request: int) -> None:
        super().took(state, request)
        mine = self.tenant[request]
        if request not in self.prompted:
            self.prompted.add(request)
            left = int(state.work.prompt[request] - state.progress.computed[request])
            cost = Fraction(self.order.values["prompt_cost"])
            self.counter[mine] += cost * left / self.weight[mine]
        self.last_left = mine


ORACLES: dict[str, type[Oracle]] = {
    "lpm": LPM,
    "spf": SPF,
    "edf": EDF,
    "tenant-fair": Fair,
    "decode-order": ByScore,
}


class Watched:
    """The admission of a step, with the oracle's word on it: an object, which `bind` leaves."""

    def __init__(self, oracle: Oracle, names: dict[str, Any]) -> None:
        self.oracle = oracle
        self.real = bind(schedule_waiting, names, False)

    def __call__(
        self, state: State, rules: Any, own: Any, budget: int, cap: int, now: float
    ) -> int:
        oracle = self.oracle
        oracle.follow(state)
        opens = budget > 0 and state.counts[PREEMPTED_NOW] == 0
        if opens and state.counts[RUNNING_COUNT] < rules.max_num_seqs and oracle.queue:
            oracle.sort(state, now)
        left = self.real(state, rules, own, budget, cap, now)
        for request in state.admitted[: state.counts[ADMITTED_NOW]].tolist():
            assert oracle.admits(state, request), (request, oracle.queue)
            oracle.took(state, request)
        return left


def follow(
    trace: Trace,
    told: Settings,
    order: QueueOrder,
    cost: StepCost,
    *,
    policy: str | None = None,
    names: dict[str, Any] | None = None,
) -> list[int]:
    """Run plain, with the oracle's word on every admission; return who was admitted, in order.

    ``names`` break a hook. Raises AssertionError where the oracle does not agree.
    """
    asked = prepare(trace, told)
    chosen = find_eviction(policy, trace)
    rules = told.rules(trace.block_size, closed_loop=False)
    arrivals = trace.time_s - trace.time_s[0]
    state = new_state(
        asked.work, arrivals, len(trace), asked.held.trace.nodes, told.num_gpu_blocks, rules,
        **memory_of(asked, chosen, told),
    )  # fmt: skip
    state.progress.status[asked.reason != NO_REASON] = REJECTED
    oracle = ORACLES[order.name](dataclasses.replace(asked.trace), told, order)
    bound = {**order.hooks(), **cost.bound(), **(names or {})}
    if chosen is not None:
        bound |= {**MEMORY, **chosen.hooks()}
    loop = bind(run_steps, {**bound, "schedule_waiting": Watched(oracle, bound)}, False)
    order_of: list[int] = []
    own = order.prepare(asked.trace)
    for _ in range(100_000):
        status = loop(state, rules, own, cost.arrays(), 1, np.inf, False)
        order_of += state.admitted[: state.counts[ADMITTED_NOW]].tolist()
        state.counts[ADMITTED_NOW] = 0
        if status == DONE:
            return order_of
    raise AssertionError("it does not end")
