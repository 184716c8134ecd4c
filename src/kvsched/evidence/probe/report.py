"""The report of a probe: the course's fields, and more. Sizes are bytes, MB is 10^6, times ms."""

from __future__ import annotations

from typing import Any

import msgspec

from kvsched.evidence.record import Decision, EvidenceLevel, Status

TASK = "gpu-kv-probe"
DEFINITIONS = {
    "above what was there": "every account is a difference from its value before the first block",
    "requested": "bytes that live tensors asked for",
    "allocated": "requested, as the allocator rounds it",
    "reserved": "what the allocator holds of the system, used or not; on the CPU resident pages",
    "driver": "what the system counts as used: on CUDA total − free of the whole device, other "
    "processes included; on the CPU resident pages of this process",
    "overhead": "reserved − theoretical (allocated where reserved is not known)",
    "allocation time": "the loop over all blocks with an empty cache: the allocator's work and the "
    "system's; touching each page belongs to it on the CPU",
    "warm allocation time": "the same loop once more, served from the allocator's cache: no call "
    "to the driver",
    "driver time": "allocation time − warm allocation time",
    "fits": "larger blocks served, after freeing, without reserved growing beyond what it was "
    "before",
    "ideal": "larger blocks that the freed bytes would make, were they in one piece",
    "stranded": "bytes reserved, in no block, that the last larger block could not use",
    "GB/s": "bytes / 10^9 / second, the median of the repeats after one warm-up",
}


class Accounts(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes above what was there before; None where there is no such account."""

    requested_bytes: int | None
    allocated_bytes: int | None
    reserved_bytes: int | None
    driver_bytes: int | None
    peak_allocated_bytes: int | None
    peak_reserved_bytes: int | None
    peak_driver_bytes: int | None

    @property
    def held_bytes(self) -> int | None:
        """What the blocks cost: reserved, else allocated."""
        return self.allocated_bytes if self.reserved_bytes is None else self.reserved_bytes


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One repeat: all blocks allocated, one tensor a part and block, and freed."""

    repeat: int
    """From 1."""
    block_count: int
    allocation_ms: float
    """With an empty cache."""
    warm_allocation_ms: float
    driver_ms: float
    touch_ms: float | None
    """Of ``allocation_ms``, writing every page; None on CUDA, where nothing needs touching."""
    system_calls: int | None
    warm_system_calls: int | None
    peak_memory_mb: float | None
    """Peak of allocated bytes (CUDA) or resident bytes (CPU) above what was there before."""
    accounts: Accounts


class Pooled(msgspec.Struct, frozen=True, kw_only=True):
    """The same blocks as one tensor a part, against one tensor a block."""

    allocation_ms: float
    accounts: Accounts
    saved_bytes: int | None
    """What the many tensors hold more (negative: less)."""


class Fragmentation(msgspec.Struct, frozen=True, kw_only=True):
    """Half of the blocks freed in a pattern, then larger ones asked for."""

    pattern: str
    """every-second, random, or first-half (the control: freed in one stretch)."""
    factor: int
    """The larger block, in blocks."""
    freed_blocks: int
    freed_bytes: int
    returned_bytes: int | None
    """Of the freed bytes, what went back to the system at once."""
    ideal: int
    fits: int | None
    stranded_bytes: int | None


class Fit(msgspec.Struct, frozen=True, kw_only=True):
    """The largest number of blocks, by bisection within a share of what is free."""

    largest_blocks: int
    share_bytes: int
    limit_blocks: int
    """What the share would hold by the tensors' own bytes, or the most that is tried."""
    limited_by: str
    """share, allocator, or most that is tried."""
    trials: tuple[tuple[int, bool], ...]
    """Blocks asked for, and whether they fitted, in order."""


class Copy(msgspec.Struct, frozen=True, kw_only=True):
    """One copy: median of the repeats."""

    direction: str
    memory: str
    """pageable or pinned, on the host."""
    bytes: int
    median_ms: float
    gb_s: float


class Varied(msgspec.Struct, frozen=True, kw_only=True):
    """One variable changed, everything else as in ``config``."""

    key: str
    value: str
    block_count: int
    bytes_per_block_theoretical: int
    total_bytes_theoretical: int
    allocation_ms: float
    warm_allocation_ms: float
    accounts: Accounts


class ProbeDecision(msgspec.Struct, frozen=True, kw_only=True):
    """What follows, and why."""

    decision: Decision
    reason: str
    measured_bytes_per_block: float | None
    deviation: float | None
    """Measured over theoretical, − 1."""
    overhead_share: float | None
    """Overhead over the theoretical bytes."""


class ProbeReport(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a probe found."""

    kvsched: str
    task: str = TASK
    evidence_level: EvidenceLevel
    evidence: str
    """The level in words."""
    status: Status
    runtime: dict[str, Any]
    config: dict[str, Any]
    runs: tuple[Run, ...]
    overhead_bytes: int | None
    """Of all blocks, median of the runs."""
    overhead_bytes_per_block: float | None
    pooled: Pooled | None
    fragmentation: tuple[Fragmentation, ...]
    fit: Fit | None
    bandwidth: tuple[Copy, ...]
    varied: tuple[Varied, ...]
    decision: ProbeDecision
    environment: dict[str, Any]
    missing: dict[str, str]
    """Why something is None, by its name."""
    notes: tuple[str, ...]
    definitions: dict[str, str] = msgspec.field(default_factory=lambda: dict(DEFINITIONS))
