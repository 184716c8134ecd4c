"""Several ordered queues over one set of nodes: leftist trees, each node in one queue at most.

A queue here is a lane. A policy with several queues whose heads it compares needs the first of
each, and nodes that come back into the middle: a parent has its old place when its last child
leaves. All lanes share the columns, so many of them cost no more room than one.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvsched.kernel.table import NONE

LEFT = 0
RIGHT = 1
UP = 2
LEVEL = 3

KEY = 0
TIE = 1

TOP = -2
"""The first node of lane 0 has this as the node above it, the first of lane 1 one less, ..."""


class Lanes(NamedTuple):
    """Leftist trees ordered by (key, tie), the smallest at the top."""

    tree: NDArray[np.int32]
    """(N, 4) the nodes below, the node above (-1 outside every lane), and the level: one more
    than the lower of the levels below, of which the left is never the lower."""
    order: NDArray[np.int64]
    """(N, 2) key and tie."""
    first: NDArray[np.int32]
    """(K,) the smallest node of each lane, -1 where it is empty."""


def empty_lanes(nodes: int, lanes: int) -> Lanes:
    """Return ``lanes`` empty lanes over ``nodes`` nodes. O(N + K)."""
    tree = np.full((nodes, 4), NONE, np.int32)
    return Lanes(tree, np.zeros((nodes, 2), np.int64), np.full(lanes, NONE, np.int32))


def _before(lanes: Lanes, one: int, two: int) -> bool:
    first = lanes.order[one, KEY]
    second = lanes.order[two, KEY]
    if first != second:
        return bool(first < second)
    return bool(lanes.order[one, TIE] < lanes.order[two, TIE])


def _settle(lanes: Lanes, node: int) -> None:
    """Put the higher level left, and say one more than the lower."""
    tree = lanes.tree
    left = tree[node, LEFT]
    right = tree[node, RIGHT]
    on_left = 0 if left == NONE else tree[left, LEVEL]
    on_right = 0 if right == NONE else tree[right, LEVEL]
    if on_left < on_right:
        tree[node, LEFT] = right
        tree[node, RIGHT] = left
        tree[node, LEVEL] = on_left + 1
    else:
        tree[node, LEVEL] = on_right + 1


def _merge(lanes: Lanes, one: int, two: int) -> int:
    """Return the top of two trees made one; what is above it is the caller's to say."""
    if one == NONE:
        return two
    if two == NONE:
        return one
    tree = lanes.tree
    if _before(lanes, two, one):
        one, two = two, one
    top = one
    while True:
        below = int(tree[one, RIGHT])
        if below == NONE:
            tree[one, RIGHT] = two
            tree[two, UP] = one
            break
        if _before(lanes, two, below):
            tree[one, RIGHT] = two
            tree[two, UP] = one
            below, two = two, below
        one = below
    tree[top, UP] = NONE
    while one != NONE:
        above = int(tree[one, UP])
        _settle(lanes, one)
        one = above
    return top


def lane_push(lanes: Lanes, lane: int, node: int, key: int, tie: int) -> None:
    """Add a node that is in no lane. O(log n)."""
    tree = lanes.tree
    tree[node, LEFT] = NONE
    tree[node, RIGHT] = NONE
    tree[node, LEVEL] = 1
    lanes.order[node, KEY] = key
    lanes.order[node, TIE] = tie
    top = _merge(lanes, int(lanes.first[lane]), node)
    tree[top, UP] = TOP - int(lane)
    lanes.first[lane] = top


def lane_first(lanes: Lanes, lane: int) -> int:
    """Return the node with the smallest (key, tie) of a lane, or NONE. O(1)."""
    return int(lanes.first[lane])


def lane_holds(lanes: Lanes, node: int) -> bool:
    """Whether a node is in any lane. O(1)."""
    return bool(lanes.tree[node, UP] != NONE)


def lane_remove(lanes: Lanes, node: int) -> None:
    """Take a node out of the lane that it is in, from wherever it stands. O(log n)."""
    tree = lanes.tree
    above = int(tree[node, UP])
    below = _merge(lanes, int(tree[node, LEFT]), int(tree[node, RIGHT]))
    tree[node, UP] = NONE
    if below != NONE:
        tree[below, UP] = above
    if above <= TOP:
        lanes.first[TOP - above] = below
        return
    tree[above, LEFT if tree[above, LEFT] == node else RIGHT] = below
    while above >= 0:
        level = tree[above, LEVEL]
        _settle(lanes, above)
        if tree[above, LEVEL] == level:
            break
        above = int(tree[above, UP])
