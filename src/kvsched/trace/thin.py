"""The sample of a trace from its rows, without the forest of all nodes.

A node's path hash (`sample.step_hash`) needs only the keys above it in a request's own chain. So
nodes are told apart by their hash, and counted exactly, one range of hashes after another: each
range is one pass over the rows with a table of bounded size. A last pass lays the nodes that are
drawn, or used so much that they are always kept.

Two of N nodes have the same hash with a probability of N²/2^64, 0.5% for 300 million; the sample
would then count them as one.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvsched.foundation.jit import hot
from kvsched.trace.model import Int32s, Int64s
from kvsched.trace.pieces import Piece, RowsInOrder
from kvsched.trace.raw import RawChains
from kvsched.trace.sample import HIGH_BITS, SampleSettings, root_hash, step_hash
from kvsched.trace.source import Progress

MOST_SLOTS = 1 << 26
"""Slots of the table of one pass, 16 bytes each."""

_LAST = (1 << 63) - 1
_WORD = 0xFFFFFFFF
_LOAD = 0.75
_LEAST_SLOTS = 1 << 10
_EMPTY = -1
_COUNTING = 0.9
"""Of the time, for progress."""


class _Forest(NamedTuple):
    """Columns of the nodes kept."""

    parent: Int32s
    depth: Int32s
    tokens: Int32s
    key: Int64s
    path: Int64s
    always: NDArray[np.bool_]
    reach: Int64s


class _Counts(NamedTuple):
    """What is to be known of all nodes before any can be laid."""

    nodes: int
    node_tokens: int
    resized: int
    """References whose size is not their node's, which is the first one seen."""
    heavy: Int64s
    """Path hashes of the nodes used more than the limit."""
    kept_nodes: int
    kept_references: int


class Thinned(NamedTuple):
    """What a `SampledTrace` has beside the columns of requests, and what a note tells."""

    columns: dict[str, Any]
    resized: int


def thinned(
    chains: RawChains, settings: SampleSettings, progress: Progress | None = None
) -> Thinned | None:
    """Lay what `sample` takes of the trace that `build_trace` makes of ``chains``.

    None where it cannot tell: nodes that have sizes of their own, and a source that gives one of
    them two. O(B) a pass; a pass counts at most ``0.75 · MOST_SLOTS`` distinct nodes, and a last
    one lays. Memory: 16 bytes a slot, and beside ``chains`` 20 bytes a request and 50 a node of
    the sample. ``progress`` is told the work done so far and in all.
    """
    told = _Forward(progress)
    whole_starts = chains.whole_starts()
    source = RowsInOrder(chains, whole_starts, _root_hashes(chains, settings.seed))
    counts = _count_nodes(source, settings, told)
    if chains.sizes is not None and counts.resized:
        return None
    forest, starts, laid = _lay(source, settings, counts, told)
    columns = {
        **forest._asdict(),
        "starts": starts,
        "chains": laid,
        "settings": settings,
        "whole_starts": whole_starts,
        "whole_tokens": np.minimum(chains.covered(), chains.in_order(chains.inputs)),
        "whole_nodes": counts.nodes,
        "whole_node_tokens": counts.node_tokens,
    }
    return Thinned(columns, counts.resized)


class _Forward:
    """Tells of work in per mille; a pass that is done again tells nothing until it is ahead."""

    def __init__(self, progress: Progress | None) -> None:
        self._progress = progress
        self._most = 0

    def __call__(self, done: float) -> None:
        self._most = max(self._most, int(1000 * done))
        if self._progress is not None:
            self._progress(self._most, 1000)


def _root_hashes(chains: RawChains, seed: int) -> Int64s:
    """Return (R,) what each request's path starts from, in the trace's order; one if all agree.

    Roots of one key and different scopes are told apart by the order in which they appear.
    """
    scope = chains.scope
    if scope is None or not len(scope) or (scope == scope[0]).all():
        return np.array([root_hash(seed, 0)], np.int64)
    rows = np.arange(len(chains)) if chains.order is None else chains.order
    some = np.flatnonzero(np.diff(chains.starts)[rows] > 0)
    begin = chains.starts[:-1][rows[some]]
    place = np.zeros(len(chains), np.int64)
    roots = chains.keys.take(begin)
    place[some] = _places(roots, scope[rows[some]])
    known = [root_hash(seed, each) for each in range(int(place.max(initial=0)) + 1)]
    return np.array(known, np.int64)[place]


def _places(keys: Int64s, scope: Int32s) -> Int64s:
    """Return (K,) how many other scopes had the same key as a root before, by first use."""
    if not len(keys):
        return np.zeros(0, np.int64)
    by_root = np.lexsort((scope, keys))  # stable: the first use of a root comes first
    key, of = keys[by_root], scope[by_root]
    fresh = np.concatenate([[True], (key[1:] != key[:-1]) | (of[1:] != of[:-1])])
    first = by_root[fresh]
    by_use = np.lexsort((first, keys[first]))
    ordered = keys[first][by_use]
    begins = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
    rank = np.empty(len(first), np.int64)
    of_key = np.diff(np.append(begins, len(first)))
    rank[by_use] = np.arange(len(first)) - np.repeat(begins, of_key)
    place = np.empty(len(keys), np.int64)
    place[by_root] = rank[np.cumsum(fresh) - 1]
    return place


def _count_nodes(rows: RowsInOrder, settings: SampleSettings, told: _Forward) -> _Counts:
    """Count all nodes, and those that the sample keeps: exactly, one range of hashes a pass."""
    references = rows.references
    limit = settings.always_above * references
    slots = min(_LEAST_SLOTS, MOST_SLOTS)
    while slots < MOST_SLOTS and _LOAD * slots < references:
        slots *= 2
    most = int(_LOAD * slots)
    table = np.empty((slots, 2), np.int64)
    heavy: list[Int64s] = []
    # nodes, tokens of nodes, sizes that differ, nodes kept, references kept
    sums = np.zeros(5, np.int64)
    low = 0
    width = _width(references / (1 << 63), most) if references > most else _LAST + 1
    while low <= _LAST:
        last = min(low + width - 1, _LAST)
        found = _count_range(rows, low, last, most, table, told)
        if found is None:
            width = max(width // 2, 1)
            continue
        used = np.zeros(found[0], np.int64)
        many = _tally(table, limit, settings.below, used, sums)
        heavy.append(used[:many])
        sums[2] += found[1]
        low = last + 1
        # Hashes are spread evenly: the next range has as many nodes to the width.
        width = _width(int(sums[0]) / low, most)
    return _Counts(
        nodes=int(sums[0]),
        node_tokens=int(sums[1]),
        resized=int(sums[2]),
        heavy=np.concatenate(heavy),
        kept_nodes=int(sums[3]),
        kept_references=int(sums[4]),
    )


def _width(density: float, most: int) -> int:
    """Return how wide a range of hashes has a little less than ``most`` nodes."""
    return _LAST + 1 if density <= 0 else max(1, int(min(0.95 * most / density, 2.0**63)))


def _count_range(
    rows: RowsInOrder,
    low: int,
    last: int,
    most: int,
    table: Int64s,
    told: _Forward,
) -> tuple[int, int] | None:
    """Fill ``table`` with the nodes whose hash is in a range; return them and sizes that differ.

    None where they are more than ``most``.
    """
    table[:, 0] = _EMPTY
    state = np.zeros(2, np.int64)
    share = (last - low + 1) / (1 << 63)
    for done, piece in rows.pieces():
        if not _count(piece, rows.chains.block_size, low, last, most, table, state):
            return None
        told(_COUNTING * (low / (1 << 63) + share * done / max(rows.references, 1)))
    return int(state[0]), int(state[1])


@hot
def _count(
    piece: Piece, block_size: int, low: int, last: int, most: int, table: Int64s, state: Int64s
) -> bool:
    """Enter each reference whose node's hash is in ``low`` … ``last``; False where it is full.

    A slot holds a hash, and the uses and the first size of its node in 32 bits each.
    """
    mask = len(table) - 1
    nodes = int(state[0])
    resized = int(state[1])
    for r in range(len(piece.begin)):
        hashed = int(piece.root[r])
        left = int(piece.inputs[r])
        first = int(piece.begin[r])
        for place in range(first, first + int(piece.blocks[r])):
            hashed = step_hash(hashed, int(piece.keys[place]))
            if len(piece.sizes) == 0:
                size = min(block_size, left)
                left -= block_size
            else:
                size = int(piece.sizes[place])
            if hashed < low or hashed > last:
                continue
            slot = hashed & mask
            while table[slot, 0] >= 0 and table[slot, 0] != hashed:
                slot = (slot + 1) & mask
            if table[slot, 0] < 0:
                if nodes == most:
                    return False
                nodes += 1
                table[slot, 0] = hashed
                table[slot, 1] = (1 << 32) | size
            else:
                if int(table[slot, 1]) & _WORD != size:
                    resized += 1
                table[slot, 1] = int(table[slot, 1]) + (1 << 32)
    state[0] = nodes
    state[1] = resized
    return True


@hot
def _tally(table: Int64s, limit: float, below: int, heavy: Int64s, sums: Int64s) -> int:
    """Add the table's nodes to ``sums``; write the hashes of those above ``limit``, return them."""
    many = 0
    for slot in range(len(table)):
        hashed = int(table[slot, 0])
        if hashed < 0:
            continue
        uses = int(table[slot, 1]) >> 32
        sums[0] += 1
        sums[1] += int(table[slot, 1]) & _WORD
        if uses > limit:
            heavy[many] = hashed
            many += 1
        if uses > limit or (hashed >> HIGH_BITS) < below:
            sums[3] += 1
            sums[4] += uses
    return many


def _hash_table(entries: int, dtype: Any) -> NDArray[Any]:
    return np.full(max(16, 1 << (2 * entries).bit_length()), _EMPTY, dtype)


def _lay(
    rows: RowsInOrder, settings: SampleSettings, counts: _Counts, told: _Forward
) -> tuple[_Forest, Int64s, Int32s]:
    """Return the forest of the nodes kept, where each chain starts, and the chains."""
    nodes = counts.kept_nodes
    parent, depth, tokens = (np.empty(nodes, np.int32) for _ in range(3))
    key, path, reach = (np.empty(nodes, np.int64) for _ in range(3))
    forest = _Forest(parent, depth, tokens, key, path, np.empty(nodes, np.bool_), reach)
    chains = np.empty(counts.kept_references, np.int32)
    starts = np.zeros(len(rows.chains) + 1, np.int64)
    heavy = _hash_table(len(counts.heavy), np.int64)
    _enter(counts.heavy, heavy)
    table = _hash_table(nodes, np.int32)
    state = np.zeros(3, np.int64)  # requests, references and nodes written
    for done, piece in rows.pieces():
        _lay_piece(
            piece, rows.chains.block_size, settings.below, heavy, forest, table, chains, starts,
            state,
        )  # fmt: skip
        told(_COUNTING + (1 - _COUNTING) * done / max(rows.references, 1))
    return forest, starts, chains


@hot
def _enter(hashes: Int64s, table: Int64s) -> None:
    mask = len(table) - 1
    for each in hashes:
        slot = int(each) & mask
        while table[slot] >= 0:
            slot = (slot + 1) & mask
        table[slot] = each


@hot
def _lay_piece(
    piece: Piece,
    block_size: int,
    below: int,
    heavy: Int64s,
    forest: _Forest,
    table: Int32s,
    chains: Int32s,
    starts: Int64s,
    state: Int64s,
) -> None:
    """Write the sampled part of each chain, and each node at its first use."""
    mask = len(table) - 1
    heavy_mask = len(heavy) - 1
    request = int(state[0])
    at = int(state[1])
    nodes = int(state[2])
    for r in range(len(piece.begin)):
        hashed = int(piece.root[r])
        left = int(piece.inputs[r])
        first = int(piece.begin[r])
        reach = 0
        above = -1
        for place in range(first, first + int(piece.blocks[r])):
            hashed = step_hash(hashed, int(piece.keys[place]))
            if len(piece.sizes) == 0:
                size = min(block_size, left)
                left -= block_size
                reach = (place - first) * block_size + size
            else:
                size = int(piece.sizes[place])
                reach += size
            slot = hashed & heavy_mask
            while heavy[slot] >= 0 and heavy[slot] != hashed:
                slot = (slot + 1) & heavy_mask
            always = heavy[slot] == hashed
            if not always and (hashed >> HIGH_BITS) >= below:
                continue
            slot = hashed & mask
            node = int(table[slot])
            while node >= 0 and forest.path[node] != hashed:
                slot = (slot + 1) & mask
                node = int(table[slot])
            if node < 0:
                node = nodes
                nodes += 1
                table[slot] = node
                forest.parent[node] = above
                forest.depth[node] = place - first
                forest.tokens[node] = size
                forest.key[node] = piece.keys[place]
                forest.path[node] = hashed
                forest.always[node] = always
                forest.reach[node] = reach
            chains[at] = node
            at += 1
            above = node
        request += 1
        starts[request] = at
    state[0] = request
    state[1] = at
    state[2] = nodes
