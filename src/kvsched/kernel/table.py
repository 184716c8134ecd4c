"""The node table: what a cache knows of every node."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

NONE = -1
"""No node: a refusal where a victim was asked for, the parent of a root."""


class Table(NamedTuple):
    """Columns over N nodes. The first three and the room are given, two belong to the kernel."""

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
    room: NDArray[Any]
    """(N,) integers: what each takes of the capacity, where the kernel is weighted."""
    begins: NDArray[np.int64]
    """(N,) tokens of a prompt before each node, where the forest lacks some of its ancestors (a
    sample does); else (0,)."""


def below(table: Table, nodes: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return the resident nodes that descend from any of ``nodes``, deepest first.

    O(resident · depth).
    """
    wanted = np.zeros(len(table.parent) + 1, np.bool_)
    wanted[nodes] = True
    resident = np.flatnonzero(table.resident).astype(np.int32)
    found = np.zeros(len(resident), np.bool_)
    # A root's parent, NONE, is the row behind the last.
    above = table.parent[resident]
    while np.any(above != NONE):
        found |= wanted[above]
        above = np.where(above == NONE, NONE, table.parent[above])
    descend = resident[found & ~wanted[resident]]
    return descend[np.argsort(-table.depth[descend], kind="stable")]


def empty_table(
    parent: NDArray[np.int32],
    depth: NDArray[np.int32],
    tokens: NDArray[np.int32],
    room: NDArray[Any] | None = None,
    begins: NDArray[np.int64] | None = None,
) -> Table:
    """Return a table over a forest with nothing resident; the room is the tokens if None. O(N)."""
    nodes = len(parent)
    resident, children = np.zeros(nodes, np.uint8), np.zeros(nodes, np.int32)
    taken = tokens if room is None else room
    before = np.zeros(0, np.int64) if begins is None else begins
    return Table(parent, depth, tokens, resident, children, taken, before)
