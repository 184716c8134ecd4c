"""What `kvsched records add` takes: a record, the course's probe report, a benchmark's result."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from kvsched.evidence.record import DECISIONS, EVIDENCE_LEVELS, STATUSES, Record, sealed
from kvsched.evidence.record_check import (
    MOST_BYTES,
    MOST_INTEGER,
    RecordError,
    parse_object,
    record_of,
)
from kvsched.evidence.record_new import new_record
from kvsched.foundation.errors import InputError, UsageError

if TYPE_CHECKING:
    from kvsched.evidence.bench.measured import BenchResult

_PROBE = ("task", "evidence_level", "runtime", "config", "runs", "decision")
"""Fields of the course's probe report."""
_PREFLIGHT = ("kvsched", "task", "checks", "decision")
_OWN_PROBE = ("kvsched", "task", "runs", "fragmentation")
"""By which reports of kvsched's own are told from a record."""
_BENCH = ("requests", "completed", "hit_rate", "ttft_ms")
"""The same of a benchmark's result."""
_BENCH_FILE = "result.json"


def read_source(path: str) -> tuple[bytes, str]:
    """Return the bytes of a file, or of a benchmark folder's result, and the file's name.

    No more than one record may have, and one byte. Raises InputError.
    """
    file = Path(path)
    try:
        if not path or "\0" in path:
            raise InputError(repr(path), "no file can have that name")
        if file.is_dir():
            file = file / _BENCH_FILE
        with file.open("rb") as stream:
            return stream.read(MOST_BYTES + 1), str(file)
    except FileNotFoundError:
        fault = (
            f"there is no {_BENCH_FILE} in this folder" if Path(path).is_dir() else "no such file"
        )
        raise InputError(path, fault) from None
    except OSError as error:
        raise InputError(str(file), (error.strerror or "cannot be read").lower()) from error


def record_from(data: bytes, file: str, **said: str | None) -> Record:
    """Return the record that ``data`` is or gives rise to, sealed.

    A record may lack its id, its moment and its checksum, which are then filled in. A report or a
    result becomes a record whose ``detail`` it is, whole. ``said`` (name, decision, reason,
    corrects) stands in for what ``data`` says of them, unless that is sealed already. Raises
    InputError, with the field, for what is not sound, and UsageError for a change to a sealed
    record.
    """
    found = parse_object(data, file)
    changes: dict[str, Any] = {key: value for key, value in said.items() if value is not None}
    if found.get("checksum") and changes:
        raise UsageError(
            f"{file}: is sealed by its checksum: leave out --{min(changes)}, or add another "
            "record that corrects it"
        )
    try:
        if all(name in found for name in _PREFLIGHT):
            record = _of_preflight(found)
        elif all(name in found for name in _OWN_PROBE):
            record = _of_own_probe(found)
        elif "runs" in found or isinstance(found.get("decision"), dict):
            record = _of_probe(found)
        elif all(name in found for name in _BENCH):
            from kvsched.evidence.record_bench import record_of_bench  # brings NumPy

            record = record_of_bench(_bench(found), detail=found)
        else:
            fresh = new_record(task="-", evidence_level="theoretical", status="ok")
            filled = {"record_id": fresh.record_id, "created_at": fresh.created_at}
            record = record_of({**filled, **found})
        return sealed(record_of({**msgspec.structs.asdict(record), **changes}))
    except RecordError as error:
        raise InputError(file, str(error)) from None


def _of_preflight(report: dict[str, Any]) -> Record:
    from kvsched.evidence.preflight.report import Preflight, record_of

    return record_of(_converted(report, Preflight, "preflight"))


def _of_own_probe(report: dict[str, Any]) -> Record:
    from kvsched.evidence.probe.record import record_of
    from kvsched.evidence.probe.report import ProbeReport

    found = _converted(report, ProbeReport, "probe report")
    if not found.runs:
        raise RecordError("runs: there is none in this probe report")
    theory = found.config.get("bytes_per_block_theoretical")
    if not isinstance(theory, int) or isinstance(theory, bool):
        raise RecordError("config.bytes_per_block_theoretical: must be a whole number")
    return record_of(found)


def _of_probe(report: dict[str, Any]) -> Record:
    """Turn the course's probe report into a record. Raises RecordError, the field named."""
    for name in _PROBE:
        if name not in report:
            raise RecordError(f"{name}: is missing from this probe report")
    for name in ("runtime", "config", "decision"):
        if not isinstance(report[name], dict):
            raise RecordError(f"{name}: must be an object")
    runs = report["runs"]
    if not isinstance(runs, list) or not all(isinstance(run, dict) for run in runs):
        raise RecordError("runs: must be a list of objects")
    decided = report["decision"]
    runtime, more = report["runtime"], report.get("environment")
    metrics, missing = _run_metrics(runs)
    for name in ("bytes_per_block_theoretical", "total_bytes_theoretical"):
        if name in report["config"]:
            metrics[name] = _number(report["config"][name], f"config.{name}")
            if metrics[name] is None:
                missing[name] = "the report has null"
    status = report.get("status", "ok" if runs else "failed")
    for name, value, known in (
        ("evidence_level", report["evidence_level"], EVIDENCE_LEVELS),
        ("decision.decision", decided.get("decision"), DECISIONS),
        ("status", status, STATUSES),
    ):
        if value not in known:
            raise RecordError(f"{name}: must be one of {', '.join(known)}, not {value!r}")
    for name, value in (("task", report["task"]), ("decision.reason", decided.get("reason", ""))):
        if not isinstance(value, str):
            raise RecordError(f"{name}: must be text")
    return new_record(
        task=report["task"],
        evidence_level=report["evidence_level"],
        status=status,
        decision=decided["decision"],
        reason=decided.get("reason", ""),
        config=report["config"],
        environment={**more, "runtime": runtime} if isinstance(more, dict) else runtime,
        metrics=metrics,
        missing=missing,
        detail=report,
    )


def _run_metrics(
    runs: list[dict[str, Any]],
) -> tuple[dict[str, float | int | None], dict[str, str]]:
    """Return a report's metrics over its runs, and why those that are None are.

    Medians; of the blocks the fewest.
    """
    metrics: dict[str, float | int | None] = {"runs": len(runs)}
    missing: dict[str, str] = {}
    for name, of, fold in (
        ("allocation_ms", "allocation_ms", statistics.median),
        ("allocation_ms_max", "allocation_ms", max),
        ("peak_memory_mb", "peak_memory_mb", statistics.median),
        ("block_count", "block_count", min),
    ):
        values = [_number(run.get(of), f"runs.{at}.{of}") for at, run in enumerate(runs)]
        known = [value for value in values if value is not None]
        if known and len(known) == len(values):
            metrics[name] = fold(known)
        else:
            metrics[name] = None
            fault = f"{len(values) - len(known)} of {len(values)} runs have no {of}"
            missing[name] = fault if runs else "no run was made"
    return metrics, missing


def _number(value: Any, name: str) -> float | int | None:
    if isinstance(value, int) and not -MOST_INTEGER <= value < MOST_INTEGER:
        raise RecordError(f"{name}: is beyond 64 bits")
    if value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
        return value
    raise RecordError(f"{name}: must be a number or null, not {str(value)[:60]!r}")


_Found = TypeVar("_Found")


def _converted(found: dict[str, Any], kind: type[_Found], called: str) -> _Found:
    """Return ``found`` as a struct of its own. Raises RecordError, the field named."""
    unknown = sorted(set(found) - set(kind.__struct_fields__))  # type: ignore[attr-defined]
    if unknown:
        raise RecordError(f"unknown field {unknown[0][:60]!r} in this {called}")
    try:
        return msgspec.convert(found, kind)
    except msgspec.ValidationError as error:
        fault, _, place = str(error).partition(" - at `$.")
        where = f"{place.rstrip('`')}: " if place else ""
        raise RecordError(f"{where}{fault[:1].lower()}{fault[1:]}") from None


def _bench(found: dict[str, Any]) -> BenchResult:
    from kvsched.evidence.bench.measured import BenchResult

    result = _converted(found, BenchResult, "benchmark's result")
    if result.schema_version != 1:
        raise RecordError(f"schema_version: {result.schema_version} is not 1, the one known here")
    return result
