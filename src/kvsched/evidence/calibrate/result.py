"""What a calibration says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from kvsched.serve.distribution import Distribution
from kvsched.serve.fitted import Fit

SCHEMA_VERSION = 1
GOAL = 0.15
"""Relative error of the median of TTFT and of TPOT."""

DEFINITIONS = {
    "TTFT": "from a request's sending to its first token",
    "TPOT": "(last token − first token) / (generated tokens − 1); none for one token",
    "error at p50, p90": "the percentile of the predicted over that of the measured, less 1, both "
    "over the requests kept back",
    "error of a request": "|predicted − measured| / measured of one request; the median of these",
    "band": "predicted with step times of the fit times the 10th and the 90th percentile of "
    "measured over fitted seconds",
    "request overhead": "seconds of a request outside of the engine's steps: connection, parsing, "
    "queues between processes, and the first token's way back",
    "cached tokens": "prompt tokens found in the cache, as the engine's usage has them, against "
    "those of the simulation from an empty cache; over all requests of the run",
}


class Error(msgspec.Struct, frozen=True, kw_only=True):
    """One latency of the requests kept back: measured, predicted, and how far apart. Seconds."""

    measured: Distribution
    predicted: Distribution
    error_p50: float
    """Relative, with its sign: above 0 where the prediction is too long."""
    error_p90: float
    request_error_p50: float
    """Median over requests of the relative error without sign."""
    band_p50: tuple[float, float]
    """The predicted median with the low and the high step time."""
    band_p90: tuple[float, float]


class CachedDifference(msgspec.Struct, frozen=True, kw_only=True):
    """A request of which another number of tokens was cached than predicted."""

    index: int
    """The request's place in the workload, from 0."""
    measured: int
    predicted: int


class CachedAgreement(msgspec.Struct, frozen=True, kw_only=True):
    """Cached tokens, request by request."""

    compared: int
    """Requests of which the engine says how many."""
    different: int
    first: tuple[CachedDifference, ...]
    """The first of them, at most 10."""
    measured_tokens: int
    predicted_tokens: int
    beyond_chance: bool
    """Whether they differ though one request ran at a time, or by a tenth of all tokens."""
    note: str
    """What follows, or why it may differ: a sentence."""


class RunCalibration(msgspec.Struct, frozen=True, kw_only=True):
    """One run: what was used of it, and the simulation of the rest against what was measured."""

    name: str
    workload_digest: str
    trace_digest: str
    """Of the requests as sent, with the moments of sending."""
    engine: dict[str, Any]
    """Kind and version, and its settings as they were simulated."""
    arrivals: str
    """How requests came in the simulation."""
    requests: int
    fit_requests: int
    judged_requests: int
    steps_seen: int
    """Steps that brought tokens before the first request kept back was sent."""
    steps_left_out: int
    """Of these, what cannot be told for certain: a preemption, tokens held up on the way."""
    most_together: int
    """The most requests that got a token in each of several measured steps, over the whole run."""
    drift: float | None
    """Measured over fitted seconds of a step, the median of those after the part for fitting, over
    the median of those in it: 1.2 where steps that compute the same took 20% longer. It tells a
    machine that changed from a model that is wrong. None for few steps."""
    request_overhead_s: float
    ttft: Error | None
    """None where no request kept back has one."""
    tpot: Error | None
    cached: CachedAgreement
    preemptions: int
    """Of the simulation."""
    unpredicted: int
    """Requests kept back that the simulation refuses, as too long for its blocks or its model:
    measured, and without a prediction, so in no error."""
    goal_met: bool
    """Whether both medians are within `GOAL`, and every request kept back has a prediction."""
    notes: tuple[str, ...]


class Calibration(msgspec.Struct, frozen=True, kw_only=True):
    """A step time fitted to runs, and how well it predicts what was kept back of each."""

    schema_version: int = SCHEMA_VERSION
    kvsched: str
    name: str
    """What the user calls it, else the runs' names."""
    fit_share: float
    """Of each run's requests, the first ones."""
    goal: float
    goal_met: bool
    fit: Fit
    rows: int
    """Measured steps of the fit; of several alike in a row the mean is one."""
    rows_far: int
    """Left out because they lie far from all others."""
    runs: tuple[RunCalibration, ...]
    environment: dict[str, Any]
    """The machine, as the first run has it."""
    sentences: tuple[str, ...]
    """What it comes to; the first says whether the goal is met."""
    definitions: dict[str, str] = msgspec.field(default_factory=lambda: dict(DEFINITIONS))


class Pair(msgspec.Struct, frozen=True, kw_only=True):
    """A request kept back: measured and predicted, seconds and tokens. A row of requests.jsonl."""

    run: str
    index: int
    measured_ttft_s: float
    predicted_ttft_s: float
    measured_tpot_s: float | None
    predicted_tpot_s: float | None
    measured_cached_tokens: int | None
    predicted_cached_tokens: int


@dataclass(frozen=True, eq=False)
class Calibrated:
    """The result, and the requests kept back one by one."""

    result: Calibration
    pairs: tuple[Pair, ...]
