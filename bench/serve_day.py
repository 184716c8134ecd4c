"""A generated day of a million requests: memory, and time by the step."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from measure import Row, Section, Side
from peers import HERE

REQUESTS = 1_000_000
PART = 100_000
ROUNDS = 3
MOST_GIB = 16.0
MOST = 1.5
"""Times as long a step may take in ten times as many requests: arrays outgrow the caches."""

SIDES = """\
A workload of preset `chat`, seeded, of {requests:,} requests, whose times are divided so that it
lasts a day, served with Llama 3.1 8B on one H100 with vLLM's defaults; in the same process, in
turns, {part:,} requests from its middle. The peak is the operating system's (`ru_maxrss`), the
workload and its making included."""


def _rate(said: dict[str, Any]) -> float:
    """Return the microseconds of a step."""
    return Side(tuple(said["seconds"])).median / float(said["steps"]) * 1e6


def _what(said: dict[str, Any]) -> str:
    return f"{Side(tuple(said['seconds']))} for {said['steps']:,} steps"


def run() -> Section:
    """Measure."""
    command = [
        sys.executable,
        str(HERE / "serve_day_child.py"),
        *map(str, (REQUESTS, PART, ROUNDS)),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        print(done.stderr.strip(), file=sys.stderr)
        raise RuntimeError(f"the child ended with code {done.returncode}")
    answer: dict[str, Any] = json.loads(done.stdout)
    whole, part = answer["whole"], answer["part"]
    gib = answer["peak_bytes"] / 2**30
    ratio = _rate(whole) / _rate(part)
    section = Section("A generated day", SIDES.format(requests=REQUESTS, part=PART))
    section.rows += [
        Row(
            f"peak memory: {whole['requests']:,} requests, {whole['references']:,} references",
            f"{gib:.2f} GiB",
            bar=f"≤ {MOST_GIB:g} GiB",
            met=gib <= MOST_GIB and whole["finished"] == REQUESTS,
        ),
        Row(
            f"a step: the day against {PART:,} requests of it",
            f"{_rate(whole):.2f} µs ({_what(whole)})",
            f"{_rate(part):.2f} µs ({_what(part)})",
            f"{ratio:.2f}×",
            f"≤ {MOST:g}×",
            ratio <= MOST,
        ),
    ]
    section.notes.append(
        f"{whole['finished']:,} requests finished, the last after {whole['end_s']:,.0f} s; "
        f"{whole['jumped']:,} steps were passed in jumps, {part['jumped']:,} of the part's."
    )
    return section
