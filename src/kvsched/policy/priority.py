"""What the caller says is worth keeping."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvsched.kernel.heap import Heap, heap_push, heap_remove
from kvsched.kernel.linked import AHEAD, BEHIND, Links, empty_links, link_behind, unlink
from kvsched.kernel.table import NONE, Table
from kvsched.policy.base import RankedPolicy, Setup, ranked_columns, tokens_before
from kvsched.policy.parameters import Parameter

DEFAULT = 35
"""TensorRT-LLM's priority of a block that nobody gave one."""

NOW = 0
DURATION = 1

REQUEST = 0
HEAD_TOKENS = 1
HEAD_PRIORITY = 2
BLOCK_SIZE = 3


class PriorityState(NamedTuple):
    """A ranked state with priorities, and those that expire in the order in which they do."""

    heap: Heap
    touched: NDArray[np.int64]
    priority: NDArray[np.int64]
    """(N,) of each resident node now."""
    expires: NDArray[np.float64]
    """(N,) second at which the node falls back to 35; infinite where it does not."""
    links: Links
    """The nodes that expire, the next one first."""
    asked: NDArray[np.int32]
    """(R,) priority of each request; (0,) where all are at 35."""
    clock: NDArray[np.float64]
    """(2,) now and the head's duration, seconds."""
    head: NDArray[np.int64]
    """(4,) priority of the running request; tokens of the head, and its priority; tokens in a full
    block."""
    start: NDArray[np.int64]
    """(N,) tokens of the prompt before each resident node."""


def _begin(table: Table, state: PriorityState, request: int, now: float, last_rank: int) -> None:
    state.head[REQUEST] = state.asked[request] if len(state.asked) > 0 else DEFAULT
    state.clock[NOW] = now
    ends = len(state.links) - 1
    node = state.links[ends, BEHIND]
    while node != ends and state.expires[node] <= now:
        unlink(state.links, node)
        state.expires[node] = np.inf
        state.priority[node] = DEFAULT
        if state.heap.place[node] != NONE:
            heap_remove(state.heap, node)
            heap_push(state.heap, node, DEFAULT, state.touched[node])
        node = state.links[ends, BEHIND]


def _hold(table: Table, state: PriorityState, node: int, least: int) -> None:
    if state.start[node] >= state.head[HEAD_TOKENS]:
        state.priority[node] = max(least, int(state.head[REQUEST]))
        return
    state.priority[node] = state.head[HEAD_PRIORITY]
    if state.clock[DURATION] > 0.0:
        if state.expires[node] != np.inf:
            unlink(state.links, node)
        state.expires[node] = state.clock[NOW] + state.clock[DURATION]
        link_behind(state.links, state.links[len(state.links) - 1, AHEAD], node)


def _on_hit(table: Table, state: PriorityState, node: int, rank: int) -> None:
    state.touched[node] = rank
    _hold(table, state, node, int(state.priority[node]))


def _on_insert(table: Table, state: PriorityState, node: int, rank: int) -> None:
    state.touched[node] = rank
    state.start[node] = tokens_before(table, state.start, node, int(state.head[BLOCK_SIZE]))
    _hold(table, state, node, int(state.head[REQUEST]))


def _on_drop(table: Table, state: PriorityState, node: int) -> None:
    if state.expires[node] != np.inf:
        unlink(state.links, node)
        state.expires[node] = np.inf


def _on_evict(table: Table, state: PriorityState, node: int) -> None:
    heap_remove(state.heap, node)
    _on_drop(table, state, node)


def _key(table: Table, state: PriorityState, node: int) -> int:
    return int(state.priority[node])


class Priority(RankedPolicy):
    """The lowest priority leaves first, then the least recent; the head may have one of its own.

    A node has the highest `priority` of the requests that used it since it was stored (SGLang
    raises along the path; larger is more important). Nodes whose first token is among the first
    head_tokens of the prompt have head_priority instead: TensorRT-LLM's range of tokens, of which
    a block takes the one that holds its first token. Its duration starts at release, here the
    request's own moment; on expiry the node falls back to 35 and keeps its place by last access,
    the order of release (TensorRT-LLM puts it at the back). Expiries stand in one queue, since
    all last equally long: O(1) a use. Closed under ancestors: only leaves are ranked.
    """

    name = "priority"
    source = "SGLang `priority`: (priority, last access); TensorRT-LLM KvCacheRetentionConfig"
    needs = ("priority",)
    parameters = {  # noqa: RUF012  # a class constant, typed in the base
        "head_tokens": Parameter(
            0.0, "tokens of the head; with a head, requests may lack priority"
        ),
        "head_priority": Parameter(100.0, "priority of the head's blocks", most=2.0**31 - 1),
        "head_duration_s": Parameter(0.0, "seconds until they fall back to 35; 0: never"),
    }
    begin = staticmethod(_begin)
    on_hit = staticmethod(_on_hit)
    on_insert = staticmethod(_on_insert)
    on_evict = staticmethod(_on_evict)
    on_release = staticmethod(_on_hit)
    on_drop = staticmethod(_on_drop)
    key = staticmethod(_key)

    def needed(self) -> tuple[str, ...]:
        """Return `priority`, unless there is a head: other blocks are then at 35."""
        return () if self.values["head_tokens"] else self.needs

    def prepare(self, setup: Setup) -> Any:
        """Return a `PriorityState` for ``setup``. O(N + R)."""
        asked = np.zeros(0, np.int32)
        if setup.has("priority") or self.needed():
            asked = setup.column("priority", self.label)
        tokens, level = int(self.values["head_tokens"]), int(self.values["head_priority"])
        head = np.array([DEFAULT, tokens, level, setup.block_size], np.int64)
        return PriorityState(
            *ranked_columns(setup),
            np.zeros(setup.nodes, np.int64),
            np.full(setup.nodes, np.inf),
            empty_links(setup.nodes),
            asked,
            np.array([0.0, self.values["head_duration_s"]]),
            head,
            np.zeros(setup.nodes, np.int64),
        )
