"""The file of a registry: SQLite, opened, recognised and made; its faults in one line."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from kvsched.foundation.errors import KvschedError, UsageError

APPLICATION_ID = 0x4B765263
"""``KvRc`` in the file's header: a registry of records, and no other program's data."""
VERSION = 1
BUSY_S = 30.0
"""How long a writer waits for another's transaction."""
COLUMNS = (
    "record_id",
    "created_at",
    "task",
    "name",
    "evidence_level",
    "status",
    "decision",
    "corrects",
    "workload_digest",
    "checksum",
)
"""Fields of a record that have a column of their own, to filter by; `verify` compares them."""

# A body is the record's canonical JSON; a link hashes the previous link and this row, so that a
# row cannot be taken out, put in or exchanged. AUTOINCREMENT keeps the highest number ever given
# in a table of SQLite's own: the last row cannot be taken out unseen either.
DEFINITIONS = {
    "records": """CREATE TABLE records (
  seq INTEGER PRIMARY KEY AUTOINCREMENT,
  record_id TEXT NOT NULL UNIQUE,
  created_at TEXT NOT NULL,
  task TEXT NOT NULL,
  name TEXT NOT NULL,
  evidence_level TEXT NOT NULL,
  status TEXT NOT NULL,
  decision TEXT NOT NULL,
  corrects TEXT REFERENCES records (record_id),
  workload_digest TEXT,
  checksum TEXT NOT NULL,
  link TEXT NOT NULL,
  body BLOB NOT NULL
)""",
    "records_corrects": "CREATE INDEX records_corrects ON records (corrects)",
    "records_appended": """CREATE TRIGGER records_appended BEFORE INSERT ON records
WHEN NEW.seq IS NOT (SELECT COALESCE(MAX(seq), 0) + 1 FROM records)
  OR EXISTS (SELECT 1 FROM records WHERE record_id = NEW.record_id)
  OR NEW.corrects IS NOT NULL
    AND NOT EXISTS (SELECT 1 FROM records WHERE record_id = NEW.corrects)
BEGIN SELECT RAISE(ABORT, 'records are only appended'); END""",
    "records_unchanged": """CREATE TRIGGER records_unchanged BEFORE UPDATE ON records
BEGIN SELECT RAISE(ABORT, 'a record is never changed'); END""",
    "records_kept": """CREATE TRIGGER records_kept BEFORE DELETE ON records
BEGIN SELECT RAISE(ABORT, 'a record is never deleted'); END""",
}
"""What the database holds, by name, as SQLite keeps it. A trigger on insertion also meets REPLACE,
which would delete without one on deletion being asked."""


def default_registry_path() -> Path:
    """Return where records are kept: KVSCHED_REGISTRY, else a file in the user's data folder.

    That is XDG_DATA_HOME (an absolute path) or ~/.local/share, on macOS ~/Library/Application
    Support, on Windows LOCALAPPDATA. Raises UsageError where there is no home.
    """
    named = os.environ.get("KVSCHED_REGISTRY")
    if named:
        return Path(named)
    return _data_folder() / "kvsched" / "records.sqlite"


def _data_folder() -> Path:
    given = os.environ.get("XDG_DATA_HOME", "")
    if Path(given).is_absolute():
        return Path(given)
    if sys.platform == "win32" and os.environ.get("LOCALAPPDATA"):
        return Path(os.environ["LOCALAPPDATA"])
    try:
        home = Path.home()
    except RuntimeError as error:
        raise UsageError("there is no home folder for the records: give --registry PATH") from error
    if sys.platform == "darwin":
        return home / "Library" / "Application Support"
    return home / ".local" / "share"


@contextlib.contextmanager
def faults(path: Path) -> Iterator[None]:
    """Turn what SQLite raises into one line: exit 2 where the path is to blame, else 1."""
    try:
        yield
    except sqlite3.Error as error:
        # The low byte is the kind; the rest says more than a user can use.
        kind = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if kind in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            fault = f"is locked by another process ({BUSY_S:g} s waited)"
            raise KvschedError(f"{path}: {fault}") from error
        if kind == sqlite3.SQLITE_FULL:
            raise KvschedError(f"{path}: the disk is full; the record is not added") from error
        if kind in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH):
            raise UsageError(f"{path}: cannot be written (it is read-only)") from error
        if kind == sqlite3.SQLITE_CANTOPEN:
            raise UsageError(f"{path}: cannot be opened ({_why(path)})") from error
        if kind == sqlite3.SQLITE_NOTADB:
            raise UsageError(f"{path}: is no registry of records (and no SQLite)") from error
        if kind == sqlite3.SQLITE_CORRUPT:
            raise KvschedError(f"{path}: is damaged ({error})") from error
        raise KvschedError(f"{path}: {error}") from error
    except UnicodeDecodeError as error:  # of SQLite's own message, which quotes what is damaged
        raise KvschedError(f"{path}: is damaged (text in it is no UTF-8)") from error


def _why(path: Path) -> str:
    if path.is_dir():
        return "it is a folder"
    if not path.parent.is_dir():
        return f"there is no folder {path.parent}"
    return "permission denied, or it needs a folder that can be written"


def check_path(path: Path) -> bool:
    """Return whether there is a file. Raises UsageError for what can be none."""
    if "\0" in str(path):
        raise UsageError(f"{str(path)!r}: no file can have that name")
    try:
        if not path.exists():
            return False
    except OSError as error:
        raise UsageError(f"{path}: cannot be opened ({error.strerror})") from error
    if not path.is_file():
        raise UsageError(f"{path}: cannot be opened (it is {_what(path)})")
    if not os.access(path, os.R_OK):
        raise UsageError(f"{path}: cannot be opened (permission denied)")
    return True


def _what(path: Path) -> str:
    return "a folder" if path.is_dir() else "no plain file"


def open_for_reading(path: Path) -> sqlite3.Connection | None:
    """Open a registry that exists, and make nothing; None for an empty database.

    Opened for writing, though nothing is written, the last reader leaves no files of its own
    beside the registry. Where that cannot be, the log of another process is read too; where the
    folder is read-only and there is no log, the file is taken as it is. Raises UsageError,
    KvschedError.
    """
    real = path.resolve()  # SQLite puts its log beside what a link points to
    wal = real.with_name(real.name + "-wal")
    modes = ["mode=rw", "mode=ro"]
    if not wal.exists() or not wal.stat().st_size:
        modes.append("mode=ro&immutable=1")
    with faults(path):
        for mode in modes[:-1]:
            try:
                return _opened(path, mode)
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF not in _NO_PLACE:
                    raise
        return _opened(path, modes[-1])


_NO_PLACE = (
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_FULL,
)
"""Faults of a file or a folder that this user cannot write, or of a disk that is full."""


def _opened(path: Path, mode: str) -> sqlite3.Connection | None:
    connection = _connect(path, mode)
    try:
        connection.execute("PRAGMA query_only = 1")
        if identify(connection, path):
            return connection
    except BaseException:
        connection.close()
        raise
    connection.close()
    return None


def open_for_adding(path: Path) -> sqlite3.Connection:
    """Open a registry for adding, made where there is none. Raises UsageError, KvschedError."""
    exists = check_path(path)
    if not exists:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            fault = f"the folder {path.parent} cannot be made ({error.strerror})"
            raise UsageError(f"{path}: {fault}") from error
    if (exists and not os.access(path, os.W_OK)) or not os.access(path.parent, os.W_OK):
        raise UsageError(f"{path}: cannot be written (permission denied)")
    with faults(path):
        connection = _connect(path, "mode=rwc")
        try:
            if not identify(connection, path):
                _make(connection, path)
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("PRAGMA foreign_keys = 1")
            connection.execute("PRAGMA recursive_triggers = 1")
        except BaseException:
            connection.close()
            raise
    return connection


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    address = path.absolute().as_uri()
    # Transactions are begun and ended by statements of this package alone.
    return sqlite3.connect(f"{address}?{mode}", uri=True, timeout=BUSY_S, isolation_level=None)


def identify(connection: sqlite3.Connection, path: Path) -> bool:
    """Return whether the database is a registry; False for an empty one. Raises UsageError."""
    within = connection.in_transaction
    if not within:  # one moment's view: another process may be making it
        connection.execute("BEGIN")
    try:
        ((application,),) = connection.execute("PRAGMA application_id")
        ((version,),) = connection.execute("PRAGMA user_version")
        ((things,),) = connection.execute("SELECT COUNT(*) FROM sqlite_master")
    finally:
        if not within and connection.in_transaction:
            connection.execute("ROLLBACK")
    if application == version == things == 0:
        return False
    if application != APPLICATION_ID:
        raise UsageError(f"{path}: is no registry of records, but another program's database")
    if version != VERSION:
        raise UsageError(
            f"{path}: is a registry of version {version}, and this kvsched knows {VERSION}"
        )
    return True


def _make(connection: sqlite3.Connection, path: Path) -> None:
    """Turn an empty database into a registry; another process may do so at the same time."""
    ended = time.monotonic() + BUSY_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            break
        except sqlite3.OperationalError as error:
            # SQLite does not wait for this lock by itself.
            busy = error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY
            if not busy or time.monotonic() > ended:
                raise
            time.sleep(0.01)
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("BEGIN IMMEDIATE")
    try:
        if not identify(connection, path):
            for definition in DEFINITIONS.values():
                connection.execute(definition)
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {VERSION}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    _keep_name(path.parent)


def _keep_name(folder: Path) -> None:
    """Have the new file's name in its folder survive a power cut, as its content does."""
    with contextlib.suppress(OSError, AttributeError):  # not every system opens folders
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
