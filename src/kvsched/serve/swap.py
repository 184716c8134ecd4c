"""Preemption by swap: what a preempted request has computed moves to a second tier, and back.

vLLM's V0 engine had it (0.6, `core/scheduler.py` PreemptionMode.SWAP; V1 has none): all blocks of
the sequence are copied, and the worker issues the copies before the model, on the same stream
(`worker/worker.py` execute_worker), so that a step takes their time and the model's. V0 aborts
where the second tier is full; here the request is then computed again.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from kvsched.foundation.errors import UsageError
from kvsched.serve.blocks import blocks_of
from kvsched.serve.state import Float64s, Int32s, Int64s, State

MOST = 1 << 40

# Places in `Tier.counts`.
SIZE = 0
"""Tokens of a block."""
CAPACITY = 1
"""Blocks that fit."""
USED = 2
PEAK = 3
OUT = 4
"""Blocks moved out so far."""
BACK = 5
"""Blocks moved back so far."""
SWAPS = 6
"""Preemptions whose blocks moved out."""
REFUSALS = 7
"""Preemptions whose blocks did not fit."""
MOVED_NOW = 8
"""Blocks that the current step moves."""
TIER_COUNTS = 9


@dataclass(frozen=True)
class SwapSettings:
    """A second tier for preempted requests. Raises UsageError for what cannot be."""

    swap_blocks: int
    """Blocks that fit."""
    bytes_per_block: int
    """Bytes of one block over all layers; of one rank's share where each has a link of its own."""
    swap_bytes_per_s: float
    """Bandwidth of a move, one way at a time."""

    def __post_init__(self) -> None:
        for name, least in (("swap_blocks", 0), ("bytes_per_block", 1)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= MOST:
                raise UsageError(
                    f"{name} must be a whole number of at least {least}, not {value!r}"
                )
        rate = self.swap_bytes_per_s
        if isinstance(rate, bool) or not isinstance(rate, int | float) or not rate > 0:
            raise UsageError(f"swap_bytes_per_s must be a number above 0, not {rate!r}")

    @property
    def block_s(self) -> float:
        """Seconds that one block takes to move; 0 at a bandwidth without end."""
        return (
            0.0
            if math.isinf(self.swap_bytes_per_s)
            else self.bytes_per_block / (self.swap_bytes_per_s)
        )

    def tier(self, requests: int, block_size: int) -> Tier:
        """Return the arrays of a run. O(R)."""
        counts = np.zeros(TIER_COUNTS, np.int64)
        counts[SIZE] = block_size
        counts[CAPACITY] = self.swap_blocks
        return Tier(np.zeros(requests, np.int32), counts, np.array([self.block_s]))

    def summary(self) -> dict[str, Any]:
        """Return every setting by its name."""
        return dataclasses.asdict(self)


class Tier(NamedTuple):
    """What the loop knows of the second tier."""

    blocks: Int32s
    """(R,) blocks of each request in it."""
    counts: Int64s
    """(TIER_COUNTS,) single numbers, by the names above."""
    block_s: Float64s
    """(1,) seconds that one block takes to move."""


def move_out(state: State, request: int) -> bool:
    """Move what a request that is preempted has computed, a last partial block too. O(1).

    False where it does not fit, or there is nothing: then it is computed again.
    """
    tier = state.tier
    counts = tier.counts
    need = blocks_of(int(state.progress.computed[request]), int(counts[SIZE]))
    if need == 0:
        return False
    if counts[USED] + need > counts[CAPACITY]:
        counts[REFUSALS] += 1
        return False
    tier.blocks[request] = need
    counts[USED] += need
    counts[PEAK] = max(counts[PEAK], counts[USED])
    counts[OUT] += need
    counts[SWAPS] += 1
    counts[MOVED_NOW] += need
    return True


def move_in(state: State, request: int, hits: int) -> None:
    """Move back what a request that resumes does not hit in the cache; it leaves the tier. O(1)."""
    tier = state.tier
    counts = tier.counts
    held = int(tier.blocks[request])
    if held == 0:
        return
    tier.blocks[request] = 0
    counts[USED] -= held
    counts[BACK] += max(held - hits, 0)
    counts[MOVED_NOW] += max(held - hits, 0)


def moved_seconds(state: State) -> float:
    """Return the seconds of this step's moves; the next step begins with none."""
    moved = int(state.tier.counts[MOVED_NOW])
    state.tier.counts[MOVED_NOW] = 0
    return moved * float(state.tier.block_s[0])


SWAP = {"move_out": move_out, "move_in": move_in, "moved_seconds": moved_seconds}
"""What the loop is bound to where there are `SwapSettings`."""
