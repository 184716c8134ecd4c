"""A sample of a generated trace, laid without the trace: memory for the sample alone."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvsched.foundation.jit import hot
from kvsched.trace.generate.make import (
    Measured,
    choose,
    generate,
    measured,
    request_columns,
)
from kvsched.trace.generate.workload import Workload
from kvsched.trace.model import Int32s, Int64s
from kvsched.trace.sample import (
    HIGH_BITS,
    SampledTrace,
    SampleSettings,
    root_hash,
    sample,
    step_hash,
)


class _Forest(NamedTuple):
    """Columns of the nodes drawn, with room for more."""

    parent: Int32s
    depth: Int32s
    tokens: Int32s
    key: Int64s
    path: Int64s
    always: NDArray[np.bool_]


class _Requests(NamedTuple):
    """Of `Measured`, what the loop reads."""

    head: Int64s
    inputs: Int64s
    before: Int64s
    reused: Int64s
    edges: Int64s
    edge_slot: Int64s


UNSEEN, NOT_DRAWN = -2, -1
"""Of a slot of a head: no request had it yet; its node is not in the sample."""


def generate_sampled(workload: Workload, seed: int, rate: Callable[[int], int]) -> SampledTrace:
    """Return what `sample` takes of the trace that `generate` makes, without making it.

    ``rate`` is told the references of the whole trace and returns N, for one node in N; the
    sample's seed is ``seed``. Time as `generate`; memory about 300 bytes a request and 60 a
    reference of the sample. Raises UsageError as `generate` does.
    """
    chosen = choose(workload, seed)
    found = measured(workload, chosen)
    total = int(found.starts[-1])
    settings = SampleSettings(rate(total), seed)
    limit = settings.always_above * total
    if np.bincount(found.session).max() > limit:
        # A node below a session's head may be among those always kept: only counts can tell.
        del found, chosen
        return sample(generate(workload, seed), settings.one_in, seed)
    always = _edge_uses(found) > limit
    laid = _laid(workload, found, settings, always)
    return SampledTrace(
        **request_columns(workload, seed, chosen),
        **laid,
        settings=settings,
        whole_starts=found.starts,
        whole_tokens=found.inputs,
        whole_nodes=found.nodes,
    )


def _edge_uses(found: Measured) -> Int64s:
    """Return (E,) requests whose head has each edge: all of them reach every block of it."""
    heads = found.heads
    by_head = np.bincount(found.head, minlength=len(heads.edges))
    uses = np.zeros(len(heads.edge_slot) - 1, np.int64)
    for level in range(heads.edges.shape[1]):
        np.add.at(uses, heads.edges[:, level], by_head)
    return uses


def _laid(
    workload: Workload, found: Measured, settings: SampleSettings, always: NDArray[np.bool_]
) -> dict[str, Any]:
    """Return the sample's chains and forest."""
    heads, requests = found.heads, len(found.head)
    slots = int(heads.edge_slot[-1])
    expected = found.nodes / settings.one_in
    room = min(found.nodes, int(expected + 10 * math.sqrt(expected)) + slots + 64)
    starts = np.zeros(requests + 1, np.int64)
    chains = np.empty(int(found.starts[-1]), np.int32)  # a page never written is never there
    parent, depth, tokens = (np.empty(room, np.int32) for _ in range(3))
    key, path = (np.empty(room, np.int64) for _ in range(2))
    kept = np.empty(room, np.bool_)
    forest = _Forest(parent, depth, tokens, key, path, kept)
    state = np.zeros(2, np.int64)
    last = np.empty(requests, np.int64)
    slot_hash, slot_node = np.empty(slots, np.int64), np.full(slots, UNSEEN, np.int32)
    asked = _Requests(
        found.head, found.inputs, found.before, found.reused, heads.edges, heads.edge_slot
    )
    _lay_sample(
        asked, workload.block_size, always, root_hash(settings.seed, 0), settings.below, starts,
        chains, forest, slot_hash, slot_node, last, state,
    )  # fmt: skip
    nodes = int(state[0])
    if nodes > room:
        raise AssertionError("more nodes were drawn than ten standard deviations allow")
    chains.resize(int(starts[-1]), refcheck=False)
    for column in (parent, depth, tokens, key, path, kept):
        column.resize(nodes, refcheck=False)
    return {
        "starts": starts,
        "chains": chains,
        "parent": parent,
        "depth": depth,
        "tokens": tokens,
        "key": key,
        "path": path,
        "always": kept,
        "reach": depth * np.int64(workload.block_size) + tokens,
        "whole_node_tokens": int(state[1]),
    }


def _write(
    forest: _Forest, node: int, above: int, place: int, size: int, number: int, hashed: int
) -> None:
    if node < len(forest.parent):
        forest.parent[node] = above
        forest.depth[node] = place
        forest.tokens[node] = size
        forest.key[node] = number
        forest.path[node] = hashed
        forest.always[node] = False


@hot
def _lay_sample(
    found: _Requests,
    size: int,
    always: NDArray[np.bool_],
    root: int,
    below: int,
    starts: Int64s,
    chains: Int32s,
    forest: _Forest,
    slot_hash: Int64s,
    slot_node: Int32s,
    last: Int64s,
    state: Int64s,
) -> None:
    """As `loops.lay`, where only nodes drawn or always kept get a number. O(references).

    ``last`` (R,) is scratch: the hash of each request's path up to its last full block, from
    which its session goes on. ``state`` gets the nodes and the tokens of all nodes of the whole.
    Nothing is written beyond the forest's room; the count of nodes then says so.
    """
    number, count, total, at = 0, 0, 0, 0
    for r in range(len(found.head)):
        first = at
        place = 0
        hashed = root
        if found.before[r] >= 0:
            source = int(starts[found.before[r]])
            stop = int(starts[found.before[r] + 1])
            place = int(found.reused[r])
            while source < stop and forest.depth[chains[source]] < place:
                chains[at] = chains[source]
                at += 1
                source += 1
            hashed = int(last[found.before[r]])
        else:
            for edge in found.edges[found.head[r]]:
                for slot in range(found.edge_slot[edge], found.edge_slot[edge + 1]):
                    if slot_node[slot] == UNSEEN:
                        slot_hash[slot] = step_hash(hashed, number)
                        slot_node[slot] = NOT_DRAWN
                        if always[edge] or (int(slot_hash[slot]) >> HIGH_BITS) < below:
                            above = chains[at - 1] if at > first else -1
                            _write(forest, count, above, place, size, number, slot_hash[slot])
                            kept = min(count, len(forest.parent) - 1)
                            forest.always[kept] = always[edge]
                            slot_node[slot] = kept
                            count += 1
                        number += 1
                        total += size
                    hashed = int(slot_hash[slot])
                    if slot_node[slot] >= 0:
                        chains[at] = slot_node[slot]
                        at += 1
                    place += 1
        left = int(found.inputs[r]) - place * size
        last[r] = hashed
        while left > 0:
            hashed = step_hash(hashed, number)
            if (hashed >> HIGH_BITS) < below:
                above = chains[at - 1] if at > first else -1
                _write(forest, count, above, place, min(size, left), number, hashed)
                chains[at] = min(count, len(forest.parent) - 1)
                at += 1
                count += 1
            if left >= size:
                last[r] = hashed
            number += 1
            total += min(size, left)
            place += 1
            left -= size
        starts[r + 1] = at
    state[0] = count
    state[1] = total
