"""Runs whose truth is known: made by the simulation, with noise, as a benchmark would see them."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import msgspec
import numpy as np

from kvsched.evidence.bench.measured import RequestOutcome
from kvsched.evidence.calibrate.observed import Observed, observe
from kvsched.serve.fitted import Coefficients, Fit, FittedFrom, Residuals
from kvsched.serve.served import step_cost
from kvsched.serve.settings import Settings
from kvsched.serve.simulate import simulate
from kvsched.serve.state import LOG_SECONDS, LOG_START_S
from kvsched.trace.build import build_trace
from kvsched.trace.model import Float64s, Origin, Trace

TRUTH = Coefficients(
    step_s=8e-3, token_s=2.4e-4, sequence_s=2e-4, decode_read_s=1.5e-6, prefill_pair_s=9e-8
)
OVERHEAD_S = 3e-3
SETTINGS = Settings(num_gpu_blocks=2000, max_num_seqs=128, max_num_batched_tokens=2048)
BLOCK = 32


def fit_of(coefficients: Coefficients) -> Fit:
    left = Residuals(ratio_p10=1.0, ratio_p50=1.0, ratio_p90=1.0, error_p50=0.0, error_p90=0.0)
    return Fit(
        kind="fitted",
        unit="seconds",
        coefficients=coefficients,
        residuals=left,
        fitted_from=FittedFrom(steps=0),
    )


def shared_prefixes(requests: int, seed: int, groups: int = 4, prefix: int = 8) -> Trace:
    """Prompts of a shared head of ``prefix`` blocks and a tail of their own; answers differ."""
    random = np.random.default_rng(seed)
    group = random.integers(groups, size=requests)
    tails = random.integers(1, 600, size=requests)
    keys: list[int] = []
    starts = [0]
    for at in range(requests):
        own = 1000 * (at + 1)
        keys += [100 * int(group[at]) + place for place in range(prefix)]
        keys += [own + place for place in range(int(tails[at]) // BLOCK)]
        starts.append(len(keys))
    return build_trace(
        time_s=np.zeros(requests),
        input_tokens=prefix * BLOCK + tails,
        output_tokens=random.integers(2, 40, size=requests),
        starts=np.array(starts, np.int64),
        keys=np.array(keys, np.int64),
        block_size=BLOCK,
        origin=Origin(source="synthetic", format="bench", time_unit="s"),
    )


def measured(
    trace: Trace,
    settings: Settings = SETTINGS,
    *,
    coefficients: Coefficients = TRUTH,
    concurrency: int | None = 4,
    overhead_s: float = OVERHEAD_S,
    noise: float = 0.05,
    late_s: float = 2e-4,
    seed: int = 0,
) -> list[RequestOutcome]:
    """What a client would measure of an engine with these coefficients.

    Every step takes ``noise`` (a standard deviation) more or less, and every token comes up to
    ``late_s`` after its step.
    """
    random = np.random.default_rng(seed)
    told = dataclasses.replace(settings, name_generated=False)
    more = {} if concurrency is None else {"concurrency": concurrency, "think_s": overhead_s}
    found = simulate(
        trace, told, cost=step_cost(fit_of(coefficients).step_time()), step_log=True, **more
    )
    assert found.step_log is not None
    assert not found.preemptions.any()
    start, seconds = found.step_log[:, LOG_START_S], found.step_log[:, LOG_SECONDS]
    ends = start + seconds
    longer = np.exp(noise * random.standard_normal(len(seconds)))
    clock = _clock(start, ends, longer)
    outcomes = []
    for at in range(len(trace)):
        mine = ends[(ends >= found.first_token_s[at]) & (ends <= found.finished_s[at])]
        assert len(mine) == trace.output_tokens[at]
        # Who waits for an answer sends when its last token has come.
        sent = clock(found.arrival_s[at]) - overhead_s + late_s
        moments = np.maximum.accumulate(clock(mine) + late_s * random.random(len(mine)))
        outcomes.append(
            RequestOutcome(
                index=at,
                due_s=float(sent) + 1.0,
                sent_s=float(sent) + 1.0,
                first_token_s=float(moments[0]) + 1.0,
                finished_s=float(moments[-1]) + 1.0,
                token_s=tuple((moments + 1.0).tolist()),
                token_counts=(1,) * len(moments),
                sent_prompt_tokens=int(trace.input_tokens[at]),
                asked_output_tokens=len(moments),
                prompt_tokens=int(trace.input_tokens[at]),
                output_tokens=len(moments),
                cached_tokens=int(found.hit_tokens[at]),
                finish_reason="length",
            )
        )
    return outcomes


def _clock(start: Float64s, ends: Float64s, longer: Float64s):  # type: ignore[no-untyped-def]
    """The clock on which each step takes so many times as long; time between steps stays."""
    knots = np.stack([start, ends], axis=1).ravel()
    spans = np.zeros(len(knots))
    spans[1:] = np.diff(knots)
    spans[1::2] *= longer
    warped = knots[0] + np.cumsum(spans)
    return lambda moments: np.interp(moments, knots, warped)


def run_of(
    trace: Trace, outcomes: list[RequestOutcome], settings: Settings = SETTINGS, **more: object
) -> Observed:
    concurrency = more.pop("concurrency", 4)
    name = str(more.pop("name", f"c{concurrency}"))
    return observe(name, trace, outcomes, settings, concurrency=concurrency)  # type: ignore[arg-type]


def made(concurrency: int = 4, requests: int = 120, **more: object) -> Observed:
    """A run in a closed loop."""
    trace = shared_prefixes(requests, seed=concurrency)
    outcomes = measured(trace, concurrency=concurrency, seed=concurrency, **more)  # type: ignore[arg-type]
    return run_of(trace, outcomes, concurrency=concurrency)


def write_outcomes(path: Path, outcomes: list[RequestOutcome]) -> None:
    path.write_bytes(b"".join(msgspec.json.encode(each) + b"\n" for each in outcomes))
