"""What the chapter's scheduler gets wrong in real use, each as a few lines that run.

A flaw's ``example`` runs the chapter's class and returns what happened; ``instead`` (in
`kvsched.lesson.flaw_answers`) runs the same with `kvsched.KVCacheScheduler` or the replay.
`kvsched lesson flaws` prints both.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kvsched.foundation.errors import UsageError
from kvsched.lesson import flaw_answers
from kvsched.lesson.chapter import KVCacheSchedulerSim
from kvsched.lesson.flaw_answers import Facts
from kvsched.lesson.flaw_texts import TEXTS, FlawText
from kvsched.lesson.frame import Text


@dataclass(frozen=True)
class Flaw:
    """One flaw: its number, its texts, what shows it, and what shows that it can be otherwise."""

    number: int
    example: Callable[[], Facts]
    instead: Callable[[], Facts]

    @property
    def text(self) -> FlawText:
        """The texts, in every language; their templates name the facts."""
        return TEXTS[self.example.__name__]

    def shows(self) -> Text:
        """Run the example; return what happened, in words."""
        return self.text.shows.fill(**_said(self.example()))

    def done_instead(self) -> Text:
        """Run what is done instead; return that in words."""
        return self.text.instead.fill(**_said(self.instead()))


def _said(facts: Facts) -> dict[str, object]:
    return {name: _one(value) for name, value in facts.items()}


def _one(value: Any) -> object:
    if isinstance(value, bool):
        return Text("yes", "是") if value else Text("no", "否")
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return value


def old_and_hot() -> Facts:
    """Run a hundred uses of one prefix, then a hundred of two others."""
    sim = KVCacheSchedulerSim(20)
    sim.schedule([("old", 10)] * 100)
    sim.schedule([("new 1", 10), ("new 2", 10)] * 50)
    recency = {row.priority - row.hits + 0.25 * row.bytes / 20 for row in sim.entries.values()}
    return {
        "kept": "old" in sim.entries,
        "unused_for": sim.time - sim.entries["old"].last_used,
        "hits_of_the_new": sum(line.startswith("reuse:new") for line in sim.log),
        "recency": sorted(recency),
    }


def grows() -> Facts:
    """Use one prefix ten thousand times."""
    sim = KVCacheSchedulerSim(100)
    sim.schedule([("a", 10)] * 10_000)
    return {"entries": len(sim.entries), "records": len(sim.queue), "lines": len(sim.log)}


def another_size() -> Facts:
    """Hit a prefix that has become longer."""
    sim = KVCacheSchedulerSim(100)
    sim.schedule([("chat", 10), ("chat", 90), ("code", 60)])
    return {"counted": sim.current_bytes, "really": 90 + 60, "log": sim.log}


def running() -> Facts:
    """Let another request come while one is being decoded."""
    sim = KVCacheSchedulerSim(100)
    sim.touch("running", 60)  # and its decoding goes on
    sim.touch("other", 60)
    return {"log": sim.log, "kept": "running" in sim.entries}


def scan() -> Facts:
    """Read one long prompt once, beside five prefixes that are used all the time."""
    sim = KVCacheSchedulerSim(10)
    sim.schedule([(f"hot {each}", 2) for each in range(5)] * 20)
    sim.touch("scan", 10)
    return {
        "evicted": sum(line.startswith("evict:hot") for line in sim.log),
        "left": sorted(sim.entries),
    }


def history() -> Facts:
    """Let a prefix that was used ten times be pushed out, and come back."""
    sim = KVCacheSchedulerSim(10)
    sim.schedule([("a", 5)] * 10 + [("large", 10)] + [("a", 5)])
    return {"hits": sim.entries["a"].hits, "uses": 11}


def shared() -> Facts:
    """Ask two questions about one system prompt."""
    sim = KVCacheSchedulerSim(100)
    sim.schedule([("system + question 1", 60 + 10), ("system + question 2", 60 + 10)])
    return {"log": sim.log, "needed": 60 + 10 + 10}


def dear() -> Facts:
    """Have a long document and a short greeting, used once each, and room for one."""
    sim = KVCacheSchedulerSim(100)
    sim.schedule([("greeting", 5), ("document", 90), ("new", 20)])
    return {"evicted": [line[6:] for line in sim.log if line.startswith("evict:")]}


def ledger() -> Facts:
    """Give sizes and capacities that are no whole numbers."""
    nan: Any = float("nan")
    sim = KVCacheSchedulerSim(100)
    sim.touch("a", nan)
    sim.schedule([(f"b{each}", 100) for each in range(5)])
    endless = KVCacheSchedulerSim(float("inf"))  # type: ignore[arg-type]
    endless.schedule([(f"b{each}", 100) for each in range(5)])
    no_number = KVCacheSchedulerSim(nan)
    no_number.schedule([(f"b{each}", 100) for each in range(5)])
    true = KVCacheSchedulerSim(True)
    true.touch("a", True)
    return {
        "bytes_after_nan": sim.current_bytes,
        "really": sum(row.bytes for row in sim.entries.values() if row.prefix != "a"),
        "capacity": sim.capacity_bytes,
        "evicted": sum(
            line.startswith("evict") for each in (sim, endless, no_number) for line in each.log
        ),
        "true": true.snapshot(),
    }


def half() -> Facts:
    """Schedule a batch whose third request is too large."""
    sim = KVCacheSchedulerSim(10)
    sim.touch("kept", 10)
    try:
        sim.schedule([("a", 5), ("b", 5), ("c", 11), ("d", 5)])
    except ValueError as error:
        return {"error": str(error), "log": sim.log}
    raise AssertionError("an entry above the capacity was taken")


_EXAMPLES = (
    old_and_hot,
    grows,
    another_size,
    running,
    scan,
    history,
    shared,
    dear,
    ledger,
    half,
)
FLAWS = tuple(
    Flaw(number, example, getattr(flaw_answers, example.__name__))
    for number, example in enumerate(_EXAMPLES, 1)
)


def find_flaw(number: int) -> Flaw:
    """Return flaw ``number``. Raises UsageError where there is none."""
    if not 1 <= number <= len(FLAWS):
        raise UsageError(f"there is no flaw {number}; there are 1 to {len(FLAWS)}")
    return FLAWS[number - 1]
