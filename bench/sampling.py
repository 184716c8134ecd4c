"""Samples of nodes: how far off they are, and what they save."""

from __future__ import annotations

import functools
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
from measure import Row, Section, alternate, at_least, table, timed

SIDES = """\
A sample of one node in N, seed 0, against the whole trace: the hit ratio in blocks of each policy
at the capacities of the study's own grid. *Error*: mean absolute difference. *Expected*: what the
sample says of itself, from four parts of it. Time: a sweep over the grid on one thread, the sample
already taken. Memory is `sampling-memory`'s matter, by itself."""

POLICIES = ("lru", "lfu", "fifo", "opt")
BAR = 0.015


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


def run() -> Section:
    """Measure."""
    section = Section("Sampling", SIDES)
    _errors(section)
    _times(section)
    return section
