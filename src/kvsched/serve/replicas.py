"""Replicas: N engines on one clock, and a routing that is asked when a request arrives.

Before a request is routed every engine has made all steps that start before it arrives, and none
that starts later. A step that has started is done as a whole: queue and memory are known as of its
end, while who is outstanding is known to the moment.
"""

from __future__ import annotations

import heapq
import math
import operator
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from kvsched.foundation.blame import Suspect, blamed_on
from kvsched.foundation.errors import UsageError
from kvsched.kernel.table import NONE
from kvsched.serve.arrivals import expect
from kvsched.serve.routing.base import Routing
from kvsched.serve.state import (
    ASKED,
    DUE,
    FREE_BLOCKS,
    LOG_START_S,
    LOGGED,
    REJECTED,
    STOPS,
    TURNS,
    Float64s,
    Int32s,
    Rules,
    State,
    waiting_count,
)
from kvsched.serve.swap import PEAK
from kvsched.serve.traffic import Coming

NEVER = (math.inf, NONE)
"""No arrival is known."""


class Hooks(NamedTuple):
    """What the replicas call of the engines."""

    advance: Callable[[int, State, float], State]
    """Run an engine until its next step would start at that time or later, or it has to stop."""
    hit_blocks: Callable[[State, int, int], int]
    clear_until_s: Callable[[State, float], float]
    """A time before which no step starts in which somebody can end, if nobody arrives."""


def for_replica(first: State, state: State) -> State:
    """Return a state that shares with ``first`` what is a request's own: it is in one engine."""
    requests = len(first.work.prompt)
    arrivals = first.arrivals._replace(
        firsts=np.zeros(0, np.int32),
        due=np.zeros(requests, np.int32),
        ended=np.zeros(requests, np.int32),
        ended_s=np.zeros(requests),
    )
    pool = state.pool._replace(table=first.pool.table)
    # All that is to come is not known to be its own: it does not end before that is said.
    state.counts[ASKED] = requests + 1
    gate, tier = state.gate, state.tier
    if gate is not None:
        gate = gate._replace(
            waits=first.gate.waits,
            unstored=first.gate.unstored,
            reason=first.gate.reason,
            rejected_s=first.gate.rejected_s,
        )
    if tier is not None:
        tier = tier._replace(blocks=first.tier.blocks)
    return state._replace(
        arrivals=arrivals, progress=first.progress, pool=pool, gate=gate, tier=tier
    )


class Replicas:
    """N engines while they serve; what a routing sees of them (`routing.base.Engines`)."""

    def __init__(
        self, states: list[State], rules: Rules, coming: Coming, routing: Routing, hooks: Hooks
    ) -> None:
        self._states = states
        self._hooks = hooks
        self._routing = routing
        self._blame = [Suspect("routing", routing)]
        self._size = rules.block_size
        self._progress = states[0].progress
        self._requests = len(coming.arrival_s)
        self._closed = rules.closed_loop != 0
        self._firsts: list[int] = coming.arrivals.firsts.tolist()
        self._follows: list[int] = coming.arrivals.follows.tolist()
        self._think_s: list[float] = coming.arrivals.think_s.tolist()
        self._feedback = self._closed or len(self._firsts) < self._requests
        self._in_step = self._feedback or routing.looks
        self._begun = 0
        self._routed = 0
        self._times: list[float] = coming.arrival_s[coming.arrivals.firsts].tolist()
        if self._closed:
            # A heap of the moments at which one may begin: ends are not found in their order.
            self._times = self._times[: coming.known]
        self._due: list[tuple[float, int]] = []
        self._rejected: list[bool] = (self._progress.status == REJECTED).tolist()
        engines = len(states)
        self.outstanding = [0] * engines
        self._ends: list[deque[float]] = [deque() for _ in states]
        self._left = [0] * engines
        self._given = [0] * engines
        self._starts = [math.inf] * engines
        """When the next step of each starts."""
        self._clear = [math.inf] * engines
        """A time, not before that, before which no step starts in which somebody can end."""
        self._horizon_s = math.inf
        self._turned = False
        self.replica: Int32s = np.full(self._requests, NONE, np.int32)
        """(R,) the engine of each request, NONE where it has not arrived."""
        self.step_replica: Int32s = np.zeros(0, np.int32)
        """(steps,) the engine of each logged step, at the end."""
        for state in states:
            state.counts[STOPS] = int(self._feedback)

    def __len__(self) -> int:
        return len(self._states)

    def waiting(self, engine: int) -> int:
        """Return how many wait at an engine, those that it has not seen included. O(1)."""
        state = self._states[engine]
        return waiting_count(state) + state.counts.item(DUE)

    def kv_usage(self, engine: int) -> float:
        """Return the share of an engine's blocks that requests hold. O(1)."""
        state = self._states[engine]
        return 1.0 - state.counts.item(FREE_BLOCKS) / state.capacity.item()

    def hit_tokens(self, engine: int, request: int) -> int:
        """Return how many prompt tokens a request would hit there. O(hits)."""
        return self._hooks.hit_blocks(self._states[engine], request, self._size) * self._size

    def run(self, horizon_s: float) -> State:
        """Serve all requests, or until the horizon; return one state with all that was done.

        O(N) an arrival, beside the engines' own. Raises what the engines do, and UsageError for an
        engine that does not exist.
        """
        self._horizon_s = horizon_s
        while True:
            at, request = self._next()
            over = at >= horizon_s or request == NONE
            if (over or self._in_step) and self._advance(min(at, horizon_s)):
                continue
            if over:
                break
            self._route(at, request)
        self._close(horizon_s)
        state, self.step_replica = merge(self._states)
        return state

    def _next(self) -> tuple[float, int]:
        """Return when the next request arrives, and which. O(1)."""
        due = self._due[0] if self._due else NEVER
        if self._begun == len(self._firsts):
            return due
        if self._closed:
            first = (self._times[0], self._firsts[self._begun]) if self._times else NEVER
        else:
            first = (self._times[self._begun], self._firsts[self._begun])
        return min(due, first)

    def _take(self, request: int) -> None:
        if self._due and self._due[0][1] == request:
            heapq.heappop(self._due)
            return
        if self._closed:
            heapq.heappop(self._times)
        self._begun += 1

    def _advance(self, until_s: float) -> bool:
        """Let all steps be made that start before ``until_s``; True where an end came before it.

        Where an end brings an arrival, no engine makes a step that starts later than one in which
        somebody can end elsewhere.
        """
        starts, clear = self._starts, self._clear
        while self._feedback:
            least = min(clear)
            engine = clear.index(least)
            start = starts[engine]
            if start >= until_s:
                break
            clear[engine] = math.inf
            bound = max(min(clear), math.nextafter(start, math.inf))
            clear[engine] = least
            self._go(engine, min(until_s, bound))
            if self._turned:
                self._turned = False
                return True
        for engine, start in enumerate(starts):
            if start < until_s:
                self._go(engine, until_s)
        return False

    def _go(self, engine: int, until_s: float) -> None:
        state = self._hooks.advance(engine, self._states[engine], until_s)
        self._states[engine] = state
        count = state.counts.item(TURNS)
        if count:
            state.counts[TURNS] = 0
            self._left[engine] -= count
            requests = state.arrivals.ended[:count].tolist()
            times = state.arrivals.ended_s[:count].tolist()
            for request, end_s in zip(requests, times, strict=True):
                if not self._rejected[request]:
                    self._ends[engine].append(end_s)
                    self._ended(request, end_s)
        start = state.clock.item() if self._left[engine] else math.inf
        self._starts[engine] = start
        if self._feedback and self._clear[engine] <= start:
            self._clear[engine] = start
            if start < math.inf and len(self) > 1:
                self._clear[engine] = self._hooks.clear_until_s(state, self._horizon_s)

    def _ended(self, request: int, end_s: float) -> None:
        """Say who comes after a request that has ended. O(log R)."""
        if not self._feedback:
            return
        self._turned = True
        follower = self._follows[request]
        if follower != NONE:
            at = end_s + self._think_s[follower]
            self._progress.arrival_s[follower] = at
            heapq.heappush(self._due, (at, follower))
        elif self._closed:
            # A first turn's think time is that of the closed loop: 0 with sessions.
            heapq.heappush(self._times, end_s + self._think_s[self._firsts[0]])

    def _route(self, at: float, request: int) -> None:
        self._take(request)
        for engine, ends in enumerate(self._ends):
            while ends and ends[0] <= at:
                ends.popleft()
                self.outstanding[engine] -= 1
        with blamed_on(self._blame, "its route fails"):
            answer = self._routing.route(request, self)
        try:
            chosen = operator.index(answer)
        except TypeError:
            raise UsageError(
                f"routing {self._routing.name} must name an engine by its number, not {answer!r}"
            ) from None
        if not 0 <= chosen < len(self):
            raise UsageError(
                f"routing {self._routing.name} named engine {chosen} for request {request}; there "
                f"are {len(self)}, from 0"
            )
        state = self._states[chosen]
        expect(state, request, at)
        self.replica[request] = chosen
        self._given[chosen] += 1
        self._left[chosen] += 1
        if self._rejected[request]:
            self._ended(request, at)
            self._turned = False
        else:
            self.outstanding[chosen] += 1
        if self._starts[chosen] == math.inf:
            self._starts[chosen] = max(float(state.clock[0]), at)
        self._clear[chosen] = self._starts[chosen]
        self._routed += 1
        if self._routed == self._requests:
            for own, given in zip(self._states, self._given, strict=True):
                own.counts[ASKED] = given

    def _close(self, horizon_s: float) -> None:
        """Leave all as one engine does: its clock stands at the horizon where more would come."""
        if self._routed == self._requests:
            return
        for state, start in zip(self._states, self._starts, strict=True):
            if start == math.inf:
                state.clock[0] = max(float(state.clock[0]), horizon_s)
        if self._closed:
            for request in self._firsts[self._begun :]:
                if not self._times:
                    break
                self._progress.arrival_s[request] = heapq.heappop(self._times)


def merge(states: list[State]) -> tuple[State, Int32s]:
    """Return one state with all totals and steps, and the (steps,) replica of each logged step.

    Steps are in the order of their start, ties by replica. O(steps log steps).
    """
    counts = np.sum([state.counts for state in states], axis=0)
    clock: Float64s = np.max([state.clock for state in states], axis=0)
    log = np.concatenate([state.log[: state.counts[LOGGED]] for state in states])
    made = [int(state.counts[LOGGED]) for state in states]
    replica = np.repeat(np.arange(len(states), dtype=np.int32), made)
    order = np.argsort(log[:, LOG_START_S], kind="stable")
    # A row to spare, as an engine's log has: one of no rows is one that nobody asked for.
    room = np.concatenate([log[order], np.zeros_like(states[0].log[:1])])
    first = states[0]
    gate, tier = first.gate, first.tier
    if gate is not None:
        gate = gate._replace(counts=np.sum([state.gate.counts for state in states], axis=0))
    if tier is not None:
        moved = np.sum([state.tier.counts for state in states], axis=0)
        # The most that one engine's had: they need not have had it at one moment.
        moved[PEAK] = max(int(state.tier.counts[PEAK]) for state in states)
        tier = tier._replace(counts=moved)
    whole = first._replace(counts=counts, clock=clock, log=room, gate=gate, tier=tier)
    return whole, replica[order]
