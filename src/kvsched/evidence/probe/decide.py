"""What follows from a probe: accept, tune, reject, or measure again."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from typing import NamedTuple

from kvsched.evidence.probe.report import ProbeDecision, Run
from kvsched.evidence.record import Decision

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
    allocated = middle(run.accounts.allocated_bytes for run in found)
    requested = middle(run.accounts.requested_bytes for run in found)
    seen = _Seen(
        blocks=found[0].block_count,
        theory=theoretical_bytes,
        requested=requested,
        allocated=allocated,
        measured=requested if allocated is None else allocated,
        held=middle(run.accounts.held_bytes for run in found),
        driver=middle(run.accounts.driver_bytes for run in found),
    )
    decision, reason = _verdict(seen, tolerance, overhead_limit, noise_bytes)
    measured = seen.measured
    return ProbeDecision(
        decision=decision,
        reason=f"{where}: {reason}.",
        measured_bytes_per_block=None if measured is None else measured / seen.blocks,
        deviation=None if measured is None else measured / seen.total - 1,
        overhead_share=seen.overhead,
    )


class _Seen(NamedTuple):
    """Medians, bytes of all blocks; ``theory`` of one."""

    blocks: int
    theory: int
    requested: int | None
    allocated: int | None
    measured: int | None
    held: int | None
    driver: int | None

    @property
    def total(self) -> int:
        return self.blocks * self.theory

    @property
    def overhead(self) -> float | None:
        return None if self.held is None else self.held / self.total - 1


def _verdict(
    seen: _Seen, tolerance: float, overhead_limit: float, noise_bytes: int
) -> tuple[Decision, str]:
    """The first rule that applies, and its reason without the full stop."""
    total, requested, measured = seen.total, seen.requested, seen.measured
    if requested is None or measured is None:
        return "pending", "what the blocks take was not measured"
    if abs(requested - total) > tolerance * total:
        return "reject", (
            f"a block takes {requested / seen.blocks:,.0f} bytes, not {seen.theory:,} as the "
            f"theory says: {_signed(requested / total - 1)}, beyond ±{tolerance:.2%}"
        )
    for who, counted in (("the system", seen.driver), ("the allocator", seen.allocated)):
        if counted is not None and counted + noise_bytes < total * (1 - tolerance):
            return "pending", (
                f"{who} counts {counted:,} bytes for {total:,}: others freed memory meanwhile, or "
                "blocks are not resident; measure again on a quiet machine"
            )
    each, off = measured / seen.blocks, _signed(measured / total - 1)
    if measured - total > tolerance * total:
        return "tune", (
            f"the theory holds, but the allocator makes {each:,.0f} bytes of {seen.theory:,} "
            f"({off}): use larger blocks, or one pooled tensor"
        )
    beyond = ""
    if seen.held is not None and seen.overhead is not None:
        beyond = f", and the allocator holds {_signed(seen.overhead)} beyond it"
        if seen.held - total > overhead_limit * total:
            return "tune", (
                f"the theory holds, but the allocator holds {_signed(seen.overhead)} beyond it, "
                f"more than {overhead_limit:.2%}: take more blocks, or one pooled tensor"
            )
    return "accept", (
        f"a block takes {each:,.0f} bytes, {off} of the theory's {seen.theory:,} and within "
        f"±{tolerance:.2%}{beyond}"
    )


def _signed(share: float) -> str:
    return f"{share:+.2%}"
