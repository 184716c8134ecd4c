"""How a cache decides: checked once, when it is made."""

from __future__ import annotations

from dataclasses import dataclass

from kvsched.foundation.errors import UsageError

WHEN_FULL = ("queue", "degrade", "reject")
WHEN_OVERSIZE = ("reject", "degrade")
DEGRADE = ("head", "unstored", "tier")


@dataclass(frozen=True, slots=True)
class Settings:
    """What `KVCacheScheduler` was made with, beside the parts it is made of."""

    when_full: str
    when_oversize: str
    degrade: str
    max_waiting: int
    max_waiting_tokens: int | None
    max_passes: int
    watermark: float
    max_pinned_blocks: int
    priority_retention: bool

    def __post_init__(self) -> None:
        _one_of("when_full", self.when_full, WHEN_FULL)
        _one_of("when_oversize", self.when_oversize, WHEN_OVERSIZE)
        _one_of("degrade", self.degrade, DEGRADE)
        check_whole("max_waiting", self.max_waiting, 0)
        if self.max_waiting_tokens is not None:
            check_whole("max_waiting_tokens", self.max_waiting_tokens, 0)
        check_whole("max_passes", self.max_passes, 0)
        check_whole("max_pinned_blocks", self.max_pinned_blocks, 0)
        number = isinstance(self.watermark, int | float) and not isinstance(self.watermark, bool)
        if not number or not 0.0 <= self.watermark < 1.0:
            raise UsageError(f"watermark must be from 0 up to 1, not {self.watermark!r}")


def _one_of(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise UsageError(f"{name} must be one of {', '.join(known)}, not {value!r}")


def check_whole(name: str, value: object, least: int, most: int = 2**31 - 1) -> int:
    """Return a whole number within bounds, or raise UsageError."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise UsageError(f"{name} must be a whole number, not {value!r}")
    if not least <= value <= most:
        raise UsageError(f"{name} must be from {least:,} to {most:,}, not {value:,}")
    return value
