"""The largest number of blocks that fits in a share of memory, by bisection."""

from __future__ import annotations

from kvsched.evidence.probe.backend import Backend, Block, OutOfMemory
from kvsched.evidence.probe.report import Fit
from kvsched.evidence.probe.shape import BlockShape

MOST_FITTED = 100_000
"""Tiny blocks would take minutes, and say nothing that fewer do not."""


def largest_fit(backend: Backend, shape: BlockShape, share_bytes: int) -> Fit:
    """Return the most blocks that are there at once, never asking for more than the share.

    Asked for first is what the share holds by the block's own bytes (and, on the host, its
    objects'); only where the allocator
    refuses that is the interval halved, O(log blocks) trials of O(blocks) allocations. The
    allocator's own limit is set to the share, so that what it rounds up counts as well. More
    than `MOST_FITTED` blocks are never asked for.
    """
    holds = share_bytes // (shape.tensor_bytes + len(shape.parts) * backend.object_bytes)
    limit = min(holds, MOST_FITTED)
    trials: list[tuple[int, bool]] = []
    low, high = 0, limit + 1
    backend.limit(share_bytes)
    try:
        asked = limit
        while high - low > 1:
            got = _reached(backend, shape, asked)
            trials.append((asked, got == asked))
            if got == asked:
                low = asked
            else:
                # Those it did give were there at once.
                low, high = max(low, got), asked
            asked = (low + high) // 2
    finally:
        backend.limit(None)
        backend.release_cache()
    return Fit(
        largest_blocks=low,
        share_bytes=share_bytes,
        limit_blocks=limit,
        limited_by=_limit(low, limit, holds),
        trials=tuple(trials),
    )


def _limit(found: int, limit: int, holds: int) -> str:
    if found < limit:
        return "allocator"
    return "share" if limit == holds else "most that is tried"


def _reached(backend: Backend, shape: BlockShape, blocks: int) -> int:
    """How many of ``blocks`` the allocator gives before it refuses; all are freed again."""
    backend.release_cache()
    held: list[Block] = []
    try:
        for _ in range(blocks):
            block = backend.allocate(shape)
            held.append(block)
            backend.touch(block)
    except OutOfMemory:
        pass
    return len(held)
