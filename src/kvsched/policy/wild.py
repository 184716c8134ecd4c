"""The workload-aware policy of "KVCache Cache in the Wild"."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvsched.kernel.lanes import Lanes, empty_lanes, lane_first, lane_push, lane_remove
from kvsched.kernel.table import NONE, Table
from kvsched.kernel.weight import taken, usual_nodes
from kvsched.policy.base import Parameter, Policy, Setup

TURNS = 8
"""Turns with a class of their own; later ones share the last."""
TYPES = 8
"""Types with classes of their own; those of higher numbers share the last."""
STEPS = 1 << 20
"""Logarithms are kept in steps of 2^-20: they may differ in the last bit between machines."""
DEEPEST = 1 << 31
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
MOMENT = 4
REQUEST = 5
USUAL = 6


class WildState(NamedTuple):
    """A queue of evictable nodes a class, what was learnt of each, and what each node was."""

    lanes: Lanes
    """By (moment of last use, deeper first), then by rank."""
    seen: NDArray[np.int32]
    """(N,) uses, over evictions."""
    kind: NDArray[np.int32]
    """(N,) class of the last request that used the node, -1 before the first."""
    touched: NDArray[np.int64]
    """(N,) rank of the last touch."""
    order: NDArray[np.int64]
    """(N,) moment of the last touch, deeper first."""
    used_s: NDArray[np.float64]
    """(N,) time of the last touch."""
    learnt: NDArray[np.float64]
    """(K, 5) by class: uses, reuses, seconds between them; ln(reuse probability at age 0 within a
    life) and rate of decay as they stand in the current request."""
    clock: NDArray[np.float64]
    """(7,) now in seconds; mean seconds that a node is still kept after its last use, and over how
    much room that is; the capacity; how many distinct times came before; the current request; what
    a usual node takes."""
    heads: NDArray[np.int32]
    """(K,) the first node of each class when it was looked at in this request, or `STALE`."""
    chance: NDArray[np.int64]
    """(K,) its `_chance`."""
    request_kind: NDArray[np.int32]
    """(R,) class of each request; of length 0 where a node's class is its number of uses."""


def _begin(table: Table, state: WildState, request: int, now: float, last_rank: int) -> None:
    clock, learnt = state.clock, state.learnt
    clock[REQUEST] = request
    if now != clock[NOW]:
        clock[MOMENT] += 1.0
        clock[NOW] = now
    for kind in range(len(learnt)):
        state.heads[kind] = STALE
        rate = (learnt[kind, REUSES] + 1.0) / learnt[kind, GAPS_S]
        within = 1.0
        if clock[LEFT] > 0.0:
            within = max(-math.expm1(-rate * clock[LIFE_S]), 1e-300)
        share = (learnt[kind, REUSES] + 1.0) / (learnt[kind, USES] + 2.0)
        learnt[kind, FIRST] = math.log(share * within)
        learnt[kind, RATE] = rate


def _on_touch(table: Table, state: WildState, node: int, rank: int) -> None:
    now = state.clock[NOW]
    before = state.kind[node]
    weight = usual_nodes(taken(table, node), int(state.clock[USUAL]))
    if before != NONE:
        state.learnt[before, REUSES] += weight
        state.learnt[before, GAPS_S] += weight * (now - state.used_s[node])
    state.seen[node] += 1
    if len(state.request_kind) > 0:
        kind = state.request_kind[int(state.clock[REQUEST])]
    else:
        kind = min(state.seen[node], TURNS) - 1
    state.kind[node] = kind
    state.learnt[kind, USES] += weight
    state.used_s[node] = now
    state.touched[node] = rank
    state.order[node] = int(state.clock[MOMENT]) * DEEPEST - int(table.depth[node])


def _enter(table: Table, state: WildState, node: int) -> None:
    kind = state.kind[node]
    state.heads[kind] = STALE
    lane_push(state.lanes, kind, node, state.order[node], state.touched[node])


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
    victim = staticmethod(_victim)

    def prepare(self, setup: Setup) -> Any:
        """Return a `WildState` for ``setup``. O(N + R)."""
        nodes = setup.nodes
        kinds, of_requests = kinds_of(setup)
        learnt = np.zeros((kinds, 5))
        learnt[:, GAPS_S] = self.values["reuse_s"]
        return WildState(
            empty_lanes(nodes, kinds),
            np.zeros(nodes, np.int32),
            np.full(nodes, NONE, np.int32),
            np.zeros(nodes, np.int64),
            np.zeros(nodes, np.int64),
            np.zeros(nodes),
            learnt,
            np.array([0, 0, 0, setup.capacity_blocks, 0, 0, setup.usual_room], np.float64),
            np.full(kinds, STALE, np.int32),
            np.zeros(kinds, np.int64),
            of_requests,
        )


def kinds_of(setup: Setup) -> tuple[int, NDArray[np.int32]]:
    """Return how many classes there are and that of each request, or none. O(R).

    A request without a session, or without a turn above 0, is the first turn of its own.
    """
    turn = np.zeros(0, np.int64)
    if setup.has("turn"):
        turn = np.maximum(setup.column("turn", Wild.name).astype(np.int64) - 1, 0)
    elif setup.has("session"):
        turn = _turns(setup.column("session", Wild.name))
    kind = np.zeros(0, np.int64)
    if setup.has("type"):
        # A type of its own for requests without one.
        kind = np.minimum(setup.column("type", Wild.name).astype(np.int64) + 1, TYPES - 1)
    if not len(turn) and not len(kind):
        return TURNS, np.zeros(0, np.int32)
    if not len(turn):
        turn = np.zeros(len(kind), np.int64)
    if not len(kind):
        kind = np.zeros(len(turn), np.int64)
    return int(kind.max()) * TURNS + TURNS, (kind * TURNS + np.minimum(turn, TURNS - 1)).astype(
        np.int32
    )


def _turns(session: NDArray[np.int32]) -> NDArray[np.int64]:
    """Return (R,) how many requests of the same session came before each. O(R log R)."""
    order = np.argsort(session, kind="stable")
    sorted_ = session[order]
    new = np.r_[True, sorted_[1:] != sorted_[:-1]] if len(session) else np.zeros(0, bool)
    starts = np.maximum.accumulate(np.where(new, np.arange(len(session)), 0))
    turn = np.empty(len(session), np.int64)
    turn[order] = np.arange(len(session)) - starts
    turn[session < 0] = 0
    return turn
