"""A doubly linked list over node numbers, in two columns of one array."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Links = NDArray[np.int32]
"""(N+1, 2): column 0 the neighbour towards the head, 1 towards the tail; row N is the ends."""

AHEAD = 0
BEHIND = 1


def empty_links(nodes: int) -> Links:
    """Return a list that holds nothing yet of ``nodes`` nodes. O(N)."""
    links = np.zeros((nodes + 1, 2), np.int32)
    links[nodes] = nodes
    return links


def unlink(links: Links, node: int) -> None:
    """Take ``node`` out of the list. O(1)."""
    ahead = links[node, AHEAD]
    behind = links[node, BEHIND]
    links[ahead, BEHIND] = behind
    links[behind, AHEAD] = ahead


def link_behind(links: Links, place: int, node: int) -> None:
    """Put ``node`` right behind ``place`` (row N: at the head). O(1)."""
    behind = links[place, BEHIND]
    links[node, AHEAD] = place
    links[node, BEHIND] = behind
    links[place, BEHIND] = node
    links[behind, AHEAD] = node
