"""The files of a study: `result.json`, its schema, and the report."""

from __future__ import annotations

from pathlib import Path

import msgspec

from kvsched.foundation.files import write_whole
from kvsched.study.result import StudyResult


def encode(result: StudyResult) -> bytes:
    """Return a result as JSON, the same bytes for the same result."""
    return msgspec.json.format(msgspec.json.encode(result), indent=1) + b"\n"


def write_study(result: StudyResult, folder: Path, html: str) -> None:
    """Write `result.json` and `report.html` into ``folder``, each whole or not at all."""
    write_whole(folder / "result.json", encode(result))
    write_whole(folder / "report.html", html.encode())
