"""Counters, under vLLM's Prometheus names where they mean the same.

In vLLM 0.32.0 (``v1/core/sched/scheduler.py``, ``v1/metrics``) a request's prompt tokens are
queries, once, when it is scheduled and has its blocks; those found are hits; what the first tier
has not is asked of the second. So here: requests that wait or are rejected count nothing, nor does
looking. One that runs degraded counts whole. vLLM itself asks for one token less than the prompt
has, so that a prompt which is cached whole hits a block less there. It counts a preempted request
anew in other statistics; here one that comes again is another request.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields

from kvsched.foundation.errors import UsageError

_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")


@dataclass(slots=True)
class Counters:
    """What was counted since the cache was made; restored with it."""

    prefix_cache_queries: int = 0
    """Prompt tokens of requests that were looked up and ran."""
    prefix_cache_hits: int = 0
    """Of these, tokens found in the first tier."""
    external_prefix_cache_queries: int = 0
    """Prompt tokens that the first tier did not have, where there is a second."""
    external_prefix_cache_hits: int = 0
    """Of these, tokens found in the second tier."""
    prompt_tokens: int = 0
    prompt_tokens_cached: int = 0
    generation_tokens: int = 0
    """Tokens that `extend` added."""
    admitted: int = 0
    degraded: int = 0
    queued: int = 0
    """Requests that took a place in the waiting list; the turn of some came at once."""
    rejected: int = 0
    released: int = 0
    failed: int = 0
    """Of the released, those that ended in failure."""
    blocks_stored: int = 0
    blocks_evicted: int = 0
    blocks_expired: int = 0
    blocks_dropped: int = 0
    """Blocks that left since nobody had computed them."""
    offloads: int = 0
    loads: int = 0


_VLLM = {
    "prefix_cache_queries": "vllm:prefix_cache_queries_total",
    "prefix_cache_hits": "vllm:prefix_cache_hits_total",
    "external_prefix_cache_queries": "vllm:external_prefix_cache_queries_total",
    "external_prefix_cache_hits": "vllm:external_prefix_cache_hits_total",
    "prompt_tokens": "vllm:prompt_tokens_total",
    "prompt_tokens_cached": "vllm:prompt_tokens_cached_total",
    "generation_tokens": "vllm:generation_tokens_total",
}


def metric_names() -> dict[str, str]:
    """Return the exported name of each counter."""
    return {
        field.name: _VLLM.get(field.name, f"kvsched:{field.name}_total")
        for field in fields(Counters)
    }


def exported(counters: Counters, gauges: dict[str, float]) -> dict[str, float]:
    """Return every metric by its exported name."""
    found: dict[str, float] = {
        name: getattr(counters, field) for field, name in metric_names().items()
    }
    return found | gauges


def exposition(metrics: dict[str, float], labels: dict[str, str]) -> str:
    """Return metrics in Prometheus's text format, each with its type.

    Raises UsageError for a name or a value of a label that the format has not.
    """
    for name, value in labels.items():
        if not _LABEL.fullmatch(name) or name.startswith("__"):
            raise UsageError(f"Prometheus has no label {name!r}: letters, digits and _ alone")
        if any("\ud800" <= letter <= "\udfff" for letter in value):
            raise UsageError(f"label {name} is no text: {value!r}")
    inner = ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items())
    marked = f"{{{inner}}}" if inner else ""
    lines = []
    for name, value in metrics.items():
        kind = "counter" if name.endswith("_total") else "gauge"
        lines.append(f"# TYPE {name} {kind}")
        lines.append(f"{name}{marked} {value:.17g}")
    return "\n".join(lines) + "\n"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
