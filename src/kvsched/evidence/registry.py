"""The registry of records: one file, in which records are added and never changed."""

from __future__ import annotations

import builtins
import contextlib
import hashlib
import sqlite3
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

import msgspec

from kvsched.evidence.record import DECISIONS, EVIDENCE_LEVELS, STATUSES, Record, sealed
from kvsched.evidence.record_check import RecordError, canonical, check_record
from kvsched.evidence.registry_file import (
    COLUMNS,
    check_path,
    default_registry_path,
    faults,
    open_for_adding,
    open_for_reading,
)
from kvsched.foundation.errors import InputError, UsageError

__all__ = ["FIRST_LINK", "Imported", "Registry", "default_registry_path", "link_after"]

FIRST_LINK = "0" * 64
"""What the first record links to."""
_INSERT = f"INSERT INTO records VALUES ({', '.join('?' * (len(COLUMNS) + 3))})"  # noqa: S608, no value is in it
_MOST_CANDIDATES = 8
_MOST_ROWS = 2**63 - 1


def link_after(previous: str, seq: int, record: Record, body: bytes) -> str:
    """Return what ties row ``seq`` to the row before it.

    SHA-256 (hex) of the previous link, the row's number, the record's checksum and the SHA-256
    of its JSON, one a line.
    """
    content = hashlib.sha256(body).hexdigest()
    return hashlib.sha256(f"{previous}\n{seq}\n{record.checksum}\n{content}".encode()).hexdigest()


class Imported(NamedTuple):
    """What came of an import."""

    added: tuple[str, ...]
    """Ids, in order."""
    present: tuple[str, ...]
    """Ids that were there already, with the same checksum."""


class Registry:
    """Records in one SQLite file, append-only. A context manager; also works without.

    A finished `add` survives the end of the process and of the machine's power (write-ahead log,
    synchronous FULL); an unfinished one leaves nothing. Several processes may add at once; a
    writer waits up to 30 s for another. Reading makes no file: a missing registry is empty.

    Raises UsageError where the path is no registry, or cannot be one, and KvschedError where the
    file is locked, damaged, or the disk is full.
    """

    def __init__(self, path: str | Path | None = None) -> None:
        self.path = default_registry_path() if path is None else Path(path)
        self._writer: sqlite3.Connection | None = None
        self._reader: sqlite3.Connection | None = None
        check_path(self.path)

    def __enter__(self) -> Registry:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def known(self) -> bool:
        """Return whether there is a registry at the path, with records or without."""
        return self._reading() is not None

    def prepare(self) -> None:
        """Open the file for adding, made where it is not there: a fault is told beforehand."""
        self._writing()

    def close(self) -> None:
        """Close the file; what was added is safe before."""
        for connection in (self._writer, self._reader):
            if connection is not None:
                connection.close()
        self._writer = self._reader = None

    def add(self, record: Record) -> Record:
        """Check the record, seal it and add it; return it as kept. O(size).

        Raises UsageError for a record that is not sound, whose id is there already, or that
        corrects one that is not.
        """
        try:
            check_record(record)
        except RecordError as error:
            raise UsageError(f"record {record.record_id}: {error}") from None
        kept = _as_kept(record)
        connection = self._writing()
        with faults(self.path):
            connection.execute("BEGIN IMMEDIATE")
            try:
                if self._checksum(connection, kept.record_id) is not None:
                    raise UsageError(
                        f"{self.path}: record {kept.record_id} is there already, and a record is "
                        "never overwritten: correct it by a new one"
                    )
                self._append(connection, kept, f"record {kept.record_id}")
                connection.execute("COMMIT")
            except BaseException:
                _roll_back(connection)
                raise
        return kept

    def import_records(self, records: Iterable[tuple[int, Record]], file: str) -> Imported:
        """Add sealed records by the row of ``file`` that each is from, all of them or none.

        Those that are there already with the same checksum are left out and told. Raises
        InputError, with the row, for another record under an id that is there, and for one that
        corrects a record neither there nor before it in the file.
        """
        added: list[str] = []
        present: list[str] = []
        connection = self._writing()
        with faults(self.path):
            connection.execute("BEGIN IMMEDIATE")
            try:
                for row, record in records:
                    found = self._checksum(connection, record.record_id)
                    if found is None:
                        try:
                            self._append(connection, record, "")
                        except UsageError as error:
                            raise InputError(file, str(error), row) from None
                        added.append(record.record_id)
                    elif found == record.checksum:
                        present.append(record.record_id)
                    else:
                        fault = f"another record has the id {record.record_id}"
                        raise InputError(file, fault, row)
                connection.execute("COMMIT")
            except BaseException:
                _roll_back(connection)
                raise
        return Imported(tuple(added), tuple(present))

    def get(self, record_id: str) -> Record:
        """Return the record of this id, or of the one id that begins so.

        Raises UsageError where there is none, and where several begin so, with their ids.
        """
        wanted = record_id.strip().lower()
        if not wanted or set(wanted) - set("0123456789abcdef"):
            raise UsageError(f"{record_id!r} is no id of a record: hexadecimal digits")
        rows: list[tuple[str, bytes]] = []
        if self._reading() is not None:
            with faults(self.path):
                rows = self._rows(
                    "SELECT record_id, body FROM records WHERE record_id BETWEEN ? AND ? LIMIT ?",
                    (wanted, f"{wanted}g", _MOST_CANDIDATES + 1),
                ).fetchall()
        if not rows:
            said = "no record" if self.known() else "there is no registry, and so no record"
            raise UsageError(f"{self.path}: {said} {wanted} (kvsched records list names them)")
        if len(rows) > 1:
            names = ", ".join(name for name, _ in rows[:_MOST_CANDIDATES])
            more = ", …" if len(rows) > _MOST_CANDIDATES else ""
            raise UsageError(f"several records begin with {wanted}: {names}{more}")
        return self._decoded(*rows[0])

    def records(
        self,
        *,
        task: str | None = None,
        decision: str | None = None,
        status: str | None = None,
        evidence_level: str | None = None,
        since: str | None = None,
        limit: int | None = None,
    ) -> Iterator[Record]:
        """Yield records in the order in which they were added, one in memory at a time.

        ``since``: made at this moment (as records have it) or later. ``limit``: the last so many.
        Raises UsageError for a word that no record can have.
        """
        wanted: list[str] = []
        values: list[str | int] = []
        for column, value, known in (
            ("task", task, None),
            ("decision", decision, DECISIONS),
            ("status", status, STATUSES),
            ("evidence_level", evidence_level, EVIDENCE_LEVELS),
        ):
            if value is None:
                continue
            if known is not None and value not in known:
                option = column.replace("_", "-")
                raise UsageError(f"--{option} {value}: must be one of {', '.join(known)}")
            wanted.append(f"{column} = ?")
            values.append(value)
        if task is not None and not task.isprintable():
            raise UsageError(f"--task {task!a}: no task is called so")
        if since is not None:
            wanted.append("created_at >= ?")
            values.append(since)
        if limit is not None and limit < 1:
            raise UsageError(f"--limit {limit}: must be 1 or more")
        return self._selected(" AND ".join(wanted) or "1", values, limit)

    def _selected(
        self, wanted: str, values: list[str | int], limit: int | None
    ) -> Iterator[Record]:
        if self._reading() is None:
            return
        # Only names of columns are put in; values are bound.
        newest = f"SELECT seq FROM records WHERE {wanted} ORDER BY seq DESC LIMIT ?"  # noqa: S608
        query = f"SELECT record_id, body FROM records WHERE seq IN ({newest}) ORDER BY seq"  # noqa: S608
        with faults(self.path):
            most = -1 if limit is None else min(limit, _MOST_ROWS)
            for row in self._rows(query, (*values, most)):
                yield self._decoded(*row)

    def list(
        self,
        *,
        task: str | None = None,
        decision: str | None = None,
        status: str | None = None,
        evidence_level: str | None = None,
        since: str | None = None,
        limit: int | None = None,
    ) -> list[Record]:
        """Return what `records` yields."""
        return [
            *self.records(
                task=task,
                decision=decision,
                status=status,
                evidence_level=evidence_level,
                since=since,
                limit=limit,
            )
        ]

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[None]:
        """Have all that is read inside see the records of one moment, whoever adds meanwhile."""
        connection = self._reading()
        if connection is None:
            yield
            return
        connection.execute("BEGIN")
        try:
            yield
        finally:
            _roll_back(connection)

    def corrections(self) -> dict[str, tuple[str, ...]]:
        """Return, by the id of each record that others correct, their ids in order."""
        found: dict[str, tuple[str, ...]] = {}
        if self._reading() is not None:
            query = "SELECT corrects, record_id FROM records WHERE corrects NOT NULL ORDER BY seq"
            with faults(self.path):
                for old, new in self._rows(query, ()):
                    found[old] = (*found.get(old, ()), new)
        return found

    def verify(self, head: str | None = None) -> builtins.list[str]:
        """Return every fault of the file, a sentence each; none where all is sound.

        ``head``: a link that was noted before, which must still be in the chain. O(bytes).
        Raises UsageError where there is no registry.
        """
        from kvsched.evidence.registry_verify import verify

        connection = self._reading()
        if connection is None:
            raise UsageError(f"{self.path}: there is no registry")
        return verify(connection, self.path, head)

    def head(self) -> tuple[int, str]:
        """Return how many records there are, and the last one's link, to be noted elsewhere."""
        rows: list[tuple[int, str]] = []
        if self._reading() is not None:
            with faults(self.path):
                query = "SELECT seq, link FROM records ORDER BY seq DESC LIMIT 1"
                rows = self._rows(query, ()).fetchall()
        return rows[0] if rows else (0, FIRST_LINK)

    def _append(self, connection: sqlite3.Connection, record: Record, who: str) -> None:
        if record.corrects is not None and self._checksum(connection, record.corrects) is None:
            where = f"{who}: " if who else ""
            raise UsageError(f"{where}corrects: there is no record {record.corrects}")
        last = connection.execute("SELECT seq, link FROM records ORDER BY seq DESC LIMIT 1")
        before, previous = last.fetchone() or (0, FIRST_LINK)
        body = canonical(record)
        columns = [getattr(record, name) for name in COLUMNS]
        link = link_after(previous, before + 1, record, body)
        connection.execute(_INSERT, (before + 1, *columns, link, body))

    @staticmethod
    def _checksum(connection: sqlite3.Connection, record_id: str) -> str | None:
        query = "SELECT checksum FROM records WHERE record_id = ?"
        row: tuple[str] | None = connection.execute(query, (record_id,)).fetchone()
        return None if row is None else row[0]

    def _decoded(self, record_id: str, body: bytes) -> Record:
        try:
            return msgspec.json.decode(body, type=Record)
        except (msgspec.MsgspecError, TypeError, ValueError, RecursionError) as error:
            fault = f"record {record_id} is damaged (kvsched records verify says more)"
            raise InputError(str(self.path), fault) from error

    def _rows(self, query: str, values: tuple[str | int, ...]) -> sqlite3.Cursor:
        connection = self._reading()
        assert connection is not None, "asked of a registry that is there"  # noqa: S101, for mypy
        return connection.execute(query, values)

    def _writing(self) -> sqlite3.Connection:
        if self._writer is None:
            self._writer = open_for_adding(self.path)
        return self._writer

    def _reading(self) -> sqlite3.Connection | None:
        """Return a connection to read by; None where there is no registry, or an empty file."""
        if self._writer is not None:
            return self._writer
        if self._reader is None:
            self._reader = open_for_reading(self.path) if check_path(self.path) else None
        return self._reader


def _as_kept(record: Record) -> Record:
    """Return the record sealed, and as it comes back from its JSON: tuples become lists."""
    return msgspec.json.decode(canonical(sealed(record)), type=Record)


def _roll_back(connection: sqlite3.Connection) -> None:
    if connection.in_transaction:
        connection.execute("ROLLBACK")
