"""The workload-aware policy of "KVCache Cache in the Wild"."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvsched.kernel.lanes import Lanes, empty_lanes, lane_first, lane_push, lane_remove
from kvsched.kernel.table import NONE, Table
from kvsched.kernel.weight import taken, usual_nodes
from kvsched.policy.base import Policy, Setup
from kvsched.policy.parameters import Parameter

TURNS = 8
"""Turns with a class of their own; later ones share the last."""
TYPES = 8
"""Types with classes of their own; those of higher numbers share the last."""
STEPS = 1 << 20
"""Logarithms are kept in steps of 2^-20: they may differ in the last bit between machines."""
STEP_OF_DEPTH = 1 << 32
"""More than the touches of one moment."""
MOST_TOUCHES = 1 << 31
"""A clock that stands still moves on after so many."""
STALE = -2
"""No head of a class, not even of an empty one: what is kept of it is worked out anew."""

USES = 0
REUSES = 1
GAPS_S = 2
FIRST = 3
RATE = 4

NOW = 0
LIFE_S = 1
LEFT = 2
CAPACITY = 3
REQUEST = 4
USUAL = 5

SINCE = 0
NEXT = 1


class WildState(NamedTuple):
    """A queue of evictable nodes a class, what was learnt of each, and what each node was."""

    lanes: Lanes
    """By moment of last use, which is the first rank that it can have, then deeper first, then by
    rank."""
    seen: NDArray[np.int32]
    """(N,) uses, over evictions."""
    kind: NDArray[np.int32]
    """(N,) class of the last request that used the node, -1 before the first."""
    touched: NDArray[np.int64]
    """(N,) rank of the last touch."""
    order: NDArray[np.int64]
    """(N, 2) moment of the last touch; deeper first, then by rank."""
    used_s: NDArray[np.float64]
    """(N,) time of the last touch."""
    learnt: NDArray[np.float64]
    """(K, 5) by class: uses, reuses, seconds between them; ln(reuse probability at age 0 within a
    life) and rate of decay as they stand in the current request."""
    clock: NDArray[np.float64]
    """(6,) now in seconds; mean seconds that a node is still kept after its last use, and over how
    much room that is; the capacity; the current request; what a usual node takes."""
    moment: NDArray[np.int64]
    """(2,) the first rank of the current moment, and of the next request."""
    heads: NDArray[np.int32]
    """(K,) the first node of each class when it was looked at in this request, or `STALE`."""
    chance: NDArray[np.int64]
    """(K,) its `_chance`."""
    request_kind: NDArray[np.int32]
    """(R,) class of each request that began; (0,) where a node's class is its number of uses."""
    type: NDArray[np.int32]
    """(R,) type of each request; (0,) where none is known."""
    turn: NDArray[np.int32]
    """(R,) turn of each request, from 1; (0,) where none is known."""


def _kind_of(state: WildState, request: int) -> int:
    """Return the class of a request: one without a session or a turn is the first of its own."""
    kind, turn = 0, 0
    if len(state.type) > 0:
        kind = min(int(state.type[request]) + 1, TYPES - 1)
    if len(state.turn) > 0:
        turn = min(max(int(state.turn[request]) - 1, 0), TURNS - 1)
    return kind * TURNS + turn


def _begin(table: Table, state: WildState, request: int, now: float, last_rank: int) -> None:
    clock, learnt = state.clock, state.learnt
    clock[REQUEST] = request
    moment = state.moment
    if now != clock[NOW] or last_rank - moment[SINCE] > MOST_TOUCHES:
        moment[SINCE] = moment[NEXT]
        clock[NOW] = now
    moment[NEXT] = last_rank + 1
    if len(state.request_kind) > 0:
        state.request_kind[request] = _kind_of(state, request)
    for kind in range(len(learnt)):
        state.heads[kind] = STALE
        rate = (learnt[kind, REUSES] + 1.0) / learnt[kind, GAPS_S]
        within = 1.0
        if clock[LEFT] > 0.0:
            within = max(-math.expm1(-rate * clock[LIFE_S]), 1e-300)
        share = (learnt[kind, REUSES] + 1.0) / (learnt[kind, USES] + 2.0)
        learnt[kind, FIRST] = math.log(share * within)
        learnt[kind, RATE] = rate


def _place(state: WildState, node: int, rank: int, below: int) -> None:
    state.used_s[node] = state.clock[NOW]
    state.touched[node] = rank
    state.order[node, 0] = state.moment[SINCE]
    state.order[node, 1] = rank - state.moment[SINCE] + below * STEP_OF_DEPTH


def _on_touch(table: Table, state: WildState, node: int, rank: int) -> None:
    before = state.kind[node]
    weight = usual_nodes(taken(table, node), int(state.clock[USUAL]))
    if before != NONE:
        state.learnt[before, REUSES] += weight
        state.learnt[before, GAPS_S] += weight * (state.clock[NOW] - state.used_s[node])
    state.seen[node] += 1
    if len(state.request_kind) > 0:
        kind = state.request_kind[int(state.clock[REQUEST])]
    else:
        kind = min(state.seen[node], TURNS) - 1
    state.kind[node] = kind
    state.learnt[kind, USES] += weight
    _place(state, node, rank, 0 - int(table.depth[node]))


def _on_release(table: Table, state: WildState, node: int, rank: int) -> None:
    _place(state, node, rank, 0 - int(table.depth[node]))


def _enter(table: Table, state: WildState, node: int) -> None:
    kind = state.kind[node]
    state.heads[kind] = STALE
    lane_push(state.lanes, kind, node, state.order[node, 0], state.order[node, 1])


def _leave(table: Table, state: WildState, node: int) -> None:
    lane_remove(state.lanes, node)


def _chance(state: WildState, node: int) -> int:
    """Return ln of the probability that a node is used within the life left to it, in steps."""
    kind = state.kind[node]
    age = state.clock[NOW] - state.used_s[node]
    ln = max(state.learnt[kind, FIRST] - state.learnt[kind, RATE] * age, -1e12)
    steps: int = math.floor(ln * STEPS + 0.5)
    return steps


def _victim(table: Table, state: WildState, incoming: int, rank: int) -> int:
    chosen, lowest = NONE, 0
    for kind in range(len(state.learnt)):
        node = lane_first(state.lanes, kind)
        if node == NONE:
            continue
        if node != state.heads[kind]:
            state.heads[kind] = node
            state.chance[kind] = _chance(state, node)
        chance = int(state.chance[kind])
        first = chosen == NONE or chance < lowest
        if not first and chance == lowest:
            deeper = int(table.depth[node]) - int(table.depth[chosen])
            first = deeper > 0 or (deeper == 0 and state.touched[node] < state.touched[chosen])
        if first:
            chosen, lowest = node, chance
    return chosen


def _on_evict(table: Table, state: WildState, node: int) -> None:
    clock = state.clock
    room = float(taken(table, node))
    clock[LEFT] = min(clock[LEFT] + room, clock[CAPACITY])
    age = clock[NOW] - state.used_s[node]
    clock[LIFE_S] += (age - clock[LIFE_S]) / (clock[LEFT] / room)
    lane_remove(state.lanes, node)


def _forget(table: Table, state: WildState, node: int) -> None:
    state.seen[node] = 0
    state.kind[node] = NONE


class Wild(Policy):
    """The node least likely to be used again in the life left to it leaves, tails before heads.

    The paper's priority is (ReuseProb_w(t, life), −Offset). w is `kind`: the type and the turn of
    the request that used the node last; t its age; ReuseProb the probability that it is used at an
    age from t to t + life, q·(e^(−λt) − e^(−λ(t+life))) of an exponential distribution that each
    class fits to what was seen so far: q = (reuses + 1)/(uses + 2), λ = (reuses + 1)/(seconds to
    reuse + ``reuse_s``), evicted nodes included. life is the mean age of what left, over as many
    as the cache has blocks. Compared as logarithms. Where nodes take different room each counts by
    it, in usual nodes.

    Type and turn are taken where requests have them, the turn counted from the session where that
    alone is known. Where neither is known a node's class is how often it was used, evictions or
    not, up to 8 (not the paper's). Closed under ancestors: only evictable nodes are in the queues,
    one a class by last use, whose heads alone are compared: within a class the oldest is the least
    likely. O(K) an eviction and a request, K ≤ 64 classes, 8 without columns.
    """

    name = "wild"
    source = "KVCache Cache in the Wild, ATC'25"
    biased_when_sampled = True
    parameters = {  # noqa: RUF012  # a class constant, typed in the base
        "reuse_s": Parameter(60.0, "seconds to reuse that a class starts from", 1e-3),
    }
    begin = staticmethod(_begin)
    on_hit = staticmethod(_on_touch)
    on_insert = staticmethod(_on_touch)
    enter = staticmethod(_enter)
    leave = staticmethod(_leave)
    on_evict = staticmethod(_on_evict)
    on_release = staticmethod(_on_release)
    forget = staticmethod(_forget)
    victim = staticmethod(_victim)

    def prepare(self, setup: Setup) -> Any:
        """Return a `WildState` for ``setup``. O(N + R)."""
        nodes = setup.nodes
        type_, turn = _column(setup, "type"), _column(setup, "turn")
        if not setup.has("turn") and setup.trace is not None and setup.has("session"):
            turn = _turns(setup.column("session", self.label))
        kinds = TURNS
        if len(type_):
            # A type of its own for requests without one.
            kinds *= 1 + min(len(setup.labels("type", self.label).names), TYPES - 1)
        learnt = np.zeros((kinds, 5))
        learnt[:, GAPS_S] = self.values["reuse_s"]
        return WildState(
            empty_lanes(nodes, kinds),
            np.zeros(nodes, np.int32),
            np.full(nodes, NONE, np.int32),
            np.zeros(nodes, np.int64),
            np.zeros((nodes, 2), np.int64),
            np.zeros(nodes),
            learnt,
            np.array([0, 0, 0, setup.capacity_blocks, 0, setup.usual_room], np.float64),
            np.zeros(2, np.int64),
            np.full(kinds, STALE, np.int32),
            np.zeros(kinds, np.int64),
            np.zeros(max(len(type_), len(turn)), np.int32),
            type_,
            turn,
        )


def _column(setup: Setup, name: str) -> NDArray[np.int32]:
    return setup.column(name, Wild.name) if setup.has(name) else np.zeros(0, np.int32)


def _turns(session: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return (R,) how many requests of the same session came up to each. O(R log R)."""
    order = np.argsort(session, kind="stable")
    sorted_ = session[order]
    new = np.r_[True, sorted_[1:] != sorted_[:-1]] if len(session) else np.zeros(0, bool)
    starts = np.maximum.accumulate(np.where(new, np.arange(len(session)), 0))
    turn = np.empty(len(session), np.int32)
    turn[order] = np.arange(len(session)) - starts + 1
    turn[session < 0] = 1
    return turn
