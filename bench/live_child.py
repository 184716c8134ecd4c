"""The process that `live_soak` and `live_memory` measure: one cache, many operations.

    python live_child.py soak OPERATIONS THREADS
    python live_child.py memory OPERATIONS

It prints one line of JSON: operations by name, seconds, resident memory at every tenth of the
work, and what the cache still holds when everybody has let go.
"""

from __future__ import annotations

import gc
import json
import os
import random
import sys
import threading
import time
from collections import Counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvsched import KVCacheScheduler
from kvsched.cache import Request, Tenant
from kvsched.foundation.errors import UsageError

BLOCK_SIZE = 16
PREFIXES = 10_000
CAPACITY = 40_000
"""Blocks; the prefixes have about 85,000."""
SOAKED = 3_000
"""Blocks of the soak's cache: what threads hold does not always fit."""
TENANTS = ("", "apart", "sure", "small")
POLICIES = ("lru", "lfu", "s3fifo", "gdsf", "fifo", "arc", "wtinylfu", "sieve")
EVERY = 20_000
"""Operations of one thread between two changes of policy."""
MOST_HELD = 24
"""Leases of one thread."""
TENTHS = 10


def resident_bytes() -> int:
    """Memory of this process that is in use, as the operating system counts it."""
    with open("/proc/self/statm", encoding="ascii") as stream:  # noqa: PTH123  # no file on disk
        return int(stream.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def new_cache() -> KVCacheScheduler:
    """A cache that has tenants of every kind."""
    return KVCacheScheduler(
        capacity_blocks=SOAKED,
        block_size=BLOCK_SIZE,
        policy="lru",
        tenants={
            "apart": Tenant(quota_blocks=SOAKED // 4),
            "sure": Tenant(guaranteed_blocks=SOAKED // 8, weight=2.0),
            "small": Tenant(quota_blocks=SOAKED // 20, max_pinned_blocks=40),
        },
    )


def prefixes() -> list[NDArray[np.uint8]]:
    """Hashes of each prefix's blocks; every tenth goes on from another."""
    draw = np.random.default_rng(7)
    made: list[NDArray[np.uint8]] = []
    for number in range(PREFIXES):
        own = draw.integers(0, 256, (int(draw.integers(2, 16)), 32), dtype=np.uint8)
        base = made[int(draw.integers(number))] if number % 10 == 9 else own[:0]
        made.append(np.concatenate([base, own]))
    return made


class Marks:
    """Resident memory whenever another tenth of all operations is done."""

    def __init__(self, operations: int) -> None:
        self._step = operations // TENTHS
        self._lock = threading.Lock()
        self._done = 0
        self.resident: list[int] = []

    def add(self, operations: int) -> None:
        with self._lock:
            self._done += operations
            while len(self.resident) < min(self._done // self._step, TENTHS):
                gc.collect()
                self.resident.append(resident_bytes())


class Worker:
    """One thread's operations: it holds leases and pins, and lets go of all at the end."""

    def __init__(self, cache: KVCacheScheduler, made: list[Any], number: int) -> None:
        self._cache = cache
        self._made = made
        self._draw = random.Random(number)  # noqa: S311  # a workload, no secret
        self._number = number
        self._leases: list[Any] = []
        self._pins: list[Any] = []
        self.done: Counter[str] = Counter()

    def run(self, operations: int, marks: Marks) -> None:
        for at in range(operations):
            self._one(at)
            if at % 1000 == 999:
                marks.add(1000)
        while self._leases:
            self._cache.release(self._leases.pop())
        while self._pins:
            self._cache.unpin(self._pins.pop())

    def _one(self, at: int) -> None:
        chance = self._draw.random()
        if self._number == 0 and at % EVERY == EVERY - 1:
            self._change_policy()
        elif not self._leases or (chance < 0.45 and len(self._leases) < MOST_HELD):
            self._acquire()
        elif chance < 0.55:
            self._extend()
        elif chance < 0.6 and len(self._leases) < MOST_HELD:
            self._fork()
        elif chance < 0.63:
            self._pin()
        else:
            self._release()

    def _request(self) -> Request:
        # Zipf's law, nearly: log-uniform.
        rank = int(PREFIXES ** self._draw.random()) - 1
        hashes = self._made[rank]
        partial = self._draw.choice((0, 0, self._draw.randrange(BLOCK_SIZE)))
        return Request(
            hashes=hashes,
            tokens=len(hashes) * BLOCK_SIZE + partial,
            tenant=self._draw.choice(TENANTS),
            priority=self._draw.choice((0, 0, 0, 1, -1)),
            lifetime_s=self._draw.choice((None, None, 0.01)),
        )

    def _acquire(self) -> None:
        got = self._cache.acquire(self._request())
        self.done[f"acquire: {got.outcome}"] += 1
        if got.ticket is not None and not got.ticket.cancel():
            # Its turn came before it could be taken out of the list.
            got = got.ticket.admission
        if got.lease is not None:
            self._leases.append(got.lease)

    def _extend(self) -> None:
        grown = self._cache.extend(self._draw.choice(self._leases), self._draw.randrange(1, 40))
        self.done[f"extend: {grown.outcome}"] += 1

    def _fork(self) -> None:
        self._leases.append(self._cache.fork(self._draw.choice(self._leases)))
        self.done["fork"] += 1

    def _pin(self) -> None:
        if self._pins and self._draw.random() < 0.5:
            self._cache.unpin(self._pins.pop())
            self.done["unpin"] += 1
            return
        try:
            self._pins.append(self._cache.pin(self._request(), f"worker {self._number}"))
        except UsageError:
            self.done["pin: nothing cached, or a limit"] += 1
        else:
            self.done["pin"] += 1

    def _release(self) -> None:
        lease = self._leases.pop(self._draw.randrange(len(self._leases)))
        failed = self._draw.random() < 0.05
        self._cache.release(lease, failed=failed)
        self.done["release: failed" if failed else "release"] += 1

    def _change_policy(self) -> None:
        self._cache.set_policy(self._draw.choice(POLICIES))
        self.done["policy"] += 1


def answer(cache: KVCacheScheduler, marks: Marks, began: float, done: Counter[str]) -> None:
    seconds = time.perf_counter() - began
    cache.check()
    print(
        json.dumps(
            {
                "seconds": seconds,
                "operations": sum(done.values()),
                "done": dict(sorted(done.items())),
                "resident_bytes": marks.resident,
                "leases": cache.metrics()["vllm:num_requests_running"],
                "held_blocks": cache.capacity_blocks - cache.free_blocks,
                "pinned_blocks": cache.metrics()["kvsched:pinned_blocks"],
                "waiting": cache.waiting,
                "cached_blocks": cache.cached_blocks,
            }
        )
    )


def soak(operations: int, threads: int) -> None:
    cache, made, marks = new_cache(), prefixes(), Marks(operations)
    workers = [Worker(cache, made, number) for number in range(threads)]
    for name in POLICIES:
        # Compiled code is loaded at a policy's first operation: that is no growth.
        cache.set_policy(name)
        workers[0].run(200, Marks(10 * 200))
    faults: list[BaseException] = []

    def guarded(worker: Worker) -> None:
        try:
            worker.run(operations // threads, marks)
        except BaseException as error:  # noqa: BLE001  # told by the main thread
            faults.append(error)

    began = time.perf_counter()
    running = [threading.Thread(target=guarded, args=(worker,)) for worker in workers]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    if faults:
        raise faults[0]
    answer(cache, marks, began, sum((worker.done for worker in workers), Counter()))


def memory(operations: int) -> None:
    cache = KVCacheScheduler(capacity_blocks=CAPACITY, block_size=BLOCK_SIZE, policy="lru")
    made, marks, draw = prefixes(), Marks(operations), np.random.default_rng(8)
    began = time.perf_counter()
    done = 0
    while done < operations:
        for rank in draw.integers(0, PREFIXES, 5_000).tolist():
            hashes = made[rank]
            got = cache.acquire(Request(hashes=hashes, tokens=len(hashes) * BLOCK_SIZE))
            if got.lease is None:
                raise RuntimeError(f"not admitted: {got.reason}")
            cache.release(got.lease)
        done += 10_000
        marks.add(10_000)
    answer(cache, marks, began, Counter({"acquire": done // 2, "release": done // 2}))


if __name__ == "__main__":
    {"soak": soak, "memory": memory}[sys.argv[1]](*map(int, sys.argv[2:]))
