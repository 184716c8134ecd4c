"""Outcomes and results made up for tests, through the same code as real ones."""

from __future__ import annotations

from typing import Any

import numpy as np

from kvsched.engine.counters import Growth
from kvsched.evidence.bench.compare import Run
from kvsched.evidence.bench.measured import BenchResult, RequestOutcome
from kvsched.evidence.bench.summary import BenchObjective, EngineSaid, numbers

NOTHING_SAID = EngineSaid(None, Growth({}, {"*": "the engine has no metrics"}))


def outcome(
    index: int = 0,
    *,
    ttft_ms: float = 20.0,
    tpot_ms: float = 5.0,
    due_s: float = 0.0,
    lag_ms: float = 0.0,
    tokens: int = 4,
    prompt: int = 64,
    cached: int | None = 0,
    **more: Any,
) -> RequestOutcome:
    sent = due_s + lag_ms / 1e3
    first = sent + ttft_ms / 1e3
    moments = tuple(first + at * tpot_ms / 1e3 for at in range(tokens))
    fields: dict[str, Any] = {
        "index": index,
        "http_status": 200,
        "due_s": due_s,
        "sent_s": sent,
        "first_token_s": first,
        "finished_s": moments[-1],
        "token_s": moments,
        "token_counts": (1,) * tokens,
        "sent_prompt_tokens": prompt,
        "asked_output_tokens": tokens,
        "prompt_tokens": prompt,
        "output_tokens": tokens,
        "cached_tokens": cached,
        "finish_reason": "length",
    }
    return RequestOutcome(**(fields | more))


def failed(index: int, kind: str = "reset", **more: Any) -> RequestOutcome:
    return outcome(
        index,
        error=kind,
        first_token_s=None,
        finished_s=None,
        token_s=(),
        token_counts=(),
        prompt_tokens=None,
        output_tokens=None,
        cached_tokens=None,
        **more,
    )


def result(
    outcomes: list[RequestOutcome],
    *,
    digest: str = "d" * 64,
    task: str = "prefix-cache",
    said: EngineSaid = NOTHING_SAID,
    objective: BenchObjective | None = None,
    **more: Any,
) -> BenchResult:
    found = numbers(outcomes, objective or BenchObjective(), said)
    fields: dict[str, Any] = {
        "task": task,
        "kvsched": "0",
        "name": "made up",
        "started_at": "2026-01-02T03:04:05Z",
        "config": {"concurrency": 1},
        "engine": {"kind": "vllm", "arguments": []},
        "environment": {"machine": "x"},
        "workload": {"source": "shared prefixes", "requests": len(outcomes)},
        "workload_digest": digest,
        **found.values,
        "missing": found.missing,
        "warnings": found.warnings,
    }
    return BenchResult(**(fields | more))


def run(name: str, ttft: Any, tpot: Any = 5.0, cached: Any = 0, **more: Any) -> Run:
    """A run of one request a value of ``ttft`` (ms), one after another."""
    many = np.broadcast_arrays(np.asarray(ttft, float), np.asarray(tpot, float), cached)
    found, due = [], 0.0
    for at, (first, each, hits) in enumerate(zip(*many, strict=True)):
        one = outcome(at, ttft_ms=float(first), tpot_ms=float(each), due_s=due, cached=int(hits))
        assert one.finished_s is not None
        due = one.finished_s
        found.append(one)
    return Run(name, result(found, **more), tuple(found))
