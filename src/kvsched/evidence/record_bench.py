"""A benchmark's run as an evidence record."""

from __future__ import annotations

from typing import Any

import msgspec

from kvsched.evidence.bench.measured import BenchResult
from kvsched.evidence.record import Record
from kvsched.evidence.record_check import record_of
from kvsched.evidence.record_new import new_record

_PERCENTILES = ("mean", "p50", "p90", "p95", "p99")
_LATENCIES = ("ttft_ms", "tpot_ms", "itl_ms", "latency_ms", "lag_ms")
_RATES = (
    "request_throughput",
    "input_token_throughput",
    "output_token_throughput",
    "goodput",
    "good_requests",
    "fairness",
)


def record_of_bench(
    result: BenchResult,
    *,
    decision: str = "pending",
    reason: str = "",
    detail: dict[str, Any] | None = None,
) -> Record:
    """Return the record of a benchmark's run, not yet sealed.

    Metrics have flat names: ``ttft_ms_p50``, ``hit_rate_usage``, ``errors_timeout``, … Its moment
    is now: when the run began is in ``detail``, which is the whole result. Without one completed
    request, and where the run was interrupted, its status is failed.
    """
    metrics, missing = bench_metrics(result)
    failed = result.requests - result.completed
    cancelled = result.errors.get("cancelled", 0)
    ok = result.completed > 0 and not cancelled
    said = reason or (f"{failed:,} of {result.requests:,} requests failed" if failed else "")
    if cancelled and not reason:
        said += f", {cancelled:,} of them as the run was interrupted"
    return record_of(
        msgspec.structs.asdict(
            new_record(
                task=result.task,
                name=result.name,
                evidence_level="real_benchmark",
                status="ok" if ok else "failed",
                reason=said,
                config={**result.config, "engine": result.engine},
                environment=result.environment,
                workload_digest=result.workload_digest,
                metrics=metrics,
                missing=missing,
                detail=msgspec.to_builtins(result) if detail is None else detail,
            )
        )
        | {"decision": decision}
    )


def bench_metrics(result: BenchResult) -> tuple[dict[str, float | int | None], dict[str, str]]:
    """Return a run's metrics by flat name, and why each that is None was not measured.

    ``ttft_ms_p50`` and the like, rates, ``hit_rate_usage`` and ``hit_rate_counters`` with their
    tokens, ``errors_KIND``, and a mean of each gauge.
    """
    metrics: dict[str, float | int | None] = {
        "duration_s": result.duration_s,
        "requests": result.requests,
        "completed": result.completed,
    }
    metrics |= {f"errors_{kind}": count for kind, count in sorted(result.errors.items())}
    missing: dict[str, str] = {}

    def put(name: str, value: float | int | None, reason: str | None) -> None:
        metrics[name] = value
        if value is None:
            missing[name] = reason or "the result does not say why"

    for name in _LATENCIES:
        found = getattr(result, name)
        why = result.missing.get(name)
        for part in _PERCENTILES:
            put(f"{name}_{part}", None if found is None else getattr(found, part), why)
        if name.removesuffix("_ms") in result.p999_ms or name in result.p999_ms:
            value = result.p999_ms.get(name, result.p999_ms.get(name.removesuffix("_ms")))
            put(f"{name}_p999", value, result.missing.get("p999_ms") or why or "below 1,000 values")
    for name, found in sorted(result.gauges.items()):
        why = result.missing.get(f"gauges.{name}") or result.missing.get("gauges")
        put(f"{name}_mean", None if found is None else found.mean, why)
    for name in _RATES:
        put(name, getattr(result, name), result.missing.get(name))
    hits = result.hit_rate
    why = result.missing.get("hit_rate") or hits.note
    put("hit_rate_usage", hits.usage, result.missing.get("hit_rate.usage") or why)
    put("hit_rate_counters", hits.counters, result.missing.get("hit_rate.counters") or why)
    put("hit_tokens_usage", hits.usage_hit_tokens, why)
    put("hit_tokens_counters", hits.counter_hit_tokens, why)
    return metrics, missing
