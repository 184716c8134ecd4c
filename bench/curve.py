"""The exact LRU curve against two LRU replays."""

from __future__ import annotations

import functools

import inputs
from kvsched.replay.curve import lru_curve
from kvsched.replay.run import replay
from kvsched.trace.model import Trace
from measure import Section, alternate, at_most, timed

SIDES = """\
`lru_curve` gives the hits at every capacity from one pass; two LRU replays give them at two.
Both warm, on one thread."""


def _two(trace: Trace, capacities: tuple[int, int]) -> None:
    for capacity in capacities:
        replay(trace, "lru", capacity)


def run() -> Section:
    """Measure."""
    section = Section("LRU curve", SIDES)
    for name, trace, capacities in (
        ("conversation trace", inputs.conversation(), (5_859, 22_550)),
        ("Weka sessions", inputs.weka(), (10_000, 40_000)),
    ):
        curve, twice = alternate(
            timed(functools.partial(lru_curve, trace)),
            timed(functools.partial(_two, trace, capacities)),
            rounds=9,
        )
        section.rows.append(at_most(f"{name}, {trace.nodes:,} capacities / two", curve, twice, 1))
    return section
