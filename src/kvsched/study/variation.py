"""How much a figure varies within a trace: the bootstrap over its windows of time."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from kvsched.study.result import AnatomyRow, StudyResult

RESAMPLES = 4000
LEVEL = 0.95
LEAST_WINDOWS = 4
"""Fewer windows than this say nothing of a trace's own variation."""

Figure = Callable[[AnatomyRow], tuple[int, int]]
"""Numerator and denominator of a figure in one window."""


def _windows(result: StudyResult, figure: Figure) -> NDArray[np.float64]:
    rows = result.anatomy.by.get("window", ())
    return np.array([figure(row) for row in rows], np.float64).reshape(-1, 2)


def _resampled(pairs: NDArray[np.float64], seed: int) -> NDArray[np.float64]:
    """(RESAMPLES,) the figure over windows drawn with replacement; NaN where it is undefined."""
    random = np.random.Generator(np.random.PCG64(seed))
    drawn = random.integers(0, len(pairs), (RESAMPLES, len(pairs)))
    sums = pairs[drawn].sum(axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        shares: NDArray[np.float64] = sums[:, 0] / sums[:, 1]
    return shares


def interval_of(a: StudyResult, b: StudyResult, figure: Figure) -> tuple[float, float] | None:
    """Return the middle `LEVEL` of B − A when each trace's windows are drawn anew, or None.

    None where a trace has fewer than `LEAST_WINDOWS` windows, or the figure is mostly undefined.
    Deterministic: the seeds are fixed. O(RESAMPLES · windows).
    """
    first, second = _windows(a, figure), _windows(b, figure)
    if min(len(first), len(second)) < LEAST_WINDOWS:
        return None
    differences = _resampled(second, 2) - _resampled(first, 1)
    known = differences[np.isfinite(differences)]
    if len(known) < RESAMPLES // 2:
        return None
    low, high = np.quantile(known, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)
