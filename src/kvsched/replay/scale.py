"""The capacity of a sample's cache."""

from __future__ import annotations

from kvsched.trace.sample import SampledTrace


def scaled_capacity(trace: SampledTrace, capacity_blocks: int) -> int:
    """Return the capacity in nodes of the sample that stands for ``capacity_blocks``. O(1).

    Nodes that are always kept take one block each, whatever the rate; they are taken to be
    resident, but to fill no more than half of the cache.
    """
    one_in = trace.settings.one_in
    kept = min(trace.always_kept, capacity_blocks // 2)
    return max(1, kept + round((capacity_blocks - kept) / one_in))
