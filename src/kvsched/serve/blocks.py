"""vLLM's block pool where requests overlap: blocks are held by count, and freed tail first.

The scheduler asks for memory by five names: `hit_blocks`, `lacks_room`, `hold_hits`, `extend` and
`free_blocks`. `nodes` has the same five for any policy of the registry.
"""

from __future__ import annotations

from kvsched.kernel.linked import AHEAD, BEHIND, link_behind, unlink
from kvsched.kernel.table import NONE
from kvsched.replay.vllm import cache_block, uncache_block
from kvsched.serve.hooks import stored_blocks
from kvsched.serve.state import EVICTIONS, FREE_BLOCKS, RUNNING_COUNT, Rules, State

uncached_to_head = True
"""Freed blocks without a hash go to the head of the free list."""
tail_first = True
"""A request's blocks are freed from its last to its first."""

last_token_computed = True
"""The last token is always computed, so a prompt of exactly k blocks hits k-1."""
idle_needs_no_watermark = True
"""The watermark is asked only while something runs."""
hits_in_free_list_count = True
"""A hit on a block in the free list takes that block's place among the free ones."""


def blocks_of(tokens: int, block_size: int) -> int:
    """Blocks that so many tokens take."""
    return int((tokens + block_size - 1) // block_size)


def most_hits(state: State, request: int, size: int) -> int:
    """Return how many blocks from the root a request may hit at most. O(1)."""
    most = int(state.work.limit[request])
    if state.progress.preemptions[request] > 0:
        most = int((state.progress.tokens[request] - 1) // size)
    if not last_token_computed:
        most = int(state.progress.tokens[request] // size)
    return min(most, int(state.work.kept[request]))


def hit_blocks(state: State, request: int, size: int) -> int:
    """Return how many blocks from the root a waiting request would hit now. O(hits)."""
    most = most_hits(state, request, size)
    low = state.work.starts[request]
    first = state.pool.first
    at = 0
    while at < most and first[state.work.chains[low + at]] != NONE:
        at += 1
    return at


def lacks_room(state: State, rules: Rules, request: int, hits: int, reach: int) -> bool:
    """Whether a waiting request with its hits finds no blocks for ``reach`` tokens. O(hits)."""
    low = state.work.starts[request]
    free = int(state.counts[FREE_BLOCKS])
    if state.counts[RUNNING_COUNT] > 0 or not idle_needs_no_watermark:
        free -= rules.watermark_blocks
    if hits_in_free_list_count:
        for at in range(hits):
            if state.references[state.pool.first[state.work.chains[low + at]]] == 0:
                free -= 1
    return blocks_of(reach, rules.block_size) - hits > free


def _take(state: State, request: int) -> None:
    """Pop the head of the free list for a request; a hash on it is lost. O(1)."""
    pool = state.pool
    block = pool.free[len(pool.node), BEHIND]
    unlink(pool.free, block)
    state.counts[FREE_BLOCKS] -= 1
    if pool.node[block] != NONE:
        uncache_block(pool, block)
        state.counts[EVICTIONS] += 1
    state.references[block] = 1
    held = state.progress.blocks
    pool.table[state.work.starts[request] + held[request]] = block
    held[request] += 1


def _touch(state: State, request: int, block: int) -> None:
    """Let a request hold a block that it hit; take it out of the free list if it is there. O(1)."""
    if state.references[block] == 0:
        unlink(state.pool.free, block)
        state.counts[FREE_BLOCKS] -= 1
    state.references[block] += 1
    held = state.progress.blocks
    state.pool.table[state.work.starts[request] + held[request]] = block
    held[request] += 1


def hold_hits(state: State, request: int, hits: int) -> None:
    """Let a request that is admitted hold the blocks that it hit. O(hits)."""
    low = state.work.starts[request]
    for at in range(hits):
        _touch(state, request, int(state.pool.first[state.work.chains[low + at]]))
    state.progress.hashed[request] = hits


def extend(state: State, request: int, reach: int, size: int) -> None:
    """Give a request blocks for ``reach`` tokens; those that are full get their hashes.

    They are found from now on, though the step that computes them is still to run. O(blocks).
    """
    progress = state.progress
    if reach > int(progress.blocks[request]) * size:
        for _ in range(blocks_of(reach, size) - int(progress.blocks[request])):
            _take(state, request)
    hashed = progress.hashed
    if reach < (int(hashed[request]) + 1) * size:
        return
    full = min(int(reach // size), stored_blocks(state, request))
    low = state.work.starts[request]
    while hashed[request] < full:
        place = low + hashed[request]
        cache_block(state.pool, state.pool.table[place], state.work.chains[place])
        hashed[request] += 1


def free_blocks(state: State, request: int) -> None:
    """Let go of all that a request holds. O(its blocks).

    Blocks without a hash go to the head of the free list, the request's last block first; those
    with a hash to its tail, the last block first too.
    """
    pool = state.pool
    ends = len(pool.node)
    length = int(state.progress.blocks[request])
    low = state.work.starts[request]
    head = ends
    for back in range(length):
        block = pool.table[low + (length - 1 - back if tail_first else back)]
        state.references[block] -= 1
        if state.references[block] > 0:
            continue
        state.counts[FREE_BLOCKS] += 1
        if pool.node[block] == NONE and uncached_to_head:
            link_behind(pool.free, head, block)
            head = int(block)
        else:
            link_behind(pool.free, pool.free[ends, AHEAD], block)
    state.progress.blocks[request] = 0
    state.progress.hashed[request] = 0
