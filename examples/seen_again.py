"""A policy with a state and a parameter: --policy examples/seen_again.py:SeenAgain:enough=3."""

from typing import Any, NamedTuple

import numpy as np

from kvsched import Parameter, RankedPolicy, Setup, ranked_columns


class Counts(NamedTuple):
    """What a ranked policy keeps, and counts that outlive an eviction."""

    heap: Any
    touched: Any
    seen: Any
    """(N,) how often each block was asked for, ever."""
    enough: Any
    """(1,) from how often on a block is worth keeping."""


def count(table, state, node, rank):  # noqa: ARG001  # every hook has the contract's arguments
    """Remember the use: `touched` breaks ties, and must be set."""
    state.touched[node] = rank
    state.seen[node] += 1


class SeenAgain(RankedPolicy):
    """Blocks seen often enough, even before they were evicted, leave last; the rest by last use.

    Closed under ancestors: only leaves are ranked.
    """

    name = "seen-again"
    parameters = {"enough": Parameter(2.0, "uses that make a block worth keeping", 1.0)}  # noqa: RUF012  # a class constant, typed in the base
    on_hit = staticmethod(count)
    on_insert = staticmethod(count)

    @staticmethod
    def key(table, state, node):  # noqa: ARG004
        """Return 0 for what leaves first, 1 for what is worth keeping."""
        return 1 if state.seen[node] >= state.enough[0] else 0

    def prepare(self, setup: Setup) -> Counts:
        """Return the arrays of one run: hooks change them, and allocate nothing."""
        seen = np.zeros(setup.nodes, np.int64)
        return Counts(*ranked_columns(setup), seen, np.array([self.values["enough"]]))
