"""Peak memory of replaying a generated trace of 100 million references."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import inputs
from measure import Row, Section, span
from peers import HERE

REFERENCES = 100_000_000
MOST_GIB = 8.0

SIDES = """\
A workload of preset `chat`, seeded, with at least {references:,} block references is generated in
one process and written as raw columns; another opens them and replays them under LRU; peaks are
the operating system's (`ru_maxrss`), mapped pages of the file included. A third does both in one
process."""


def _child(*arguments: str) -> dict[str, Any]:
    command = [sys.executable, str(HERE / "memory_child.py"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        print(done.stderr.strip(), file=sys.stderr)
        raise RuntimeError(f"{arguments[0]} ended with code {done.returncode}")
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def run() -> Section:
    """Measure."""
    path = inputs.made("hundred-million.kvtrace")
    try:
        generated = _child("generate", str(path), str(REFERENCES))
        replays = [_child("replay", str(path), policy) for policy in ("lru", "lfu", "opt")]
    finally:
        path.unlink(missing_ok=True)
    both = _child("both", "lru", str(REFERENCES))
    section = Section("Memory", SIDES.format(references=REFERENCES))
    for what, answer in (
        ("generate and write", generated),
        *((f"open and replay, {answer['policy']}", answer) for answer in replays),
        ("generate and replay in one process, lru", both),
    ):
        gib = answer["peak_bytes"] / 2**30
        section.rows.append(
            Row(
                f"{what}: {answer['references']:,} references, {answer['nodes']:,} nodes",
                f"{gib:.2f} GiB, {span(answer['seconds'])}",
                bar=f"≤ {MOST_GIB:g} GiB",
                met=gib <= MOST_GIB and answer["references"] >= REFERENCES,
            )
        )
    return section
