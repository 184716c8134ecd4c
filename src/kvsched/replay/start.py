"""A replay that starts from a saved cache: the trace goes on where that cache was left."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kvsched.cache.drive import drive, requests
from kvsched.cache.scheduler import KVCacheScheduler
from kvsched.foundation.errors import UsageError
from kvsched.policy.base import Policy
from kvsched.policy.registry import make
from kvsched.trace.model import Trace

if TYPE_CHECKING:
    from kvsched.replay.run import Replay


@dataclass(frozen=True)
class Start:
    """The saved cache that a replay started from, and what it had of the trace."""

    file: str
    """Its name, without the folder."""
    gap_s: float
    """Seconds from the moment of saving to the trace's time 0."""
    cached_blocks: int
    """Blocks of its first tier."""
    known_blocks: int
    """Of these, blocks that occur in the trace."""
    dropped_blocks: int
    """Blocks that were not in place when it was saved: they are not cached here."""
    learnt_anew: tuple[str, ...]
    """Why a policy does not go on exactly: see `kvsched.cache.restored.Restored`."""
    rejected_requests: int
    """Requests of the trace that its quotas and pins had no room for: they hit and store nothing.
    """

    def summary(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {**vars(self), "learnt_anew": list(self.learnt_anew)}


def replay_from(
    trace: Trace,
    path: str | os.PathLike[str],
    policy: str | Policy | type[Policy] | None = None,
    capacity_blocks: int = 0,
    gap_s: float = 0.0,
) -> Replay:
    """Replay ``trace``, one request after another, through a cache that was saved.

    It goes on exactly as the saved cache would have (`kvsched.cache.drive`): as the replay of one
    whole trace, if the cache was `cache_for` it. A policy remembers blocks that left as far as the
    saved cache's ``history_blocks``, and a session's salt needs its name. ``policy``: another one
    learns what is cached; None is the saved one. ``capacity_blocks`` may be left out, and must else
    be the saved cache's: a policy's shares are of its capacity. The trace's time 0 is ``gap_s``
    after the moment of saving. A hit may be in either tier. About 1 µs a block reference and 25 µs
    a request. Raises UsageError for a trace that cannot be driven or has blocks of another size,
    another capacity, and a policy that needs a column that the trace lacks, and InputError as
    `KVCacheScheduler.restore`.
    """
    from kvsched.replay.loop import Counts
    from kvsched.replay.run import Replay

    if not 0.0 <= gap_s < 1e15:
        raise UsageError(f"start_gap_s must be seconds from 0 on, not {gap_s!r}")
    chosen = None if policy is None else make(policy)
    cache = KVCacheScheduler.restore(
        path,
        policy=chosen,
        clock=lambda: -gap_s,
        when_full="degrade",
        when_oversize="degrade",
        degrade="head",
        max_events=0,
    )
    if capacity_blocks not in (0, cache.capacity_blocks):
        raise UsageError(
            f"{path}: the saved cache has {cache.capacity_blocks:,} blocks, and keeps them: leave "
            f"out the capacity of {capacity_blocks:,}"
        )
    cache.policy.check(trace)
    restored = cache.restored
    if restored is None:
        raise UsageError(f"{path}: the cache was not restored")
    known = known_blocks(trace, cache)
    driven = drive(trace, cache)
    start = Start(
        file=Path(path).name,
        gap_s=float(gap_s),
        cached_blocks=restored.cached_blocks,
        known_blocks=known,
        dropped_blocks=restored.dropped_blocks,
        learnt_anew=restored.learnt_anew,
        rejected_requests=int(np.count_nonzero(driven.rejected)),
    )
    counts = Counts(driven.hits, driven.stored, driven.evicted)
    return Replay(
        trace, cache.policy, cache.capacity_blocks, *counts, cache.cached_blocks, start=start
    )


def known_blocks(trace: Trace, cache: KVCacheScheduler) -> int:
    """Return how many cached blocks of the first tier occur in ``trace``. O(B)."""
    if trace.block_size != cache.block_size:
        return 0
    request_of = requests(trace)
    keys = trace.key[trace.chains]
    found = np.zeros(trace.nodes, np.bool_)
    bounds = trace.starts.tolist()
    for at in range(len(trace)):
        low, high = bounds[at], bounds[at + 1]
        hits = -(-cache.lookup(request_of(at, keys[low:high])) // cache.block_size)
        found[trace.chains[low : low + hits]] = True
    return int(np.count_nonzero(found))
