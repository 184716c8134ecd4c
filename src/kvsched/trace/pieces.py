"""Rows of block ids in the trace's order, some at a time, wherever the ids are."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from kvsched.trace.model import Int32s, Int64s
from kvsched.trace.raw import RawChains
from kvsched.trace.spool import Spooled

PIECE = 1 << 22
"""References that are worked on at once."""


class Piece(NamedTuple):
    """K requests one after another."""

    keys: Int64s
    sizes: Int32s
    """Beside ``keys``, or empty."""
    begin: Int64s
    """(K,) where each request's ids begin in ``keys``."""
    blocks: Int64s
    inputs: Int64s
    root: Int64s
    """(K,) what the hash of each request's path starts from."""


class RowsInOrder:
    """Requests in the trace's order, some at a time."""

    def __init__(self, chains: RawChains, whole_starts: Int64s, root: Int64s) -> None:
        self.chains = chains
        self.whole_starts = whole_starts
        self._root = root

    @property
    def references(self) -> int:
        """Block references of all requests."""
        return int(self.whole_starts[-1])

    def pieces(self) -> Iterator[tuple[int, Piece]]:
        """Yield about `PIECE` references at a time, and how many are then done."""
        low, requests = 0, len(self.chains)
        while low < requests:
            aim = int(self.whole_starts[low]) + PIECE
            high = int(np.searchsorted(self.whole_starts, aim, "right")) - 1
            high = min(max(high, low + 1), requests)
            yield int(self.whole_starts[high]), self._piece(low, high)
            low = high

    def _piece(self, low: int, high: int) -> Piece:
        chains = self.chains
        rows: Any = slice(low, high) if chains.order is None else chains.order[low:high]
        begin = chains.starts[:-1][rows]
        blocks = np.diff(self.whole_starts[low : high + 1])
        keys, sizes = chains.keys, chains.sizes
        if isinstance(keys, Spooled):
            keys, sizes, begin = _gathered(keys, sizes, begin, blocks)
        root = self._root[low:high]
        if len(self._root) == 1:
            root = np.broadcast_to(self._root, high - low)
        return Piece(
            keys=keys,
            sizes=np.empty(0, np.int32) if sizes is None else sizes,
            begin=np.ascontiguousarray(begin),
            blocks=blocks,
            inputs=np.ascontiguousarray(chains.inputs[rows]),
            root=np.ascontiguousarray(root),
        )


def _gathered(
    keys: Spooled, sizes: Int32s | None, begin: Int64s, blocks: Int64s
) -> tuple[Int64s, Int32s | None, Int64s]:
    """Read the ids of K requests; return them, the sizes beside them, and where each begins."""
    place = np.zeros(len(begin), np.int64)
    np.cumsum(blocks[:-1], out=place[1:])
    read = np.empty(int(blocks.sum()), np.int64)
    # Requests that follow one another in the file are read at once.
    firsts = np.flatnonzero(begin[1:] != begin[:-1] + blocks[:-1]) + 1
    for low, high in itertools.pairwise([0, *firsts.tolist(), len(begin)]):
        end = int(place[high - 1] + blocks[high - 1])
        keys.read_into(int(begin[low]), read[int(place[low]) : end])
    if sizes is not None:
        at = np.arange(len(read)) + np.repeat(begin - place, blocks)
        sizes = sizes[at]
    return read, sizes, place
