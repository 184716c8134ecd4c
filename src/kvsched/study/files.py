"""The files of a study: `result.json`, its schema, and the report."""

from __future__ import annotations

import itertools
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
ALWAYS = ("lru", "opt-fit")
"""Policies that every study compares."""
SIGNED = ("bypass",)
"""Whole numbers that may be negative: differences."""
MOST, MOST_REAL = 2**63, 1e30
"""Bounds of whole numbers and of others, in which sums and products stay finite."""
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
        result = msgspec.json.decode(data, type=StudyResult)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InputError(str(file), f"no study's result ({error})") from error
    fault = _fault_of(result) or _number_fault(result, "")
    if fault:
        raise InputError(str(file), f"no study's result ({fault})")
    return result


def _fault_of(result: StudyResult) -> str | None:
    """What no study would have written, of its policies and curves; None where all is well."""
    rows = [row.policy for row in result.policies]
    for name in (*ALWAYS, result.policy):
        if name not in rows:
            return f"policy {name} is not among its policies"
    if not result.curves:
        return "it has no curves"
    for curve in result.curves:
        at = curve.capacity_blocks
        if not at:
            return f"the curve of {curve.policy} is empty"
        if {len(curve.hit_blocks), len(curve.hit_tokens), len(curve.evictions)} != {len(at)}:
            return f"the curve of {curve.policy} has lists of different lengths"
        if at[0] < 1 or any(low >= high for low, high in itertools.pairwise(at)):
            return f"the capacities of the curve of {curve.policy} do not rise from 1 or more"
    return None


def _number_fault(value: object, name: str) -> str | None:
    """The first number below or above what it can be; None where there is none. O(size)."""
    if isinstance(value, msgspec.Struct):
        parts = [(field, getattr(value, field)) for field in value.__struct_fields__]
        return next((fault for field, part in parts if (fault := _number_fault(part, field))), None)
    if isinstance(value, tuple):
        return next((fault for part in value if (fault := _number_fault(part, name))), None)
    if isinstance(value, dict):
        # What readers and options leave as they like: no count of the study's.
        inside = (part for part in value.values() if isinstance(part, tuple))
        return next((fault for part in inside if (fault := _number_fault(part, name))), None)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if isinstance(value, int) and name not in SIGNED and value < 0:
        return f"{name} is negative: {value}"
    if not abs(value) < (MOST if isinstance(value, int) else MOST_REAL):
        return f"{name} is out of range: {value:g}"
    return None


class _Versioned(msgspec.Struct):
    schema_version: int
