"""Least squares with coefficients that are not negative."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def nonnegative_least_squares(features: Floats, values: Floats) -> Floats:
    """The x ≥ 0, (K,), that minimises |``features`` (R, K) · x - ``values`` (R,)|².

    The active-set method of Lawson and Hanson, "Solving Least Squares Problems" (1974), chapter
    23, on columns scaled to length 1, so that units do not matter. Columns of zeros get 0.
    O(K) least-squares solves as a rule, each O(R·K²).
    """
    lengths = np.sqrt((features**2).sum(axis=0))
    scale = np.where(lengths > 0, lengths, 1.0)
    a = features / scale
    x = np.zeros(a.shape[1])
    used = np.zeros(len(x), bool)
    tolerance = 1e-12 * max(float(np.sqrt((values**2).sum())), 1e-300)
    # Each round lowers the residual, so no set of columns comes twice; rounding alone could cycle.
    for _ in range(10 * len(x) + 10):
        gradient = a.T @ (values - a @ x)
        gradient[used | (lengths == 0)] = -np.inf
        best = int(np.argmax(gradient)) if len(x) else 0
        if not len(x) or gradient[best] <= tolerance:
            break
        used[best] = True
        x = _inside(a, values, x, used, best)
    return x / scale


def _inside(a: Floats, values: Floats, x: Floats, used: NDArray[np.bool_], new: int) -> Floats:
    """Solve on the columns in use; drop those that would turn negative, one bound at a time."""
    while True:
        solved = np.zeros_like(x)
        solved[used] = np.linalg.lstsq(a[:, used], values, rcond=None)[0]
        below = used & (solved <= 0)
        if not below.any():
            return solved
        if below[new] and x[new] == 0:
            # The new column cannot help beyond rounding.
            used[new] = False
            return x
        ratios = np.full(len(x), np.inf)
        ratios[below] = x[below] / (x[below] - solved[below])
        x = x + float(ratios.min()) * (solved - x)
        used[below & (ratios <= ratios.min())] = False
        x[~used] = 0.0
