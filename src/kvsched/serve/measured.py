"""Measured steps, and coefficients fitted to them."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from kvsched.foundation.errors import InputError, UsageError
from kvsched.serve import step_time as at
from kvsched.serve.fitted import Coefficients, Fit, FittedFrom, Residuals
from kvsched.serve.nnls import nonnegative_least_squares
from kvsched.serve.step_time import BATCH, batch_of
from kvsched.trace import fields
from kvsched.trace.fields import Row, RowError
from kvsched.trace.lines import read_rows
from kvsched.trace.reading import Skipped
from kvsched.trace.source import Source

Floats = NDArray[np.float64]
LEAST_STEPS = 40
"""Fewer measured steps say too little about ten coefficients and their band."""
_LONGEST_S = 3600.0
_KNEES = 24
_REFITS = 2
"""Of logarithms; a third changes a fit by less than 1/10,000 where steps vary by 30%."""
_FAR = 10.0


class Steps(NamedTuple):
    """Measured steps."""

    batches: Floats
    """Sums of each step's requests (R, BATCH), as `step_time.batch_of` gives them."""
    seconds: Floats
    """How long each took (R,)."""
    window: int = 0
    """Tokens of the model's sliding windows, 0 without."""
    notes: tuple[str, ...] = ()
    """What was left out: one sentence."""


def read_steps(path: str | Path, window: int = 0, *, skip_bad_rows: bool = False) -> Steps:
    """Read measured steps from JSON lines, also `.gz` and `.zst`.

    A row is a step: ``{"seconds": 0.0123, "tokens": [1, 512], "context": [900, 0]}``, of each
    request the tokens computed and those before them in the cache. Raises InputError for a bad
    row, or counts and notes them with ``skip_bad_rows``. O(requests of all steps).
    """
    batches: list[Floats] = []
    seconds: list[float] = []

    def check(row: Row) -> tuple[float, Floats]:
        taken = fields.number(row, "seconds")
        if not 0 < taken <= _LONGEST_S:
            raise RowError(f'"seconds" must be above 0, at most {_LONGEST_S:g}: {taken:g}')
        tokens, context = _counts(row, "tokens", 1), _counts(row, "context", 0)
        if len(tokens) != len(context):
            raise RowError(f'"tokens" has {len(tokens)} requests, "context" {len(context)}')
        return taken, batch_of(tokens, context, window)

    with Source(Path(path)) as source:
        skipped = Skipped(source.name) if skip_bad_rows else None
        for _, (taken, batch) in read_rows(source, check, skipped):
            seconds.append(taken)
            batches.append(batch)
    if not seconds:
        raise skipped.nothing_left() if skipped else InputError(str(path), "no step in it")
    notes = skipped.notes() if skipped else ()
    return Steps(np.array(batches), np.array(seconds), window, notes)


def _counts(row: Row, name: str, least: int) -> list[int]:
    value = fields.required(row, name)
    if not isinstance(value, list) or not value:
        raise RowError(f'"{name}" must be a list of integers, one a request')
    for each in value:
        if isinstance(each, bool) or not isinstance(each, int):
            raise RowError(f'"{name}" must be a list of integers, one a request')
        if not least <= each < 2**31:
            raise RowError(f'"{name}" must hold integers from {least} on: {fields.short(each)}')
    return value


def fit_steps(steps: Steps, source: str = "") -> Fit:
    """Coefficients that are not negative and fit ``steps`` best, with their band.

    Least squares of log(fitted / measured): short steps count as much as long ones, and of steps
    that compute the same, some held up, the fit is the middle. (Of (fitted - measured) / measured
    it lies below: by 12% where steps vary by 30%.) A knee in the tokens is taken where it lowers
    the squares by more than 2%. The band comes from steps held out: the fit to the even rows is put
    to the odd ones, and the other way round.
    ``source`` says in words where the steps are from. Raises UsageError for fewer than
    `LEAST_STEPS` steps, or for values that are no steps. O(R·K²) for K features.
    """
    batches, seconds = _checked(steps)
    coefficients = _fit(batches, seconds, steps.window)
    measured, fitted = [], []
    for half in (0, 1):
        held = np.arange(len(seconds)) % 2 == half
        part = _fit(batches[~held], seconds[~held], steps.window)
        measured.append(seconds[held])
        fitted.append(_predict(part, batches[held]))
    return Fit(
        kind="fitted",
        unit="seconds",
        coefficients=coefficients,
        residuals=_residuals(np.concatenate(measured), np.concatenate(fitted)),
        fitted_from=FittedFrom(
            steps=len(seconds),
            source=source,
            most_tokens=int(batches[:, at.TOKENS].max()),
            most_sequences=int(batches[:, at.SEQUENCES].max()),
        ),
        window=steps.window,
    )


def _checked(steps: Steps) -> tuple[Floats, Floats]:
    batches = np.asarray(steps.batches, np.float64)
    seconds = np.asarray(steps.seconds, np.float64)
    if batches.ndim != 2 or batches.shape != (len(seconds), BATCH):
        raise UsageError(
            f"measured steps must be sums of shape (R, {BATCH}) with R seconds, "
            f"not {batches.shape} with {len(seconds)}"
        )
    if len(seconds) < LEAST_STEPS:
        raise UsageError(
            f"{len(seconds)} measured steps are too few to fit: {LEAST_STEPS} at least"
        )
    if not (np.isfinite(seconds).all() and (seconds > 0).all()):
        raise UsageError("every measured step must take a finite time above 0 s")
    if not (np.isfinite(batches).all() and (batches >= 0).all()):
        raise UsageError("the sums of every measured step must be finite, and at least 0")
    return batches, seconds


def _features(batches: Floats, window: int) -> dict[str, Floats]:
    """What each coefficient counts, (R,) each."""
    prefilled = batches[:, at.TOKENS] - batches[:, at.DECODE_TOKENS]
    found = {
        "step_s": np.ones(len(batches)),
        "token_s": batches[:, at.TOKENS],
        "sequence_s": batches[:, at.SEQUENCES],
        "decode_read_s": batches[:, at.DECODE_READ],
        "prefill_pair_s": batches[:, at.PREFILL_PAIRS],
        "prefill_context_s": batches[:, at.PREFILL_READ] - prefilled,
    }
    if window:
        found["decode_read_window_s"] = batches[:, at.DECODE_READ_WINDOW]
        found["prefill_pair_window_s"] = batches[:, at.PREFILL_PAIRS_WINDOW]
    return found


def _fit(batches: Floats, seconds: Floats, window: int) -> Coefficients:
    """The best fit of logarithms: Gauss and Newton's steps from that of relative errors."""
    found = _fit_relative(batches, seconds, window)
    features = _features(batches, window)
    if found.knee_token_s:
        features["knee_token_s"] = np.maximum(batches[:, at.TOKENS] - found.knee_tokens, 0.0)
    for _ in range(_REFITS):
        # What a fit gives next to nothing must not count more than all else.
        fitted = np.maximum(_predict(found, batches), seconds / _FAR)
        best, _ = _solve(features, fitted, 1 + np.log(seconds / fitted))
        found = Coefficients(**best, knee_tokens=found.knee_tokens)
    return found if found.knee_token_s else msgspec.structs.replace(found, knee_tokens=0.0)


def _fit_relative(batches: Floats, seconds: Floats, window: int) -> Coefficients:
    """The best fit without a knee, or with the best knee where that is clearly better.

    Of errors relative to the measured seconds.
    """
    tokens = batches[:, at.TOKENS]
    features = _features(batches, window)
    even = np.ones(len(seconds))
    best, squares = _solve(features, seconds, even)
    # A knee must buy more than a further column does by fitting noise, or rounding.
    enough = squares * (1 - max(0.02, 10 / len(seconds))) - 1e-10 * len(seconds)
    grid = np.unique(np.quantile(tokens, np.linspace(0, 1, _KNEES)))
    for _ in range(2):
        scores = []
        for knee in grid:
            features["knee_token_s"] = np.maximum(tokens - knee, 0.0)
            found, left = _solve(features, seconds, even)
            scores.append(left)
            if left < min(squares, enough):
                best, squares = {**found, "knee_tokens": float(knee)}, left
        middle = int(np.argmin(scores))
        near = grid[max(0, middle - 1)], grid[min(len(grid) - 1, middle + 1)]
        grid = np.linspace(*near, _KNEES)
    if not best.get("knee_token_s"):
        best.pop("knee_tokens", None)
    return Coefficients(**best)


def _solve(
    features: dict[str, Floats], scale: Floats, aim: Floats
) -> tuple[dict[str, float], float]:
    """Coefficients whose times over ``scale`` are next to ``aim``; the sum of squares they leave.

    The coefficients by name.
    """
    relative = np.column_stack(list(features.values())) / scale[:, None]
    found = nonnegative_least_squares(relative, aim)
    left = float(((relative @ found - aim) ** 2).sum())
    return dict(zip(features, found.tolist(), strict=True)), left


def _predict(coefficients: Coefficients, batches: Floats) -> Floats:
    """Seconds of each step (R,), as `step_time.step_seconds` gives them."""
    features = _features(batches, 1)
    features["knee_token_s"] = np.maximum(batches[:, at.TOKENS] - coefficients.knee_tokens, 0.0)
    total = np.zeros(len(batches))
    for name, column in features.items():
        total += getattr(coefficients, name) * column
    return total


def _residuals(measured: Floats, fitted: Floats) -> Residuals:
    # A fit of what is held out may give nothing to a step unlike all others.
    ratio = measured / np.maximum(fitted, 1e-12)
    error = np.abs(measured - fitted) / measured
    # In logarithms, as the fit; a step to which it gives next to nothing counts as `_FAR` off.
    missed = float((np.log(np.minimum(ratio, _FAR)) ** 2).sum())
    spread = float(((np.log(measured) - np.log(measured).mean()) ** 2).sum())
    explained = None if spread < 1e-12 * len(measured) else 1 - missed / spread
    low, middle, high = (float(each) for each in np.quantile(ratio, (0.1, 0.5, 0.9)))
    half, most = (float(each) for each in np.quantile(error, (0.5, 0.9)))
    return Residuals(
        ratio_p10=low,
        ratio_p50=middle,
        ratio_p90=high,
        error_p50=half,
        error_p90=most,
        explained=explained,
    )
