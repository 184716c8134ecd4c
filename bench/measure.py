"""Timing by turns, and the rows and sections that the table is made of."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

ROUNDS = 7

Timed = Callable[[], float]
"""Does something once and returns the seconds it took."""


@dataclass(frozen=True)
class Side:
    """Seconds that one side took, one a round."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    def __str__(self) -> str:
        return f"{span(self.median)} ({span(min(self.seconds))})"


@dataclass(frozen=True)
class Row:
    """One figure: what, both sides, their ratio, the bar and whether it is met."""

    what: str
    ours: str
    other: str = ""
    ratio: str = ""
    bar: str = ""
    met: bool | None = None


@dataclass
class Section:
    """One benchmark: what each side did, and its figures."""

    title: str
    sides: str
    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    tables: list[str] = field(default_factory=list)


def span(seconds: float) -> str:
    """Seconds in a unit that suits them."""
    for unit, scale in (("s", 1.0), ("ms", 1e3), ("µs", 1e6)):
        if seconds * scale >= 1:
            return f"{seconds * scale:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"


def timed(function: Callable[[], Any]) -> Timed:
    """Wrap ``function`` so that it returns its seconds."""

    def run() -> float:
        began = time.perf_counter()
        function()
        return time.perf_counter() - began

    return run


def process(command: Sequence[str], env: dict[str, str] | None = None) -> Timed:
    """Time ``command`` as a whole process, its output thrown away."""

    def run() -> float:
        began = time.perf_counter()
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        seconds = time.perf_counter() - began
        if done.returncode:
            print(done.stderr.strip(), file=sys.stderr)
            raise RuntimeError(f"a measured command ended with code {done.returncode}")
        return seconds

    return run


def alternate(*sides: Timed, rounds: int = ROUNDS) -> list[Side]:
    """Run the sides in turns, once each unmeasured and then ``rounds`` times.

    Every other round goes backwards, so that no side always runs behind the same one.
    """
    seconds: list[list[float]] = [[] for _ in sides]
    for side in sides:
        side()
    for number in range(rounds):
        order = range(len(sides)) if number % 2 == 0 else reversed(range(len(sides)))
        for place in order:
            seconds[place].append(sides[place]())
    return [Side(tuple(each)) for each in seconds]


def at_least(what: str, ours: Side, other: Side, bar: float | None) -> Row:
    """How many times faster than the other side we are; met at ``bar`` or more."""
    ratio = other.median / ours.median
    if bar is None:
        return Row(what, str(ours), str(other), f"{ratio:.2f}× faster")
    return Row(what, str(ours), str(other), f"{ratio:.2f}× faster", f"≥ {bar:g}×", ratio >= bar)


def at_most(what: str, ours: Side, other: Side, bar: float | None) -> Row:
    """How many times the other side's time we take; met at ``bar`` or less."""
    ratio = ours.median / other.median
    if bar is None:
        return Row(what, str(ours), str(other), f"{ratio:.2f}×")
    return Row(what, str(ours), str(other), f"{ratio:.2f}×", f"≤ {bar:g}×", ratio <= bar)


def render(section: Section) -> str:
    """The section in Markdown."""
    lines = [f"## {section.title}", "", " ".join(section.sides.split()), ""]
    if section.rows:
        lines += [
            "| | kvsched | against | ratio | bar | |",
            "| --- | --- | --- | --- | --- | --- |",
        ]
        for row in section.rows:
            verdict = {True: "met", False: "**not met**", None: ""}[row.met]
            cells = (row.what, row.ours, row.other, row.ratio, row.bar, verdict)
            lines.append("| " + " | ".join(cells) + " |")
        lines.append("")
    for table in section.tables:
        lines += [table, ""]
    lines += [f"- {' '.join(note.split())}" for note in section.notes]
    if section.notes:
        lines.append("")
    return "\n".join(lines)


def table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A Markdown table; integers get their thousands separated."""

    def cell(value: Any) -> str:
        return f"{value:,}" if isinstance(value, int) else str(value)

    lines = ["| " + " | ".join(head) + " |", "| " + " | ".join("---" for _ in head) + " |"]
    lines += ["| " + " | ".join(cell(value) for value in row) + " |" for row in rows]
    return "\n".join(lines)
