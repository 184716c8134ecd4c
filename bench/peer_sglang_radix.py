"""Runs in SGLang's own environment: its RadixCache serves the workload, request after request.

A command is one JSON line, {"core": 0, "path": "calls"}; the answer another. By "calls",
`tree_seconds` are the tree's own: `match_prefix` on all tokens but the last, `inc_lock_ref`,
`evict` as the allocator asks for it, `insert` and `dec_lock_ref`; `seconds` have the pages as well,
which the tree does not hand out: `alloc`, and the indices of the prefix and the new pages in a row.
By "scheduler", `seconds` are those of every step that its scheduler takes for a request that
generates nothing, as `tools/parity/sglang_record.py` drives it: budget, allocation for a prefill,
checkpoint, release. Keys are made outside the time. Pages are 16 tokens, keys whole pages, the
strategy LRU, garbage not collected.
"""

from __future__ import annotations

import functools
import gc
import json
import os
import sys
import time
from array import array
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools" / "parity"))

import sglang_stand_ins  # isort: skip - before anything of SGLang
import numpy as np
import sglang
import sglang_record
import torch
from sglang.srt.mem_cache.allocator.paged import PagedTokenToKVPoolAllocator
from sglang.srt.mem_cache.base_prefix_cache import InsertParams, MatchPrefixParams
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.radix_cache import RadixCache, RadixKey

import live_workload

PAGE = live_workload.BLOCK_SIZE
TOKENS = live_workload.BLOCKS * PAGE


def new_tree(capacity: int) -> RadixCache:
    """A tree over a pool of ``capacity`` pages."""
    allocator = PagedTokenToKVPoolAllocator(
        capacity * PAGE, PAGE, dtype=torch.float16, device="cpu", kvcache=None, need_sort=False
    )
    return RadixCache(
        CacheInitParams(
            disable=False,
            req_to_token_pool=None,
            token_to_kv_pool_allocator=allocator,
            page_size=PAGE,
            eviction_policy="lru",
        )
    )


def tokens_of(chain: np.ndarray) -> array:
    """A page's tokens are made from its number, so that a page is the same only where it is."""
    made = array("q")
    made.frombytes((chain[:, None] * PAGE + np.arange(PAGE)).astype(np.int64).tobytes())
    return made


def serve(tree: RadixCache, tokens: array) -> tuple[float, float, int]:
    """Seconds, those of them within the tree, and tokens that hit."""
    allocator = tree.token_to_kv_pool_allocator
    key, asked = RadixKey(tokens), RadixKey(tokens, limit=TOKENS - 1)
    began = time.perf_counter()
    found = tree.match_prefix(MatchPrefixParams(key=asked))
    hit, node = found.device_prefix_len, found.last_device_node
    tree.inc_lock_ref(node)
    allocator.evict_to_free_tokens(tree, TOKENS - hit)
    left = time.perf_counter()
    new = allocator.alloc(TOKENS - hit)
    if new is None:
        raise RuntimeError("a request does not fit an idle cache")
    value = torch.cat([tree.path_device_indices(node), new])
    again = time.perf_counter()
    tree.insert(InsertParams(key=key, value=value))
    tree.dec_lock_ref(node)
    ended = time.perf_counter()
    return ended - began, ended - again + left - began, hit


def new_engine(capacity: int) -> sglang_record.Engine:
    """The scheduler's steps over such a tree, without the recording of what leaves."""
    engine = sglang_record.Engine("lru", PAGE, capacity, 0)
    del engine.tree._delete_leaf
    return engine


def serve_whole(engine: sglang_record.Engine, tokens: array) -> tuple[float, float, int]:
    """Seconds of all steps, none of them told apart, and tokens that hit."""
    began = time.perf_counter()
    hit, refused, _ = engine.serve((TOKENS, 0, 0, []), tokens)
    if refused:
        raise RuntimeError("a request does not fit an idle cache")
    return time.perf_counter() - began, 0.0, hit


def run(workload: live_workload.Workload, path: str) -> dict[str, Any]:
    if path == "scheduler":
        engine = new_engine(workload.capacity)
        tree, one = engine.tree, functools.partial(serve_whole, engine)
    else:
        tree = new_tree(workload.capacity)
        one = functools.partial(serve, tree)
    seconds, tree_seconds, hits = 0.0, 0.0, 0
    gc.collect()
    gc.freeze()
    gc.disable()
    for chain in workload.chains:
        took, within, hit = one(tokens_of(chain))
        seconds += took
        tree_seconds += within
        hits += hit
    gc.enable()
    if tree.token_to_kv_pool_allocator.available_size() + tree.evictable_size() != (
        workload.capacity * PAGE
    ):
        raise RuntimeError("pages leaked")
    return {
        "engine": "sglang",
        "version": sglang.__version__,
        "requests": len(workload.chains),
        "operations": workload.operations,
        "seconds": seconds,
        "tree_seconds": tree_seconds,
        "hit_blocks": hits // PAGE,
        "digest": workload.digest,
    }


def main() -> None:
    sglang_stand_ins.check()
    torch.set_num_threads(1)
    workload = live_workload.make()
    for line in sys.stdin:
        command = json.loads(line)
        if command.get("core") is not None:
            os.sched_setaffinity(0, {command["core"]})
        print(json.dumps(run(workload, command.get("path", "calls"))), flush=True)


main()
