"""The scheduler of the course chapter "37. KV Cache Scheduling", decision by decision.

A reproduction, with the faults of the original: `kvsched.lesson.flaws` shows them, and
`kvsched.policy.chapter` has the same order on the heap that the replay uses.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass

RECENCY_WEIGHT = 0.5
SIZE_WEIGHT = 0.25

Record = tuple[float, int, str]
"""What the heap holds: (priority, last used, prefix), as they were at a refresh."""


@dataclass
class Entry:
    """A cached prefix in the ledger.

    ``bytes`` is what it takes, from when it was added; ``hits`` counts its uses, the first
    included; ``last_used`` is a time of the simulation; ``priority`` the score at its last refresh.
    """

    prefix: str
    bytes: int
    hits: int = 1
    last_used: int = 0
    priority: float = 0.0


class KVCacheSchedulerSim:
    """Keep the prefixes of the highest score within ``capacity_bytes``.

    The score is hits + 0.5/(1 + time since the last use) − 0.25·bytes/capacity. ``queue`` is a heap
    of records, lowest score first. A use pushes a new record and leaves the old one where it is;
    it is stale then, and is passed over when it comes up (lazy deletion). ``time`` counts touches,
    ``log`` gets a line of ``add:``, ``reuse:`` or ``evict:`` and the prefix for each decision.

    Raises ValueError for a capacity of 0 or less. Other capacities that make no sense (infinite,
    NaN) are taken, as the chapter takes them.
    """

    def __init__(self, capacity_bytes: int = 1024) -> None:
        if capacity_bytes <= 0:
            raise ValueError(f"the capacity must be above 0 bytes, not {capacity_bytes}")
        self.capacity_bytes = capacity_bytes
        self.current_bytes = 0
        self.time = 0
        self.entries: dict[str, Entry] = {}
        self.queue: list[Record] = []
        self.log: list[str] = []

    def touch(self, prefix: str, bytes_: int) -> None:
        """Use ``prefix``: a hit, or a new entry of ``bytes_`` for which others may have to leave.

        A hit leaves the entry's bytes as they are, whatever ``bytes_`` says. O(log q) for a heap of
        q records, and as much for each record that comes up on the way to the entries that leave.
        Raises ValueError, with nothing changed, for a prefix that is empty or no string, and for
        bytes of 0 or less or above the capacity.
        """
        if not isinstance(prefix, str) or prefix == "":
            raise ValueError(f"a prefix is a string that is not empty, not {prefix!r}")
        if bytes_ <= 0:
            raise ValueError(f"an entry takes more than 0 bytes, not {bytes_}")
        if bytes_ > self.capacity_bytes:
            raise ValueError(
                f"an entry of {bytes_} bytes does not fit a capacity of {self.capacity_bytes}"
            )
        self.time += 1
        known = self.entries.get(prefix)
        if known is None:
            self._evict_until_fit(bytes_)
            self.entries[prefix] = Entry(prefix, bytes_, last_used=self.time)
            self.current_bytes += bytes_
        else:
            known.hits += 1
            known.last_used = self.time
        self._refresh_queue(prefix)
        self.log.append(f"{'add' if known is None else 'reuse'}:{prefix}")

    def schedule(self, requests: Iterable[tuple[str, int]]) -> list[str]:
        """Touch each (prefix, bytes) in turn; return a copy of the whole log.

        Raises ValueError at the first request that `touch` refuses: those before it stay applied.
        """
        for prefix, bytes_ in requests:
            self.touch(prefix, bytes_)
        return self.log.copy()

    def snapshot(self) -> list[tuple[str, int, float, int]]:
        """Return (prefix, bytes, priority to 4 places, hits) a row, the most valuable first.

        Ties go by last use, the earlier first, then by prefix. Priorities are those of the last
        refresh. Changes nothing. O(n log n) for n entries.
        """
        rows = sorted(
            self.entries.values(),
            key=lambda entry: (-entry.priority, entry.last_used, entry.prefix),
        )
        return [(row.prefix, row.bytes, round(row.priority, 4), row.hits) for row in rows]

    def _score(self, hits: int, size: int, last_used: int) -> float:
        """Return what an entry is worth now. O(1)."""
        age = max(self.time - last_used, 0)
        return hits + RECENCY_WEIGHT / (1 + age) - SIZE_WEIGHT * (size / self.capacity_bytes)

    def _refresh_queue(self, prefix: str) -> None:
        """Score the entry of ``prefix`` now and push a record of it. O(log q)."""
        entry = self.entries[prefix]
        entry.priority = self._score(entry.hits, entry.bytes, entry.last_used)
        heapq.heappush(self.queue, (entry.priority, entry.last_used, prefix))

    def _evict_until_fit(self, needed: int) -> None:
        """Let entries go, the lowest score first, until ``needed`` bytes fit beside the rest."""
        while self.entries and self.current_bytes + needed > self.capacity_bytes:
            victim = self._pop_lowest()
            del self.entries[victim.prefix]
            self.current_bytes -= victim.bytes
            self.log.append(f"evict:{victim.prefix}")

    def _pop_lowest(self) -> Entry:
        """Pop records until one is not stale; return its entry."""
        while self.queue:
            priority, last_used, prefix = heapq.heappop(self.queue)
            entry = self.entries.get(prefix)
            if entry is not None and (priority, last_used) == (entry.priority, entry.last_used):
                return entry
        # No refresh loses a record; whoever clears the heap by hand still gets the lowest.
        return min(self.entries.values(), key=lambda entry: (entry.priority, entry.last_used))
