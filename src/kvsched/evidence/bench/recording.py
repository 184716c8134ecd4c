"""Runs and comparisons as evidence records."""

from __future__ import annotations

from typing import Any

import msgspec

from kvsched.evidence.bench.compare import BenchComparison
from kvsched.evidence.bench.measured import BenchResult
from kvsched.serve.distribution import Distribution

_PARTS = ("mean", "p50", "p90", "p99")


def run_metrics(result: BenchResult) -> dict[str, float | int | None]:
    """Return a run's numbers by name, the unit in it; None where not measured."""
    found: dict[str, float | int | None] = {
        "requests": result.requests,
        "completed": result.completed,
        "duration_s": result.duration_s,
    }
    for name in ("ttft_ms", "tpot_ms", "itl_ms", "latency_ms", "lag_ms"):
        value: Distribution | None = getattr(result, name)
        for part in _PARTS:
            key = f"{name.removesuffix('_ms')}_{part}_ms"
            found[key] = None if value is None else getattr(value, part)
    found |= {f"{name}_p999_ms": value for name, value in result.p999_ms.items()}
    return found | {
        "requests_per_s": result.request_throughput,
        "input_tokens_per_s": result.input_token_throughput,
        "output_tokens_per_s": result.output_token_throughput,
        "goodput_per_s": result.goodput,
        "hit_rate_usage": result.hit_rate.usage,
        "hit_rate_counters": result.hit_rate.counters,
        "fairness": result.fairness,
        **{
            f"{name}_mean": None if value is None else value.mean
            for name, value in result.gauges.items()
        },
    }


_WHY = {
    "requests_per_s": "request_throughput",
    "input_tokens_per_s": "input_token_throughput",
    "output_tokens_per_s": "output_token_throughput",
    "goodput_per_s": "goodput",
}


def _missing(result: BenchResult, metrics: dict[str, float | int | None]) -> dict[str, str]:
    """Why each metric that is None is."""
    found = {}
    for name, value in metrics.items():
        if value is not None:
            continue
        bare = name.removesuffix("_ms")
        head = bare.rpartition("_")[0]
        candidates = (
            _WHY.get(name, name),
            f"{head}_ms",
            f"p999_ms.{head}",
            f"gauges.{head}",
            "hit_rate" if name.startswith("hit_rate") else "",
        )
        said = [result.missing[each] for each in candidates if each in result.missing]
        found[name] = said[0] if said else (result.hit_rate.note or "not measured")
    return found


def run_fields(result: BenchResult, max_error_share: float) -> dict[str, Any]:
    """Return what `new_record` takes of a run."""
    metrics = run_metrics(result)
    failed = result.requests - result.completed
    ok = failed <= max_error_share * result.requests
    return {
        "task": result.task,
        "name": result.name,
        "evidence_level": "real_benchmark",
        "status": "ok" if ok else "failed",
        "decision": "pending",
        "reason": "one setting alone decides nothing"
        if ok
        else f"{failed:,} of {result.requests:,} requests failed",
        "config": {**result.config, "engine": result.engine},
        "environment": result.environment,
        "workload_digest": result.workload_digest,
        "metrics": metrics,
        "missing": _missing(result, metrics),
        "detail": msgspec.to_builtins(result),
    }


def comparison_fields(found: BenchComparison, environment: dict[str, Any]) -> dict[str, Any]:
    """Return what `new_record` takes of a comparison."""
    metrics: dict[str, float | int | None] = {}
    missing: dict[str, str] = {}
    for change in found.changes:
        key = f"{change.name}_{change.unit}".replace(" ", "_").replace("/", "_per_").lower()
        metrics |= {f"{key}_a": change.a, f"{key}_b": change.b, f"{key}_change": change.difference}
        missing |= {
            name: "not measured on that side"
            for name in (f"{key}_a", f"{key}_b", f"{key}_change")
            if metrics[name] is None
        }
    metrics["overhead"] = found.overhead.value
    if found.overhead.value is None:
        missing["overhead"] = "no TPOT on both sides, or a median of 0"
    return {
        "task": found.task,
        "name": f"{found.a.name} → {found.b.name}",
        "evidence_level": "real_benchmark",
        "status": "ok",
        "decision": found.decision,
        "reason": found.reason,
        "config": {
            "a": {**found.a.config, "engine": found.a.engine},
            "b": {**found.b.config, "engine": found.b.engine},
            "rules": msgspec.to_builtins(found.rules),
            "bootstrap": found.bootstrap,
        },
        "environment": environment,
        "workload_digest": found.workload_digest,
        "metrics": metrics,
        "missing": missing,
        "detail": msgspec.to_builtins(found),
    }
