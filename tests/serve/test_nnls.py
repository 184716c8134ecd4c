"""Non-negative least squares against every subset of the columns."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from kvsched.serve.nnls import nonnegative_least_squares


def exhaustive(features: np.ndarray, values: np.ndarray) -> float:
    """The least residual: over all sets of columns whose least squares are not negative."""
    lengths = np.linalg.norm(features, axis=0)
    best = float(np.linalg.norm(values))
    columns = [i for i in range(features.shape[1]) if lengths[i] > 0]
    for size in range(1, len(columns) + 1):
        for chosen in itertools.combinations(columns, size):
            part = features[:, chosen] / lengths[list(chosen)]
            solved = np.linalg.lstsq(part, values, rcond=None)[0]
            if (solved >= 0).all():
                best = min(best, float(np.linalg.norm(values - part @ solved)))
    return best


def test_it_finds_the_best_of_all_subsets():
    rng = np.random.default_rng(0)
    held_back, clipped_worse = 0, 0
    for case in range(600):
        rows, columns = int(rng.integers(1, 12)), int(rng.integers(1, 6))
        features = rng.normal(size=(rows, columns)) * 10.0 ** rng.integers(-6, 6, columns)
        if case % 3 == 0:
            features = np.abs(features)
        if case % 5 == 0 and columns > 1:
            features[:, 0] = features[:, 1]
        if case % 7 == 0:
            features[:, -1] = 0.0
        values = rng.normal(size=rows)
        found = nonnegative_least_squares(features, values)
        assert (found >= 0).all()
        best = exhaustive(features, values)
        assert np.linalg.norm(values - features @ found) <= best * (1 + 1e-7) + 1e-12
        held_back += bool((found == 0).any())
        free = np.linalg.lstsq(features, values, rcond=None)[0]
        clipped = float(np.linalg.norm(values - features @ np.maximum(free, 0)))
        clipped_worse += clipped > best * (1 + 1e-6) + 1e-9
    assert held_back > 100
    # Least squares with clipping would not pass.
    assert clipped_worse > 100


@pytest.mark.parametrize("columns", [0, 1, 3])
def test_nothing_to_explain_gives_zeros(columns):
    found = nonnegative_least_squares(np.ones((4, columns)), np.zeros(4))
    assert found.tolist() == [0.0] * columns
