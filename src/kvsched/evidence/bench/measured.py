"""What a benchmark of an engine measures: each request, and the whole run."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from kvsched.engine.openai_answer import Fault
from kvsched.serve.distribution import Distribution

ErrorKind = Fault
"""Why a request failed."""


class RequestOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one request. Moments are seconds from the run's start, on one clock."""

    index: int
    """The request's place in the workload, from 0."""
    error: ErrorKind | None = None
    detail: str | None = None
    """What the engine or the connection said, one line of at most 300 characters."""
    http_status: int | None = None
    attempts: int = 1
    """Sendings, the first included; more than one where a 429 was answered again."""
    due_s: float
    """When it should have been sent; in a closed loop when its turn had come."""
    sent_s: float | None = None
    """When its bytes were handed to the connection; of the last attempt."""
    first_token_s: float | None = None
    finished_s: float | None = None
    token_s: tuple[float, ...] = ()
    """Moment of each piece of the stream that brought tokens."""
    token_counts: tuple[int, ...] = ()
    """Tokens in each such piece; empty where the engine does not say (pieces are then not
    tokens)."""
    sent_prompt_tokens: int
    asked_output_tokens: int
    prompt_tokens: int | None = None
    """As the engine's `usage` has it, as are the next two; None where it does not say."""
    output_tokens: int | None = None
    cached_tokens: int | None = None
    finish_reason: str | None = None


class HitRate(msgspec.Struct, frozen=True, kw_only=True):
    """Prompt tokens found in the cache over prompt tokens, from two independent sources."""

    usage: float | None
    """Σ cached_tokens / Σ prompt_tokens over requests that ended well and say both."""
    counters: float | None
    """Growth of the engine's hits over growth of its queries, across the measured run."""
    usage_hit_tokens: int | None
    counter_hit_tokens: int | None
    agree: bool | None
    """Whether both count the same hit tokens; None where one of them is missing."""
    note: str
    """Why they differ, or why one is missing: a sentence; empty where they agree."""


class BenchResult(msgspec.Struct, frozen=True, kw_only=True):
    """One measured run of one workload on one engine setting."""

    schema_version: int = 1
    task: Literal["prefix-cache", "scheduler", "replay"]
    kvsched: str
    """The version that measured."""
    name: str
    started_at: str
    """UTC, ISO 8601."""
    config: dict[str, Any]
    """Every setting of the run: load plan, timeouts, warm-up, objective, seed."""
    engine: dict[str, Any]
    """kind, url, model, version, flags where it was launched, what its metrics say of itself."""
    environment: dict[str, Any]
    workload: dict[str, Any]
    """Where the workload came from, its counts, and notes of what was changed."""
    workload_digest: str
    """Of prompts, answers' lengths, arrivals, sessions and the load plan: runs with different ones
    cannot be compared."""
    duration_s: float
    """From the first request due to the last one's end."""
    requests: int
    completed: int
    errors: dict[str, int]
    """Requests that failed, by kind."""
    ttft_ms: Distribution | None
    """From sending to the first token, over completed requests, as all distributions here."""
    tpot_ms: Distribution | None
    """Mean time of a request's output tokens after the first."""
    itl_ms: Distribution | None
    """Every gap between two pieces of a stream, over all completed requests."""
    latency_ms: Distribution | None
    lag_ms: Distribution | None
    """From when a request was due to when it was sent: how far the generator fell behind."""
    p999_ms: dict[str, float | None]
    """The 99.9th percentile of ttft, tpot, itl and latency; None below 1,000 values."""
    request_throughput: float | None
    """Completed requests a second, over duration_s."""
    input_token_throughput: float | None
    output_token_throughput: float | None
    goodput: float | None
    """Requests a second that met the objective; None where there is none."""
    good_requests: int | None
    hit_rate: HitRate
    counters: dict[str, dict[str, float | None]]
    """By the engine's name of each counter: before, after, delta."""
    gauges: dict[str, Distribution | None]
    """Of what was sampled while it ran: requests running and waiting, share of KV in use."""
    fairness: float | None
    """The course's, over waits for the first token."""
    missing: dict[str, str]
    """Why each field that is None was not measured."""
    warnings: tuple[str, ...]
    """What a reader must know: the generator fell behind, the counters were shared, …"""
