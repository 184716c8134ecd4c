"""How far a prediction lies from what was measured."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from kvsched.evidence.calibrate.fitting import predicted as predicted_seconds
from kvsched.evidence.calibrate.observed import Observed
from kvsched.evidence.calibrate.predicting import Predicted
from kvsched.evidence.calibrate.result import (
    GOAL,
    CachedAgreement,
    CachedDifference,
    Error,
    Pair,
)
from kvsched.evidence.calibrate.rows import Rows
from kvsched.serve.distribution import distribution
from kvsched.serve.fitted import Fit
from kvsched.trace.model import Float64s

MUCH = 0.1
"""Share of the cached tokens, measured against predicted, that no step sooner or later explains."""
LEAST_DRIFT = 20
"""Rows on either side; a median of fewer says little."""
FIRST = 10
"""Requests whose cached tokens differ that are named."""


def error_of(
    measured: Float64s, predicted: Float64s, low: Float64s, high: Float64s
) -> Error | None:
    """Compare one latency (n,) of the requests kept back; None where nobody has one."""
    both = ~np.isnan(measured) & ~np.isnan(predicted) & (measured > 0)
    told, found = distribution(measured[both]), distribution(predicted[both])
    if told is None or found is None:
        return None
    bands = [distribution(each[both]) for each in (low, high)]
    return Error(
        measured=told,
        predicted=found,
        error_p50=found.p50 / told.p50 - 1,
        error_p90=found.p90 / told.p90 - 1,
        request_error_p50=float(np.median(np.abs(predicted[both] / measured[both] - 1))),
        band_p50=_ends([found.p50 if each is None else each.p50 for each in bands]),
        band_p90=_ends([found.p90 if each is None else each.p90 for each in bands]),
    )


def _ends(values: Sequence[float]) -> tuple[float, float]:
    return min(values), max(values)


def drift_of(fit: Fit, before: Rows, whole: Rows) -> float | None:
    """Return `RunCalibration.drift` from the rows ``before`` the part kept back and of all."""
    ratio = whole.seconds / np.maximum(predicted_seconds(fit, whole.batches), 1e-12)
    cut = len(before.seconds)
    if min(cut, len(ratio) - cut) < LEAST_DRIFT:
        return None
    return float(np.median(ratio[cut:]) / np.median(ratio[:cut]))


def is_met(ttft: Error | None, tpot: Error | None) -> bool:
    """Whether both medians are within `GOAL`; a latency that nobody has is no miss."""
    found = [each for each in (ttft, tpot) if each is not None]
    return bool(found) and all(abs(each.error_p50) <= GOAL for each in found)


def cached_of(run: Observed, predicted: Predicted) -> CachedAgreement:
    """Compare cached tokens request by request, over the whole run."""
    said = run.cached >= 0
    differ = said & (run.cached != predicted.cached)
    tokens = int(run.cached[said].sum()), int(predicted.cached[said].sum())
    where = np.flatnonzero(differ)
    where = where[np.argsort(run.index[where], kind="stable")][:FIRST]
    return CachedAgreement(
        compared=int(said.sum()),
        different=int(differ.sum()),
        first=tuple(
            CachedDifference(
                index=int(run.index[at]),
                measured=int(run.cached[at]),
                predicted=int(predicted.cached[at]),
            )
            for at in where
        ),
        measured_tokens=tokens[0],
        predicted_tokens=tokens[1],
        beyond_chance=bool(differ.any())
        and (run.concurrency == 1 or abs(tokens[0] - tokens[1]) > MUCH * max(tokens)),
        note=_note(run, int(said.sum()), int(differ.sum()), tokens),
    )


def _note(run: Observed, compared: int, different: int, tokens: tuple[int, int]) -> str:
    if not compared:
        return "the engine does not say how many tokens were cached"
    if not different:
        return "equal for every request"
    if not all(tokens):
        engine, here = ("off", "on") if not tokens[0] else ("on", "off")
        return (
            f"{tokens[0]:,} tokens cached in all, {tokens[1]:,} predicted: it looks as if the "
            f"engine's prefix caching was {engine}, and {here} is what was simulated"
        )
    if run.concurrency == 1:
        return (
            "one request at a time leaves nothing to chance: the engine's cache, its settings or "
            "the workload are not what was simulated"
        )
    if abs(tokens[0] - tokens[1]) > MUCH * max(tokens):
        return (
            f"{tokens[0]:,} tokens cached in all, {tokens[1]:,} predicted, too far apart for "
            "chance: the engine's cache, its settings or the workload are not what was simulated"
        )
    return (
        "requests that run together reach the engine a step sooner or later than predicted: then "
        "blocks are not yet there, or evicted in another order; a run of one request at a time "
        "tells that from another cache or workload"
    )


def pairs_of(run: Observed, predicted: Predicted, kept: NDArray[np.int64]) -> list[Pair]:
    """Return the requests ``kept`` back one by one."""
    ttft, tpot = run.ttft_s, run.tpot_s
    return [
        Pair(
            run=run.name,
            index=int(run.index[at]),
            measured_ttft_s=float(ttft[at]),
            predicted_ttft_s=float(predicted.ttft_s[at]),
            measured_tpot_s=_or_none(tpot[at]),
            predicted_tpot_s=_or_none(predicted.tpot_s[at]),
            measured_cached_tokens=int(run.cached[at]) if run.cached[at] >= 0 else None,
            predicted_cached_tokens=int(predicted.cached[at]),
        )
        for at in kept.tolist()
        if not np.isnan(predicted.ttft_s[at])
    ]


def _or_none(value: float) -> float | None:
    return None if np.isnan(value) else float(value)
