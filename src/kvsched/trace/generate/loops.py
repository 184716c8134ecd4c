"""The hot loops of the generator: contexts that grow, nodes that are numbered, chains."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvsched.foundation.jit import hot
from kvsched.trace.model import Int32s, Int64s

TRUNCATE, RESTART, END = 0, 1, 2

Flags = NDArray[np.bool_]


@hot
def grow(
    turn: Int32s,
    head_tokens: Int64s,
    text: Int64s,
    output: Int64s,
    limit: int,
    on_limit: int,
    inputs: Int64s,
    broken: Flags,
    kept: Flags,
) -> None:
    """Fill each request's prompt tokens, session after session, all (R,).

    ``broken`` where history was dropped, so that the earlier chain does not go on; ``kept``
    False where the session has ended at the limit. Every ``head_tokens`` is below ``limit``.
    """
    history = 0
    ended = False
    for r in range(len(turn)):
        if turn[r] == 1:
            history = 0
            ended = False
        head = int(head_tokens[r])
        added = min(int(text[r]), limit - head)
        if head + history + added > limit:
            if on_limit == END:
                ended = True
            elif on_limit == RESTART:
                history = 0
            else:
                history = (limit - head - added) // 2
            broken[r] = True
        kept[r] = not ended
        inputs[r] = head + history + added
        history += added + int(output[r])


@hot
def measure(
    session: Int64s,
    head: Int64s,
    inputs: Int64s,
    broken: Flags,
    block_size: int,
    edges: Int64s,
    head_blocks: Int64s,
    edge_slot: Int64s,
    last: Int64s,
    before: Int64s,
    reused: Int64s,
) -> int:
    """Find what each request takes from its session's chain; return the number of nodes.

    Requests come in time order. ``last`` (sessions,) is scratch, -1 at first. ``before`` (R,)
    gets the session's earlier request, or -1 where the chain begins anew from its head;
    ``reused`` (R,) the blocks taken from it, or from the head.
    """
    seen = np.zeros(len(edge_slot) - 1, np.bool_)
    nodes = 0
    for r in range(len(session)):
        earlier = int(last[session[r]])
        blocks = (int(inputs[r]) + block_size - 1) // block_size
        if earlier >= 0 and not broken[r] and head[earlier] == head[r]:
            before[r] = earlier
            taken = int(inputs[earlier]) // block_size
        else:
            before[r] = -1
            taken = int(head_blocks[head[r]])
            for level in range(edges.shape[1]):
                edge = edges[head[r], level]
                if not seen[edge]:
                    seen[edge] = True
                    nodes += int(edge_slot[edge + 1]) - int(edge_slot[edge])
        reused[r] = taken
        nodes += blocks - taken
        last[session[r]] = r
    return nodes


@hot
def lay(
    head: Int64s,
    inputs: Int64s,
    block_size: int,
    edges: Int64s,
    edge_slot: Int64s,
    before: Int64s,
    reused: Int64s,
    starts: Int64s,
    chains: Int32s,
    parent: Int32s,
    depth: Int32s,
    tokens: Int32s,
) -> None:
    """Write every chain, and every node when it first appears. O(references + nodes)."""
    slot = np.full(int(edge_slot[-1]), -1, np.int32)
    node = 0
    for r in range(len(head)):
        first = int(starts[r])
        at = first
        above = -1
        if before[r] >= 0:
            source = int(starts[before[r]])
            for k in range(int(reused[r])):
                chains[at + k] = chains[source + k]
            at += int(reused[r])
            if at > first:
                above = int(chains[at - 1])
        else:
            for level in range(edges.shape[1]):
                edge = edges[head[r], level]
                for place in range(edge_slot[edge], edge_slot[edge + 1]):
                    if slot[place] < 0:
                        slot[place] = node
                        parent[node] = above
                        depth[node] = at - first
                        tokens[node] = block_size
                        node += 1
                    above = int(slot[place])
                    chains[at] = above
                    at += 1
        while at < starts[r + 1]:
            parent[node] = above
            depth[node] = at - first
            tokens[node] = min(block_size, int(inputs[r]) - (at - first) * block_size)
            chains[at] = node
            above = node
            node += 1
            at += 1
