"""SGLang's rules: requests through its radix tree, one after another.

A request goes the way of SGLang's scheduler: match, lock, evict what is missing, prefill, insert,
decode page by page, insert again with what was generated, unlock. Facts are from SGLang 0.5.23
(`srt/managers/schedule_policy.py`, `srt/mem_cache/{radix_cache,allocation,common}.py`), and the
tests hold the rules to recordings of its own classes, decision by decision.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvsched.foundation.errors import UsageError
from kvsched.foundation.jit import bind, compilation_enabled
from kvsched.kernel.heap import heap_peek, heap_remove
from kvsched.kernel.table import NONE
from kvsched.replay.loop import Counts, Decisions
from kvsched.replay.sglang_tree import (
    FREE,
    LOGGED,
    SPARE,
    STRATEGIES,
    Tree,
    empty_tree,
    enter,
    insert,
    match,
)

DEFAULT = "lru"
"""SGLang's default of ``--radix-eviction-policy``."""
RESERVED_TOKENS = 6
"""Tokens of the pool that a prompt cannot reach: one never served, five for the output."""

# Rules that the tests switch off, one at a time, to see that the recordings notice.
whole_nodes = True
"""A victim leaves with all its pages, even where fewer are needed."""
spare_page = True
"""With pages of more than one token a prefill asks for one page more than it fills."""
prompt_raised = True
"""A prompt whose output fills a page ends with its priority raised by one."""


class Pages(NamedTuple):
    """R requests in terms of pages of ``page_size`` tokens, over a forest of N pages."""

    page_size: int
    parent: NDArray[np.int32]
    """(N,) page before each page, -1 for the first of a prefix."""
    starts: NDArray[np.int64]
    """(R+1,) request r's pages are ``chains[starts[r]:starts[r+1]]``."""
    chains: NDArray[np.int32]
    """(B,) full pages of the prompt and of what is generated, those without a name included."""
    input_tokens: NDArray[np.int64]
    """(R,) prompt tokens."""
    output_tokens: NDArray[np.int64]
    """(R,) generated tokens; the last one has no KV."""
    kept: NDArray[np.int64]
    """(R,) pages that are inserted at the end: all full ones, or the prompt's alone."""
    limit: NDArray[np.int64]
    """(R,) pages that can be hit at most: one token of the prompt is always computed."""
    priority: NDArray[np.int64]
    """(R,) priority, 0 where none is known."""


class Evictor(NamedTuple):
    """What an eviction needs beside the tree."""

    decisions: Decisions
    evicted: NDArray[np.int32]
    """(R,) pages that left."""


def _evict(tree: Tree, out: Evictor, request: int, pinned: int, incoming: int) -> bool:
    """Evict the first leaf of the strategy's order; False if there is none. O(run + log M)."""
    node = heap_peek(tree.leaves)
    if node == NONE:
        return False
    room = len(out.decisions.victim)
    stop = tree.start[node] if whole_nodes else tree.end[node] - 1
    page = tree.tail[node]
    for _ in range(stop, tree.end[node]):
        tree.owner[page] = NONE
        if tree.state[LOGGED] < room:
            out.decisions.victim[tree.state[LOGGED]] = page
            out.decisions.incoming[tree.state[LOGGED]] = incoming
            tree.state[LOGGED] += 1
        page = tree.parent[page]
    tree.state[FREE] += tree.end[node] - stop
    out.evicted[request] += tree.end[node] - stop
    if stop > tree.start[node]:
        tree.end[node] = stop
        tree.tail[node] = page
        return True
    heap_remove(tree.leaves, node)
    tree.spare[tree.state[SPARE]] = node
    tree.state[SPARE] += 1
    above = int(tree.up[node])
    if above != NONE:
        tree.children[above] -= 1
        if tree.children[above] == 0 and above != pinned:
            enter(tree, above)
    return True


def _make_room(
    tree: Tree, out: Evictor, request: int, pinned: int, incoming: int, pages: int
) -> None:
    """Evict until ``pages`` are free or nothing evictable is left."""
    while tree.state[FREE] < pages and _evict(tree, out, request, pinned, incoming):
        pass


def _pin(tree: Tree, node: int) -> None:
    if node != NONE and tree.leaves.place[node] >= 0:
        heap_remove(tree.leaves, node)


def _unpin(tree: Tree, node: int) -> None:
    if node != NONE and tree.children[node] == 0:
        enter(tree, node)


def _checkpoint(
    tree: Tree, chain: NDArray[np.int32], length: int, prompt: int, done: int, priority: int
) -> tuple[int, int]:
    """Insert ``chain[:length]``, of which the request put ``done`` pages in before.

    Returns how many pages were in the tree already, and the last node. O(path + new pages).
    """
    found, _ = insert(tree, chain, length, done, priority)
    if 0 < prompt < length:
        insert(tree, chain, prompt, prompt, priority + prompt_raised)
    node = match(tree, chain, length)
    _pin(tree, node)
    return found, node


def _decode(
    tree: Tree,
    out: Evictor,
    request: int,
    pinned: int,
    chain: NDArray[np.int32],
    page_size: int,
    prompt: int,
    steps: int,
) -> None:
    """Take a page whenever a step of decoding begins one; each step wants one to be free."""
    at = (prompt + page_size - 1) // page_size
    last_step = prompt + steps - 1
    beginning = -1
    while beginning < last_step:
        _make_room(tree, out, request, pinned, _at(chain, at), 1)
        beginning = at * page_size
        if beginning <= last_step:
            tree.state[FREE] -= 1
            at += 1


def _at(chain: NDArray[np.int32], place: int) -> int:
    return int(chain[min(place, len(chain) - 1)]) if len(chain) > 0 else NONE


def serve(
    tree: Tree,
    capacity: int,
    page_size: int,
    chunk: int,
    starts: NDArray[np.int64],
    chains: NDArray[np.int32],
    input_tokens: NDArray[np.int64],
    output_tokens: NDArray[np.int64],
    kept: NDArray[np.int64],
    limit: NDArray[np.int64],
    priority: NDArray[np.int64],
    counts: Counts,
    refused: NDArray[np.uint8],
    known: NDArray[np.int32],
    out: Evictor,
) -> int:
    """Serve the requests one after another; fill the columns, return the pages in the tree."""
    pool = capacity * page_size
    spare = 1 if spare_page and page_size > 1 else 0
    state = tree.state
    for request in range(len(starts) - 1):
        prompt = int(input_tokens[request])
        if prompt + max(page_size, RESERVED_TOKENS) >= pool:
            refused[request] = 1
            continue
        chain = chains[starts[request] : starts[request + 1]]
        whole = prompt // page_size
        filled = (prompt + page_size - 1) // page_size
        # The scheduler cuts the output to what the pool can hold beside the prompt.
        most = pool - filled * page_size - page_size - 1
        steps = max(min(int(output_tokens[request]), most) - 1, 0)
        last = min(int(kept[request]), (prompt + steps) // page_size)
        level = int(priority[request])
        pinned = match(tree, chain, int(limit[request]))
        _pin(tree, pinned)
        hit = int(tree.end[pinned]) if pinned != NONE else 0
        counts.hits[request] = hit
        held = hit
        protected = hit
        done = 0
        ending = False
        while not ending:
            if held < filled:
                need = filled - held
                if 0 < chunk < need:
                    need = chunk
                _make_room(tree, out, request, pinned, _at(chain, held), need + spare)
                state[FREE] -= need
                held += need
                ending = held == filled and steps == 0
            else:
                _decode(tree, out, request, pinned, chain, page_size, prompt, steps)
                ending = True
            length = last if ending else min(held, whole)
            found, pinned = _checkpoint(tree, chain, length, whole, done, level)
            # Pages that were in the tree before the request filled its own are given back.
            state[FREE] += max(found - protected, 0)
            counts.stored[request] += length - found
            known[request] = length - counts.stored[request]
            done = length
            protected = length
        state[FREE] += (prompt + steps + page_size - 1) // page_size - last
        _unpin(tree, pinned)
    return int(capacity - state[FREE])


@functools.cache
def _bound(compiled: bool) -> Callable[..., int]:
    return bind(serve, None, compiled)


def sglang_replay(
    pages: Pages,
    strategy: str,
    capacity: int,
    counts: Counts,
    decisions: Decisions,
    compiled: bool | None = None,
    *,
    chunk_pages: int = 0,
    known: NDArray[np.int32] | None = None,
    loop: Callable[..., int] | None = None,
) -> tuple[int, NDArray[np.uint8]]:
    """Replay requests under SGLang's rules; fill ``counts`` and ``decisions`` like `replay_loop`.

    Returns the pages in the tree at the end, and (R,) 1 where a request was refused because its
    prompt does not fit the pool. ``chunk_pages`` cuts prefills into chunks that are inserted one
    by one, as ``--chunked-prefill-size`` does; 0 never cuts. A decision's incoming page is the
    next that the request fills. ``known`` (R,) is filled with the pages from the root that were in
    the tree when the request put its own in. ``loop`` is for tests. O(B + evictions · log M) for
    M radix nodes. Raises UsageError for an unknown strategy.
    """
    if strategy not in STRATEGIES:
        raise UsageError(f"SGLang has no strategy {strategy} (known: {', '.join(STRATEGIES)})")
    run = loop or _bound(compilation_enabled() if compiled is None else compiled)
    tree = empty_tree(pages.parent, capacity, STRATEGIES.index(strategy))
    refused = np.zeros(len(pages.kept), np.uint8)
    held = run(
        tree,
        capacity,
        pages.page_size,
        chunk_pages,
        pages.starts,
        pages.chains,
        pages.input_tokens,
        pages.output_tokens,
        pages.kept,
        pages.limit,
        pages.priority,
        counts,
        refused,
        np.zeros(len(refused), np.int32) if known is None else known,
        Evictor(decisions, counts.evicted),
    )
    return int(held), refused
