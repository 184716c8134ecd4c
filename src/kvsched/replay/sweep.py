"""Many replays of one trace: policies × capacities, on all cores from threads."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from kvsched.policy.base import Policy
from kvsched.policy.registry import make
from kvsched.replay.curve import LRUCurve
from kvsched.replay.run import Replay, check_capacity, replay
from kvsched.trace.model import Trace

Found = TypeVar("Found")


@dataclass(frozen=True)
class Point:
    """One policy at one capacity, in sums."""

    policy: str
    """The policy's label, parameters included."""
    capacity_blocks: int
    hit_blocks: int
    hit_tokens: int
    evictions: int


def point_of(result: Replay) -> Point:
    """Return the sums of a replay. O(R)."""
    return Point(
        result.policy.label,
        result.capacity_blocks,
        result.hit_blocks,
        result.hit_tokens,
        result.evictions,
    )


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def on_all_cores(jobs: Iterable[Callable[[], Found]], threads: int = 0) -> Iterator[Found]:
    """Run replays, or the like, from ``threads`` threads (0: one a core); yield each as it ends.

    Compiled loops release the GIL, so threads run side by side over the same arrays. No more
    jobs are under way than there are threads, so memory stays at a state a thread. An error, or
    the caller's leaving, lets the running jobs end and starts no more.
    """
    waiting = iter(jobs)
    workers = threads or cores()
    with ThreadPoolExecutor(workers) as pool:
        running: set[Future[Found]] = set()
        try:
            while True:
                while len(running) < workers:
                    job = next(waiting, None)
                    if job is None:
                        break
                    running.add(pool.submit(job))
                if not running:
                    return
                ended, running = wait(running, return_when=FIRST_COMPLETED)
                for future in ended:
                    yield future.result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def sweep(
    trace: Trace,
    policies: Iterable[str | Policy | type[Policy]],
    capacities: Iterable[int],
    *,
    threads: int = 0,
) -> list[Point]:
    """Replay ``trace`` under every policy at every capacity; in the order asked for.

    Capacities are in blocks; in tokens where the trace's blocks are unequal.

    Raises UsageError for an unknown policy, one that needs a column that the trace lacks, or an
    impossible capacity, before anything runs.
    """
    made = [make(policy) for policy in policies]
    for policy in made:
        policy.check(trace)
    blocks = [check_capacity(capacity, trace.unequal) for capacity in capacities]
    wanted = [(policy, capacity) for policy in made for capacity in blocks]
    found: dict[tuple[int, int], Point] = {}
    jobs = (
        lambda policy=policy, capacity=capacity: replay(trace, policy, capacity)
        for policy, capacity in wanted
    )
    for result in on_all_cores(jobs, threads):
        found[id(result.policy), result.capacity_blocks] = point_of(result)
    return [found[id(policy), capacity] for policy, capacity in wanted]


def capacity_grid(curve: LRUCurve, points: int = 12, include: Iterable[int] = ()) -> list[int]:
    """Choose capacities in blocks where the trace's hits change, ascending. O(log N).

    They are spaced evenly in the logarithm, from where LRU reaches 2% of the ceiling to where
    it reaches 99.9% of it; ``include`` is added.
    """
    ceiling = curve.ceiling_tokens
    low = max(curve.capacity_for(0.02 * ceiling) or 1, 1)
    high = max(curve.capacity_for(0.999 * ceiling) or 1, low + 1)
    asked = {int(blocks) for blocks in include}
    spaced = np.unique(np.rint(np.geomspace(low, high, points)).astype(np.int64))
    # A point beside one that was asked for would show nothing more.
    apart = {int(b) for b in spaced if all(abs(b - a) > 0.03 * a for a in asked)}
    return sorted(apart | asked)
