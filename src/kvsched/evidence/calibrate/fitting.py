"""Coefficients of step time, and the time that a request spends outside of the engine's steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

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
FAR = 3.0
"""A step that takes so many times what a robust fit says, or so small a part of it, is left out."""
LEAST_PROMPTS = 10
"""Fewer steps that compute a prompt cannot tell its time from what a request takes outside."""
PRIOR = 0.1
MOST_CANDIDATES = 2000
_REWEIGHTED = 20
_SMALL = 0.02


@dataclass(frozen=True, eq=False)
class Fitted:
    """What was fitted."""

    fit: Fit
    overhead_s: tuple[float, ...]
    """Of each run: seconds of a request outside of the engine's steps."""
    rows: int
    far: int
    """Rows left out because they are `FAR` from the others."""


def fit_rows(runs: Sequence[Rows], source: str = "") -> Fitted:
    """Fit one step time to all runs, and to each run the time of a request outside of steps.

    A robust fit of both at once says which steps are `FAR` from the others. Then the two are
    fitted in turn until they stay: coefficients to the steps (`fit_steps`), where those of a
    request sent to an idle engine have the time outside taken off; and the time outside as the one
    that misses least, in seconds, what those requests and `Rows.bounds_s` say. Raises UsageError
    for too few steps. O(rounds · rows).
    """
    _check(runs)
    overhead, near = _robust(runs)
    outside = [overhead] * len(runs)
    for _ in range(ROUNDS):
        fit, used = _coefficients(runs, outside, near, source)
        told = [
            _Told(
                rows.idle_s - predicted(fit, rows.idle_batches) * rows.idle_steps,
                rows.bounds_s,
                float(np.median(_all_steps(rows))),
            )
            for rows in runs
        ]
        reference = _overhead(_together(told), None)
        now = [_overhead(each, reference) for each in told]
        moved = max(abs(a - b) for a, b in zip(now, outside, strict=True))
        outside = now
        if moved <= STAYS * max(*now, 1e-6):
            break
    return Fitted(fit, tuple(outside), used, int((~near).sum()))


def _check(runs: Sequence[Rows]) -> None:
    sums = np.concatenate(_sums(runs))
    prompts = int((sums[:, at.TOKENS] > sums[:, at.DECODE_TOKENS]).sum())
    for count, least, what in (
        (len(sums), LEAST_STEPS, "can be told apart"),
        (prompts, LEAST_PROMPTS, "compute prompts for certain"),
    ):
        if count < least:
            raise UsageError(
                f"{count} steps of the part for fitting {what}, and {least} are needed: measure "
                "more requests, or raise --fit-share"
            )


def _sums(runs: Sequence[Rows]) -> list[Float64s]:
    """Return the sums of all rows, (N, BATCH) and (M, BATCH) of each run."""
    return [each for rows in runs for each in (rows.batches, rows.idle_batches)]


def _all_steps(rows: Rows) -> Float64s:
    """Return the seconds of all rows (N + M,), of idle ones a step's share."""
    return np.concatenate([rows.seconds, rows.idle_s / rows.idle_steps])


def predicted(fit: Fit, batches: Float64s) -> Float64s:
    """Return (N,) seconds of steps with the sums ``batches`` (N, BATCH)."""
    coefficients = fit.step_time().coefficients("mid")
    return np.array([step_seconds(coefficients, batch) for batch in batches], np.float64)


def _robust(runs: Sequence[Rows]) -> tuple[float, NDArray[np.bool_]]:
    """Fit the time outside as one more column; return it, and which rows (N,) are near the fit.

    No few rows decide: least absolute errors by reweighting, relative to the larger of measured and
    fitted, so that a row can be wrong by 1 at most. A step of next to no time, whose tokens were
    held up or are those of another step, would else weigh more than all others.
    """
    batches = np.concatenate(_sums(runs))
    seconds = np.concatenate([_all_steps(rows) for rows in runs])
    outside = np.concatenate(
        [each for rows in runs for each in (np.zeros(len(rows.seconds)), 1 / rows.idle_steps)]
    )
    places = (at.TOKENS, at.SEQUENCES, at.DECODE_READ, at.PREFILL_PAIRS)
    columns = np.column_stack(
        [np.ones(len(batches)), outside, *(batches[:, place] for place in places)]
    )
    scale = np.maximum(seconds, float(np.median(seconds)))
    weight = np.ones(len(seconds))
    for _ in range(_REWEIGHTED):
        rows = weight / scale
        found = nonnegative_least_squares(columns * rows[:, None], seconds * rows)
        fitted = columns @ found
        scale = np.maximum(np.maximum(fitted, seconds), 1e-9)
        weight = 1 / np.sqrt(np.abs(fitted - seconds) / scale + _SMALL)
    ratio = seconds / np.maximum(fitted, 1e-12)
    return float(found[1]), (ratio < FAR) & (ratio > 1 / FAR)


def _coefficients(
    runs: Sequence[Rows], outside: Sequence[float], near: NDArray[np.bool_], source: str
) -> tuple[Fit, int]:
    """Fit the rows that are near, less the time outside; return how many they are."""
    seconds = []
    for rows, each in zip(runs, outside, strict=True):
        seconds += [rows.seconds, (rows.idle_s - each) / rows.idle_steps]
    spent = np.concatenate(seconds)
    kept = near & (spent > 0)
    return fit_steps(Steps(np.concatenate(_sums(runs))[kept], spent[kept]), source), int(kept.sum())


@dataclass(frozen=True, eq=False)
class _Told:
    """What a run says of the time outside of steps."""

    beyond_s: Float64s
    """(M,) what requests sent to an idle engine took beyond their steps."""
    bounds_s: Float64s
    """(B, 2)"""
    most_s: float
    """By how much one request can miss it at most, so that one hiccup is no argument."""


def _together(told: Sequence[_Told]) -> _Told:
    return _Told(
        np.concatenate([each.beyond_s for each in told]),
        np.concatenate([each.bounds_s for each in told]),
        float(np.median([each.most_s for each in told])),
    )


def _overhead(told: _Told, reference_s: float | None) -> float:
    """Return the time outside of steps that misses least what is known, the shortest such.

    It misses a request by how far it lies from what that took beyond its steps, or outside of its
    bounds; and it misses the reference, that of all runs together, which counts as `PRIOR` of the
    requests do, for bounds are mostly wide. The sum is linear between those numbers, so the least
    is at one of them.
    """
    beyond, bounds = told.beyond_s, told.bounds_s
    given = np.concatenate([[0.0 if reference_s is None else reference_s], beyond, bounds.ravel()])
    candidates = np.unique(np.maximum(given, 0.0))
    candidates = candidates[:: -(-len(candidates) // MOST_CANDIDATES)]
    missed = np.minimum(np.abs(candidates[:, None] - beyond[None, :]), told.most_s).sum(axis=1)
    below = np.maximum(bounds[None, :, 0] - candidates[:, None], 0.0)
    above = np.maximum(candidates[:, None] - bounds[None, :, 1], 0.0)
    missed += np.minimum(below + above, told.most_s).sum(axis=1)
    if reference_s is not None:
        missed += PRIOR * (len(beyond) + len(bounds)) * np.abs(candidates - reference_s)
    return float(candidates[np.argmin(missed)])
