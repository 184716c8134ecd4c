"""The files of a study: `result.json`, its schema, and the report."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from kvsched.foundation.errors import UsageError
from kvsched.foundation.files import whole_file, write_whole
from kvsched.study.result import StudyResult


def encode(result: StudyResult) -> bytes:
    """Return a result as JSON, the same bytes for the same result."""
    return msgspec.json.format(msgspec.json.encode(result), indent=1) + b"\n"


NAMES = ("result.json", "report.html")
PARTIAL = ".partial.jsonl"
"""What a study has computed so far; gone when it is done."""


def prepare_folder(folder: Path) -> None:
    """Make ``folder``, and see that a study can be written there. Raises UsageError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{folder}: cannot be made ({error.strerror})") from error
    for name in (*NAMES, PARTIAL):
        if (folder / name).is_dir():
            raise UsageError(f"{folder / name}: cannot be written (it is a folder)")
    if not os.access(folder, os.W_OK):
        raise UsageError(f"{folder}: cannot be written (permission denied)")


def write_study(result: StudyResult, folder: Path, html: str) -> None:
    """Write `result.json` and `report.html` into ``folder``, both or, but for a crash, neither."""
    with whole_file(folder / NAMES[0]) as numbers:
        numbers.write(encode(result))
        numbers.flush()
        write_whole(folder / NAMES[1], html.encode("utf-8", "replace"))
