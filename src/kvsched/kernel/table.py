"""The node table: what a cache knows of every node."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

NONE = -1
"""No node: a refusal where a victim was asked for, the parent of a root."""


class Table(NamedTuple):
    """Columns over N nodes. The first three are given, the last two belong to the kernel."""

    parent: NDArray[np.int32]
    """(N,) parent node, -1 for a root."""
    depth: NDArray[np.int32]
    """(N,) 0 for a root."""
    tokens: NDArray[np.int32]
    """(N,) tokens of the block."""
    resident: NDArray[np.uint8]
    """(N,) 1 while the node is in the cache."""
    children: NDArray[np.int32]
    """(N,) resident children; kept only for policies that track leaves."""


def empty_table(
    parent: NDArray[np.int32], depth: NDArray[np.int32], tokens: NDArray[np.int32]
) -> Table:
    """Return a table over a forest with nothing resident. O(N)."""
    nodes = len(parent)
    return Table(parent, depth, tokens, np.zeros(nodes, np.uint8), np.zeros(nodes, np.int32))
