"""Tail-optimised LRU: what the next turn can lose without being late goes first."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvsched.kernel.heap import Heap, heap_push, heap_remove
from kvsched.kernel.table import NONE, Table
from kvsched.policy.base import Parameter, RankedPolicy, Setup, ranked_columns, tokens_before

SESSION = 0
KEPT_TOKENS = 1
BLOCK_SIZE = 2


class TLRUState(NamedTuple):
    """A ranked state with the conversations that need each node."""

    heap: Heap
    touched: NDArray[np.int64]
    needed_by: NDArray[np.int32]
    """(N,) conversations that the node is not safe for."""
    tip: NDArray[np.int32]
    """(S,) deepest node that each conversation's last request needs, -1 for none."""
    session: NDArray[np.int32]
    """(R,) conversation of each request, -1 for one that has no more turns."""
    kept: NDArray[np.int64]
    """(R,) tokens that the conversation should keep after each request."""
    running: NDArray[np.int64]
    """(3,) conversation of the running request, and the tokens it should keep; tokens in a full
    block."""
    start: NDArray[np.int64]
    """(N,) tokens of the prompt before each resident node."""


def _begin(table: Table, state: TLRUState, request: int, now: float, last_rank: int) -> None:
    session = state.session[request]
    state.running[SESSION] = session
    state.running[KEPT_TOKENS] = state.kept[request]
    if session < 0:
        return
    node = state.tip[session]
    state.tip[session] = NONE
    while node != NONE:
        state.needed_by[node] -= 1
        if state.needed_by[node] == 0 and state.heap.place[node] != NONE:
            heap_remove(state.heap, node)
            heap_push(state.heap, node, 0, state.touched[node])
        node = table.parent[node]


def _on_hit(table: Table, state: TLRUState, node: int, rank: int) -> None:
    state.touched[node] = rank
    if state.start[node] < state.running[KEPT_TOKENS]:
        state.needed_by[node] += 1
        if state.running[SESSION] >= 0:
            state.tip[state.running[SESSION]] = node


def _on_insert(table: Table, state: TLRUState, node: int, rank: int) -> None:
    state.start[node] = tokens_before(table, state.start, node, int(state.running[BLOCK_SIZE]))
    _on_hit(table, state, node, rank)


def _key(table: Table, state: TLRUState, node: int) -> int:
    return 1 if state.needed_by[node] > 0 else 0


class TLRU(RankedPolicy):
    """What no conversation's next turn needs to be on time leaves first, then the least recent.

    The paper's names: L is the prompt and the answer of a conversation's last request, Q̂ is
    next_prompt_tokens, ξ is threshold_tokens, the uncached tokens that the latency goal allows. A
    conversation keeps B = max(0, L + Q̂ − ξ) tokens; a block that begins at or after B is TEL-safe,
    a shared one if it is so for every conversation. A new turn takes the place of the last one's
    claim; a request without a session keeps its own. Blocks that were never stored are not
    claimed. Cost: two walks of the chain a request. Closed under ancestors: only leaves are
    ranked, and a node is needed by all that need its children.
    """

    name = "tlru"
    source = "T-LRU, arXiv 2510.15152 (NeurIPS'25)"
    needs = ("session",)
    parameters = {  # noqa: RUF012  # a class constant, typed in the base
        "next_prompt_tokens": Parameter(200.0, "tokens that the next turn is thought to add (Q̂)"),
        "threshold_tokens": Parameter(2048.0, "uncached tokens that the latency goal allows (ξ)"),
    }
    begin = staticmethod(_begin)
    on_hit = staticmethod(_on_hit)
    on_insert = staticmethod(_on_insert)
    key = staticmethod(_key)

    def prepare(self, setup: Setup) -> Any:
        """Return a `TLRUState` for ``setup``. O(N + R)."""
        session = setup.labels("session", self.label)
        history = setup.column("input_tokens", self.label).astype(np.int64)
        history += setup.column("output_tokens", self.label)
        allowed = self.values["threshold_tokens"] - self.values["next_prompt_tokens"]
        keeps = np.maximum(np.ceil(history - allowed), 0).astype(np.int64)
        return TLRUState(
            *ranked_columns(setup),
            np.zeros(setup.nodes, np.int32),
            np.full(len(session.names), NONE, np.int32),
            session.codes,
            keeps,
            np.array([NONE, 0, setup.block_size], np.int64),
            np.zeros(setup.nodes, np.int64),
        )
