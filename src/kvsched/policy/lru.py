"""Least recently used."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvsched.kernel.linked import AHEAD, BEHIND, Links, empty_links, link_behind, unlink
from kvsched.kernel.table import NONE, Table
from kvsched.policy.base import Policy, RankedPolicy, Setup

SOURCE = "vLLM v1 free list, SGLang `lru`; in (request of last access, deeper first) order"


class LRUState(NamedTuple):
    """All resident nodes in one list, from (last access, shallow first) down."""

    links: Links
    cursor: NDArray[np.int32]
    """(1,) the last node that the current request touched, or N before the first."""


def _begin(table: Table, state: LRUState, request: int, now: float, last_rank: int) -> None:
    state.cursor[0] = len(state.links) - 1


def _on_hit(table: Table, state: LRUState, node: int, rank: int) -> None:
    place = state.cursor[0]
    if state.links[place, BEHIND] != node:
        unlink(state.links, node)
        link_behind(state.links, place, node)
    state.cursor[0] = node


def _on_insert(table: Table, state: LRUState, node: int, rank: int) -> None:
    link_behind(state.links, state.cursor[0], node)
    state.cursor[0] = node


def _on_evict(table: Table, state: LRUState, node: int) -> None:
    unlink(state.links, node)


def _victim(table: Table, state: LRUState, incoming: int, rank: int) -> int:
    last = state.links[len(state.links) - 1, AHEAD]
    if last == state.cursor[0]:
        return NONE
    return int(last)


class LiveLRU(RankedPolicy):
    """`LRU` where requests overlap: by last access, in a heap.

    There a held node may be the oldest, and a parent older than its child, so the end of the list
    need not be evictable.
    """

    name = "lru"
    source = SOURCE


class LRU(Policy):
    """The prefix that nobody has used for longest leaves first, its tail before its head.

    Closed under ancestors without any check: a parent is touched whenever its child is, and
    stands before it, so the end of the list is always a leaf.
    """

    name = "lru"
    source = SOURCE
    track_leaves = False
    begin = staticmethod(_begin)
    on_hit = staticmethod(_on_hit)
    on_insert = staticmethod(_on_insert)
    on_evict = staticmethod(_on_evict)
    victim = staticmethod(_victim)

    def live_form(self) -> Policy:
        """Return a `LiveLRU`. Raises UsageError for a subclass, which may have another order."""
        return LiveLRU() if type(self) is LRU else super().live_form()

    def prepare(self, setup: Setup) -> Any:
        """Return an empty list over the nodes. O(N)."""
        return LRUState(empty_links(setup.nodes), np.zeros(1, np.int32))
