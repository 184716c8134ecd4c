"""The retention score of the course chapter "37. KV Cache Scheduling"."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvsched.kernel.heap import Heap
from kvsched.kernel.table import Table
from kvsched.policy.base import RankedPolicy, Setup, ranked_columns
from kvsched.policy.lfu import on_hit, on_insert
from kvsched.policy.parameters import Parameter

RECENCY_AT_REFRESH = 0.5


class ChapterState(NamedTuple):
    """A ranked state with counts and the weight of a token."""

    heap: Heap
    touched: NDArray[np.int64]
    uses: NDArray[np.int64]
    """(N,) hits as the chapter counts them: 1 when the entry is added."""
    weight: NDArray[np.float64]
    """(2,) the size weight, and the capacity in tokens."""


def _key(table: Table, state: ChapterState, node: int) -> float:
    size = float(table.tokens[node])
    weight, capacity = state.weight[0], state.weight[1]
    return float(float(state.uses[node]) + RECENCY_AT_REFRESH - weight * size / capacity)


class Chapter(RankedPolicy):
    """The score of a KV-cache course's chapter: hits + 0.5/(1 + age) − 0.25·size/capacity.

    Its age is 0 whenever the score is refreshed, so it is LFU with ties broken by size, then by
    last access. Sizes and the capacity are in tokens. The chapter's heap with lazy deletion gives
    the same order as the indexed heap here. Closed under ancestors: only leaves are ranked.
    """

    name = "chapter"
    source = 'course chapter "37. KV Cache Scheduling"'
    parameters = {  # noqa: RUF012  # a class constant, typed in the base
        "size_weight": Parameter(0.25, "what an entry as large as the cache loses, in hits"),
    }
    on_hit = staticmethod(on_hit)
    on_insert = staticmethod(on_insert)
    key = staticmethod(_key)

    def prepare(self, setup: Setup) -> Any:
        """Return a `ChapterState` for ``setup``. O(N)."""
        capacity = float(setup.capacity_blocks * setup.block_size)
        weight = np.array([self.values["size_weight"], capacity])
        return ChapterState(*ranked_columns(setup), np.zeros(setup.nodes, np.int64), weight)
