"""A run in the shapes of other load testers, so that their readers read it.

Sources: NVIDIA aiperf, its JSON export schema 1.1; vLLM 0.32.0, `bench serve --save-detailed`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from kvsched.evidence.bench.measured import BenchResult, RequestOutcome
from kvsched.evidence.bench.summary import generated
from kvsched.serve.aiperf import SCHEMA, metric_block
from kvsched.serve.distribution import distribution


def _total(value: float | None, unit: str) -> dict[str, Any] | None:
    return None if value is None else {"unit": unit, "avg": float(value)}


def aiperf_export(result: BenchResult, outcomes: Sequence[RequestOutcome]) -> dict[str, Any]:
    """Return the totals in aiperf's shape; what was not measured is left out. O(R)."""
    done = [one for one in outcomes if one.error is None]
    prompts = np.array([one.prompt_tokens or one.sent_prompt_tokens for one in done], np.float64)
    answers = np.array([generated(one) for one in done], np.float64)
    metrics = {
        "time_to_first_token": metric_block(result.ttft_ms, "ms"),
        "inter_token_latency": metric_block(result.tpot_ms, "ms"),
        "request_latency": metric_block(result.latency_ms, "ms"),
        "input_sequence_length": metric_block(distribution(prompts), "tokens"),
        "output_sequence_length": metric_block(distribution(answers), "tokens"),
        "request_count": _total(result.completed, "requests"),
        "error_request_count": _total(sum(result.errors.values()), "requests"),
        "benchmark_duration": _total(result.duration_s, "sec"),
        "request_throughput": _total(result.request_throughput, "requests/sec"),
        "output_token_throughput": _total(result.output_token_throughput, "tokens/sec"),
        "good_request_count": _total(result.good_requests, "requests"),
        "goodput": _total(result.goodput, "requests/sec"),
    }
    return {
        "schema_version": SCHEMA,
        **{name: block for name, block in metrics.items() if block is not None},
        "was_cancelled": "cancelled" in result.errors,
        "error_summary": [
            {"error_details": {"type": kind, "message": kind}, "count": count}
            for kind, count in result.errors.items()
        ],
        "kvsched": {
            "version": result.kvsched,
            "simulated": False,
            "workload_digest": result.workload_digest,
            "engine": result.engine,
            "config": result.config,
        },
    }


def vllm_export(result: BenchResult, outcomes: Sequence[RequestOutcome]) -> dict[str, Any]:
    """Return the run in the shape of vLLM's own benchmark, times in seconds. O(pieces).

    As there, a failed request has a TTFT of 0 and no gaps.
    """
    done = [one for one in outcomes if one.error is None]

    def ttft(one: RequestOutcome) -> float:
        known = one.error is None and one.first_token_s is not None and one.sent_s is not None
        return (one.first_token_s or 0.0) - (one.sent_s or 0.0) if known else 0.0

    return {
        "duration": result.duration_s,
        "completed": result.completed,
        "failed": result.requests - result.completed,
        "total_input_tokens": sum(one.prompt_tokens or one.sent_prompt_tokens for one in done),
        "total_output_tokens": sum(generated(one) for one in done),
        "request_throughput": result.request_throughput,
        "request_goodput": result.goodput,
        "output_throughput": result.output_token_throughput,
        "input_lens": [one.sent_prompt_tokens for one in outcomes],
        "output_lens": [generated(one) if one.error is None else 0 for one in outcomes],
        "ttfts": [ttft(one) for one in outcomes],
        "itls": [np.diff(one.token_s).tolist() if one.error is None else [] for one in outcomes],
        "start_times": [one.sent_s for one in outcomes],
        "errors": [one.detail or one.error or "" for one in outcomes],
    }
