"""vLLM v1: full blocks in a pool, its free list, and the rules for any other policy.

Facts are from vLLM 0.32.0 (`v1/core/block_pool.py`, `kv_cache_manager.py`), with one group of
full attention, and are held to recordings of its own classes by the tests.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvsched.foundation.errors import UsageError
from kvsched.foundation.jit import bind, digest
from kvsched.kernel.linked import AHEAD, BEHIND, Links, empty_links, link_behind, unlink
from kvsched.kernel.table import NONE
from kvsched.policy.base import Policy, Setup
from kvsched.replay.held_rules import HeldRules
from kvsched.replay.loop import Counts, Decisions, Limits

uncached_to_head = True
"""A freed block without a hash goes to the head of the free list."""
tail_first = True
"""A request's blocks are freed from its last to its first."""
keep_duplicates = True
"""A block that becomes full is cached though another holds the same hash."""


class Pool(NamedTuple):
    """Physical blocks, and which of them hold each node; -1 stands for none."""

    free: Links
    """(C+1, 2) the free list, its head is reused first."""
    node: NDArray[np.int32]
    """(C,) the node whose hash a block carries."""
    newer: NDArray[np.int32]
    """(C,) the copy of the same node that was cached next."""
    older: NDArray[np.int32]
    """(C,) the copy of the same node that was cached before."""
    first: NDArray[np.int32]
    """(N,) the copy of each node that was cached first: look-up gives it."""
    last: NDArray[np.int32]
    """(N,) the copy that was cached last."""
    table: NDArray[np.int32]
    """(T,) block table of the request that runs."""


def empty_pool(capacity: int, nodes: int, longest: int) -> Pool:
    """Return a pool of ``capacity`` free blocks in order. O(C + N)."""
    free = empty_links(capacity)
    rows = np.arange(capacity + 1)
    free[:, AHEAD] = (rows - 1) % (capacity + 1)
    free[:, BEHIND] = (rows + 1) % (capacity + 1)
    node, newer, older = (np.full(capacity, NONE, np.int32) for _ in range(3))
    first, last = (np.full(nodes, NONE, np.int32) for _ in range(2))
    return Pool(free, node, newer, older, first, last, np.empty(longest, np.int32))


def cache_block(pool: Pool, block: int, node: int) -> None:
    """Give a block the hash of a node; look-up finds the copy that was cached first. O(1)."""
    if pool.first[node] == NONE:
        pool.first[node] = block
    elif keep_duplicates:
        before = pool.last[node]
        pool.newer[before] = block
        pool.older[block] = before
    else:
        return
    pool.node[block] = node
    pool.last[node] = block


def uncache_block(pool: Pool, block: int) -> None:
    """Take a block's hash away. O(1)."""
    node = pool.node[block]
    newer = pool.newer[block]
    older = pool.older[block]
    if older == NONE:
        pool.first[node] = newer
    else:
        pool.newer[older] = newer
    if newer == NONE:
        pool.last[node] = older
    else:
        pool.older[newer] = older
    pool.node[block] = NONE
    pool.newer[block] = NONE
    pool.older[block] = NONE


def _release(pool: Pool, block: int) -> None:
    ends = len(pool.node)
    to_tail = pool.node[block] != NONE or not uncached_to_head
    link_behind(pool.free, pool.free[ends, AHEAD] if to_tail else ends, block)


def pool_loop(
    pool: Pool,
    capacity: int,
    starts: NDArray[np.int64],
    chains: NDArray[np.int32],
    limits: Limits,
    counts: Counts,
    decisions: Decisions,
) -> int:
    """Replay every request against vLLM's block pool; return the blocks that hold a hash. O(B).

    ``chains`` hold each request's blocks at its longest; ``limits`` say how many become full, and
    how many can be hit. Decoding pops blocks one by one while nothing else happens, so that
    taking them at once gives the same list. Blocks that were there at look-up and are computed
    again do not count as stored.
    """
    ends = len(pool.node)
    logged = 0
    cached = 0
    for request in range(len(starts) - 1):
        low = starts[request]
        length = starts[request + 1] - low
        if length > capacity:
            limits.refused[request] = True
            continue
        kept = limits.kept[request]
        known = 0
        while known < kept and pool.first[chains[low + known]] != NONE:
            known += 1
        limits.known[request] = known
        counts.stored[request] = kept - known
        at = 0
        while at < limits.hit[request] and pool.first[chains[low + at]] != NONE:
            block = pool.first[chains[low + at]]
            unlink(pool.free, block)
            pool.table[at] = block
            at += 1
        counts.hits[request] = at
        evicted = 0
        while at < length:
            block = pool.free[ends, BEHIND]
            unlink(pool.free, block)
            leaving = pool.node[block]
            if leaving != NONE:
                uncache_block(pool, block)
                cached -= 1
                evicted += 1
                if logged < len(decisions.victim):
                    decisions.victim[logged] = leaving
                    decisions.incoming[logged] = chains[low + at]
                    logged += 1
            if at < kept:
                cache_block(pool, block, chains[low + at])
                cached += 1
            pool.table[at] = block
            at += 1
        counts.evicted[request] = evicted
        for back in range(length):
            _release(pool, pool.table[length - 1 - back if tail_first else back])
    return cached


@functools.cache
def _bound(compiled: bool) -> Callable[..., int]:
    return bind(pool_loop, None, compiled)


class FreeList(Policy):
    """vLLM's own order: the head of its block pool's free list leaves first.

    Over physical blocks, duplicates of one hash included, so it is a kernel of its own and no set
    of hooks. Closed under ancestors: some copy of a parent always stands behind its child.
    """

    name = "free-list"
    source = "vLLM 0.32.0 v1 BlockPool, FreeKVCacheBlockQueue"

    def prepare(self, setup: Setup) -> Any:  # noqa: ARG002  # the base's signature
        """Raise UsageError: only the engine's rules can run it."""
        raise UsageError(f"policy {self.name} is vLLM's own list: it needs --engine vllm")


class VLLM(HeldRules):
    """vLLM v1 with one group of full attention; blocks are the trace's.

    With `FreeList` an exact replay of its block pool. With another policy the cached blocks are
    nodes: a duplicate is kept as one node, touched again by the request that would have stored
    it. Where no duplicate arises, ``lru`` gives what the free list gives.
    """

    name = "vllm"
    source = "vLLM 0.32.0, v1 KVCacheManager with one full-attention group"
    definition = (
        "full blocks only are stored and hit; at most the prompt less its last token can hit, so "
        "a prompt of exactly k blocks hits k-1; a running request holds room for its prompt and "
        "all it generates but the last token; one that can never fit is refused; capacity is "
        "num_gpu_blocks - 1, for vLLM's null block holds nothing"
    )
    own_policy = FreeList
    model_of_own = "lru"

    @property
    def identity(self) -> str:
        """The engine's identity, with the pool's code."""
        return f"{super().identity}{digest(pool_loop, {})} "

    @property
    def definitions(self) -> dict[str, str]:
        """The engine's definitions, with what becomes of duplicates."""
        return super().definitions | {
            "duplicates": "under free-list several blocks may hold one node; under any other "
            "policy they are one node, touched again",
        }

    def run_own(
        self,
        policy: Policy,  # noqa: ARG002  # the frame's argument: there is one order only
        capacity: int,
        counts: Counts,
        decisions: Decisions,
        limits: Limits,
        compiled: bool,
    ) -> int:
        """Replay vLLM's own free list over physical blocks."""
        held = self.held
        longest = int(held.trace.chain_blocks.max(initial=0))
        # No more blocks are ever used than are asked for.
        pool = empty_pool(min(capacity, held.trace.references), held.trace.nodes, longest)
        arrays = (held.trace.starts, held.trace.chains)
        return int(_bound(compiled)(pool, capacity, *arrays, limits, counts, decisions))
