"""What follows from a probe: accept, tune, reject, or measure again."""

from __future__ import annotations

import statistics
from collections.abc import Iterable

from kvsched.evidence.probe.report import ProbeDecision, Run

TOLERANCE = 0.05
"""Most that a block may differ from the theory, as a share of it."""
OVERHEAD_LIMIT = 0.25
"""Most that the allocator may hold beyond the theory, as a share of it."""


def middle(values: Iterable[int | None]) -> int | None:
    """Median of whole numbers, rounded down; None where one was not measured, or none is there."""
    found = list(values)
    known = [value for value in found if value is not None]
    return int(statistics.median(known)) if known and len(known) == len(found) else None


def decide(
    runs: Iterable[Run],
    theoretical_bytes: int,
    *,
    where: str,
    tolerance: float = TOLERANCE,
    overhead_limit: float = OVERHEAD_LIMIT,
    noise_bytes: int = 0,
) -> ProbeDecision:
    """Compare the medians of the runs with ``theoretical_bytes`` of one block.

    In this order: **reject** where a block's tensors ask for more or less than the theory by more
    than ``tolerance`` (the theory is wrong); **pending** where the system or the allocator counts
    less than the theory by more than that (others freed memory meanwhile, or blocks are not
    resident); **tune** where the allocator's rounding exceeds ``tolerance``, or what it holds
    exceeds the theory by more than ``overhead_limit``; else **accept**. ``where`` begins the
    reason; ``noise_bytes`` is what the system's account may be off by.
    """
    found = list(runs)
    blocks = found[0].block_count
    total = blocks * theoretical_bytes
    requested = middle(run.accounts.requested_bytes for run in found)
    allocated = middle(run.accounts.allocated_bytes for run in found)
    held = middle(run.accounts.held_bytes for run in found)
    driver = middle(run.accounts.driver_bytes for run in found)
    measured = requested if allocated is None else allocated
    overhead = None if held is None else held / total - 1

    def decided(decision: str, reason: str) -> ProbeDecision:
        return ProbeDecision(
            decision=decision,  # type: ignore[arg-type]
            reason=f"{where}: {reason}.",
            measured_bytes_per_block=None if measured is None else measured / blocks,
            deviation=None if measured is None else measured / total - 1,
            overhead_share=overhead,
        )

    if requested is None or measured is None:
        return decided("pending", "what the blocks take was not measured")
    if abs(requested - total) > tolerance * total:
        return decided(
            "reject",
            f"a block takes {requested / blocks:,.0f} bytes, not {theoretical_bytes:,} as the "
            f"theory says: {_signed(requested / total - 1)}, beyond ±{tolerance:.2%}",
        )
    for who, counted in (("the system", driver), ("the allocator", allocated)):
        if counted is not None and counted + noise_bytes < total * (1 - tolerance):
            return decided(
                "pending",
                f"{who} counts {counted:,} bytes for {total:,}: others freed memory meanwhile, or "
                "blocks are not resident; measure again on a quiet machine",
            )
    if measured - total > tolerance * total:
        return decided(
            "tune",
            f"the theory holds, but the allocator makes {measured / blocks:,.0f} bytes of "
            f"{theoretical_bytes:,} ({_signed(measured / total - 1)}): use larger blocks, or one "
            "pooled tensor",
        )
    if held is not None and overhead is not None and held - total > overhead_limit * total:
        return decided(
            "tune",
            f"the theory holds, but the allocator holds {_signed(overhead)} beyond it, more than "
            f"{overhead_limit:.2%}: take more blocks, or one pooled tensor",
        )
    beyond = "" if overhead is None else f", and the allocator holds {_signed(overhead)} beyond it"
    return decided(
        "accept",
        f"a block takes {measured / blocks:,.0f} bytes, {_signed(measured / total - 1)} of the "
        f"theory's {theoretical_bytes:,} and within ±{tolerance:.2%}{beyond}",
    )


def _signed(share: float) -> str:
    return f"{share:+.2%}"
