"""A run of the chapter's cache, every small step kept as data.

The algorithm is the chapter's, written a second time so that it can stop at each step; tests hold
it to `KVCacheSchedulerSim`. `heapq`'s list holds a record for each use, the lowest score first.
Nobody takes a record out when its entry is used again or leaves: it is stale then, and is found
out when it comes to the top.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from typing import NamedTuple

from kvsched.lesson.chapter import RECENCY_WEIGHT, SIZE_WEIGHT
from kvsched.lesson.play_requests import Request
from kvsched.lesson.play_words import Message, Values

CHAPTER = "chapter"
PLACES = 4
"""Of a score, as in the chapter's snapshot."""


class Terms(NamedTuple):
    """The three terms of a score at its last refresh; the size's is taken off."""

    hits: int
    recency: float
    size: float

    @property
    def score(self) -> float:
        """Hits + recency − size."""
        return self.hits + self.recency - self.size


class Row(NamedTuple):
    """An entry of the ledger."""

    prefix: str
    bytes_: int
    hits: int
    last_used: int
    terms: Terms | None = None
    """Of its score; None where another policy orders."""
    standing: Message | None = None
    """What another policy orders it by, in words; None for the chapter's."""


class Record(NamedTuple):
    """A record of the heap; ``number`` is its place in `Recording.records`."""

    score: float
    last_used: int
    prefix: str
    number: int


class Step(NamedTuple):
    """One step, and how things stand after it."""

    request: int
    """From 0."""
    kind: str
    """arrive, reuse, miss, stale, evict, decline, add or push."""
    said: Message
    ledger: tuple[Row, ...]
    """In the order in which entries came; of another policy, in the order in which they leave."""
    used: int
    hits: int
    """Requests so far that hit."""
    hit_bytes: int
    evictions: int
    heap: tuple[int, ...] = ()
    """Records in the heap as `heapq` lays them: the children of i are at 2i + 1 and 2i + 2."""
    stale: tuple[int, ...] = ()
    """Those of them that are stale."""
    popped: int | None = None
    """The record that this step took from the top."""
    pushed: int | None = None
    gone: Row | None = None
    """The entry that left."""


@dataclass
class Recording:
    """A run: its steps, the heap's records, and the log of the chapter's own class."""

    policy: str
    capacity: int
    requests: tuple[Request, ...]
    steps: list[Step] = field(default_factory=list)
    records: list[Record] = field(default_factory=list)
    log: list[str] = field(default_factory=list)
    summary: str = ""
    """What the policy does, in its own docstring's words."""

    def snapshot(self) -> list[tuple[str, int, float, int]]:
        """Return the chapter's rows at the end: prefix, bytes, score to 4 places, hits."""
        found = [(row, row.terms.score) for row in self.steps[-1].ledger if row.terms is not None]
        found.sort(key=lambda each: (-each[1], each[0].last_used, each[0].prefix))
        return [(row.prefix, row.bytes_, round(score, PLACES), row.hits) for row, score in found]


def number(value: float) -> str:
    """Return a score or a term as it is shown."""
    return f"{value:.{PLACES}f}"


def record_chapter(requests: tuple[Request, ...], capacity: int) -> Recording:
    """Run the chapter's algorithm and record every step.

    The requests are sound and fit (`check_capacity`). O(s·(n + q)) for s steps, n entries and q
    records in the heap: every step keeps them all.
    """
    return ChapterRecorder(requests, capacity).run()


class ChapterRecorder:
    """The chapter's algorithm, stopped after each step; one run."""

    def __init__(self, requests: tuple[Request, ...], capacity: int) -> None:
        self.recording = Recording(CHAPTER, capacity, requests)
        self.entries: dict[str, Row] = {}
        self.heap: list[Record] = []
        self.used = 0
        self.time = 0
        self.hits = 0
        self.hit_bytes = 0
        self.evictions = 0

    def run(self) -> Recording:
        """Touch every request in turn."""
        for request in self.recording.requests:
            self.touch(request)
        return self.recording

    def touch(self, request: Request) -> None:
        """One request, from its arrival to the record that is pushed for it."""
        self.time += 1
        prefix, size = request
        known = self.entries.get(prefix)
        values: Values = {"number": self.time, "prefix": prefix, "bytes": size}
        self._step("arrive", Message("arrive", values))
        if known is None:
            self._evict_until_fit(prefix, size)
            self.entries[prefix] = Row(prefix, size, 1, self.time)
            self.used += size
            self.recording.log.append(f"add:{prefix}")
            said = Message("add", {"prefix": prefix, "bytes": size, **self._room()})
            self._refresh(prefix, "add", said)
        else:
            self.hits += 1
            self.hit_bytes += known.bytes_
            self.entries[prefix] = known._replace(hits=known.hits + 1, last_used=self.time)
            self.recording.log.append(f"reuse:{prefix}")
            changed = {"before": known.hits, "hits": known.hits + 1, "time": self.time}
            resized = "" if size == known.bytes_ else ".resized"
            sizes: Values = {"prefix": prefix, "bytes": known.bytes_, "asked": size}
            self._refresh(prefix, "reuse", Message(f"reuse{resized}", {**sizes, **changed}))

    def score(self, row: Row) -> Terms:
        """Return the terms of an entry's score now."""
        recency = RECENCY_WEIGHT / (1 + max(self.time - row.last_used, 0))
        size = SIZE_WEIGHT * (row.bytes_ / self.recording.capacity)
        return Terms(row.hits, recency, size)

    def is_stale(self, record: Record) -> bool:
        """Whether the ledger says something else than ``record``."""
        entry = self.entries.get(record.prefix)
        if entry is None or entry.terms is None:
            return True
        return (record.score, record.last_used) != (entry.terms.score, entry.last_used)

    def _refresh(self, prefix: str, kind: str, said: Message) -> None:
        """Record what was done to an entry; then score it and push a record, and record that."""
        old = any(record.prefix == prefix for record in self.heap)
        row = self.entries[prefix]
        row = self.entries[prefix] = row._replace(terms=self.score(row))
        self._step(kind, said)
        terms = self.score(row)
        record = Record(terms.score, row.last_used, prefix, len(self.recording.records))
        self.recording.records.append(record)
        heapq.heappush(self.heap, record)
        key = "push.stale" if old else "push"
        shown: Values = {"prefix": prefix, "last": row.last_used, **shown_terms(terms)}
        self._step("push", Message(key, shown), pushed=record.number)

    def _evict_until_fit(self, prefix: str, needed: int) -> None:
        """Pop records until ``needed`` bytes fit; those that are not stale take an entry along."""
        free = self.recording.capacity - self.used
        key = "miss.fits" if needed <= free else "miss.full"
        self._step("miss", Message(key, {"prefix": prefix, "bytes": needed, "free": free}))
        while self.used + needed > self.recording.capacity:
            record = heapq.heappop(self.heap)
            if self.is_stale(record):
                self._step("stale", self._why_stale(record), popped=record.number)
                continue
            tie = self._tie(record)
            gone = self.entries.pop(record.prefix)
            self.used -= gone.bytes_
            self.evictions += 1
            self.recording.log.append(f"evict:{record.prefix}")
            shown: Values = {"prefix": gone.prefix, "bytes": gone.bytes_, "last": gone.last_used}
            shown |= shown_terms(gone.terms or self.score(gone))
            said = Message("evict", shown)
            if tie is not None:
                said = Message("evict.tie", {**shown, "other": tie})
            self._step("evict", said, popped=record.number, gone=gone)

    def _why_stale(self, record: Record) -> Message:
        shown: Values = {
            "prefix": record.prefix,
            "last": record.last_used,
            "score": number(record.score),
        }
        entry = self.entries.get(record.prefix)
        if entry is None or entry.terms is None:
            return Message("stale.gone", shown)
        now: Values = {"now": entry.last_used, "current": number(entry.terms.score)}
        return Message("stale.newer", {**shown, **now})

    def _tie(self, record: Record) -> str | None:
        """Return another entry of the same score, the one that would have left next."""
        same = [
            (row.last_used, row.prefix)
            for row in self.entries.values()
            if row.terms is not None
            and row.prefix != record.prefix
            and row.terms.score == record.score
        ]
        return min(same)[1] if same else None

    def _room(self) -> dict[str, int]:
        return {"used": self.used, "capacity": self.recording.capacity}

    def _step(
        self,
        kind: str,
        said: Message,
        popped: int | None = None,
        pushed: int | None = None,
        gone: Row | None = None,
    ) -> None:
        self.recording.steps.append(
            Step(
                request=self.time - 1,
                kind=kind,
                said=said,
                ledger=tuple(self.entries.values()),
                used=self.used,
                hits=self.hits,
                hit_bytes=self.hit_bytes,
                evictions=self.evictions,
                heap=tuple(record.number for record in self.heap),
                stale=tuple(record.number for record in self.heap if self.is_stale(record)),
                popped=popped,
                pushed=pushed,
                gone=gone,
            )
        )


def shown_terms(terms: Terms) -> Values:
    """Return a score and its terms as a message shows them."""
    return {
        "hits": terms.hits,
        "recency": number(terms.recency),
        "size": number(terms.size),
        "score": number(terms.score),
    }
