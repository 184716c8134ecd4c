"""How often a node was asked for of late, in a few small counters: a count-min sketch that ages."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

ROWS = 4
MOST = 15
"""Counters have four bits' worth."""
LEAST_WIDTH = 512
PRIME = (1 << 31) - 1
FACTORS = (1_103_515_245, 1_597_334_677, 747_796_405, 1_140_671_485)
SHIFTS = (12_345, 1_013_904_223, 1_289_706_101, 12_820_163)

ADDED = 0
SAMPLE = 1
HALF = 2


class Sketch(NamedTuple):
    """Counters of additions, each row by another hash."""

    counters: NDArray[np.uint8]
    """(4, W) with W a power of two."""
    counts: NDArray[np.int64]
    """(3,) weight of the additions since the last ageing, at how much the next comes, and how much
    of that is left then."""
    lives: NDArray[np.int64]
    """(N,) how many nodes had each number before; (0,) where nobody forgets."""


def empty_sketch(counters: int, sample: int, unit: int = 1, nodes: int = 0) -> Sketch:
    """Return a sketch of ``counters`` or more that ages at ``sample`` additions. O(counters + N).

    ``unit``: the weight of a usual addition; ``nodes``: the numbers that can be forgotten.
    """
    width = max(LEAST_WIDTH, 1 << (max(counters, 1) // ROWS - 1).bit_length())
    counts = np.array([0, sample * unit, (sample >> 1) * unit], np.int64)
    return Sketch(np.zeros((ROWS, width), np.uint8), counts, np.zeros(nodes, np.int64))


def _cell(sketch: Sketch, row: int, node: int) -> int:
    named = int(node)
    if len(sketch.lives) > 0:
        named = (named + int(sketch.lives[node]) * len(sketch.lives)) % PRIME
    # Below 2^62: the same compiled and plain.
    mixed = (FACTORS[row] * (named + 1) + SHIFTS[row]) % PRIME
    return int(mixed & (sketch.counters.shape[1] - 1))


def sketch_forget(sketch: Sketch, node: int) -> None:
    """Give a node's number to another, which was never added: other counters are its own. O(1)."""
    sketch.lives[node] += 1


def sketch_count(sketch: Sketch, node: int) -> int:
    """Return how often a node was added, or more; halved at every ageing, at most 15. O(1)."""
    least = MOST
    for row in range(ROWS):
        least = min(least, int(sketch.counters[row, _cell(sketch, row, node)]))
    return least


def sketch_add(sketch: Sketch, node: int, weight: int = 1) -> None:
    """Count a node once more: its lowest counters alone, so that others' grow less. O(1).

    ``weight`` is what the addition fills of the sample. When that is full all counts are halved,
    the additions too: O(W), O(1) amortised.
    """
    counters = sketch.counters
    one, two = _cell(sketch, 0, node), _cell(sketch, 1, node)
    three, four = _cell(sketch, 2, node), _cell(sketch, 3, node)
    least = min(counters[0, one], counters[1, two], counters[2, three], counters[3, four])
    if least < MOST:
        counters[0, one] += counters[0, one] == least
        counters[1, two] += counters[1, two] == least
        counters[2, three] += counters[2, three] == least
        counters[3, four] += counters[3, four] == least
    sketch.counts[ADDED] += weight
    if sketch.counts[ADDED] >= sketch.counts[SAMPLE]:
        sketch.counts[ADDED] += sketch.counts[HALF] - sketch.counts[SAMPLE]
        for row in range(ROWS):
            for cell in range(sketch.counters.shape[1]):
                sketch.counters[row, cell] >>= 1
