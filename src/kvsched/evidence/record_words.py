"""A record in a few words: its settings in brief, the metrics that matter most, its filters."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator
from typing import Any

from kvsched.evidence.record import Record
from kvsched.evidence.record_check import moment
from kvsched.foundation.errors import UsageError

KEY_METRICS = (
    "hit_rate_usage",
    "hit_rate_counters",
    "ttft_ms_p50",
    "ttft_ms_p99",
    "tpot_ms_p50",
    "output_token_throughput",
    "request_throughput",
    "goodput",
    "fairness",
    "bytes_per_block_measured",
    "bytes_per_block_theoretical",
    "deviation_share",
    "allocation_ms",
    "peak_memory_mb",
    "largest_blocks",
    "block_count",
)
"""Named first, in this order, where a record has them."""
SHOWN = 4
"""Metrics and settings of a line."""
LONGEST = 32
"""A longer value of a setting is cut here."""
_AGO = re.compile(r"(\d{1,6})([smhdw])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


def flat(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield what is nested in dicts by names with dots; lists and empty dicts are values."""
    if isinstance(value, dict) and value:
        for key in sorted(value):
            yield from flat(value[key], f"{name}.{key}" if name else key)
    elif name:
        yield name, value


def setting(value: Any) -> str:
    """Return a setting's value as short text."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        text = (
            "×".join(setting(each) for each in value)
            if len(value) <= SHOWN
            else f"{len(value)} values"
        )
    else:
        text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def brief_config(record: Record) -> str:
    """Return the record's first settings that have a value: ``dtype=float16, blocks=64``."""
    known = [(name, value) for name, value in flat(record.config) if value not in (None, {}, [])]
    more = f", and {len(known) - SHOWN} more" if len(known) > SHOWN else ""
    return ", ".join(f"{name}={setting(value)}" for name, value in known[:SHOWN]) + more


def key_metrics(record: Record) -> list[tuple[str, float | int]]:
    """Return up to four metrics that were measured: those named in `KEY_METRICS`, else any."""
    names = [name for name in KEY_METRICS if name in record.metrics]
    names += sorted(set(record.metrics) - set(names))
    values = ((name, record.metrics[name]) for name in names)
    return [(name, value) for name, value in values if value is not None][:SHOWN]


def number(value: float | int | None) -> str:
    """Return a metric's value; a dash where it was not measured."""
    if value is None:
        return "–"
    if isinstance(value, int):
        return f"{value:,}"
    if value.is_integer() and abs(value) < 1e15:
        return f"{value:,.0f}"
    return f"{value:,.1f}" if 1000 <= abs(value) < 1e15 else f"{value:.4g}"


def since_moment(text: str, now: datetime.datetime | None = None) -> str:
    """Return the moment that ``--since`` names, as records have it.

    A date or a moment in ISO 8601 (UTC where it has no zone), or how long ago: ``36h``, ``7d``
    (s, m, h, d, w). Raises UsageError.
    """
    ago = _AGO.fullmatch(text.strip())
    try:
        if ago:
            span = datetime.timedelta(seconds=int(ago[1]) * _SECONDS[ago[2]])
            return moment((now or datetime.datetime.now(datetime.UTC)) - span)
        found = datetime.datetime.fromisoformat(text.strip())
        if found.tzinfo is None:
            found = found.replace(tzinfo=datetime.UTC)
        return moment(found)
    except (ValueError, OverflowError):
        fault = "must be a date or moment, as in 2026-01-31, or how long ago, as in 7d"
        raise UsageError(f"--since {text}: {fault}") from None
