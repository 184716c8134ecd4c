"""Greedy-Dual-Size-Frequency."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvsched.kernel.heap import Heap, heap_remove
from kvsched.kernel.table import Table
from kvsched.policy.base import RankedPolicy, Setup, ranked_columns, tokens_before
from kvsched.policy.parameters import Parameter

STEPS = 1 << 24
"""Values are kept in steps of 2^-24."""


class GDSFState(NamedTuple):
    """A ranked state with values, and the value that left last."""

    heap: Heap
    touched: NDArray[np.int64]
    uses: NDArray[np.int64]
    """(N,) uses since insertion, which counts 1."""
    value: NDArray[np.int64]
    """(N,) L + count·cost/size at the last use, in steps."""
    inflation: NDArray[np.int64]
    """(1,) L: the largest value that left, in steps."""
    scale: NDArray[np.float64]
    """(1,) tokens of context at which attention costs as much as the rest, 0 where every node costs
    1."""
    start: NDArray[np.int64]
    """(N,) tokens of the prompt before each resident node."""
    block_size: NDArray[np.int64]
    """(1,) tokens in a full block."""


def cost_per_token(before: float, tokens: float, equal: float) -> float:
    """Return what each of ``tokens`` costs to compute after ``before`` others, in FLOPs.

    In units of a token without attention, which grows with the context: ``equal`` tokens of it
    cost as much again.
    """
    return 1.0 + (before + 0.5 * tokens) / equal


def _value(table: Table, state: GDSFState, node: int) -> None:
    size = float(max(int(table.tokens[node]), 1))
    each = 1.0 / size
    if state.scale[0] > 0.0:
        each = cost_per_token(float(state.start[node]), size, state.scale[0])
    gain: int = math.floor(int(state.uses[node]) * each * STEPS + 0.5)
    state.value[node] = int(state.inflation[0]) + gain


def _on_hit(table: Table, state: GDSFState, node: int, rank: int) -> None:
    state.touched[node] = rank
    state.uses[node] += 1
    _value(table, state, node)


def _on_insert(table: Table, state: GDSFState, node: int, rank: int) -> None:
    state.touched[node] = rank
    state.uses[node] = 1
    state.start[node] = tokens_before(table, state.start, node, int(state.block_size[0]))
    _value(table, state, node)


def _on_evict(table: Table, state: GDSFState, node: int) -> None:
    heap_remove(state.heap, node)
    state.inflation[0] = max(int(state.inflation[0]), int(state.value[node]))


def _key(table: Table, state: GDSFState, node: int) -> int:
    return int(state.value[node])


class GDSF(RankedPolicy):
    """L + count·cost/size: often used, dear and small stays; L, the last value to leave, ages.

    The paper's names: Fr the count from 1 at insertion, C the cost, S the size in tokens, L the
    clock. C is 1 (the hit ratio) or, with attention_tokens, the FLOPs of computing the block
    where it stands: C/S = 1 + (context at its middle)/attention_tokens. For a model of P weights,
    l layers and a width h of all query heads attention_tokens is 2·P / (4·l·h). L never falls: a
    parent that becomes a leaf late may be worth less than what left before it. Closed under
    ancestors: only leaves are ranked.
    """

    name = "gdsf"
    source = "Cherkasova 1998 (HPL-98-69R1)"
    biased_when_sampled = True
    parameters = {  # noqa: RUF012  # a class constant, typed in the base
        "attention_tokens": Parameter(
            0.0, "context at which attention costs as much as the rest; 0: every node costs 1"
        ),
    }
    on_hit = staticmethod(_on_hit)
    on_insert = staticmethod(_on_insert)
    on_evict = staticmethod(_on_evict)
    key = staticmethod(_key)

    def prepare(self, setup: Setup) -> Any:
        """Return a `GDSFState` for ``setup``. O(N)."""
        return GDSFState(
            *ranked_columns(setup),
            np.zeros(setup.nodes, np.int64),
            np.zeros(setup.nodes, np.int64),
            np.zeros(1, np.int64),
            np.array([self.values["attention_tokens"]]),
            np.zeros(setup.nodes, np.int64),
            np.array([setup.block_size], np.int64),
        )
