"""A new record: its id and its moment filled in."""

from __future__ import annotations

import datetime
import uuid
from typing import Any

from kvsched.evidence.record import Decision, EvidenceLevel, Record, Status
from kvsched.evidence.record_check import moment


def new_id() -> str:
    """Return a record id that no other record has: 122 random bits, 32 hexadecimal digits."""
    return uuid.uuid4().hex


def new_record(
    *,
    task: str,
    evidence_level: EvidenceLevel,
    status: Status,
    created_at: datetime.datetime | None = None,
    name: str = "",
    decision: Decision = "pending",
    reason: str = "",
    corrects: str | None = None,
    config: dict[str, Any] | None = None,
    environment: dict[str, Any] | None = None,
    workload_digest: str | None = None,
    metrics: dict[str, float | int | None] | None = None,
    missing: dict[str, str] | None = None,
    detail: dict[str, Any] | None = None,
) -> Record:
    """Return a record with a new id, made now or at ``created_at`` (aware).

    It has no checksum yet: `Registry.add` checks it and seals it.
    """
    return Record(
        record_id=new_id(),
        created_at=moment(created_at or datetime.datetime.now(datetime.UTC)),
        task=task,
        name=name,
        evidence_level=evidence_level,
        status=status,
        decision=decision,
        reason=reason,
        corrects=corrects,
        config=config or {},
        environment=environment or {},
        workload_digest=workload_digest,
        metrics=metrics or {},
        missing=missing or {},
        detail=detail or {},
    )
