"""Hits that fade."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvsched.kernel.heap import Heap
from kvsched.kernel.table import Table
from kvsched.policy.base import RankedPolicy, Setup, ranked_columns
from kvsched.policy.parameters import Parameter

STEPS = 1 << 20
"""Scores are kept in steps of 2^-20: exp and log may differ in the last bit between machines."""

HALF_LIFE = 0
SIZE_WEIGHT = 1
NOW = 2


class DecayState(NamedTuple):
    """A ranked state with scores and a clock."""

    heap: Heap
    touched: NDArray[np.int64]
    score: NDArray[np.int64]
    """(N,) log2 Σ 2^(t_i / half-life) over the uses, in steps."""
    clock: NDArray[np.float64]
    """(3,) half-life in seconds, weight of size, now in half-lives."""


def _begin(table: Table, state: DecayState, request: int, now: float, last_rank: int) -> None:
    state.clock[NOW] = now / state.clock[HALF_LIFE]


def _on_hit(table: Table, state: DecayState, node: int, rank: int) -> None:
    state.touched[node] = rank
    kept = int(state.score[node]) / STEPS
    now = state.clock[NOW]
    high = max(kept, now)
    total = high + math.log2(1.0 + 2.0 ** -abs(kept - now))
    state.score[node] = math.floor(total * STEPS + 0.5)


def _on_insert(table: Table, state: DecayState, node: int, rank: int) -> None:
    state.touched[node] = rank
    state.score[node] = math.floor(state.clock[NOW] * STEPS + 0.5)


def _key(table: Table, state: DecayState, node: int) -> int:
    weight = state.clock[SIZE_WEIGHT]
    if weight == 0.0:
        return int(state.score[node])
    penalty = weight * math.log2(float(max(int(table.tokens[node]), 1)))
    steps: int = math.floor(penalty * STEPS + 0.5)
    return int(state.score[node]) - steps


class Decay(RankedPolicy):
    """Hits that fade: a hit counts half after one half-life, and size may weigh.

    What the score of `chapter` means to do.

    The order is log2 Σ 2^(t_i/half-life) − size_weight·log2(size): since every score fades at
    the same pace, untouched nodes keep their order and the heap stays right. A short half-life
    approaches LRU, an endless one LFU. Closed under ancestors: only leaves are ranked.
    """

    name = "decay"
    source = "exponentially decayed frequency, as the score of `chapter` means it"
    parameters = {  # noqa: RUF012  # a class constant, typed in the base
        "half_life_s": Parameter(600.0, "seconds after which a hit counts half", 1e-3),
        "size_weight": Parameter(0.0, "how much a block's size counts against it", most=1e6),
    }
    begin = staticmethod(_begin)
    on_hit = staticmethod(_on_hit)
    on_insert = staticmethod(_on_insert)
    key = staticmethod(_key)

    def prepare(self, setup: Setup) -> Any:
        """Return a `DecayState` for ``setup``. O(N)."""
        clock = np.array([self.values["half_life_s"], self.values["size_weight"], 0.0])
        return DecayState(*ranked_columns(setup), np.zeros(setup.nodes, np.int64), clock)
