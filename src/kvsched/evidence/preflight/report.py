"""The result of a preflight: one status a check, and one over all."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import msgspec

from kvsched.evidence.record import Decision, EvidenceLevel, Record

CheckStatus = Literal["ok", "warning", "blocked"]
ORDER: tuple[CheckStatus, ...] = ("ok", "warning", "blocked")
TASK = "preflight"


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that was looked at."""

    name: str
    status: CheckStatus
    reason: str
    """What was found, a sentence."""
    next_action: str = ""
    """What to do about it; empty where nothing is to be done."""


class PreflightDecision(msgspec.Struct, frozen=True, kw_only=True):
    """``measure`` where nothing is in the way, ``pending`` where something is."""

    decision: Decision
    reason: str


class Preflight(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that was looked at."""

    kvsched: str
    task: str = TASK
    evidence_level: EvidenceLevel
    """gpu_smoke where a GPU computed something, cpu_simulation where none took part."""
    status: CheckStatus
    """The worst of the checks."""
    checks: tuple[Check, ...]
    decision: PreflightDecision
    config: dict[str, Any]
    environment: dict[str, Any]


def worst(checks: Iterable[Check]) -> CheckStatus:
    """Return the worst status; ok where there is no check."""
    return max((check.status for check in checks), key=ORDER.index, default="ok")


def decision_of(checks: Iterable[Check]) -> PreflightDecision:
    """Say whether to go on and measure."""
    found = list(checks)
    blocked = [check.name for check in found if check.status == "blocked"]
    warned = [check.name for check in found if check.status == "warning"]
    if blocked:
        return PreflightDecision(decision="pending", reason=f"Blocked by: {', '.join(blocked)}.")
    said = f" Look at: {', '.join(warned)}." if warned else ""
    return PreflightDecision(decision="measure", reason=f"Nothing is in the way.{said}")


def record_of(preflight: Preflight, name: str = "") -> Record:
    """Return the preflight as a new record, not yet sealed."""
    from kvsched.evidence.record_new import new_record

    counts = {each: sum(check.status == each for check in preflight.checks) for each in ORDER}
    return new_record(
        task=preflight.task,
        name=name,
        evidence_level=preflight.evidence_level,
        status="blocked" if preflight.status == "blocked" else "ok",
        decision=preflight.decision.decision,
        reason=preflight.decision.reason,
        config=preflight.config,
        environment={**preflight.environment, "kvsched": preflight.kvsched},
        metrics={f"checks_{each}": count for each, count in counts.items()},
        detail=msgspec.to_builtins(preflight),
    )
