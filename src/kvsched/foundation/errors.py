"""The errors that reach a user, and the exit code each one means."""

from __future__ import annotations


class KvschedError(Exception):
    """Base of every error that kvsched raises on purpose. Exit code 1."""

    exit_code = 1


class UsageError(KvschedError):
    """A wrong option, name or combination: the caller can put it right. Exit code 2."""

    exit_code = 2


class InputError(KvschedError):
    """Bad input, named by file, row and fault in one line. Exit code 2.

    ``row`` is the 1-based line of a line format, the 1-based request of another format,
    or None where the fault is the whole file's.
    """

    exit_code = 2

    def __init__(self, file: str, fault: str, row: int | None = None) -> None:
        self.file = file
        self.row = row
        self.fault = fault
        where = file if row is None else f"{file}, row {row}"
        super().__init__(f"{where}: {fault}")
