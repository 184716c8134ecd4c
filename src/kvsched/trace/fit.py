"""Whether prompts and their block ids agree, and which block size would make them agree."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvsched.trace.fields import MOST_TOKENS
from kvsched.trace.model import Int64s


class BlockFit:
    """Checks that every prompt ends in its last block, for a format whose ids cover all of it.

    A prompt of n ids has from (n-1)·size+1 to n·size tokens; none at all where n is 0.
    """

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self._least = 1
        self._most = MOST_TOKENS

    def bad(self, inputs: Int64s, blocks: Int64s) -> NDArray[np.int64]:
        """Indices of the rows (of K) that do not fit; remembers what sizes all rows allow."""
        some = np.maximum(blocks, 1)
        least = np.where(blocks > 0, -(-inputs // some), np.where(inputs > 0, MOST_TOKENS + 1, 1))
        most = np.where(blocks > 1, (inputs - 1) // np.maximum(blocks - 1, 1), MOST_TOKENS)
        most[(blocks == 1) & (inputs == 0)] = 0
        self._least = max(self._least, int(least.max(initial=1)))
        self._most = min(self._most, int(most.min(initial=MOST_TOKENS)))
        return np.flatnonzero((least > self.block_size) | (most < self.block_size))

    def fault(self, tokens: int, blocks: int) -> str:
        """What is wrong with such a row, in words."""
        size = self.block_size
        ids = "1 id" if blocks == 1 else f"{blocks} ids"
        if tokens > blocks * size:
            room = f"{ids} of {size} tokens hold {blocks * size}" if blocks else "there are no ids"
            return f"more tokens than the ids can hold: {tokens}, but {room}"
        need = (blocks - 1) * size + 1
        return f"fewer tokens than the ids need: {tokens}, but {ids} of {size} need {need}"

    def suggestion(self) -> str:
        """The block size that fits every row seen, as the end of a sentence, or nothing.

        A power of two, or the only one possible.
        """
        if self._least > self._most:
            return ""
        size = 1 << (self._least - 1).bit_length()
        if size > self._most:
            if self._least < self._most:
                return ""
            size = self._least
        return f"; a block size of {size} fits every row (--block-size {size})"
