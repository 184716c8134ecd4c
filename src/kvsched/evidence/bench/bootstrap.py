"""How far a difference of two sides may be from what it would be in the long run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvsched.foundation.errors import UsageError

Float64s = NDArray[np.float64]
Statistic = Callable[[Float64s], Float64s]
"""Of the last axis."""

STATISTICS: dict[str, Statistic] = {
    "mean": lambda values: np.mean(values, axis=-1),
    "p50": lambda values: np.median(values, axis=-1),
    "p90": lambda values: np.percentile(values, 90, axis=-1),
}
_AT_ONCE = 4_000_000
"""Values drawn at a time."""


@dataclass(frozen=True)
class BootstrapSettings:
    """How intervals are drawn. Raises UsageError for what cannot be."""

    draws: int = 2_000
    confidence: float = 0.95
    seed: int = 0

    def __post_init__(self) -> None:
        if not 100 <= self.draws <= 1_000_000:
            raise UsageError(f"--draws {self.draws}: from 100 to 1,000,000")
        if not 0 <= self.seed < 1 << 63:
            raise UsageError(f"--seed {self.seed}: a whole number of at least 0, below 2^63")
        if not 0.5 <= self.confidence < 1:
            raise UsageError(f"--confidence {self.confidence}: at least 0.5, below 1")


@dataclass(frozen=True)
class Interval:
    """The middle share of the draws; whether it says that B and A differ."""

    low: float
    high: float

    @property
    def leaves_out_0(self) -> bool:
        """Whether 0 is outside."""
        return self.low > 0 or self.high < 0


def paired_interval(
    a: Float64s, b: Float64s, statistic: Statistic, asked: BootstrapSettings
) -> Interval | None:
    """Return the interval of statistic(b) − statistic(a); None for fewer than two requests.

    ``a`` (repeats of A, N) and ``b`` (repeats of B, N) are one value a repeat and request, the
    columns the same requests. A draw takes N requests with replacement, the same for both sides,
    all repeats of each: that is the variation between requests. Where either side has two repeats
    or more, a draw also moves by a t-distributed amount: the variation between repeats (see
    `between_repeats`). It is a percentile bootstrap (Efron, 1979). With one repeat a side the
    interval knows of requests alone, and of nothing that moved a whole run. O(draws · values).
    """
    requests = a.shape[1]
    if requests < 2:
        return None
    random = np.random.Generator(np.random.PCG64(asked.seed))
    draws = np.empty(asked.draws)
    step = max(1, _AT_ONCE // max(1, (len(a) + len(b)) * requests))
    for first in range(0, asked.draws, step):
        count = min(step, asked.draws - first)
        taken = random.integers(0, requests, (count, requests))
        draws[first : first + count] = _of_side(b, taken, statistic) - _of_side(a, taken, statistic)
    return _middle(draws + between_repeats(statistic(a), statistic(b), asked), asked)


def _of_side(side: Float64s, taken: NDArray[np.int64], statistic: Statistic) -> Float64s:
    drawn = side[:, taken]  # repeats, draws, requests
    joined: Float64s = np.moveaxis(drawn, 0, 1).reshape(taken.shape[0], -1)
    return statistic(joined)


def run_interval(a: Float64s, b: Float64s, asked: BootstrapSettings) -> Interval | None:
    """Return the interval of mean(b) − mean(a) for one value a repeat; None without repeats."""
    if max(len(a), len(b)) < 2:
        return None
    difference = float(b.mean() - a.mean())
    return _middle(difference + between_repeats(a, b, asked), asked)


def between_repeats(a: Float64s, b: Float64s, asked: BootstrapSettings) -> Float64s:
    """Return (draws,) deviations of mean(b) − mean(a) through the repeats of each side.

    They are of Student's t with Welch's degrees of freedom, times the standard error of the
    difference; a resampling of so few repeats would find far too little. A side of one repeat is
    taken to vary as the other does. 0 where neither has two.
    """
    known = [side for side in (a, b) if len(side) > 1]
    if not known:
        return np.zeros(asked.draws)
    usual = float(np.mean([side.var(ddof=1) for side in known]))
    parts = []
    for side in (a, b):
        variance = float(side.var(ddof=1)) if len(side) > 1 else usual
        parts.append((variance / len(side), len(side) - 1))
    whole = sum(part for part, _ in parts)
    if not whole > 0:
        return np.zeros(asked.draws)
    freedom = whole**2 / sum(part**2 / max(free, 1) for part, free in parts)
    random = np.random.Generator(np.random.PCG64(asked.seed + 1))
    return float(np.sqrt(whole)) * random.standard_t(max(freedom, 1.0), asked.draws)


def _middle(draws: Float64s, asked: BootstrapSettings) -> Interval:
    outside = (1 - asked.confidence) / 2
    low, high = np.quantile(draws, [outside, 1 - outside])
    return Interval(float(low), float(high))
