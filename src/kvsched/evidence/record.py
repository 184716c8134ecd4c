"""The evidence record: one measurement, with what it takes to judge it."""

from __future__ import annotations

import hashlib
from typing import Any, Literal, get_args

import msgspec

EvidenceLevel = Literal[
    "theoretical",
    "cpu_simulation",
    "gpu_smoke",
    "synthetic_gpu_block_probe",
    "real_benchmark",
    "profiler_trace",
]
Decision = Literal["accept", "tune", "reject", "pending", "measure"]
Status = Literal["ok", "failed", "blocked", "skipped"]
EVIDENCE_LEVELS: tuple[str, ...] = get_args(EvidenceLevel)
DECISIONS: tuple[str, ...] = get_args(Decision)
STATUSES: tuple[str, ...] = get_args(Status)
SCHEMA_VERSION = 1


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured, on what, and what follows. Never changed: a correction is a new record.

    Source of the words: the course's evidence records.
    """

    schema_version: int = SCHEMA_VERSION
    record_id: str
    """32 hexadecimal digits."""
    created_at: str
    """UTC, ISO 8601, to the microsecond."""
    task: str
    """What was measured: ``gpu-kv-probe``, ``prefix-cache``, ``scheduler``, ``replay``, …"""
    name: str = ""
    """What the user calls it."""
    evidence_level: EvidenceLevel
    """How strong the evidence is."""
    status: Status
    decision: Decision = "pending"
    reason: str = ""
    """Why this decision, or why it is not ok: a sentence."""
    corrects: str | None = None
    """The record that this one stands in for."""
    config: dict[str, Any] = {}
    """Every setting of the measurement."""
    environment: dict[str, Any] = {}
    """Machine, device, packages, engine."""
    workload_digest: str | None = None
    """What was served; None where the measurement has no workload."""
    metrics: dict[str, float | int | None] = {}
    """By name, with the unit in the name; None where it was not measured, never 0."""
    missing: dict[str, str] = {}
    """Why each metric that is None was not measured."""
    detail: dict[str, Any] = {}
    """The whole report of the task."""
    checksum: str = ""
    """SHA-256 of everything else, see `checksum_of`."""


def checksum_of(record: Record) -> str:
    """Return the SHA-256 (hex) of the record's canonical JSON: keys sorted, checksum empty."""
    bare = msgspec.structs.replace(record, checksum="")
    return hashlib.sha256(msgspec.json.encode(bare, order="sorted")).hexdigest()


def sealed(record: Record) -> Record:
    """Return the record with its checksum."""
    return msgspec.structs.replace(record, checksum=checksum_of(record))
