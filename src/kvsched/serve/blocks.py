"""vLLM's block pool where requests overlap: blocks are held by count, and freed tail first."""

from __future__ import annotations

from kvsched.kernel.linked import AHEAD, BEHIND, link_behind, unlink
from kvsched.kernel.table import NONE
from kvsched.replay.vllm import cache_block, uncache_block
from kvsched.serve.state import EVICTIONS, FREE_BLOCKS, State

uncached_to_head = True
"""Freed blocks without a hash go to the head of the free list."""
tail_first = True
"""A request's blocks are freed from its last to its first."""


def blocks_of(tokens: int, block_size: int) -> int:
    """Blocks that so many tokens take."""
    return int((tokens + block_size - 1) // block_size)


def take_block(state: State, request: int) -> None:
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


def touch_block(state: State, request: int, block: int) -> None:
    """Let a request hold a block that it hit; take it out of the free list if it is there. O(1)."""
    if state.references[block] == 0:
        unlink(state.pool.free, block)
        state.counts[FREE_BLOCKS] -= 1
    state.references[block] += 1
    held = state.progress.blocks
    state.pool.table[state.work.starts[request] + held[request]] = block
    held[request] += 1


def hash_blocks(state: State, request: int, tokens: int, block_size: int) -> None:
    """Give hashes to blocks that ``tokens`` fill and that have none. O(those blocks).

    They are found from now on, though the step that computes them is still to run.
    """
    full = min(int(tokens // block_size), int(state.work.kept[request]))
    hashed = state.progress.hashed
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
