"""kvsched's side of a sweep: several policies and capacities, on threads."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from kvsched.replay.run import Replay, replay
from kvsched.trace.model import Trace


def sweep(
    trace: Trace, policies: Sequence[str], capacities: Sequence[int], threads: int | None = None
) -> list[Replay]:
    """Replay every policy at every capacity, on all cores unless told otherwise."""
    points = [(policy, capacity) for policy in policies for capacity in capacities]
    with ThreadPoolExecutor(threads or os.cpu_count()) as pool:
        return list(pool.map(lambda point: replay(trace, *point), points))
