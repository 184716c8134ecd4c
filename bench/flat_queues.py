"""Queue policies over a stream of single objects, in a few lines each, as their papers say.

They return which requests hit. `tests/policy/test_flat.py` holds kvsched to them on flat traces;
`flat_parity.py` holds the peer to them, with what it does otherwise as options.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Sequence

Queue = OrderedDict[int, None]


def lru(stream: Sequence[int], capacity: int) -> list[bool]:
    """Least recently used."""
    cache: Queue = OrderedDict()
    hits = []
    for item in stream:
        hits.append(item in cache)
        if item in cache:
            cache.move_to_end(item)
            continue
        if len(cache) == capacity:
            cache.popitem(last=False)
        cache[item] = None
    return hits


def sieve(stream: Sequence[int], capacity: int) -> list[bool]:
    """NSDI'24, figure 1: a linked list from head to tail, a bit an object, a hand."""
    newer: dict[int, int | None] = {}
    older: dict[int, int | None] = {}
    visited: dict[int, bool] = {}
    head: int | None = None
    tail: int | None = None
    hand: int | None = None
    hits = []
    for item in stream:
        hits.append(item in visited)
        if item in visited:
            visited[item] = True
            continue
        if len(visited) == capacity:
            at = tail if hand is None else hand
            while at is not None and visited[at]:
                visited[at] = False
                at = newer[at] if newer[at] is not None else tail
            assert at is not None  # noqa: S101  # a full cache has a tail
            before, after = older.pop(at), newer.pop(at)
            hand = after
            if before is None:
                tail = after
            else:
                newer[before] = after
            if after is None:
                head = before
            else:
                older[after] = before
            del visited[at]
        newer[item], older[item], visited[item] = None, head, False
        if head is None:
            tail = item
        else:
            newer[head] = item
        head = item
    return hits


def s3fifo(
    stream: Sequence[int],
    capacity: int,
    *,
    small_share: float = 0.1,
    ghost_share: float | None = None,
    fills_main: bool = False,
) -> list[bool]:
    """SOSP'23, algorithm 1, one object leaving a time.

    ``ghost_share`` of the capacity, not as large as the main queue; ``fills_main``: before the
    first eviction a full small queue sends what is new to the main one.
    """
    small_room = max(1, int(capacity * small_share))
    ghost_room = capacity - small_room if ghost_share is None else int(capacity * ghost_share)
    small: deque[int] = deque()
    main: deque[int] = deque()
    ghost: Queue = OrderedDict()
    freq: dict[int, int] = {}
    evicted = False
    hits = []
    for item in stream:
        hits.append(item in freq)
        if item in freq:
            freq[item] = min(3, freq[item] + 1)
            continue
        remembered = item in ghost
        if remembered:
            del ghost[item]
        gone = None
        if len(freq) == capacity:
            evicted = True
            if len(small) >= small_room:
                while small and gone is None:
                    tail = small.popleft()
                    if freq[tail] > 1:
                        freq[tail] = 0
                        main.append(tail)
                    else:
                        gone = tail
                        if len(ghost) == ghost_room and ghost:
                            ghost.popitem(last=False)
                        if ghost_room:
                            ghost[tail] = None
            while gone is None:
                tail = main.popleft()
                if freq[tail] > 0:
                    freq[tail] -= 1
                    main.append(tail)
                else:
                    gone = tail
            del freq[gone]
        full = fills_main and not evicted and len(small) >= small_room
        (main if remembered or full else small).append(item)
        freq[item] = 0
    return hits


def arc(stream: Sequence[int], capacity: int, *, whole_steps: bool = False) -> list[bool]:
    """FAST'03, figure 4. ``whole_steps``: p moves by whole numbers, ratios rounded down."""
    t1: Queue = OrderedDict()
    t2: Queue = OrderedDict()
    b1: Queue = OrderedDict()
    b2: Queue = OrderedDict()
    p = 0.0
    hits = []

    def step(ours: Queue, others: Queue) -> float:
        ratio = max(1.0, len(others) / len(ours))
        return float(math.floor(ratio)) if whole_steps else ratio

    def give_up(of: Queue, to: Queue) -> None:
        to[of.popitem(last=False)[0]] = None

    def make_room(in_b2: bool) -> None:
        if t1 and (len(t1) > p or (in_b2 and len(t1) == p)):
            give_up(t1, b1)
        else:
            give_up(t2, b2)

    for item in stream:
        hits.append(item in t1 or item in t2)
        if hits[-1]:
            t1.pop(item, None)
            t2[item] = None
            t2.move_to_end(item)
        elif item in b1:
            p = min(p + step(b1, b2), capacity)
            make_room(False)
            del b1[item]
            t2[item] = None
        elif item in b2:
            p = max(p - step(b2, b1), 0)
            make_room(True)
            del b2[item]
            t2[item] = None
        else:
            if len(t1) + len(b1) == capacity:
                if len(t1) < capacity:
                    b1.popitem(last=False)
                    make_room(False)
                else:
                    t1.popitem(last=False)
            elif len(t1) + len(b1) + len(t2) + len(b2) >= capacity:
                if len(t1) + len(b1) + len(t2) + len(b2) == 2 * capacity:
                    b2.popitem(last=False)
                make_room(False)
            t1[item] = None
    return hits


class Counts:
    """TinyLFU with an exact histogram: halved when the sample is full, at most ``most``."""

    def __init__(self, sample: int, most: int) -> None:
        self.sample = sample
        self.most = most
        self.added = 0
        self.counts: dict[int, int] = {}

    def __getitem__(self, item: int) -> int:
        return self.counts.get(item, 0)

    def add(self, item: int) -> None:
        self.counts[item] = min(self.most, self[item] + 1)
        self.added += 1
        if self.added == self.sample:
            self.added //= 2
            self.counts = {item: count // 2 for item, count in self.counts.items() if count > 1}


def wtinylfu(
    stream: Sequence[int],
    capacity: int,
    *,
    window_share: float = 0.01,
    sample: int = 10,
    most: int = 15,
) -> list[bool]:
    """arXiv 1512.00727: window LRU, main SLRU of 20% and 80%, TinyLFU between, no doorkeeper."""
    window_room = max(1, int(capacity * window_share))
    main_room = capacity - window_room
    kept_room = int(main_room * 0.8)
    window: Queue = OrderedDict()
    probation: Queue = OrderedDict()
    protected: Queue = OrderedDict()
    counts = Counts(sample * capacity, most)
    hits = []
    for item in stream:
        counts.add(item)
        hits.append(item in window or item in probation or item in protected)
        if item in window:
            window.move_to_end(item)
        elif hits[-1]:
            probation.pop(item, None)
            protected[item] = None
            protected.move_to_end(item)
            if len(protected) > kept_room:
                probation[protected.popitem(last=False)[0]] = None
        else:
            window[item] = None
            if len(window) > window_room:
                candidate = window.popitem(last=False)[0]
                if len(probation) + len(protected) < main_room:
                    probation[candidate] = None
                elif main_room:
                    rival = next(iter(probation or protected))
                    if counts[candidate] > counts[rival]:
                        (probation or protected).popitem(last=False)
                        probation[candidate] = None
    return hits
