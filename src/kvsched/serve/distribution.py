"""A distribution of seconds in a few numbers: mean, percentiles, extremes."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

PERCENTILES = (1, 5, 10, 25, 50, 75, 90, 95, 99)
"""Those of aiperf's files."""


class Distribution(msgspec.Struct, frozen=True, kw_only=True):
    """What ``count`` values are like. Percentiles are linear between neighbours, as NumPy's."""

    count: int
    mean: float
    p1: float
    p5: float
    p10: float
    p25: float
    p50: float
    p75: float
    p90: float
    p95: float
    p99: float
    min: float
    max: float
    std: float | None
    """Of a sample: with n − 1; None for one value."""
    sum: float


def distribution(values: NDArray[Any]) -> Distribution | None:
    """Return the distribution of ``values`` (n,), NaN left out; None where none is left.

    O(n log n).
    """
    known = np.asarray(values, np.float64)
    known = known[~np.isnan(known)]
    if not len(known):
        return None
    found = np.percentile(known, PERCENTILES)
    return Distribution(
        count=len(known),
        mean=float(known.mean()),
        min=float(known.min()),
        max=float(known.max()),
        std=float(known.std(ddof=1)) if len(known) > 1 else None,
        sum=float(known.sum()),
        **{f"p{at}": float(value) for at, value in zip(PERCENTILES, found, strict=True)},
    )
