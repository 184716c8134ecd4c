"""The files of a study: `result.json`, its schema, and the report."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from kvsched.foundation.errors import InputError, UsageError
from kvsched.foundation.files import whole_file, write_whole
from kvsched.study.compare import Comparison
from kvsched.study.result import SCHEMA_VERSION, StudyResult


def encode(result: StudyResult | Comparison) -> bytes:
    """Return a result as JSON, the same bytes for the same result."""
    return msgspec.json.format(msgspec.json.encode(result), indent=1) + b"\n"


NAMES = ("result.json", "report.html")
COMPARISON_NAMES = ("comparison.json", "comparison.html")
AGAINST = "against"
"""Folder of the study that another is compared with."""
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
    _write_both(folder, NAMES, encode(result), html)


def write_comparison(result: Comparison, folder: Path, html: str) -> None:
    """Write `comparison.json` and `comparison.html` into ``folder``, both or neither."""
    _write_both(folder, COMPARISON_NAMES, encode(result), html)


def _write_both(folder: Path, names: tuple[str, str], numbers: bytes, html: str) -> None:
    with whole_file(folder / names[0]) as stream:
        stream.write(numbers)
        stream.flush()
        write_whole(folder / names[1], html.encode("utf-8", "replace"))


def is_result(path: Path) -> bool:
    """Whether ``path`` is a study's folder or its result.json, told by its first bytes."""
    file = path / NAMES[0] if path.is_dir() else path
    if not file.is_file():
        return False  # a pipe's first bytes cannot be read twice
    try:
        with file.open("rb") as stream:
            head = stream.read(200)
    except OSError:
        return False
    return head.lstrip().startswith(b"{") and b'"schema_version"' in head and b'"kvsched"' in head


def read_result(path: Path) -> StudyResult:
    """Read a study's result from its folder or its result.json. Raises InputError."""
    file = path / NAMES[0] if path.is_dir() else path
    try:
        data = file.read_bytes()
    except OSError as error:
        raise InputError(str(file), f"cannot be read ({error.strerror})") from error
    try:
        version = msgspec.json.decode(data, type=_Versioned).schema_version
        if version != SCHEMA_VERSION:
            raise InputError(
                str(file), f"a result of schema {version}; this kvsched reads {SCHEMA_VERSION}"
            )
        return msgspec.json.decode(data, type=StudyResult)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InputError(str(file), f"no study's result ({error})") from error


class _Versioned(msgspec.Struct):
    schema_version: int
