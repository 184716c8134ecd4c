"""Coefficients of step time, and the time that a request spends outside of the engine's steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kvsched.evidence.calibrate.rows import Rows
from kvsched.foundation.errors import UsageError
from kvsched.serve import step_time as at
from kvsched.serve.fitted import Fit
from kvsched.serve.measured import LEAST_STEPS, Steps, fit_steps
from kvsched.serve.nnls import nonnegative_least_squares
from kvsched.serve.step_time import step_seconds
from kvsched.trace.model import Float64s

ROUNDS = 12
"""At most; it stays after a few."""
STAYS = 1e-3
"""Relative change of the time outside below which it stays."""
MOST_CANDIDATES = 2000
FAR = 4.0
"""A step that takes so many times the fit, or so small a part of it, says nothing about it."""


@dataclass(frozen=True, eq=False)
class Fitted:
    """What was fitted."""

    fit: Fit
    overhead_s: tuple[float, ...]
    """Of each run: seconds of a request outside of the engine's steps."""
    rows: int
    far: int
    """Rows left out because they are `FAR` from the fit."""
    rounds: int


def fit_rows(runs: Sequence[Rows], source: str = "") -> Fitted:
    """Fit one step time to all runs, and to each run the time of a request outside of steps.

    The two are fitted in turn until they stay: coefficients to the steps (`fit_steps`), where those
    of a request sent to an idle engine have the time outside taken off; and the time outside as the
    one that misses least, in seconds, what those requests and `Rows.bounds_s` say. Raises UsageError
    for too few steps. O(rounds · rows).
    """
    count = sum(len(rows.seconds) + len(rows.idle_s) for rows in runs)
    if count < LEAST_STEPS:
        raise UsageError(
            f"{count} steps of the part for fitting can be told apart, and {LEAST_STEPS} are "
            "needed: measure more requests, or raise --fit-share"
        )
    rested = any(len(rows.idle_s) for rows in runs)
    reference = _joint_guess(runs)
    overhead = [reference] * len(runs)
    for rounds in range(1, ROUNDS + 1):
        fit, used, far = _coefficients(runs, overhead, source)
        steps = [predicted(fit, rows.idle_batches) for rows in runs]
        beyond = [
            rows.idle_s - each * rows.idle_steps for rows, each in zip(runs, steps, strict=True)
        ]
        reference = max(float(np.median(np.concatenate(beyond))), 0.0) if rested else 0.0
        now = [
            _overhead(each, rows.bounds_s, reference, float(np.median(_all_steps(rows))))
            for each, rows in zip(beyond, runs, strict=True)
        ]
        moved = max(abs(a - b) for a, b in zip(now, overhead, strict=True))
        overhead = now
        if moved <= STAYS * max(*now, 1e-6):
            break
    return Fitted(fit, tuple(overhead), used, far, rounds)


def predicted(fit: Fit, batches: Float64s) -> Float64s:
    """Return (N,) seconds of steps with the sums ``batches`` (N, BATCH)."""
    coefficients = fit.step_time().coefficients("mid")
    return np.array([step_seconds(coefficients, batch) for batch in batches], np.float64)


def _joint_guess(runs: Sequence[Rows]) -> float:
    """Fit the time outside as one more column beside what steps compute: linear, so at once."""
    batches = np.concatenate(
        [each for rows in runs for each in (rows.batches, rows.idle_batches)]
    )
    seconds = np.concatenate(
        [each for rows in runs for each in (rows.seconds, rows.idle_s / np.maximum(rows.idle_steps, 1))]
    )
    outside = np.concatenate(
        [
            each
            for rows in runs
            for each in (np.zeros(len(rows.seconds)), 1 / np.maximum(rows.idle_steps, 1))
        ]
    )
    columns = [np.ones(len(batches)), outside]
    columns += [batches[:, place] for place in (at.TOKENS, at.SEQUENCES, at.DECODE_READ, at.PREFILL_PAIRS)]
    relative = np.column_stack(columns) / seconds[:, None]
    return float(nonnegative_least_squares(relative, np.ones(len(seconds)))[1])


def _coefficients(
    runs: Sequence[Rows], overhead: Sequence[float], source: str
) -> tuple[Fit, int, int]:
    """Fit all rows, then those that are not far from that fit."""
    batches = [rows.batches for rows in runs]
    seconds = [rows.seconds for rows in runs]
    for rows, outside in zip(runs, overhead, strict=True):
        spent = (rows.idle_s - outside) / np.maximum(rows.idle_steps, 1)
        some = spent > 0
        batches.append(rows.idle_batches[some])
        seconds.append(spent[some])
    # A step of next to no time would weigh more than all others: only its tokens' way was short.
    long = [each >= np.quantile(each, 0.05) / FAR if len(each) else each > 0 for each in seconds]
    short = sum(int((~each).sum()) for each in long)
    steps = Steps(
        np.concatenate([each[keep] for each, keep in zip(batches, long, strict=True)]),
        np.concatenate([each[keep] for each, keep in zip(seconds, long, strict=True)]),
    )
    fit = fit_steps(steps, source)
    ratio = steps.seconds / np.maximum(predicted(fit, steps.batches), 1e-12)
    near = (ratio < FAR) & (ratio > 1 / FAR)
    far = int((~near).sum())
    if far and int(near.sum()) >= LEAST_STEPS:
        fit = fit_steps(Steps(steps.batches[near], steps.seconds[near]), source)
    return fit, len(near) - far, far + short


def _all_steps(rows: Rows) -> Float64s:
    return np.concatenate([rows.seconds, rows.idle_s / np.maximum(rows.idle_steps, 1)])


def _overhead(
    beyond_s: Float64s, bounds_s: Float64s, reference_s: float, most_s: float
) -> float:
    """Return the time outside of steps that misses least what is known, the nearest to a reference.

    It misses a request by how far it lies from what that took beyond its steps, or outside of its
    bounds, and by no more than ``most_s``, so that one hiccup is no argument. The sum is linear
    between those numbers, so the least is at one of them, or between two.
    """
    candidates = np.unique(np.maximum(np.concatenate([beyond_s, bounds_s.ravel()]), 0.0))
    if not len(candidates):
        return reference_s
    candidates = candidates[:: -(-len(candidates) // MOST_CANDIDATES)]
    missed = np.minimum(np.abs(candidates[:, None] - beyond_s[None, :]), most_s).sum(axis=1)
    below = np.maximum(bounds_s[None, :, 0] - candidates[:, None], 0.0)
    above = np.maximum(candidates[:, None] - bounds_s[None, :, 1], 0.0)
    missed += np.minimum(below + above, most_s).sum(axis=1)
    best = candidates[missed <= float(missed.min()) + 1e-12]
    return float(np.clip(reference_s, best[0], best[-1]))


def features_seen(runs: Sequence[Rows]) -> dict[str, tuple[float, float]]:
    """Return the least and the most of what the steps computed, by name."""
    all_batches = np.concatenate([each for rows in runs for each in (rows.batches, rows.idle_batches)])
    names = {"tokens": at.TOKENS, "requests": at.SEQUENCES, "decode context": at.DECODE_READ}
    return {
        name: (float(all_batches[:, place].min()), float(all_batches[:, place].max()))
        for name, place in names.items()
    }
