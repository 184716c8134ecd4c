"""The JSON Schemas of a study's files, by the name under which each is published."""

from __future__ import annotations

from typing import Any

from kvsched.foundation.schema import described_schema
from kvsched.serve.distribution import Distribution
from kvsched.serve.fairness import Fairness
from kvsched.serve.find_rate import RateResult
from kvsched.serve.fitted import fit_schema
from kvsched.serve.overload import Overload
from kvsched.serve.points import Figures
from kvsched.serve.served import ServeResult
from kvsched.serve.summary import Summary
from kvsched.serve.sweep import SweepResult
from kvsched.serve.timeline import Timeline
from kvsched.study.compare import Comparison
from kvsched.study.experiment import experiment_schema
from kvsched.study.result import StudyResult
from kvsched.study.worth import Worth


def result_schema() -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of a `StudyResult`."""
    return described_schema(StudyResult, Worth)


def schemas() -> dict[str, dict[str, Any]]:
    """Return every schema by the file in `docs/` that publishes it."""
    return {
        "result.schema.json": result_schema(),
        "comparison.schema.json": described_schema(Comparison),
        "experiment.schema.json": experiment_schema(),
        "step-time.schema.json": fit_schema(),
        "simulation.schema.json": described_schema(
            ServeResult, Summary, Distribution, Timeline, Fairness, Overload
        ),
        "sweep.schema.json": described_schema(SweepResult, ServeResult, Figures),
        "rate.schema.json": described_schema(RateResult, ServeResult, Figures),
    }
