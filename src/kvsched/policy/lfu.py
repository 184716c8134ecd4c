"""Least frequently used."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvsched.kernel.heap import Heap
from kvsched.kernel.table import Table
from kvsched.policy.base import RankedPolicy, Setup, ranked_columns


class LFUState(NamedTuple):
    """A ranked state with counts."""

    heap: Heap
    touched: NDArray[np.int64]
    uses: NDArray[np.int64]
    """(N,) uses since insertion, which counts 1."""


def on_hit(table: Table, state: LFUState, node: int, rank: int) -> None:
    """Count a use."""
    state.touched[node] = rank
    state.uses[node] += 1


def on_insert(table: Table, state: LFUState, node: int, rank: int) -> None:
    """Start counting anew: what was counted before an eviction is forgotten."""
    state.touched[node] = rank
    state.uses[node] = 1


def _key(table: Table, state: LFUState, node: int) -> int:
    return int(state.uses[node])


class LFU(RankedPolicy):
    """The node used least often since it was stored leaves first, then the least recent.

    Closed under ancestors: only leaves are ranked.
    """

    name = "lfu"
    source = "SGLang `lfu`: (hit count, last access); insertion counts 1, forgotten at eviction"
    on_hit = staticmethod(on_hit)
    on_insert = staticmethod(on_insert)
    key = staticmethod(_key)

    def prepare(self, setup: Setup) -> Any:
        """Return an `LFUState` for ``setup``. O(N)."""
        return LFUState(*ranked_columns(setup), np.zeros(setup.nodes, np.int64))
