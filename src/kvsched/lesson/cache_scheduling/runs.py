"""Runs of touches: what a scheduler does in one, seeded ones, and the smallest that differs."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol

from kvsched.lesson.chapter import KVCacheSchedulerSim
from kvsched.lesson.guard import Failed, guarded

SEED = 37
RUNS = 150
PLACES = 9
"""Priorities are compared to this many places: another order of the same sum is no fault."""


class Scheduler(Protocol):
    """What the chapter's class offers."""

    entries: Any
    queue: Any
    log: Any
    time: Any
    current_bytes: Any

    def touch(self, prefix: str, bytes_: int) -> None:
        """Use a prefix."""

    def snapshot(self) -> Any:
        """Return the ledger's rows."""


Make = Callable[[int], Scheduler]


@dataclass(frozen=True)
class Run:
    """A capacity in bytes, and what is touched, in order."""

    capacity: int
    touches: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class State:
    """What can be seen after a touch; ``failed`` where it did not return."""

    log: Any = ()
    current_bytes: Any = 0
    entries: Any = ()
    """(prefix, bytes, hits, last used, priority) of each entry, by prefix."""
    time: Any = 0
    lost: Any = ()
    """Prefixes whose entry has no record in the heap that is as the entry."""
    queue: Any = ()
    """What the heap holds. A heap may be tidied: another content alone is no difference."""
    snapshot: Any = ()
    changed: bool = False
    """Whether the snapshot changed anything."""
    failed: str = ""
    fault: Failed | None = None


def _seen(sim: Scheduler) -> State:
    entries = tuple(
        (
            prefix,
            entry.bytes,
            entry.hits,
            entry.last_used,
            round(float(entry.priority), PLACES),
        )
        for prefix, entry in sorted(sim.entries.items())
    )
    records = sorted(
        (round(float(priority), PLACES), last_used, prefix)
        for priority, last_used, prefix in sim.queue
    )
    lost = tuple(row[0] for row in entries if (row[4], row[3], row[0]) not in records)
    return State(tuple(sim.log), sim.current_bytes, entries, sim.time, lost, tuple(records))


def _step(sim: Scheduler, touch: tuple[str, int]) -> State:
    try:
        guarded(lambda: sim.touch(*touch))
        before = guarded(lambda: _seen(sim))
        rows = guarded(sim.snapshot)
        after = guarded(lambda: _seen(sim))
    except Failed as fault:
        try:
            log, size = tuple(sim.log), sim.current_bytes
        except Exception:  # noqa: BLE001  # the learner's attributes may be anything
            log, size = (), 0
        return State(log, size, failed=fault.kind, fault=fault)
    return replace(before, snapshot=rows, changed=before != after)


def states(make: Make, run: Run) -> Iterator[State]:
    """Yield what is seen after each touch, until one does not return. Raises `Open`."""
    try:
        sim = guarded(lambda: make(run.capacity))
    except Failed as fault:
        yield State(failed=fault.kind, fault=fault)
        return
    for touch in run.touches:
        state = _step(sim, touch)
        yield state
        if state.failed:
            return


def _right(came: State, expected: State) -> bool:
    return replace(came, fault=None, queue=()) == replace(expected, fault=None, queue=())


def same(one: Make, other: Make, run: Run) -> bool:
    """Return whether two schedulers cannot be told apart in ``run``. Raises `Open`."""
    pairs = zip(states(one, run), states(other, run), strict=False)
    return all(replace(a, fault=None) == replace(b, fault=None) for a, b in pairs)


def difference(make: Make, run: Run) -> tuple[Run, State, State] | None:
    """Return the run up to the first touch that differs, what came and what should have."""
    pairs = zip(states(make, run), states(KVCacheSchedulerSim, run), strict=False)
    for count, (came, expected) in enumerate(pairs, 1):
        if not _right(came, expected):
            return Run(run.capacity, run.touches[:count]), came, expected
    return None


def seeded() -> Iterator[Run]:
    """Yield the same `RUNS` runs every time, short ones first."""
    draw = random.Random(SEED)  # noqa: S311  # examples, no secrets
    for number in range(RUNS):
        capacity = draw.choice((6, 8, 10, 12))
        names = "abcd"[: draw.choice((2, 3, 4))]
        sizes = {name: draw.randint(1, capacity * 2 // 3) for name in names}
        touches = []
        for _ in range(3 + number // 8):
            name = draw.choice(names)
            # Now and then a prefix comes with another size, or fills the cache.
            size = draw.randint(1, capacity) if draw.random() < 0.15 else sizes[name]
            touches.append((name, size))
        yield Run(capacity, tuple(touches))


def smallest(make: Make) -> tuple[Run, State, State] | None:
    """Return the smallest run found in which ``make`` differs from the chapter's class, or None."""
    for run in seeded():
        found = difference(make, run)
        if found:
            return _shrunk(make, found)
    return None


def _shrunk(make: Make, found: tuple[Run, State, State]) -> tuple[Run, State, State]:
    smaller = True
    while smaller:
        smaller = False
        for candidate in _smaller(found[0]):
            now = difference(make, candidate)
            if now:
                found, smaller = now, True
                break
    return found


def _smaller(run: Run) -> Iterator[Run]:
    touches = run.touches
    for at in range(len(touches)):
        yield Run(run.capacity, touches[:at] + touches[at + 1 :])
    names = list(dict.fromkeys(prefix for prefix, _ in touches))
    plain = dict(zip(names, "abcdefgh", strict=False))
    if names != [plain[name] for name in names]:
        yield Run(run.capacity, tuple((plain[prefix], size) for prefix, size in touches))
    for at, (prefix, size) in enumerate(touches):
        # The same size all along first: a hit with another size is a matter of its own.
        first = next(bytes_ for name, bytes_ in touches if name == prefix)
        if size != first:
            yield Run(run.capacity, (*touches[:at], (prefix, first), *touches[at + 1 :]))
    for name in names:
        sizes = {size for prefix, size in touches if prefix == name}
        if sizes != {1}:
            one_less = tuple(
                (prefix, size - 1 if prefix == name and size > 1 else size)
                for prefix, size in touches
            )
            yield Run(run.capacity, one_less)
            if run.capacity > max(size for _, size in one_less):
                yield Run(run.capacity - 1, one_less)
    if any(size > 1 for _, size in touches) and run.capacity > 1:
        shrunk = tuple((prefix, max(size - 1, 1)) for prefix, size in touches)
        for room in range(max(size for _, size in shrunk), run.capacity):
            yield Run(room, shrunk)
    if run.capacity > max(size for _, size in touches):
        yield Run(run.capacity - 1, touches)
