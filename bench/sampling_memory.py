"""Ten million requests in memory, generated and from a file; a quarter of an hour or more."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from measure import Row, Section, span
from peers import HERE

SIDES = """\
One process that generates and studies ten million requests of preset `chat` through a sample, and
the command `kvsched study` over ten million requests of preset `mooncake-conversation` in a file
(Mooncake JSONL, zstd), read and studied; the peak of each is the operating system's
(`ru_maxrss`)."""

MOST_GIB = 10.0
REQUESTS, ONE_IN, PIECES = 10_000_000, 100, 20


def _child(script: str, *arguments: int) -> dict[str, Any]:
    command = [sys.executable, str(HERE / script), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        print(done.stderr.strip(), file=sys.stderr)
        raise RuntimeError(f"the study of {REQUESTS:,} requests ended with code {done.returncode}")
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def _memory(section: Section) -> None:
    made = _child("sampling_child.py", REQUESTS, ONE_IN)
    made["seconds"] = made["generate_seconds"] + made["study_seconds"]
    read = _child("sampling_file.py", PIECES, REQUESTS // PIECES, ONE_IN)
    for source, answer in (("generated", made), ("in a file", read)):
        gib = answer["peak_bytes"] / 2**30
        section.rows.append(
            Row(
                f"{answer['requests']:,} requests {source}, {answer['references']:,} references, "
                f"studied through 1/{ONE_IN}",
                f"{gib:.2f} GiB, {span(answer['seconds'])}",
                bar=f"≤ {MOST_GIB:g} GiB",
                met=gib <= MOST_GIB and answer["requests"] >= REQUESTS,
            )
        )


def run() -> Section:
    """Measure."""
    section = Section("Memory of a sample", SIDES)
    _memory(section)
    return section
