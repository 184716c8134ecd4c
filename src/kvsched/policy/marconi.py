"""Marconi: recency, and the computation that a byte saves."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvsched.kernel.lanes import Lanes, empty_lanes, lane_first, lane_push, lane_remove
from kvsched.kernel.table import NONE, Table
from kvsched.policy.base import Policy, Setup, Tunable
from kvsched.policy.parameters import Parameter

CLASSES = 80
"""Enough for 2^21 blocks."""
LEAST_AGE_S = 1.0
STALE = -2
"""No head of a class, not even of an empty one: what is kept of it is worked out anew."""
RECENCY = 0
DEPTH = 1

ALPHA = 0
NOW = 1
USED = 2
LATER = 3
SINCE = 4


class MarconiState(NamedTuple):
    """Evictable nodes in classes of about equal depth, each by last use."""

    lanes: Lanes
    touched: NDArray[np.int64]
    """(N,) rank of the last touch."""
    used_s: NDArray[np.float64]
    """(N,) time of the last touch."""
    heads: NDArray[np.int32]
    """(80,) the first node of each class when it was looked at, or `STALE`."""
    likeness: NDArray[np.float64]
    """(80, 2) recency and depth of each head."""
    clock: NDArray[np.float64]
    """(5,) the weight of FLOPs a byte, now in seconds, and classes in use so far; the weight that
    is to come, and the request from which on."""


def _begin(table: Table, state: MarconiState, request: int, now: float, last_rank: int) -> None:
    if now != state.clock[NOW]:
        state.clock[NOW] = now
        for lane in range(int(state.clock[USED])):
            state.heads[lane] = STALE
    if request >= state.clock[SINCE]:
        state.clock[ALPHA] = state.clock[LATER]


def _on_touch(table: Table, state: MarconiState, node: int, rank: int) -> None:
    state.touched[node] = rank
    state.used_s[node] = state.clock[NOW]


def _class_of(depth: int) -> int:
    """Return a depth's class: one each below 8, then four an octave."""
    octave = 0
    while depth >= 8:
        depth >>= 1
        octave += 1
    return depth + 4 * octave


def _enter(table: Table, state: MarconiState, node: int) -> None:
    lane = min(_class_of(int(table.depth[node])), CLASSES - 1)
    state.clock[USED] = max(float(state.clock[USED]), lane + 1.0)
    state.heads[lane] = STALE
    lane_push(state.lanes, lane, node, state.touched[node], 0)


def _leave(table: Table, state: MarconiState, node: int) -> None:
    lane_remove(state.lanes, node)


def _recency(state: MarconiState, node: int) -> float:
    return 1.0 / max(LEAST_AGE_S, float(state.clock[NOW] - state.used_s[node]))


def _share(value: float, least: float, most: float) -> float:
    return (value - least) / (most - least) if most > least else 0.0


def _look(table: Table, state: MarconiState, lane: int, node: int) -> None:
    """Keep what is compared of a class's head: while it stays, for as long as the time does."""
    state.heads[lane] = node
    if node != NONE:
        state.likeness[lane, RECENCY] = _recency(state, node)
        state.likeness[lane, DEPTH] = float(table.depth[node])


def _victim(table: Table, state: MarconiState, incoming: int, rank: int) -> int:
    used = int(state.clock[USED])
    oldest, newest, shallowest, deepest = 1e300, 0.0, 1e300, 0.0
    for lane in range(used):
        node = lane_first(state.lanes, lane)
        if node != state.heads[lane]:
            _look(table, state, lane, node)
        if node != NONE:
            recency, depth = state.likeness[lane, RECENCY], state.likeness[lane, DEPTH]
            oldest, newest = min(oldest, recency), max(newest, recency)
            shallowest, deepest = min(shallowest, depth), max(deepest, depth)
    chosen, lowest = NONE, 0.0
    for lane in range(used):
        node = state.heads[lane]
        if node != NONE:
            flops = _share(state.likeness[lane, DEPTH], shallowest, deepest)
            score = state.clock[ALPHA] * flops
            score += _share(state.likeness[lane, RECENCY], oldest, newest)
            first = chosen == NONE or score < lowest
            if not first and score == lowest:
                first = bool(state.touched[node] < state.touched[chosen])
            if first:
                chosen, lowest = node, score
    return int(chosen)


class Marconi(Policy):
    """α·norm(FLOPs that a hit saves, by byte) + norm(1/age): the lowest leaves.

    A block's KV bytes a token are the same anywhere; the FLOPs of a token grow linearly with its
    position, by the attention over what is before it, and norm maps the least and the most of the
    candidates to 0 and 1: so norm(FLOPs/bytes) is norm(depth) in a model with attention alone,
    whatever its size. ``alpha`` is the paper's α: 0 is LRU, and each larger value keeps deep blocks
    for longer. ``auto`` tunes it as the paper does: 0 until the first eviction and for ten times as
    many requests after it (5 to 15 in the paper), which are then replayed with a grid of values;
    the one that hits the most tokens, the smaller of equals, holds from then on.

    The score moves with time, so there is no heap of it: evictable nodes are in classes of about
    equal depth, each by last use, and the first of each are compared and give norm its ends. Exact
    up to depth 8, and within a quarter of an octave of depth beyond. O(classes) an eviction, at
    most 80. Ages below a second count as one. Closed under ancestors: only evictable nodes are in
    the classes.
    """

    name = "marconi"
    source = "Marconi, MLSys'25"
    parameters = {  # noqa: RUF012  # a class constant, typed in the base
        "alpha": Parameter(0.1, "weight of the FLOPs that a byte saves against recency, or auto"),
    }
    tunable = Tunable("alpha", (0.0, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0), 10.0)
    begin = staticmethod(_begin)
    on_hit = staticmethod(_on_touch)
    on_insert = staticmethod(_on_touch)
    enter = staticmethod(_enter)
    leave = staticmethod(_leave)
    on_evict = staticmethod(_leave)
    on_release = staticmethod(_on_touch)
    victim = staticmethod(_victim)

    def prepare(self, setup: Setup) -> Any:
        """Return a `MarconiState` for ``setup``. O(N)."""
        nodes = setup.nodes
        alpha = self.values["alpha"]
        later, since = alpha, 0
        if self.tuned is not None:
            later, since = self.tuned.value, self.tuned.since_request
        clock = np.array([alpha, 0.0, 0.0, later, since])
        lanes = empty_lanes(nodes, CLASSES)
        return MarconiState(
            lanes,
            np.zeros(nodes, np.int64),
            np.zeros(nodes),
            np.full(CLASSES, STALE, np.int32),
            np.zeros((CLASSES, 2)),
            clock,
        )
