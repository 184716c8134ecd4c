"""Tenants: what each may use, and what each is sure of."""

from __future__ import annotations

from dataclasses import dataclass

from kvsched.foundation.errors import UsageError

_BLOCKS = ("quota_blocks", "guaranteed_blocks", "max_pinned_blocks", "second_tier_blocks")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """What one tenant may use. One with a quota or a guarantee has blocks of its own.

    Its share is kept under the cache's policy by itself: what others do does not reorder it.
    """

    quota_blocks: int | None = None
    """The most physical blocks; None: all of the cache."""
    guaranteed_blocks: int = 0
    """Blocks that others may borrow while they are idle, and give back under pressure. What a
    running request of theirs holds comes back when it ends."""
    weight: float = 1.0
    """Its share of the admissions when many wait, against others' weights."""
    max_pinned_blocks: int | None = None
    """The most blocks of chains that it may have pinned; None: the cache's own limit alone."""
    second_tier_blocks: int = 0
    """Blocks of the second tier that are its alone; tenants without any share what is left."""
    over_quota: str = "reject"
    """What becomes of a request for which the quota has no room now: ``reject`` or ``queue``."""

    def __post_init__(self) -> None:
        for name in _BLOCKS:
            value = getattr(self, name)
            least = 1 if name == "quota_blocks" else 0
            if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
                raise UsageError(f"{name} must be a whole number of blocks, not {value!r}")
            if value is not None and value < least:
                raise UsageError(f"{name} must be at least {least}, not {value}")
        if self.quota_blocks is not None and self.guaranteed_blocks > self.quota_blocks:
            raise UsageError(
                f"guaranteed_blocks ({self.guaranteed_blocks}) is above quota_blocks "
                f"({self.quota_blocks})"
            )
        if isinstance(self.weight, bool) or not isinstance(self.weight, int | float):
            raise UsageError(f"weight must be a number, not {self.weight!r}")
        if not 0 < self.weight < 1e9:
            raise UsageError(f"weight must be above 0 and below 1e9, not {self.weight!r}")
        if self.over_quota not in ("reject", "queue"):
            raise UsageError(f"over_quota must be reject or queue, not {self.over_quota!r}")

    @property
    def is_apart(self) -> bool:
        """Whether its blocks are kept apart from those of tenants without any limit."""
        return bool(self.quota_blocks or self.guaranteed_blocks or self.second_tier_blocks)
