"""Which capacity would pay: shares of the ceiling, and the knee of a curve."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from kvsched.replay.curve import LRUCurve
from kvsched.replay.sweep import Point
from kvsched.study.result import Knee, Target

SHARES = (0.5, 0.8, 0.9, 0.95)

Gib = Callable[[int], float | None]


def exact_targets(curve: LRUCurve, gib: Gib) -> list[Target]:
    """Return LRU's targets, found among all capacities; not exact from a sample. O(log N)."""
    found = []
    for share in SHARES:
        blocks = curve.capacity_for(share * curve.ceiling_tokens) if curve.ceiling_tokens else None
        size = None if blocks is None else gib(blocks)
        found.append(Target(policy="lru", share=share, blocks=blocks, gib=size, exact=curve.exact))
    return found


def grid_targets(policy: str, points: list[Point], ceiling_tokens: int, gib: Gib) -> list[Target]:
    """Return a policy's targets, the smallest capacities on the grid. ``points`` ascend."""
    found = []
    for share in SHARES:
        enough = (
            point.capacity_blocks
            for point in points
            if ceiling_tokens and point.hit_tokens >= share * ceiling_tokens
        )
        blocks = next(enough, None)
        size = None if blocks is None else gib(blocks)
        found.append(Target(policy=policy, share=share, blocks=blocks, gib=size, exact=False))
    return found


def knee(
    policy: str,
    blocks: NDArray[np.int64],
    hit_tokens: NDArray[np.int64],
    prompt_tokens: int,
    gib: Gib,
) -> Knee:
    """Return where a curve lies farthest above the straight line from nothing to its end.

    The end is the first capacity that reaches the curve's most hits. Kneedle (Satopää et al.,
    2011) on the unsmoothed curve; None where nothing is hit.
    """
    most = int(hit_tokens.max(initial=0))
    if most == 0:
        return Knee(policy=policy, blocks=None, gib=None, token_share=None)
    end = int(np.argmax(hit_tokens >= most))
    above = hit_tokens[: end + 1] / most - blocks[: end + 1] / max(int(blocks[end]), 1)
    at = int(np.argmax(above))
    size = int(blocks[at])
    share = int(hit_tokens[at]) / prompt_tokens if prompt_tokens else None
    return Knee(policy=policy, blocks=size, gib=gib(size), token_share=share)
