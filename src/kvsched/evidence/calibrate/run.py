"""Calibrate: fit a step time to part of each run, predict the rest, and say how far off it is."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from kvsched.evidence.calibrate.aligned import align
from kvsched.evidence.calibrate.fitting import Fitted, fit_rows
from kvsched.evidence.calibrate.judging import cached_of, drift_of, error_of, is_met, pairs_of
from kvsched.evidence.calibrate.observed import Observed
from kvsched.evidence.calibrate.predicting import predict
from kvsched.evidence.calibrate.result import GOAL, Calibrated, Calibration, Pair, RunCalibration
from kvsched.evidence.calibrate.rows import Rows, rows_of
from kvsched.evidence.calibrate.sentences import sentences
from kvsched.foundation.errors import UsageError
from kvsched.foundation.version import VERSION
from kvsched.serve.cost import linear_cost
from kvsched.serve.engine import Report
from kvsched.serve.simulate import simulate

DEFAULT_FIT_SHARE = 0.5


def calibrate(
    runs: Sequence[Observed],
    *,
    fit_share: float = DEFAULT_FIT_SHARE,
    name: str = "",
    report: Report | None = None,
) -> Calibrated:
    """Fit one step time to the first ``fit_share`` of every run, and judge it on the rest of each.

    Steps count for the fit if they ended before the first request kept back was sent, so that
    nothing of those is known to it. Costs a fit and three simulations a run. Raises UsageError for
    a share that leaves one part empty, and for too few steps.
    """
    if not runs:
        raise UsageError("there is no run to calibrate with")
    if not (isinstance(fit_share, int | float) and 0 < fit_share < 1):
        raise UsageError(f"--fit-share {fit_share}: above 0 and below 1")
    told = [_with_cached(run) for run in runs]
    splits = [_split(run, fit_share) for run in told]
    until = [float(run.sent_s[split]) for run, split in zip(told, splits, strict=True)]
    parts = [(run, align(run, end), end) for run, end in zip(told, until, strict=True)]
    fitted = fit_rows([rows_of(*part) for part in parts])
    # Now it is known when a request reaches the engine, and so in which step it began.
    rows = [
        rows_of(*part, outside_s=outside)
        for part, outside in zip(parts, fitted.overhead_s, strict=True)
    ]
    fitted = fit_rows(rows, _source(told))
    pairs: list[Pair] = []
    judged = []
    for at, run in enumerate(told):
        if report is not None:
            report("simulating", at, len(told))
        whole = rows_of(run, parts[at][1], outside_s=fitted.overhead_s[at])
        drift = drift_of(fitted.fit, rows[at], whole)
        one = _judge(runs[at], run, fitted, at, rows[at], splits[at], pairs, report)
        judged.append(msgspec.structs.replace(one, drift=drift))
    result = Calibration(
        kvsched=VERSION,
        name=name or "; ".join(run.name for run in runs),
        fit_share=float(fit_share),
        goal=GOAL,
        goal_met=all(each.goal_met for each in judged),
        fit=fitted.fit,
        rows=fitted.rows,
        rows_far=fitted.far,
        runs=tuple(judged),
        environment=runs[0].environment,
        sentences=sentences(judged, fitted, told),
    )
    return Calibrated(result, tuple(pairs))


def _split(run: Observed, fit_share: float) -> int:
    """Return the first request that is kept back."""
    split = math.ceil(fit_share * len(run))
    if not 0 < split < len(run):
        raise UsageError(
            f"{run.name}: of {len(run):,} requests a share of {fit_share:g} for fitting leaves "
            "nothing to judge"
        )
    return split


def _with_cached(run: Observed) -> Observed:
    """The run with the cached tokens of the simulation, where the engine does not say."""
    if not (run.cached < 0).any():
        return run
    found = np.zeros(len(run), np.int64)
    if run.settings.enable_prefix_caching:
        # Who hits what hardly depends on how long steps take.
        settings = dataclasses.replace(run.settings, name_generated=False)
        cost = linear_cost(1e-2, 1e-4)
        found = simulate(run.trace, settings, cost=cost, concurrency=run.concurrency).hit_tokens
    return dataclasses.replace(run, cached=np.where(run.cached < 0, found, run.cached))


def _source(runs: Sequence[Observed]) -> str:
    """What the coefficients are of, in words."""
    engines = dict.fromkeys(run.engine_name for run in runs if run.engine_name)
    return f"{', '.join(engines) or 'an engine'}; runs {', '.join(run.name for run in runs)}"


def _judge(
    measured: Observed,
    run: Observed,
    fitted: Fitted,
    at: int,
    rows: Rows,
    split: int,
    pairs: list[Pair],
    report: Report | None,
) -> RunCalibration:
    """Simulate a run with the fit and its band; compare the requests from ``split`` on."""
    step_time, overhead = fitted.fit.step_time(), fitted.overhead_s[at]
    middle, low, high = (
        predict(run, step_time, overhead, band, report) for band in ("mid", "low", "high")
    )
    kept = np.arange(split, len(run))
    ttft = error_of(run.ttft_s[kept], *(each.ttft_s[kept] for each in (middle, low, high)))
    tpot = error_of(run.tpot_s[kept], *(each.tpot_s[kept] for each in (middle, low, high)))
    unpredicted = int(np.isnan(middle.ttft_s[kept]).sum())
    pairs.extend(pairs_of(measured, middle, kept))
    return RunCalibration(
        name=run.name,
        workload_digest=run.workload_digest,
        trace_digest=run.trace.digest,
        engine=_engine(run),
        arrivals=(
            "as they were sent"
            if run.concurrency is None
            else f"closed loop, {run.concurrency:,} at a time"
        ),
        requests=len(run),
        fit_requests=split,
        judged_requests=len(run) - split,
        steps_seen=rows.seen,
        steps_left_out=rows.left_out,
        most_together=rows.most_together,
        drift=None,
        request_overhead_s=overhead,
        ttft=ttft,
        tpot=tpot,
        cached=cached_of(measured, middle),
        preemptions=middle.preemptions,
        unpredicted=unpredicted,
        goal_met=is_met(ttft, tpot) and not unpredicted,
        notes=run.notes,
    )


def _engine(run: Observed) -> dict[str, Any]:
    settings = run.settings.summary()
    return {
        "name": run.engine_name or None,
        "block_size": run.trace.block_size,
        **settings,
        "name_generated": False,
        "scheduling_policy": run.order,
    }
