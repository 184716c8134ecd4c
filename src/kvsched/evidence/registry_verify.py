"""Whether a registry still holds what was added to it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from kvsched.evidence.record import Record, checksum_of
from kvsched.evidence.record_check import RecordError, canonical, check_record
from kvsched.evidence.registry import FIRST_LINK, link_after
from kvsched.evidence.registry_file import COLUMNS, DEFINITIONS, faults
from kvsched.foundation.errors import KvschedError

_COLUMNS = ", ".join(COLUMNS)


def verify(connection: sqlite3.Connection, path: Path, head: str | None = None) -> list[str]:
    """Return every fault, a sentence each.

    The file's pages; the table and the triggers that guard it; then of each row its number, its
    JSON (sound, canonical, with its own checksum), its columns against the JSON, the record it
    corrects, and its link to the row before; last, that no row after these was taken away, and
    that ``head``, a link noted before, is still there. One read of the file, in one transaction.
    """
    found: list[str] = []
    try:
        with faults(path):
            # Text that is no UTF-8 comes back as what no JSON holds, and differs from it.
            connection.text_factory = _any_text
            connection.execute("BEGIN")
            try:
                found += _definitions(connection)
                if not any(fault.startswith("table records ") for fault in found):
                    found += _rows(connection, head)
                found += _pages(connection)
            finally:
                connection.text_factory = str
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
    except KvschedError as error:
        # What SQLite cannot read is a fault of the file, beside those found so far.
        if isinstance(error.__cause__, sqlite3.OperationalError):
            raise
        found.append(str(error).removeprefix(f"{path}: "))
    return found


def _any_text(raw: bytes) -> str:
    return raw.decode(errors="surrogateescape")


def _shown(value: object) -> str:
    return str(value).encode(errors="backslashreplace").decode()


def _pages(connection: sqlite3.Connection) -> Iterator[str]:
    for (fault,) in connection.execute("PRAGMA integrity_check"):
        if fault != "ok":
            yield f"SQLite: {' '.join(str(fault).split())}"


def _definitions(connection: sqlite3.Connection) -> Iterator[str]:
    """Say what guards the records and is not as it was made."""
    query = "SELECT type, name, sql FROM sqlite_master WHERE name NOT LIKE 'sqlite\\_%' ESCAPE '\\'"
    held = {name: (kind, sql) for kind, name, sql in connection.execute(query)}
    for name, sql in DEFINITIONS.items():
        kind = sql.split()[1].lower()
        if name not in held:
            yield f"{kind} {name} is missing"
        elif held[name][1] != sql:
            yield f"{kind} {name} was changed"
    for name in sorted(set(held) - set(DEFINITIONS)):
        yield f"{held[name][0]} {_shown(name)} does not belong here"


def _rows(connection: sqlite3.Connection, head: str | None) -> Iterator[str]:
    expected, previous, seen = 1, FIRST_LINK, set[str]()
    noted = head in (None, FIRST_LINK)
    # Only names of columns are put in.
    query = f"SELECT seq, link, body, {_COLUMNS} FROM records ORDER BY seq"  # noqa: S608
    for seq, link, body, *columns in connection.execute(query):
        who = f"record {_shown(columns[0])} (row {seq})"
        whole = seq == expected
        if not whole:
            last = f" to {seq - 1}" if seq - 1 > expected else ""
            yield f"row {expected}{last} is missing"
        record = yield from _body(body, dict(zip(COLUMNS, columns, strict=True)), who)
        if record is not None:
            if record.corrects is not None and record.corrects not in seen:
                yield f"{who}: corrects {record.corrects}, which is not before it"
            if whole and link_after(previous, seq, record, body) != link:
                yield f"{who}: its link to the row before is broken"
        noted = noted or link == head
        seen.add(columns[0])
        expected, previous = seq + 1, _shown(link)
    highest = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'records'")
    row = highest.fetchone()
    given = 0 if row is None else row[0]
    if given != expected - 1:
        yield f"{given} records were added, and the last row is {expected - 1}"
    if not noted:
        yield f"the link {head} is not in the chain: records were removed or exchanged"


def _body(body: Any, columns: dict[str, Any], who: str) -> Any:
    """Yield the faults of one row's JSON and columns; return its record, None if unreadable."""
    if not isinstance(body, bytes):  # SQLite keeps any type in any column
        yield f"{who}: its JSON is kept as {type(body).__name__}, not as bytes"
        return None
    try:
        record = msgspec.json.decode(body, type=Record)
    except (msgspec.MsgspecError, TypeError, ValueError, RecursionError) as error:
        yield f"{who}: its JSON is no record ({' '.join(str(error).split())})"
        return None
    if checksum_of(record) != record.checksum:
        yield f"{who}: its checksum is not that of its JSON"
    elif canonical(record) != body:
        yield f"{who}: its JSON is not in its canonical form"
    else:
        try:
            check_record(record)
        except RecordError as error:
            yield f"{who}: {error}"
    for name, value in columns.items():
        if value != getattr(record, name):
            yield f"{who}: its column {name} differs from its JSON"
    return record
