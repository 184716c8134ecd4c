"""What a reader has read of chains: rows of block ids, and the order in which they count."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvsched.trace.model import Int32s, Int64s
from kvsched.trace.spool import Keys


@dataclass(frozen=True)
class RawChains:
    """R requests in the trace's order and their block ids in the file's."""

    order: Int64s | None
    """(R,) the file's row of each request; None where it is the same."""
    starts: Int64s
    """(R+1,) row r's ids are ``keys[starts[r]:starts[r+1]]``."""
    keys: Keys
    sizes: Int32s | None
    """(B,) tokens beside ``keys``, where blocks have sizes of their own."""
    inputs: Int64s
    """(R,) prompt tokens of each row."""
    scope: Int32s | None
    """(R,) of each row; rows of different scope share no node."""
    block_size: int

    def __len__(self) -> int:
        return len(self.starts) - 1

    def in_order(self, column: NDArray[Any]) -> NDArray[Any]:
        """Return a column (R,) of the file's rows in the trace's order."""
        return column if self.order is None else column[self.order]

    def whole_starts(self) -> Int64s:
        """Return (R+1,) where each request's chain starts in the trace."""
        starts = np.zeros(len(self) + 1, np.int64)
        np.cumsum(self.in_order(np.diff(self.starts)), out=starts[1:])
        return starts

    def covered(self) -> Int64s:
        """Return (R,) tokens of all blocks of each request, in the trace's order."""
        if self.sizes is None:
            blocks: Int64s = self.in_order(np.diff(self.starts))
            return blocks * self.block_size
        before = np.zeros(len(self.keys) + 1, np.int64)
        np.cumsum(self.sizes, out=before[1:])
        return self.in_order(before[self.starts[1:]] - before[self.starts[:-1]])
