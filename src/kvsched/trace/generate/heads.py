"""Blocks that prompts share: a trie of shared texts, cut into blocks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kvsched.trace.generate.plan import NO_SEGMENT
from kvsched.trace.model import Int64s


@dataclass(frozen=True)
class Heads:
    """What stands before the conversations: H different heads over the E edges of their trie.

    An edge is one text after one particular sequence of texts; the full blocks that end in it
    have slots of their own. Two heads share exactly the blocks of the edges they share.
    """

    head_of: Int64s
    """(rows,) head of each row given."""
    edges: Int64s
    """(H, K) edges of each head, from the root."""
    blocks: Int64s
    """(H,) full blocks in each head."""
    edge_slot: Int64s
    """(E + 1,) edge e has slots ``edge_slot[e]`` … ``edge_slot[e + 1] - 1``."""


def build_heads(rows: Int64s, segment_tokens: Int64s, block_size: int) -> Heads:
    """Find the trie of ``rows`` (R, K), each a sequence of texts. O(K R log R)."""
    count, width = rows.shape
    lengths = np.append(segment_tokens, 0)  # NO_SEGMENT is the last: no tokens
    group = np.zeros(count, np.int64)
    covered = np.zeros(count, np.int64)
    edges = np.empty((count, width), np.int64)
    slots: list[Int64s] = []
    numbered = 0
    representative = np.arange(count)
    for level in range(width):
        pair = group * (len(segment_tokens) + 1) + (rows[:, level] - NO_SEGMENT)
        found, representative, group = np.unique(pair, return_index=True, return_inverse=True)
        group = group.reshape(count).astype(np.int64)
        after = covered + lengths[rows[:, level]]
        ended = after // block_size - covered // block_size
        slots.append(ended[representative])
        edges[:, level] = numbered + group
        numbered += len(found)
        covered = after
    return Heads(
        head_of=group,
        edges=np.ascontiguousarray(edges[representative]),
        blocks=covered[representative] // block_size,
        edge_slot=np.concatenate([[0], np.cumsum(np.concatenate(slots))]),
    )
