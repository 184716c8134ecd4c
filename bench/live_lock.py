"""What thread safety costs: the scheduler's lock beside none, and many threads beside one."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import Any

import live
import live_workload
from measure import Section, Timed, alternate, table

THREADS = 8
ROUNDS = 5
REQUESTS = 4_000

SIDES = """\
`acquire` and `release` of {requests:,} requests of the workload above, made outside the time. One
thread with the scheduler's lock beside the same scheduler with a lock that does nothing; then
{threads} threads that share one scheduler, each serving its part, beside one thread serving all:
operations take turns under the one lock, so that more threads add switches and no speed."""


def _timed(
    workload: live_workload.Workload, chains: list[Any], threads: int, locked: bool
) -> Timed:
    from kvsched import KVCacheScheduler
    from kvsched.cache import Request

    tokens = live_workload.BLOCKS * live_workload.BLOCK_SIZE

    def run() -> float:
        cache: Any = KVCacheScheduler(workload.capacity, live_workload.BLOCK_SIZE)
        if not locked:
            cache.lock = contextlib.nullcontext()
        requests = [Request(hashes=hashes, tokens=tokens) for hashes in chains]
        parts = [requests[at::threads] for at in range(threads)]

        def serve(part: list[Any]) -> None:
            for request in part:
                cache.release(cache.acquire(request).lease)

        workers = [threading.Thread(target=serve, args=(part,)) for part in parts]
        with live.without_garbage():
            began = time.perf_counter()
            if threads == 1:
                serve(requests)
            else:
                for worker in workers:
                    worker.start()
                for worker in workers:
                    worker.join()
            return time.perf_counter() - began

    return run


def run() -> Section:
    """Measure."""
    workload = live_workload.make(REQUESTS)
    chains = workload.hashes()
    bare, locked, many = alternate(
        _timed(workload, chains, 1, locked=False),
        _timed(workload, chains, 1, locked=True),
        _timed(workload, chains, THREADS, locked=True),
        rounds=ROUNDS,
    )
    section = Section("What thread safety costs", SIDES.format(requests=REQUESTS, threads=THREADS))
    each = 1e6 / REQUESTS
    section.tables.append(
        table(
            ("", "µs a request", "of one thread without a lock"),
            [
                (name, f"{side.median * each:.1f}", f"{side.median / bare.median:.2f}×")
                for name, side in (
                    ("one thread, no lock", bare),
                    ("one thread", locked),
                    (f"{THREADS} threads", many),
                )
            ],
        )
    )
    return section


if __name__ == "__main__":
    from measure import render

    print(render(run()))
