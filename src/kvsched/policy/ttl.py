"""A lifetime since the last use."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvsched.kernel.heap import Heap, heap_push, heap_remove
from kvsched.kernel.linked import AHEAD, BEHIND, Links, link_behind, unlink
from kvsched.kernel.table import NONE, Table
from kvsched.policy.base import RankedPolicy, Setup, ranked_columns
from kvsched.policy.parameters import Parameter

CLASSES = 2
"""Requests whose type is a tool's are the second; each has a queue, and its row of `links`."""

NOW = 0


class TTLState(NamedTuple):
    """A ranked state with the nodes that live, by class in the order in which they expire."""

    heap: Heap
    touched: NDArray[np.int64]
    expires: NDArray[np.float64]
    """(N,) second at which the node expires; −infinite once it has."""
    links: Links
    """(N+2, 2) two lists in one array, the next to expire first; their ends are the last rows."""
    tool: NDArray[np.uint8]
    """(T+1,) 1 for a tool's type, the last for requests without one; (0,) where none is asked for.
    """
    type: NDArray[np.int32]
    """(R,) type of each request; (0,) where it is not asked for."""
    clock: NDArray[np.float64]
    """(3,) now, then seconds that each class lives."""
    running: NDArray[np.int64]
    """(1,) class of the running request."""


def _begin(table: Table, state: TTLState, request: int, now: float, last_rank: int) -> None:
    state.clock[NOW] = now
    state.running[0] = state.tool[state.type[request]] if len(state.tool) > 0 else 0
    for ends in range(len(state.links) - CLASSES, len(state.links)):
        node = state.links[ends, BEHIND]
        while node != ends and state.expires[node] <= now:
            unlink(state.links, node)
            state.expires[node] = -np.inf
            if state.heap.place[node] != NONE:
                heap_remove(state.heap, node)
                heap_push(state.heap, node, 0, state.touched[node])
            node = state.links[ends, BEHIND]


def _on_hit(table: Table, state: TTLState, node: int, rank: int) -> None:
    state.touched[node] = rank
    expires = state.clock[NOW] + state.clock[1 + state.running[0]]
    if expires < state.expires[node]:
        return
    if state.expires[node] != -np.inf:
        unlink(state.links, node)
    state.expires[node] = expires
    ends = len(state.links) - CLASSES + state.running[0]
    link_behind(state.links, state.links[ends, AHEAD], node)


def _on_insert(table: Table, state: TTLState, node: int, rank: int) -> None:
    state.expires[node] = -np.inf
    _on_hit(table, state, node, rank)


def _on_drop(table: Table, state: TTLState, node: int) -> None:
    if state.expires[node] != -np.inf:
        unlink(state.links, node)
        state.expires[node] = -np.inf


def _on_evict(table: Table, state: TTLState, node: int) -> None:
    heap_remove(state.heap, node)
    _on_drop(table, state, node)


def _key(table: Table, state: TTLState, node: int) -> int:
    return 0 if state.expires[node] == -np.inf else 1


def _is_tool(name: str) -> bool:
    return name.lower().startswith("tool")


class TTL(RankedPolicy):
    """What was not used for its lifetime leaves first, then the least recent.

    Every use gives a node the lifetime of the request's class, counted from that moment; a longer
    one that it has already stays. With one lifetime for all the order is that of `lru`: what makes
    the difference is classes. Continuum pins the blocks of a request that ends in a tool call
    for a time set by reload cost and queueing delay: set tool_lifetime_s to it, and requests whose
    `type` begins with "tool" have it (0: they live as long as others). A node that lives may leave
    when all do: a lifetime orders, it does not refuse. Expiry is a queue a class, since all of one
    class live equally long: O(1) a use. Closed under ancestors: only leaves are ranked.
    """

    name = "ttl"
    source = "TensorRT-LLM retention durations; Continuum, arXiv 2511.02230 (lifetimes after tools)"
    parameters = {  # noqa: RUF012  # a class constant, typed in the base
        "lifetime_s": Parameter(300.0, "seconds that a node lives after a use"),
        "tool_lifetime_s": Parameter(0.0, "the same after a tool's request; needs `type`; 0: no"),
    }
    begin = staticmethod(_begin)
    on_hit = staticmethod(_on_hit)
    on_insert = staticmethod(_on_insert)
    on_evict = staticmethod(_on_evict)
    on_release = staticmethod(_on_hit)
    on_drop = staticmethod(_on_drop)
    key = staticmethod(_key)

    def needed(self) -> tuple[str, ...]:
        """Return `type` where tools have a lifetime of their own."""
        return ("type",) if self.values["tool_lifetime_s"] else ()

    def learn_name(self, state: Any, column: str, code: int, name: str) -> None:
        """Note whether a type that a live cache meets is a tool's. O(1)."""
        if column == "type" and self.needed():
            state.tool[code] = _is_tool(name)

    def prepare(self, setup: Setup) -> Any:
        """Return a `TTLState` for ``setup``. O(N + R)."""
        lives = [self.values["lifetime_s"], self.values["tool_lifetime_s"]]
        tool, kind = np.zeros(0, np.uint8), np.zeros(0, np.int32)
        if self.needed():
            kind, names = setup.labels("type", self.label)
            tool = np.array([*map(_is_tool, names), False], np.uint8)
        links = np.zeros((setup.nodes + CLASSES, 2), np.int32)
        links[setup.nodes :] = np.arange(setup.nodes, setup.nodes + CLASSES)[:, None]
        return TTLState(
            *ranked_columns(setup),
            np.full(setup.nodes, -np.inf),
            links,
            tool,
            kind,
            np.array([0.0, *lives]),
            np.zeros(1, np.int64),
        )
