"""Generated tokens: the blocks that decoding fills, and the room that a running request takes.

Most traces name the blocks of prompts only. What a request generates is read from the first
later request of its session whose full blocks begin with this one's and go on, else from the
first later one of all; a request without a full block takes from its session alone. Blocks that
no later request names are anonymous: they take room, and nobody hits them.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvsched.foundation.errors import UsageError
from kvsched.foundation.jit import hot
from kvsched.trace.model import Trace

Int32s = NDArray[np.int32]
Int64s = NDArray[np.int64]

NOBODY = -1


class Named(NamedTuple):
    """Where the generated blocks that are stored got their identity; sums over the requests."""

    session: int
    """Blocks named by a later request of the same session."""
    other: int
    """Blocks named by a later request of another session, or of none."""
    anonymous: int
    """Blocks that no later request names."""


@dataclasses.dataclass(frozen=True, eq=False)
class Held:
    """What every request holds while it runs: its prompt, what it generates, and room."""

    trace: Trace
    """The trace with chains as long as a request ever holds blocks. New nodes follow the old: the
    anonymous blocks, and those that take room and are never stored. No node is in a chain twice."""
    full: Int64s
    """(R,) full blocks of the prompt that have ids."""
    kept: Int64s
    """(R,) blocks from the root that are stored; what follows takes room while the request runs."""
    limit: Int64s
    """(R,) blocks from the root that can be hit at most."""
    named: Named


def computed_tokens(trace: Trace) -> Int64s:
    """(R,) tokens whose keys and values are computed: the last one generated is not. O(R)."""
    tokens: Int64s = trace.input_tokens + np.maximum(trace.output_tokens, 1) - 1
    return tokens


@hot
def _first_extension(
    order: Int64s,
    group: Int32s,
    starts: Int64s,
    chains: Int32s,
    full: Int64s,
    follows: Int32s,
    stamp: Int32s,
    roots: bool,
    found: Int32s,
) -> None:
    """For every request in ``order``, latest first in each group, find the first that extends it.

    ``follows`` (N,) keeps, for each node, the earliest request so far that goes on below it, and
    ``stamp`` (N,) for which group that holds. ``roots`` says whether a request without a full
    block is extended by the next that has one. O(B).
    """
    last_group = NOBODY
    last = NOBODY
    for turn in range(len(order)):
        request = order[turn]
        mine = group[request]
        if mine != last_group:
            last_group = mine
            last = NOBODY
        low = starts[request]
        blocks = full[request]
        if blocks == 0:
            if roots:
                found[request] = last
            continue
        node = chains[low + blocks - 1]
        if stamp[node] == mine:
            found[request] = follows[node]
        for at in range(low, low + blocks - 1):
            stamp[chains[at]] = mine
            follows[chains[at]] = request
        last = request


def extensions(trace: Trace, full: Int64s) -> tuple[Int32s, NDArray[np.bool_]]:
    """Return (R,) the request that names what each generates, or -1, and whether by session. O(B).

    ``full`` (R,) counts the full blocks of each chain.
    """
    requests = len(trace)
    backwards = np.arange(requests - 1, -1, -1, dtype=np.int64)
    found = np.full(requests, NOBODY, np.int32)
    arrays = (trace.starts, trace.chains, full)

    def fresh() -> tuple[Int32s, Int32s]:
        return np.full(trace.nodes, NOBODY, np.int32), np.full(trace.nodes, NOBODY, np.int32)

    everyone = np.zeros(requests, np.int32)
    _first_extension(backwards, everyone, *arrays, *fresh(), False, found)
    by_session = np.zeros(requests, np.bool_)
    if trace.session is not None:
        codes = trace.session.codes
        order = backwards[np.argsort(codes[backwards], kind="stable")]
        order = order[codes[order] >= 0]
        mine = np.full(requests, NOBODY, np.int32)
        _first_extension(order, codes, *arrays, *fresh(), True, mine)
        by_session = mine >= 0
        found = np.where(by_session, mine, found).astype(np.int32)
    return found, by_session


@hot
def _lay_out(
    starts: Int64s,
    chains: Int32s,
    full: Int64s,
    known: Int64s,
    source: Int32s,
    new_starts: Int64s,
    new_chains: Int32s,
    parent: Int32s,
    depth: Int32s,
    next_node: int,
) -> None:
    """Write every request's chain: prompt, named, anonymous, room; number the new nodes. O(B)."""
    for request in range(len(starts) - 1):
        low = starts[request]
        at = new_starts[request]
        above = NOBODY
        for place in range(full[request]):
            above = chains[low + place]
            new_chains[at + place] = above
        if source[request] >= 0:
            low = starts[source[request]]
            for place in range(full[request], known[request]):
                above = chains[low + place]
                new_chains[at + place] = above
        for place in range(known[request], new_starts[request + 1] - at):
            parent[next_node] = above
            depth[next_node] = place
            new_chains[at + place] = next_node
            above = next_node
            next_node += 1


def held_blocks(trace: Trace, *, cache_generated: bool, name_generated: bool = True) -> Held:
    """Return what each request holds at its longest, for an engine that stores full blocks. O(B).

    A request computes its prompt and all that it generates but the last token; full blocks of
    that are stored (of the prompt alone without ``cache_generated``), and the last partial one
    takes room. At most the prompt less its last token can be hit. Without ``name_generated`` all
    that is generated is anonymous, whatever later requests go on with. Raises UsageError where
    nodes outgrow 32 bits.
    """
    size = trace.block_size
    computed = computed_tokens(trace)
    full = np.minimum(trace.chain_blocks, trace.input_tokens // size)
    kept = (computed if cache_generated else trace.input_tokens) // size
    most = -(-computed // size)
    if name_generated:
        source, by_session = extensions(trace, full)
    else:
        source, by_session = np.full(len(trace), NOBODY, np.int32), np.zeros(len(trace), np.bool_)
    reach = np.where(source >= 0, full[source], 0)
    known = np.maximum(full, np.minimum(kept, reach))
    new_nodes = int((most - known).sum())
    if trace.nodes + new_nodes > np.iinfo(np.int32).max:
        raise UsageError("prompts and generated tokens have more than 2^31 blocks: cut the trace")
    starts = np.zeros(len(trace) + 1, np.int64)
    np.cumsum(most, out=starts[1:])
    chains = np.empty(int(starts[-1]), np.int32)
    old = trace.nodes
    parent, depth = (np.empty(old + new_nodes, np.int32) for _ in range(2))
    parent[:old], depth[:old] = trace.parent, trace.depth
    arrays = (starts, chains, parent, depth)
    _lay_out(trace.starts, trace.chains, full, known, source, *arrays, old)
    longer = dataclasses.replace(
        trace,
        starts=starts,
        chains=chains,
        parent=parent,
        depth=depth,
        tokens=np.concatenate([trace.tokens, np.full(new_nodes, size, np.int32)]),
        key=np.concatenate([trace.key, np.full(new_nodes, NOBODY, np.int64)]),
    )
    taken = known - full
    named = Named(
        session=int(taken[by_session].sum()),
        other=int(taken[~by_session].sum()),
        anonymous=int((kept - known).sum()),
    )
    limit = np.minimum(np.maximum(trace.input_tokens - 1, 0) // size, full)
    return Held(longer, full, kept, limit, named)


@hot
def _walk(
    starts: Int64s,
    chains: Int32s,
    held_starts: Int64s,
    held_chains: Int32s,
    kept: Int64s,
    limit: Int64s,
    stored: NDArray[np.uint8],
    known: NDArray[np.uint8],
    hits: Int32s,
    seen: Int32s,
) -> None:
    for request in range(len(starts) - 1):
        low = starts[request]
        length = starts[request + 1] - low
        at = 0
        while at < limit[request] and stored[chains[low + at]] != 0:
            at += 1
        hits[request] = at
        at = 0
        while at < length and known[chains[low + at]] != 0:
            at += 1
        seen[request] = at
        for place in range(length):
            known[chains[low + place]] = 1
        low = held_starts[request]
        for place in range(kept[request]):
            stored[held_chains[low + place]] = 1
            known[held_chains[low + place]] = 1


def walk(trace: Trace, held: Trace, kept: Int64s, limit: Int64s) -> tuple[Int32s, Int32s]:
    """Return (R,) blocks that an unlimited cache hits, and (R,) that earlier requests held. O(B).

    ``held`` has the chains that requests hold, of which the first ``kept`` (R,) are stored; the
    first ``limit`` (R,) blocks can be hit.
    """
    hits, seen = (np.zeros(len(trace), np.int32) for _ in range(2))
    stored, known = (np.zeros(held.nodes, np.uint8) for _ in range(2))
    arrays = (trace.starts, trace.chains, held.starts, held.chains)
    _walk(*arrays, kept, limit, stored, known, hits, seen)
    return hits, seen
