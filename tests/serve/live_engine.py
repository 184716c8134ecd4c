"""Ours, over what a running vLLM was recorded with."""

from __future__ import annotations

import itertools
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import recorded_steps
import serve_workload
from chat_workload import RUNS, SENT, Run, named
from serve_workload import Asked, Work

from kvsched.serve.cost import StepCost
from kvsched.serve.result import Simulation
from kvsched.serve.simulate import simulate

FOLDER = Path(os.environ.get("KVSCHED_LIVE", recorded_steps.FOLDER)).resolve()
"""Where the recordings are; those that have just been made may be judged instead."""
WHICH = {run.name: run for run in (*RUNS, SENT)}


def rows(name: str) -> list[dict[str, Any]]:
    """Return the runs of a recording."""
    return recorded_steps.read(str(FOLDER / name))


@dataclass(frozen=True)
class Recorded:
    """A recorded run, its requests in the order in which the scheduler got them."""

    row: dict[str, Any]
    run: Run
    order: list[int]
    work: Work

    @property
    def cached(self) -> np.ndarray[Any, Any]:
        """(R,) prompt tokens that vLLM said it had found, in the work's order."""
        return np.array(self.row["cached_tokens"], np.int64)[self.order]


def recorded(row: dict[str, Any]) -> Recorded:
    """Return a run as it was recorded: each request arrives at the step that first saw it."""
    run = WHICH[row["run"]]
    assert row["settings"] == asdict(run.settings)
    requests = named(run.turns(), run.settings.block_size)
    order: list[int] = row["arrived"]
    assert sorted(order) == list(range(len(requests)))
    steps = itertools.accumulate(row["gaps"])
    asked = [Asked(step, 0, requests[at]) for at, step in zip(order, steps, strict=True)]
    return Recorded(row, run, order, Work(run.name, run.settings, asked))


def one_second_a_step() -> StepCost:
    return StepCost(
        recorded_steps.ONE_SECOND_A_STEP.coefficients,
        hooks={"idle_seconds": recorded_steps.one_second},
    )


def ours(found: Recorded, concurrency: int | None, **more: Any) -> Simulation:
    """Serve the run; with a concurrency whoever comes next does so when one has ended."""
    return simulate(
        recorded_steps.trace_of(found.work),
        recorded_steps.settings_of(found.work),
        cost=one_second_a_step(),
        concurrency=concurrency,
        compiled=False,
        **more,
    )


def mismatches(found: Recorded, simulation: Simulation) -> list[tuple[int, int, int]]:
    """Return (request, vLLM's cached tokens, ours) of each request that differs."""
    return [
        (found.order[at], int(its), int(mine))
        for at, (its, mine) in enumerate(zip(found.cached, simulation.hit_tokens, strict=True))
        if its != mine
    ]


def steps_differ(found: Recorded, **broken: Any) -> int | None:
    """Return where our steps first differ from the engine's, or None."""
    lines = recorded_steps.lines(found.work, False, found.row["steps"], **broken)
    mine = serve_workload.digests(lines)
    return serve_workload.first_difference(mine, found.row["digests"])


def hits(found: Recorded, **broken: Any) -> np.ndarray[Any, Any]:
    """Return (R,) tokens hit at first admission, under rules of which some may be broken."""
    engine = recorded_steps.Ours(found.work, False, **broken)
    for _ in itertools.islice(engine.run(), 2 * found.row["steps"]):
        pass
    return engine.state.progress.first_hit
