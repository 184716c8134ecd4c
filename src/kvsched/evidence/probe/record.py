"""A probe's report as a record."""

from __future__ import annotations

from typing import Any

import msgspec

from kvsched.evidence.probe.decide import middle
from kvsched.evidence.probe.report import ProbeReport
from kvsched.evidence.record import Record

ACCOUNTS = (
    "requested_bytes",
    "allocated_bytes",
    "reserved_bytes",
    "driver_bytes",
    "peak_allocated_bytes",
    "peak_reserved_bytes",
    "peak_driver_bytes",
)


def record_of(report: ProbeReport, name: str = "") -> Record:
    """Return the probe as a new record, not yet sealed: metrics by name, and why some are None."""
    from kvsched.evidence.record_new import new_record

    metrics, missing = probe_metrics(report)
    runtime = {"runtime": report.runtime, "kvsched": report.kvsched}
    return new_record(
        task=report.task,
        name=name,
        evidence_level=report.evidence_level,
        status=report.status,
        decision=report.decision.decision,
        reason=report.decision.reason,
        config=report.config,
        environment={**report.environment, **runtime},
        metrics=metrics,
        missing=missing,
        detail=msgspec.to_builtins(report),
    )


def probe_metrics(report: ProbeReport) -> tuple[dict[str, float | int | None], dict[str, str]]:
    """The report's figures by name, medians over the runs; and why each that is None is."""
    runs = report.runs
    found: dict[str, float | int | None] = {
        "bytes_per_block_theoretical": report.config["bytes_per_block_theoretical"],
        "bytes_per_block_measured": report.decision.measured_bytes_per_block,
        "deviation_share": report.decision.deviation,
        "overhead_share": report.decision.overhead_share,
        "overhead_bytes": report.overhead_bytes,
        "overhead_bytes_per_block": report.overhead_bytes_per_block,
        "allocation_ms": _median(run.allocation_ms for run in runs),
        "warm_allocation_ms": _median(run.warm_allocation_ms for run in runs),
        "driver_ms": _median(run.driver_ms for run in runs),
        "peak_memory_mb": _median(run.peak_memory_mb for run in runs),
    }
    for account in ACCOUNTS:
        found[account] = middle(getattr(run.accounts, account) for run in runs)
    pooled, fit = report.pooled, report.fit
    found["pooled_saved_bytes"] = None if pooled is None else pooled.saved_bytes
    found["largest_blocks"] = None if fit is None else fit.largest_blocks
    for each in report.fragmentation:
        label = f"{each.pattern.replace('-', '_')}_{each.factor}x"
        found[f"fits_share_{label}"] = (
            None if each.fits is None or not each.ideal else each.fits / each.ideal
        )
        found[f"stranded_bytes_{label}"] = each.stranded_bytes
    for direction, memory in dict.fromkeys((c.direction, c.memory) for c in report.bandwidth):
        most = max(
            (c for c in report.bandwidth if (c.direction, c.memory) == (direction, memory)),
            key=lambda copy: copy.bytes,
        )
        found[f"{direction.replace(' ', '_')}_{memory}_gb_s"] = most.gb_s
    missing = {key: _why(key, report) for key, value in found.items() if value is None}
    return found, missing


def _why(key: str, report: ProbeReport) -> str:
    """The report's reason for what the metric is made of."""
    of = {"pooled_saved_bytes": "pooled", "peak_memory_mb": "peak_driver_bytes"}.get(key, key)
    if key.startswith(("fits_share_", "stranded_bytes_")):
        of = "fragmentation.fits"
    for name in (of, "reserved_bytes", "allocated_bytes"):
        if name in report.missing:
            return report.missing[name]
    return "not measured on this kind of memory"


def _median(values: Any) -> float | None:
    import statistics

    known = [value for value in values if value is not None]
    return float(statistics.median(known)) if known else None
