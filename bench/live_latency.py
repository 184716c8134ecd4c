"""How long one request keeps a large cache: the median, the tail and the worst."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

import live
import live_workload
from measure import Row, Section, span

CAPACITY = 1_000_000
"""Blocks."""
RUNS = 3
WORST = 50.0
"""Times the median."""
POLICIES = ("lru", "lfu", "s3fifo", "gdsf")
"""One list, a heap, queues, and a heap whose keys age."""

SIDES = """\
`acquire` and `release` of one request of 100 blocks together, timed one by one in a cache of
{capacity:,} blocks that is full: {requests:,} requests of the workload above, each with blocks that
nobody else has, so that every one of them evicts. One thread on one core, hashes handed in, events
off, garbage not collected. The same requests are timed in {runs} caches filled anew. A scan or a
rebuild would come at the same request in each; what another program takes does not, so that the
bar is on the fastest of each request's {runs} times, and the worst of all stands beside it."""

Once = Callable[[Any], int]


def scheduler(capacity: int, policy: str) -> Once:
    """A new cache of ours: a function that acquires and releases, and says what hit."""
    from kvsched import KVCacheScheduler
    from kvsched.cache import Request

    cache = KVCacheScheduler(
        capacity_blocks=capacity, block_size=live_workload.BLOCK_SIZE, policy=policy
    )
    tokens = live_workload.BLOCKS * live_workload.BLOCK_SIZE

    def once(hashes: Any) -> int:
        lease = cache.acquire(Request(hashes=hashes, tokens=tokens)).lease
        if lease is None:
            raise RuntimeError("a request does not fit an idle cache")
        cache.release(lease)
        return int(lease.hit_blocks)

    return once


def filling(capacity: int) -> list[list[bytes]]:
    """Requests of 100 blocks each that have nothing in common and fill the cache."""
    size, many = live_workload.HASH_BYTES, live_workload.BLOCKS
    table = np.random.default_rng(1).bytes(capacity * size)
    each = [table[at : at + size] for at in range(0, len(table), size)]
    return [each[start : start + many] for start in range(0, len(each), many)]


def latencies(once: Once, filled: list[Any], chains: list[Any]) -> NDArray[np.int64]:
    """Nanoseconds of each request, in a cache that was filled first."""
    for hashes in filled:
        once(hashes)
    took = np.empty(len(chains), np.int64)
    clock = time.perf_counter_ns
    with live.without_garbage():
        for place, hashes in enumerate(chains):
            began = clock()
            once(hashes)
            took[place] = clock() - began
    return took


def row(policy: str, times: NDArray[np.int64]) -> Row:
    """One policy's figures; ``times`` has a row a run."""
    best = times.min(axis=0)
    median, tail = (float(np.quantile(best, q)) / 1e9 for q in (0.5, 0.999))
    worst, ever = float(best.max()) / 1e9, float(times.max()) / 1e9
    return Row(
        policy,
        f"median {span(median)}, p99.9 {span(tail)}, worst {span(worst)}",
        f"worst of all runs {span(ever)}",
        f"{worst / median:.1f}× the median",
        f"≤ {WORST:g}×",
        worst <= WORST * median,
    )


def run() -> Section:
    """Measure."""
    workload = live_workload.make()
    chains, filled = workload.hashes(), filling(CAPACITY)
    section = Section(
        "Latency at a million resident blocks",
        SIDES.format(capacity=CAPACITY, requests=len(chains), runs=RUNS),
    )
    with live.on_one_core():
        for policy in POLICIES:
            times = [latencies(scheduler(CAPACITY, policy), filled, chains) for _ in range(RUNS)]
            section.rows.append(row(policy, np.array(times)))
    return section


if __name__ == "__main__":
    from measure import render

    print(render(run()))
