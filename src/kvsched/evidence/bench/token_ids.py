"""Token ids from a seed: the same for a node wherever it stands, different for its siblings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvsched.foundation.errors import UsageError
from kvsched.trace.model import Int32s, Int64s

SAFE_VOCABULARY = 30_000
"""Every large model's vocabulary is larger."""
SPECIAL = 1_000
"""Ids below are left out where the vocabulary has room: special tokens mostly are there."""

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)
_WORD = (1 << 64) - 1


def _mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64's output function (Steele, Lea and Flood, 2014). O(n)."""
    found = values + _GOLDEN
    found = (found ^ (found >> np.uint64(30))) * _FIRST
    found = (found ^ (found >> np.uint64(27))) * _SECOND
    mixed: NDArray[np.uint64] = found ^ (found >> np.uint64(31))
    return mixed


@dataclass(frozen=True)
class TokenIds:
    """Ids in ``low`` … ``high`` − 1, a pure function of the seed, a name and a position."""

    seed: int
    low: int
    high: int

    @classmethod
    def of(cls, seed: int, vocab_size: int | None) -> TokenIds:
        """Ids of a vocabulary of ``vocab_size``; None for one that is safe with large models.

        The lowest tenth, at most 1,000 ids, is left out. Raises UsageError below 16 ids.
        """
        size = SAFE_VOCABULARY if vocab_size is None else vocab_size
        if size < 16:
            raise UsageError(f"a vocabulary of {size} tokens is too small: at least 16")
        return cls(seed, min(SPECIAL, size // 10), size)

    @property
    def span(self) -> int:
        """How many different ids there are."""
        return self.high - self.low

    def at(self, names: NDArray[Any], places: NDArray[Any]) -> Int32s:
        """Return (n,) ids, each of a name (a node's number) and a place in it. O(n)."""
        start = np.full(len(names), self.seed & _WORD, np.uint64)
        of_names = _mixed(_mixed(start) ^ names.astype(np.uint64))
        drawn = _mixed(of_names + places.astype(np.uint64))
        ids: Int32s = (drawn % np.uint64(self.span)).astype(np.int32) + np.int32(self.low)
        return ids

    def firsts(self, parents: Int64s) -> Int32s:
        """Return (n,) first ids such that no two of the same parent (−1: none) are alike.

        Siblings take neighbouring ids from a start that is the parent's own. O(n log n). Raises
        UsageError where one parent has more children than there are ids.
        """
        order = np.argsort(parents, kind="stable")
        counts = np.unique(parents, return_counts=True)[1]
        if len(counts) and int(counts.max()) > self.span:
            raise UsageError(
                f"{int(counts.max()):,} prompts go on differently after the same tokens, and the "
                f"vocabulary has {self.span:,} ids for that: raise --vocab-size or use --limit"
            )
        rank = np.empty(len(parents), np.int64)
        starts = np.repeat(np.cumsum(counts) - counts, counts)
        rank[order] = np.arange(len(parents)) - starts
        # The place before all others is no place of a node's own tokens.
        begin = self.at(parents + 1, np.full(len(parents), -1)).astype(np.int64) - self.low
        found: Int32s = ((begin + rank) % self.span + self.low).astype(np.int32)
        return found
