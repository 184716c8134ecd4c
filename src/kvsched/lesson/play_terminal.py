"""The step-through in a terminal, or printed whole where nobody can press a key."""

from __future__ import annotations

import re
from typing import TextIO

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from kvsched.foundation.errors import UsageError
from kvsched.lesson.chapter import RECENCY_WEIGHT
from kvsched.lesson.play import note
from kvsched.lesson.play_policies import record
from kvsched.lesson.play_requests import Request, check_capacity
from kvsched.lesson.play_words import LABELS, LANGUAGES, Message, fill, tell
from kvsched.lesson.recording import CHAPTER, Recording, Row, Step, number

BAR = 60
"""Columns of the bar of the cache."""


def word(key: str, language: str, **values: str | int | Message) -> str:
    """Return a label in ``language``, with its slots filled."""
    return fill(LABELS[key][LANGUAGES.index(language)], values, language)


class Walk:
    """Where a learner stands: a run, a step of it, and how to get to others."""

    def __init__(
        self, requests: tuple[Request, ...], capacity: int, policy: str, language: str
    ) -> None:
        self.requests = requests
        self.language = language
        self.policy = policy
        self.run = self._record(capacity, policy)
        self.step = 0

    def act(self, given: str) -> str | None:
        """Do what a line of input says; return what is wrong with it, or None.

        n or nothing: the next step; p: back; a number: that step; c BYTES and o POLICY: the same
        requests with another capacity or policy, from the start.
        """
        last = len(self.run.steps) - 1
        asked = re.fullmatch(r"([co])\s+(\S+)", given)
        if given in ("", "n"):
            self.step = min(self.step + 1, last)
        elif given == "p":
            self.step = max(self.step - 1, 0)
        elif re.fullmatch(r"[0-9]{1,6}", given) and 1 <= int(given) <= last + 1:
            self.step = int(given) - 1
        elif asked and asked[1] == "o":
            return self._change(self.run.capacity, asked[2])
        elif asked and re.fullmatch(r"[0-9]{1,12}", asked[2]):
            return self._change(int(asked[2]), self.policy)
        else:
            return word("unknown", self.language, given=repr(given))
        return None

    def _change(self, capacity: int, policy: str) -> str | None:
        try:
            self.run = self._record(capacity, policy)
        except UsageError as error:
            return str(error)
        self.policy, self.step = policy, 0
        return None

    def _record(self, capacity: int, policy: str) -> Recording:
        check_capacity(self.requests, capacity)
        return record(self.requests, capacity, policy)


def walk_through(walk: Walk, console: Console, keys: TextIO) -> None:
    """Show a step, read a line, and go on until q or the end of the input."""
    fault: str | None = None
    while True:
        console.clear()
        console.print(heading(walk.run, walk.language), "")
        console.print(shown_step(walk.run, walk.step, walk.language), "")
        if fault:
            console.print(Text(fault, style="yellow"))
        console.print(Text(word("prompt", walk.language)), end="")
        line = keys.readline()
        if not line or line.strip() == "q":
            return
        fault = walk.act(line.strip())


def print_run(run: Recording, console: Console, language: str) -> None:
    """Print every step of a run, one below the other."""
    console.print(heading(run, language), "")
    for step in range(len(run.steps)):
        console.print(shown_step(run, step, language), "")


def heading(run: Recording, language: str) -> RenderableType:
    """Return the run's name and whom it lets go first."""
    title = f"{run.policy}, {run.capacity} {word('bytes', language)}"
    return Group(Text(title, style="bold"), Text(tell(note(run), language), style="dim"))


def shown_step(run: Recording, at: int, language: str) -> RenderableType:
    """Return one step: what happened, the requests, the cache, the ledger and the heap."""
    step = run.steps[at]
    count = word("count", language, step=at + 1, steps=len(run.steps))
    parts: list[RenderableType] = [
        Text(count, style="dim"),
        Text(tell(step.said, language), style="bold"),
        _requests(run, at, language),
        _bar(run, step, language),
        _ledger(run, step, language),
    ]
    if run.policy == CHAPTER:
        parts.append(_heap(run, step, language))
    return Group(*parts)


def _requests(run: Recording, at: int, language: str) -> Text:
    """Every request's prefix: + a hit, - a miss, brackets around the present one."""
    signs = {"reuse": "+", "miss": "-"}
    outcome = {step.request: signs[step.kind] for step in run.steps[: at + 1] if step.kind in signs}
    shown = Text(word("requests", language) + ":")
    for index, request in enumerate(run.requests):
        name = request.prefix + outcome.get(index, "")
        now = index == run.steps[at].request
        shown.append(" ").append(f"[{name}]" if now else name, "bold" if now else "dim")
    step = run.steps[at]
    hits = word("of", language, part=step.hits, all=step.request + 1)
    return shown.append(f"  ({word('hits', language)} {hits})")


def _bar(run: Recording, step: Step, language: str) -> Text:
    """Draw the entries as wide as their bytes."""
    bar, filled = "", 0
    for row in step.ledger:
        # Cut from the running sum, so that a full cache is a full bar.
        filled += row.bytes_
        width = max(BAR * filled // run.capacity - len(bar), 1)
        bar += f"|{row.prefix}"[:width].ljust(width)
    bar = bar.ljust(BAR, "·") + "|"
    room = word("room", language, used=step.used, capacity=run.capacity)
    return Text(f"{bar} {room}")


def _ledger(run: Recording, step: Step, language: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    chapter = run.policy == CHAPTER
    for key in ("prefix", "bytes", "uses", "last_use"):
        table.add_column(word(key, language), justify="left" if key == "prefix" else "right")
    for key in ("score", "now") if chapter else ("standing",):
        table.add_column(word(key, language), no_wrap=chapter)
    for row in step.ledger:
        table.add_row(*_cells(row, step.request + 1, language))
    if step.gone is not None:
        gone = [f"{step.gone.prefix} ({word('leaves', language)})"]
        gone += _cells(step.gone, step.request + 1, language)[1:]
        table.add_row(*gone, style="strike")
    return table


def _cells(row: Row, now: int, language: str) -> list[str]:
    cells = [row.prefix, str(row.bytes_), str(row.hits), str(row.last_used)]
    if row.terms is not None:
        hits, recency, size = row.terms
        score = f"{hits} + {number(recency)} − {number(size)} = {number(row.terms.score)}"
        return [*cells, score, number(RECENCY_WEIGHT / (1 + now - row.last_used))]
    return [*cells, "" if row.standing is None else tell(row.standing, language)]


def _heap(run: Recording, step: Step, language: str) -> Text:
    """Write the heap as the list that it is; what was popped stands before it."""

    def name(at: int) -> str:
        record = run.records[at]
        return f"({number(record.score)}, {record.last_used}, {record.prefix})"

    stale = word("stale", language)
    shown = Text(f"{word('heap', language)}:")
    if step.popped is not None:
        out = step.kind == "stale"
        mark = f"✗ {name(step.popped)}", "strike" if out else "bold"
        shown.append(" ").append(*mark).append(f" {stale if out else word('leaves', language)} |")
    for at in step.heap:
        old = at in step.stale
        shown.append("  ").append(name(at), "dim" if old else "")
        if old:
            shown.append(f" {stale}", "dim")
    return shown
