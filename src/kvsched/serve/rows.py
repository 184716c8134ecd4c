"""A simulation as tables: a row a request, a row a step."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from kvsched.serve.asked import REASONS
from kvsched.serve.result import Simulation
from kvsched.serve.state import (
    EXPECTED,
    FINISHED,
    LOG_CONTEXT,
    LOG_FREE,
    LOG_PREEMPTED,
    LOG_RUNNING,
    LOG_SECONDS,
    LOG_SEQUENCES,
    LOG_START_S,
    LOG_TOKENS,
    LOG_WAITING,
    REJECTED,
    RUNNING,
    WAITING,
    Float64s,
    Int32s,
)
from kvsched.serve.summary import Objective, meets
from kvsched.trace.model import UNKNOWN, Labels

STATUS = {
    EXPECTED: "not arrived",
    WAITING: "waiting",
    RUNNING: "running",
    FINISHED: "finished",
    REJECTED: "rejected",
}

Table = dict[str, list[Any]]
"""Columns of equal length by name; None where there is no value."""

_STEP_COLUMNS = {
    "start_s": LOG_START_S,
    "seconds": LOG_SECONDS,
    "tokens": LOG_TOKENS,
    "requests": LOG_SEQUENCES,
    "context_tokens": LOG_CONTEXT,
    "running": LOG_RUNNING,
    "waiting": LOG_WAITING,
    "free_blocks": LOG_FREE,
    "preempted": LOG_PREEMPTED,
}


def _moments(column: Float64s) -> list[float | None]:
    return [None if math.isnan(value) else value for value in column.tolist()]


def _names(labels: Labels) -> list[str | None]:
    return [None if code == UNKNOWN else labels.names[code] for code in labels.codes.tolist()]


def request_table(found: Simulation, objective: Objective | None = None) -> Table:
    """Return a row a request, in the trace's order. O(R).

    Moments are seconds from the first arrival; ``generated_tokens`` is what was generated until
    the end. With an objective ``good`` says who met it, with admission ``rejected_s`` when a
    request was rejected and ``degraded`` who was not stored, with several engines ``replica``
    whose it was.
    """
    reasons = {**REASONS, 0: None}
    table: Table = {
        "request": list(range(len(found.status))),
        "arrival_s": _moments(found.arrival_s),
        "input_tokens": found.trace.input_tokens.tolist(),
        "output_tokens": found.trace.output_tokens.tolist(),
        "status": [STATUS[code] for code in found.status.tolist()],
        "reason": [reasons[code] for code in found.reason.tolist()],
        "scheduled_s": _moments(found.scheduled_s),
        "first_token_s": _moments(found.first_token_s),
        "finished_s": _moments(found.finished_s),
        "queue_wait_s": _moments(found.queued_s),
        "ttft_s": _moments(found.ttft_s),
        "tpot_s": _moments(found.tpot_s),
        "latency_s": _moments(found.latency_s),
        "hit_tokens": found.hit_tokens.tolist(),
        "generated_tokens": found.generated_tokens.tolist(),
        "preemptions": found.preemptions.tolist(),
    }
    for name in ("session", "tenant"):
        labels = getattr(found.trace, name)
        if labels is not None:
            table[name] = _names(labels)
    if found.gate is not None:
        table["rejected_s"] = _moments(found.rejected_s)
        table["degraded"] = found.degraded.tolist()
    if found.replica is not None:
        table["replica"] = [None if each < 0 else each for each in found.replica.tolist()]
    if objective is not None and objective.asked:
        table["good"] = meets(found, objective).tolist()
    return table


def step_table(log: Float64s, replica: Int32s | None = None) -> Table:
    """Return a row a step from a step log (steps, LOG_COLUMNS), in order. O(steps).

    ``tokens`` are those computed, of ``requests``; ``context_tokens`` what those requests hold
    after it; the others are as the step began, after its admissions. All are of one engine: with
    several ``replica`` (steps,) says of which.
    """
    table: Table = {"step": list(range(len(log)))}
    for name, at in _STEP_COLUMNS.items():
        column = log[:, at]
        seconds = name in ("start_s", "seconds")
        table[name] = (column if seconds else column.astype(np.int64)).tolist()
    if replica is not None:
        table["replica"] = replica.tolist()
    return table
