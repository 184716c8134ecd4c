"""Tiny exact simulations of the peers' caches: they check that each is understood and well used."""

from __future__ import annotations

import heapq
from collections import OrderedDict

NEVER = 1 << 62


def lru(stream: list[int], capacity: int) -> int:
    """Hits of least recently used."""
    cache: OrderedDict[int, None] = OrderedDict()
    hits = 0
    for item in stream:
        if item in cache:
            hits += 1
            cache.move_to_end(item)
            continue
        if len(cache) == capacity:
            cache.popitem(last=False)
        cache[item] = None
    return hits


def fifo(stream: list[int], capacity: int) -> int:
    """Hits of first in, first out."""
    cache: OrderedDict[int, None] = OrderedDict()
    hits = 0
    for item in stream:
        if item in cache:
            hits += 1
            continue
        if len(cache) == capacity:
            cache.popitem(last=False)
        cache[item] = None
    return hits


def lfu(stream: list[int], capacity: int) -> int:
    """Hits of least frequently used: least recent among equals, counts forgotten at eviction."""
    count: dict[int, int] = {}
    classes: dict[int, OrderedDict[int, None]] = {}
    lowest = 1
    hits = 0
    for item in stream:
        uses = count.get(item, 0)
        if uses:
            hits += 1
            del classes[uses][item]
            if not classes[uses] and lowest == uses:
                lowest = uses + 1
        else:
            if len(count) == capacity:
                while not classes.get(lowest):
                    lowest += 1
                del count[classes[lowest].popitem(last=False)[0]]
            lowest = 1
        count[item] = uses + 1
        classes.setdefault(uses + 1, OrderedDict())[item] = None
    return hits


def belady(stream: list[int], capacity: int, following: list[int]) -> int:
    """Hits of evicting the farthest next use; every object is stored, needed again or not."""
    cache: dict[int, int] = {}
    heap: list[tuple[int, int]] = []
    hits = 0
    for item, position in zip(stream, following, strict=True):
        after = position if position >= 0 else NEVER
        if item in cache:
            hits += 1
        elif len(cache) == capacity:
            while cache.get(heap[0][1]) != -heap[0][0]:
                heapq.heappop(heap)
            del cache[heapq.heappop(heap)[1]]
        cache[item] = after
        heapq.heappush(heap, (-after, item))
    return hits


def block_fifo(chains: list[list[int]], capacity: int) -> list[int]:
    """Blocks hit, by request, of a FIFO of single blocks under prefix look-up.

    A hit is the run of resident blocks from the root; every absent block of the chain is then
    stored, and the oldest block leaves, whatever stands on it.
    """
    cache: OrderedDict[int, None] = OrderedDict()
    hits = []
    for chain in chains:
        run = 0
        while run < len(chain) and chain[run] in cache:
            run += 1
        hits.append(run)
        for node in chain:
            if node not in cache:
                if len(cache) == capacity:
                    cache.popitem(last=False)
                cache[node] = None
    return hits
