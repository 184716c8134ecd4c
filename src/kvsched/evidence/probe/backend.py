"""What a probe asks of a kind of memory: allocate, read the accounts, copy."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from kvsched.evidence.probe.shape import BlockShape


class OutOfMemory(Exception):  # noqa: N818 - the words of every allocator
    """The allocator refused. The probe catches it; nothing was allocated."""


class Reading(NamedTuple):
    """Accounts of one moment, bytes; None where this memory has no such account."""

    requested: int | None
    """What live tensors asked for, by the allocator's own account."""
    allocated: int | None
    """The same as the allocator rounds it."""
    reserved: int | None
    """What the allocator holds of the system, used or not."""
    driver: int | None
    """What the system counts as used: the driver for a device, resident pages for a process."""

    def above(self, before: Reading) -> Reading:
        """The difference of every account that both have."""
        return Reading(
            *(
                None if now is None or then is None else now - then
                for now, then in zip(self, before, strict=True)
            )
        )


Block = list[Any]
"""The tensors of one block, one a `Part`."""


class Backend(Protocol):
    """One kind of memory. Accounts are of this process, but for a device's driver account."""

    name: str
    """``cuda`` or ``cpu``."""
    evidence_level: str
    missing: dict[str, str]
    """Why an account is None, by its name."""
    notes: list[str]
    caches: bool
    """Whether freed memory stays with the allocator, so that a second loop needs no system."""
    object_bytes: int
    """What a tensor takes of this memory beside its elements, whatever its size; an upper bound."""

    noise_bytes: int
    """How much ``reserved`` may grow by what is none of the probe's doing."""

    def describe(self) -> dict[str, Any]:
        """The ``runtime`` of the report."""

    def usable_bytes(self) -> int:
        """Bytes that could be taken now, by the system's account."""

    def limit(self, extra_bytes: int | None) -> None:
        """Let the allocator itself refuse beyond ``extra_bytes`` above now; None: no limit."""

    def allocate(self, shape: BlockShape, blocks: int = 1) -> Block:
        """Tensors for ``blocks`` blocks in one piece a part, not touched. Raises OutOfMemory."""

    def touch(self, block: Block) -> None:
        """Make the block resident where the system gives pages at the first touch."""

    def synchronize(self) -> None:
        """Wait until the device has done everything."""

    def release_cache(self) -> None:
        """Give back to the system what the allocator holds and nobody uses."""

    def plug_holes(self, shape: BlockShape) -> list[Block]:
        """What to keep while patterns are freed, so that older holes do not take part."""

    def reset_peak(self) -> None:
        """Start the peaks anew."""

    def reading(self) -> Reading:
        """The accounts now."""

    def peak(self) -> Reading:
        """The highest accounts since `reset_peak`."""

    def system_calls(self) -> int | None:
        """How often the allocator asked the system for memory; None where it does not count."""

    def copies(self, size: int) -> list[tuple[str, str, Any]]:
        """Copies of ``size`` bytes: (direction, host memory, what copies once and waits)."""
