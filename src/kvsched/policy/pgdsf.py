"""Prefix-aware Greedy-Dual-Size-Frequency."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvsched.kernel.heap import Heap, heap_remove
from kvsched.kernel.table import Table
from kvsched.policy.base import RankedPolicy, Setup, ranked_columns
from kvsched.policy.gdsf import STEPS, cost_per_token
from kvsched.policy.parameters import Parameter

CLOCK = 0
PROMPT = 1
CACHED = 2
COST = 3

BY_ITSELF = -1
"""No prompt: each block that decoding fills is computed after all that is before it."""


class PGDSFState(NamedTuple):
    """A ranked state with what each node was used for and cost."""

    heap: Heap
    touched: NDArray[np.int64]
    frequency: NDArray[np.int64]
    """(N,) uses; kept over evictions."""
    cost: NDArray[np.int64]
    """(N,) Σ cost per new token over the requests that missed it, in steps; kept as well."""
    computed: NDArray[np.int64]
    """(N,) how many those were."""
    value: NDArray[np.int64]
    """(N,) priority at the last use, in steps."""
    running: NDArray[np.int64]
    """(4,) the clock, in steps; the running request's prompt and cached tokens, and what each new
    one costs, in steps, or 0 before it was worked out."""
    input_tokens: NDArray[np.int64]
    """(R,) tokens of each prompt."""
    equal: NDArray[np.float64]
    """(1,) tokens of context at which attention costs as much as the rest."""


def _begin(table: Table, state: PGDSFState, request: int, now: float, last_rank: int) -> None:
    state.running[PROMPT] = state.input_tokens[request]
    state.running[CACHED] = 0
    state.running[COST] = 0


def _resume(table: Table, state: PGDSFState, request: int, now: float, last_rank: int) -> None:
    state.running[PROMPT] = BY_ITSELF


def _use(table: Table, state: PGDSFState, node: int, rank: int) -> None:
    state.touched[node] = rank
    state.frequency[node] += 1
    mean = int(state.cost[node]) // max(int(state.computed[node]), 1)
    state.value[node] = int(state.running[CLOCK]) + int(state.frequency[node]) * mean


def _on_hit(table: Table, state: PGDSFState, node: int, rank: int) -> None:
    if len(table.begins) > 0:
        state.running[CACHED] = table.begins[node]
    state.running[CACHED] += table.tokens[node]
    _use(table, state, node, rank)


def _each(state: PGDSFState, cached: float, new: float) -> int:
    """Return what each of ``new`` tokens costs after ``cached``, in steps."""
    steps: int = math.floor(cost_per_token(cached, new, state.equal[0]) * STEPS + 0.5)
    return steps


def _on_insert(table: Table, state: PGDSFState, node: int, rank: int) -> None:
    if state.running[PROMPT] == BY_ITSELF:
        state.running[COST] = _each(state, float(table.begins[node]), float(table.tokens[node]))
    elif state.running[COST] == 0:
        cached = float(state.running[CACHED])
        new = max(float(state.running[PROMPT]) - cached, 1.0)
        state.running[COST] = _each(state, cached, new)
    state.cost[node] += state.running[COST]
    state.computed[node] += 1
    _use(table, state, node, rank)


def _on_evict(table: Table, state: PGDSFState, node: int) -> None:
    heap_remove(state.heap, node)
    state.running[CLOCK] = max(int(state.running[CLOCK]), int(state.value[node]))


def _forget(table: Table, state: PGDSFState, node: int) -> None:
    state.frequency[node] = 0
    state.cost[node] = 0
    state.computed[node] = 0


def _key(table: Table, state: PGDSFState, node: int) -> int:
    return int(state.value[node])


class PGDSF(RankedPolicy):
    """Clock + frequency · mean cost per new token of the requests that missed it: dear stays.

    The paper's names: Clock the largest Priority that left, Frequency the uses, Cost_i the time
    T(α, β) of request i's β new tokens after α cached, NewSize_i its β. The paper measures T; here
    T(α, β)/β = 1 + (α + β/2)/attention_tokens, as `gdsf` counts FLOPs. Frequency and mean survive
    evictions (the paper's end with the server); a request that could not store a node does not
    count for it. In a live cache a block that decoding filled was computed by itself, after all
    that is before it. Closed under ancestors: only leaves are ranked, as in the paper's tree.
    """

    name = "pgdsf"
    source = "PGDSF of RAGCache, arXiv 2404.12457"
    parameters = {  # noqa: RUF012  # a class constant, typed in the base
        "attention_tokens": Parameter(
            30_000.0, "context at which attention costs as much as the rest", 1.0
        ),
    }
    begin = staticmethod(_begin)
    resume = staticmethod(_resume)
    on_hit = staticmethod(_on_hit)
    on_insert = staticmethod(_on_insert)
    on_evict = staticmethod(_on_evict)
    forget = staticmethod(_forget)
    key = staticmethod(_key)

    def prepare(self, setup: Setup) -> Any:
        """Return a `PGDSFState` for ``setup``. O(N)."""
        frequency, cost, computed, value = np.zeros((4, setup.nodes), np.int64)
        return PGDSFState(
            *ranked_columns(setup),
            frequency,
            cost,
            computed,
            value,
            np.zeros(4, np.int64),
            setup.column("input_tokens", self.label),
            np.array([self.values["attention_tokens"]]),
        )
