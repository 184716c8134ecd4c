"""A whole study of the conversation trace, warm and with nothing compiled."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import inputs
from measure import Row, Section, Side, process
from startup import kvsched

SIDES = """\
`kvsched study` of the conversation trace as a whole process: six policies at 12 capacities, the
optima, the anatomy of misses, the report. *Warm*: compiled code on disk. *Cold*: an empty folder
for it (KVSCHED_CACHE_DIR), so every kernel is compiled. Each run studies into a new folder, so that
nothing is resumed. Absolute seconds: there is nothing to compare with, and no bar."""


def _once(cache: str) -> float:
    with tempfile.TemporaryDirectory() as out:
        command = [
            *kvsched(),
            "study",
            str(inputs.conversation_path()),
            "--output-dir",
            str(Path(out, "s")),
        ]
        return process(command, {**os.environ, "KVSCHED_CACHE_DIR": cache})()


def run() -> Section:
    """Measure."""
    section = Section("A whole study", SIDES)
    with tempfile.TemporaryDirectory() as cache:
        cold = Side((_once(cache),))
        warm = Side(tuple(_once(cache) for _ in range(3)))
    section.rows = [Row("study, warm", str(warm)), Row("study, nothing compiled", str(cold))]
    return section
