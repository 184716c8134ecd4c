"""Samples of nodes: how far off they are, what they save, and ten million requests in memory."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

import inputs
from kvsched.policy.registry import make
from kvsched.replay.curve import lru_curve
from kvsched.replay.sampling import sampling_errors
from kvsched.replay.sweep import Point, capacity_grid, sweep
from kvsched.trace.load import load_trace
from kvsched.trace.model import Trace
from kvsched.trace.sample import sample
from measure import Row, Section, alternate, at_least, span, table, timed
from peers import HERE

SIDES = """\
A sample of one node in N, seed 0, against the whole trace: the hit ratio in blocks of each policy
at the capacities of the study's own grid. *Error*: mean absolute difference. *Expected*: what the
sample says of itself, from four parts of it. Time: a sweep over the grid on one thread, the sample
already taken. Memory: one process that generates and studies ten million requests of preset `chat`
through a sample, and the command `kvsched study` over ten million requests of preset
`mooncake-conversation` in a file (Mooncake JSONL, zstd), read and studied; the peak of each is the
operating system's (`ru_maxrss`)."""

POLICIES = ("lru", "lfu", "fifo", "opt")
BAR = 0.015
MOST_GIB = 10.0
REQUESTS, ONE_IN, PIECES = 10_000_000, 100, 20


def _traces() -> list[tuple[str, Trace]]:
    synthetic = load_trace(inputs.shared("mooncake", "synthetic_trace.jsonl"))
    return [
        ("conversation", inputs.conversation()),
        ("synthetic", synthetic),
        ("Weka", inputs.weka()),
    ]


def _by_policy(points: list[Point]) -> dict[str, list[int]]:
    return {name: [p.hit_blocks for p in points if p.policy == name] for name in POLICIES}


def _errors(section: Section) -> None:
    """Fill the table of errors, and a row with a bar for each trace at 1/10."""
    lines: list[tuple[Any, ...]] = []
    for name, trace in _traces():
        grid = capacity_grid(lru_curve(trace), 12)
        true = _by_policy(sweep(trace, POLICIES, grid))
        for one_in in (10, 100):
            taken = sample(trace, one_in)
            found = _by_policy(sweep(taken, POLICIES, grid))
            stated = sampling_errors(taken, [make(each) for each in POLICIES], grid, found)
            worst = 0.0
            for each in stated:
                off = np.array(found[each.policy]) - np.array(true[each.policy])
                error = float(np.abs(off).mean()) / trace.references
                worst = max(worst, error)
                shown = (f"{100 * value:.2f}" for value in (error, each.expected))
                lines.append((name, f"1/{one_in}", each.policy, *shown))
            if one_in == 10:
                what = f"{name}, 1/10, {len(grid)} capacities: largest error of a policy"
                points = f"{100 * worst:.2f} points"
                section.rows.append(Row(what, points, bar="≤ 1.5 points", met=worst <= BAR))
    head = ("trace", "rate", "policy", "error, points", "expected, points")
    section.tables.append(table(head, lines))


def _times(section: Section) -> None:
    trace = inputs.weka()
    grid = capacity_grid(lru_curve(trace), 12)
    taken = sample(trace, 10)
    for policy in ("lfu", "opt"):
        once: Callable[[Trace], Any] = functools.partial(
            sweep, policies=[policy], capacities=grid, threads=1
        )
        small, whole = alternate(
            timed(functools.partial(once, taken)),
            timed(functools.partial(once, trace)),
            rounds=5,
        )
        section.rows.append(at_least(f"Weka, {policy}: sweep of 1/10 / whole", small, whole, None))


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
    section = Section("Sampling", SIDES)
    _errors(section)
    _times(section)
    _memory(section)
    return section
