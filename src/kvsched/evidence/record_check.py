"""What makes a record sound: its fields, and that JSON holds it exactly."""

from __future__ import annotations

import datetime
import json
import math
import re
from typing import Any

import msgspec

from kvsched.evidence.record import SCHEMA_VERSION, Record, checksum_of
from kvsched.foundation.errors import InputError

MOST_BYTES = 64 * 2**20
"""Of one record as JSON."""
MOST_DEPTH = 100
"""Levels of nesting: deeper ones are no settings, and overflow a decoder's stack."""
MOST_INTEGER = 2**63
"""Metrics are below this, as in every column of numbers."""
ID = re.compile(r"[0-9a-f]{32}")
MOMENT = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{6}Z")
CHECKSUM = re.compile(r"[0-9a-f]{64}")
EXAMPLE_MOMENT = "2026-01-31T09:30:00.000000Z"
FIELDS: tuple[str, ...] = Record.__struct_fields__


class RecordError(ValueError):
    """What is wrong with a record, its field named first; the caller adds where it is from."""


def canonical(record: Record) -> bytes:
    """Return the record's canonical JSON: keys sorted, no spaces, numbers as short as exact."""
    return msgspec.json.encode(record, order="sorted")


def moment(when: datetime.datetime) -> str:
    """Return an aware moment as records have it: UTC, to the microsecond, ending in Z."""
    return when.astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def parse_object(data: bytes, file: str, row: int | None = None) -> dict[str, Any]:
    """Return the JSON object that ``data`` is.

    Stricter than most readers: a key given twice, NaN, Infinity, a number that no float holds,
    and text that is no UTF-8 are refused. Raises InputError.
    """
    if len(data) > MOST_BYTES:
        raise InputError(file, f"more than {MOST_BYTES >> 20} MiB in one record", row)
    try:
        found = json.loads(
            data.decode("utf-8-sig"),
            object_pairs_hook=_unique,
            parse_constant=_no_constant,
            parse_float=_finite,
        )
    except RecordError as error:
        raise InputError(file, str(error), row) from None
    except UnicodeDecodeError as error:
        raise InputError(file, f"no UTF-8 (byte {error.start})", row) from None
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, " if row is None else ""
        fault = f"no JSON ({error.msg}, {where}column {error.colno})"
        raise InputError(file, fault, row) from None
    except (ValueError, RecursionError) as error:
        raise InputError(file, f"no JSON ({str(error).split(';')[0]})", row) from None
    if not isinstance(found, dict):
        raise InputError(file, "must be a JSON object", row)
    return found


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise RecordError(f"the key {key[:60]!r} is given twice")
            seen.add(key)
    return found


def _no_constant(name: str) -> Any:
    raise RecordError(f"{name} is no number of JSON: a metric that was not measured is null")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise RecordError(f"{text[:30]} is too large for a number")
    return value


def record_of(fields: dict[str, Any]) -> Record:
    """Return the record with these fields, checked as `check_record`. Raises RecordError."""
    unknown = sorted(set(fields) - set(FIELDS))
    if unknown:
        raise RecordError(f"unknown field {unknown[0][:60]!r} (known: {', '.join(FIELDS)})")
    try:
        record = msgspec.convert(fields, Record)
    except msgspec.ValidationError as error:
        raise RecordError(_said(str(error))) from None
    check_record(record)
    return record


def _said(message: str) -> str:
    """Put the field first in what msgspec says of it."""
    fault, _, path = message.partition(" - at `")
    fault = fault[:1].lower() + fault[1:]
    path = path.rstrip("`").removeprefix("$").lstrip(".")
    return f"{path}: {fault}" if path else fault


def check_record(record: Record) -> None:
    """Raise RecordError, the field named first, for a record that cannot stand.

    It must have what its types say, be exact in JSON (finite numbers, text that is Unicode,
    names as keys), and not contradict itself: a metric that was measured has no reason to be
    missing, and a checksum, where there is one, is that of the rest. O(size).
    """
    for name in FIELDS:
        _check_value(getattr(record, name), name, 0)
    _check_exact(record)
    if record.schema_version != SCHEMA_VERSION:
        raise RecordError(
            f"schema_version: {record.schema_version} is not {SCHEMA_VERSION}, the one known here"
        )
    if not ID.fullmatch(record.record_id):
        raise RecordError("record_id: must be 32 hexadecimal digits, small letters")
    _check_moment(record.created_at)
    for name in ("task", "name"):
        value = getattr(record, name)
        if not value.isprintable() or (name == "task" and not value.strip()):
            raise RecordError(f"{name}: must be printable text of one line, not {value[:60]!r}")
    if record.corrects is not None:
        if not ID.fullmatch(record.corrects):
            raise RecordError("corrects: must be a record's id, 32 hexadecimal digits")
        if record.corrects == record.record_id:
            raise RecordError("corrects: a record cannot correct itself")
    if record.workload_digest is not None and not record.workload_digest.strip():
        raise RecordError("workload_digest: is empty; null where there is no workload")
    _check_metrics(record)
    if record.checksum and record.checksum != checksum_of(record):
        raise RecordError(
            "checksum: is not that of the record, which was changed after it was made"
        )


def _check_exact(record: Record) -> None:
    """Refuse what comes back from its JSON as something else, or not at all."""
    try:
        raw = canonical(record)
        again = msgspec.json.decode(raw, type=Record)
    except msgspec.ValidationError as error:
        raise RecordError(_said(str(error))) from None
    except (msgspec.MsgspecError, ValueError, TypeError, RecursionError) as error:
        raise RecordError(f"cannot be kept as JSON ({error})") from None
    if len(raw) > MOST_BYTES:
        raise RecordError(f"more than {MOST_BYTES >> 20} MiB in one record")
    if canonical(again) != raw:
        raise RecordError("cannot be kept exactly as JSON")


def _check_moment(text: str) -> None:
    try:
        if MOMENT.fullmatch(text):
            datetime.datetime.fromisoformat(text)
            return
    except ValueError:
        pass
    raise RecordError(f"created_at: must be UTC like {EXAMPLE_MOMENT}, not {text[:60]!r}")


def _check_metrics(record: Record) -> None:
    for name, value in record.metrics.items():
        if not name.strip() or not name.isprintable():
            raise RecordError(f"metrics: {name[:60]!r} is no name of a metric")
        if isinstance(value, int) and not -MOST_INTEGER <= value < MOST_INTEGER:
            raise RecordError(f"metrics.{name}: is beyond 64 bits")
    for name in record.missing:
        if record.metrics.get(name) is not None:
            raise RecordError(f"missing.{name}: the metric was measured")


def _check_value(value: Any, path: str, depth: int) -> None:
    """Refuse what JSON has no exact form for: an encoder writes NaN as null without a word."""
    if depth > MOST_DEPTH:
        raise RecordError(
            f"{path.split('.', maxsplit=1)[0]}: nested more than {MOST_DEPTH} levels deep"
        )
    if type(value) is float:  # NumPy's scalars are floats too, and no encoder's
        if not math.isfinite(value):
            raise RecordError(f"{path}: {value} is no number of JSON; null where not measured")
    elif isinstance(value, str):
        _check_text(value, path)
    elif isinstance(value, dict):
        for key, inner in value.items():
            if not isinstance(key, str):
                raise RecordError(f"{path}: the key {key!r} must be text")
            _check_text(key, path)
            _check_value(inner, f"{path}.{key[:60]}", depth + 1)
    elif isinstance(value, list | tuple):
        for at, inner in enumerate(value):
            _check_value(inner, f"{path}.{at}", depth + 1)
    elif not (value is None or isinstance(value, bool | int)):
        raise RecordError(f"{path}: {type(value).__name__} is no value of JSON")


def _check_text(text: str, path: str) -> None:
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise RecordError(f"{path}: holds half of a surrogate pair, which is no text") from None
