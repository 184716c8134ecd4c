"""The same run, simulated with a step time: what each request would have seen."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np

from kvsched.evidence.calibrate.observed import Observed
from kvsched.serve.engine import Report
from kvsched.serve.served import step_cost
from kvsched.serve.simulate import simulate
from kvsched.serve.step_time import Band, StepTime
from kvsched.trace.model import Float64s, Int64s

APART_S = 1e-4
"""A client sends after it has seen an answer's end, so its request misses the step that begins
then. Clients whose answers end in one step send at one moment, and a server's front takes one
request after another: an idle engine begins with the first alone. How long is of no matter, below
a step."""


@dataclass(frozen=True, eq=False)
class Predicted:
    """What the simulation says of each request of a run, (R,) each, NaN where it has none."""

    ttft_s: Float64s
    """With the time outside of steps."""
    tpot_s: Float64s
    cached: Int64s
    preemptions: int


def predict(
    run: Observed,
    step_time: StepTime,
    overhead_s: float,
    band: Band = "mid",
    report: Report | None = None,
) -> Predicted:
    """Simulate a whole run from an empty cache, with the engine's settings.

    In a closed loop a request reaches the engine ``overhead_s`` after one before it has ended, else
    so long after the moment at which it was sent; its first token is so much later than the
    simulation's. What the engine generates is hit by nobody. Costs a simulation.
    """
    settings = dataclasses.replace(run.settings, name_generated=False)
    closed = run.concurrency is not None
    found = simulate(
        run.trace,
        settings,
        cost=step_cost(step_time, band),
        order=run.order,
        concurrency=run.concurrency,
        think_s=overhead_s + APART_S if closed else None,
        apart_s=APART_S if closed else 0.0,
        report=report,
    )
    outputs = run.outputs
    gaps = np.where(outputs > 1, outputs - 1, np.nan)
    return Predicted(
        ttft_s=found.first_token_s - found.arrival_s + overhead_s,
        tpot_s=(found.finished_s - found.first_token_s) / gaps,
        cached=found.hit_tokens,
        preemptions=int(found.preemptions.sum()),
    )
