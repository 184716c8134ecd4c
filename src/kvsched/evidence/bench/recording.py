"""Runs and comparisons as evidence records."""

from __future__ import annotations

from typing import Any

import msgspec

from kvsched.evidence.bench.compare import BenchComparison
from kvsched.evidence.bench.measured import BenchResult
from kvsched.evidence.record import Record
from kvsched.evidence.record_bench import record_of_bench
from kvsched.evidence.record_new import new_record


def record_of_run(result: BenchResult, max_error_share: float) -> Record:
    """Return the record of a run: failed where more than that share of its requests failed.

    Its decision is pending: one setting alone decides nothing.
    """
    found = record_of_bench(result)
    failed = result.requests - result.completed
    if failed > max_error_share * result.requests:
        return msgspec.structs.replace(found, status="failed")
    return found


def record_of_comparison(found: BenchComparison, environment: dict[str, Any]) -> Record:
    """Return the record of a comparison, with its decision; metrics of both sides and changes."""
    metrics: dict[str, float | int | None] = {}
    missing: dict[str, str] = {}
    for change in found.changes:
        key = f"{change.name}_{change.unit}".replace("/", "_per_").replace(" ", "_").lower()
        values = {"a": change.a, "b": change.b, "change": change.difference}
        for side, value in values.items():
            metrics[f"{key}_{side}"] = value
            if value is None:
                missing[f"{key}_{side}"] = "not measured on both sides"
    metrics["overhead"] = found.overhead.value
    if found.overhead.value is None:
        missing["overhead"] = "no TPOT on both sides, or a median of 0"
    return new_record(
        task=found.task,
        name=f"{found.a.name} → {found.b.name}",
        evidence_level="real_benchmark",
        status="ok",
        decision=found.decision,
        reason=found.reason,
        config={
            "a": {**found.a.config, "engine": found.a.engine},
            "b": {**found.b.config, "engine": found.b.engine},
            "rules": msgspec.to_builtins(found.rules),
            "bootstrap": found.bootstrap,
        },
        environment=environment,
        workload_digest=found.workload_digest,
        metrics=metrics,
        missing=missing,
        detail=msgspec.to_builtins(found),
    )
