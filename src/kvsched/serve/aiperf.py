"""The totals in the shape of aiperf's `profile_export_aiperf.json`, so that its readers read them.

Source of names and units: NVIDIA aiperf, its JSON export schema 1.1 and metrics reference. As
there: metrics of requests are over those that finished, times in ms; a total or a rate has its
unit and ``avg`` alone; what is not measured (the time to the second token) is left out, as are
wall-clock times.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kvsched.serve.distribution import PERCENTILES, Distribution, distribution
from kvsched.serve.result import Simulation
from kvsched.serve.served import Served
from kvsched.serve.state import Float64s

SCHEMA = "1.1"


def metric_block(found: Distribution | None, unit: str) -> dict[str, Any] | None:
    """Return the block of a metric of requests, in aiperf's shape; None for none."""
    if found is None:
        return None
    block: dict[str, Any] = {"unit": unit, "avg": found.mean}
    block |= {f"p{at}": getattr(found, f"p{at}") for at in PERCENTILES}
    block |= {"min": found.min, "max": found.max}
    if found.std is not None:
        block["std"] = found.std
    return block | {"count": found.count, "sum": found.sum}


def _record(values: Float64s, unit: str) -> dict[str, Any] | None:
    return metric_block(distribution(values), unit)


def _total(value: float, unit: str) -> dict[str, Any]:
    return {"unit": unit, "avg": float(value)}


def _records(found: Simulation) -> dict[str, dict[str, Any] | None]:
    done = found.finished
    between = found.tpot_s[done]
    pace = np.full(len(between), np.nan)
    np.divide(1.0, between, out=pace, where=between > 0)
    return {
        "time_to_first_token": _record(1e3 * found.ttft_s[done], "ms"),
        "request_latency": _record(1e3 * found.latency_s[done], "ms"),
        "inter_token_latency": _record(1e3 * between, "ms"),
        "output_token_throughput_per_user": _record(pace, "tokens/sec/user"),
        "output_sequence_length": _record(_whole(found.generated_tokens[done]), "tokens"),
        "input_sequence_length": _record(_whole(found.trace.input_tokens[done]), "tokens"),
    }


def _whole(values: Any) -> Float64s:
    found: Float64s = np.asarray(values, np.float64)
    return found


def aiperf_export(served: Served) -> dict[str, Any]:
    """Return the totals of a run in aiperf's shape, with what it was made from under `kvsched`."""
    found, result = served.simulation, served.result
    summary = result.summary
    done = found.finished
    metrics = _records(found)
    metrics["request_count"] = _total(summary.finished, "requests")
    metrics["error_request_count"] = _total(summary.requests - summary.finished, "requests")
    metrics["benchmark_duration"] = _total(summary.duration_s, "sec")
    metrics["total_isl"] = _total(found.trace.input_tokens[done].sum(), "tokens")
    metrics["total_osl"] = _total(found.generated_tokens[done].sum(), "tokens")
    rates = summary.throughput
    if rates is not None:
        metrics["request_throughput"] = _total(rates.requests_s, "requests/sec")
        metrics["output_token_throughput"] = _total(rates.output_tokens_s, "tokens/sec")
    if summary.goodput is not None:
        metrics["good_request_count"] = _total(summary.goodput.requests, "requests")
        metrics["goodput"] = _total(summary.goodput.requests_s, "requests/sec")
    errors = {**summary.rejected_because, **summary.unfinished_as}
    return {
        "schema_version": SCHEMA,
        **{name: block for name, block in metrics.items() if block is not None},
        "was_cancelled": False,
        "error_summary": [
            {"error_details": {"type": "not finished", "message": why}, "count": count}
            for why, count in errors.items()
        ],
        "kvsched": {
            "version": result.kvsched,
            "simulated": True,
            "trace": result.trace["source"],
            "trace_digest": result.trace["digest"],
            "step_time": result.step_time.kind,
            "config": result.config,
        },
    }
