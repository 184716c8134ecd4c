"""Tail-optimised LRU: what the next turn can lose without being late goes first."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvsched.kernel.heap import Heap, heap_push, heap_remove
from kvsched.kernel.linked import AHEAD, BEHIND, Links, link_behind, unlink
from kvsched.kernel.table import NONE, Table
from kvsched.policy.base import RankedPolicy, Setup, ranked_columns, tokens_before
from kvsched.policy.parameters import Parameter

SESSION = 0
KEPT_TOKENS = 1
BLOCK_SIZE = 2


class TLRUState(NamedTuple):
    """A ranked state with the conversations that need each node."""

    heap: Heap
    touched: NDArray[np.int64]
    needed_by: NDArray[np.int64]
    """(N,) conversations that the node is not safe for."""
    tip: NDArray[np.int32]
    """(S,) deepest node that each conversation's last request needs, -1 for none."""
    tips: Links
    """(S+N, 2) for each node a list of the conversations whose tip it is, its ends in row S plus
    the node. A row begins with -1 where its conversation is in none, as the running request's."""
    session: NDArray[np.int32]
    """(R,) conversation of each request, -1 for one that has no more turns."""
    input_tokens: NDArray[np.int64]
    """(R,) tokens of each prompt."""
    output_tokens: NDArray[np.int64]
    """(R,) tokens of each answer."""
    allowed: NDArray[np.float64]
    """(1,) tokens of the history that the next turn can lose: ξ − Q̂."""
    running: NDArray[np.int64]
    """(3,) conversation of the running request, and the tokens it should keep; tokens in a full
    block."""
    start: NDArray[np.int64]
    """(N,) tokens of the prompt before each resident node."""


def _resume(table: Table, state: TLRUState, request: int, now: float, last_rank: int) -> None:
    """List the tip of the request that ran, which moves no more; make this one the running."""
    running = state.running
    before = int(running[SESSION])
    if before >= 0 and state.tip[before] != NONE:
        link_behind(state.tips, len(state.tip) + state.tip[before], before)
    session = int(state.session[request])
    running[SESSION] = session
    history = int(state.input_tokens[request]) + int(state.output_tokens[request])
    running[KEPT_TOKENS] = max(math.ceil(float(history) - state.allowed[0]), 0)
    if session >= 0 and state.tips[session, AHEAD] != NONE:
        unlink(state.tips, session)
        state.tips[session, AHEAD] = NONE


def _begin(table: Table, state: TLRUState, request: int, now: float, last_rank: int) -> None:
    _resume(table, state, request, now, last_rank)
    session = state.running[SESSION]
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
        session = state.running[SESSION]
        # Another request of the conversation that began since may have claimed another chain.
        if session < 0 or state.tip[session] == table.parent[node]:
            state.needed_by[node] += 1
            if session >= 0:
                state.tip[session] = node


def _on_insert(table: Table, state: TLRUState, node: int, rank: int) -> None:
    state.start[node] = tokens_before(table, state.start, node, int(state.running[BLOCK_SIZE]))
    _on_hit(table, state, node, rank)


def _on_release(table: Table, state: TLRUState, node: int, rank: int) -> None:
    """Claim what the answer made needed; without a conversation what was claimed stays."""
    if state.running[SESSION] >= 0:
        _on_hit(table, state, node, rank)
    state.touched[node] = rank


def _forget(table: Table, state: TLRUState, node: int) -> None:
    """Leave the claims on the ancestors. O(conversations whose tip the node is)."""
    above = table.parent[node]
    running = state.running[SESSION]
    if running >= 0 and state.tip[running] == node:
        state.tip[running] = above
    conversations = len(state.tip)
    session = state.tips[conversations + node, BEHIND]
    while session != conversations + node:
        unlink(state.tips, session)
        state.tip[session] = above
        if above == NONE:
            state.tips[session, AHEAD] = NONE
        else:
            link_behind(state.tips, conversations + above, session)
        session = state.tips[conversations + node, BEHIND]
    state.needed_by[node] = 0


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
    resume = staticmethod(_resume)
    on_hit = staticmethod(_on_hit)
    on_insert = staticmethod(_on_insert)
    on_release = staticmethod(_on_release)
    forget = staticmethod(_forget)
    key = staticmethod(_key)

    def prepare(self, setup: Setup) -> Any:
        """Return a `TLRUState` for ``setup``. O(N + S)."""
        session = setup.labels("session", self.label)
        allowed = self.values["threshold_tokens"] - self.values["next_prompt_tokens"]
        conversations = len(session.names)
        tips = np.full((conversations + setup.nodes, 2), NONE, np.int32)
        tips[conversations:] = np.arange(conversations, len(tips))[:, None]
        return TLRUState(
            *ranked_columns(setup),
            np.zeros(setup.nodes, np.int64),
            np.full(conversations, NONE, np.int32),
            tips,
            session.codes,
            setup.column("input_tokens", self.label),
            setup.column("output_tokens", self.label),
            np.array([allowed]),
            np.array([NONE, 0, setup.block_size], np.int64),
            np.zeros(setup.nodes, np.int64),
        )
