"""How the trace reuses its blocks: when, which, and what was given up too early."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvsched.foundation.jit import hot, is_kept
from kvsched.replay.run import Replay
from kvsched.study.result import Histogram, Prefix, Returned, Reuse, SeenOnce
from kvsched.trace.model import Trace
from kvsched.trace.sample import SampledTrace

MOST_PREFIXES = 20


class Gaps(NamedTuple):
    """Runs of blocks that one earlier request used last, and how long ago."""

    seen: NDArray[np.int32]
    """(R,) blocks from the root of each chain that earlier requests used."""
    owner: NDArray[np.int32]
    """(G,) the earlier request of each run."""
    request: NDArray[np.int32]
    """(G,) the request that uses the run again."""
    blocks: NDArray[Any]
    """(G,) blocks in the run, integers."""


@hot
def _runs(
    starts: NDArray[np.int64],
    chains: NDArray[np.int32],
    last: NDArray[np.int32],
    seen: NDArray[np.int32],
    runs: NDArray[np.int32],
) -> int:
    """Count the runs; fill ``runs`` (3, G) if it has room. ``last`` (N,) starts at -1. O(B)."""
    room = runs.shape[1]
    found = 0
    for request in range(len(starts) - 1):
        low = starts[request]
        high = starts[request + 1]
        at = low
        while at < high:
            owner = last[chains[at]]
            if owner < 0:
                break
            begin = at
            while at < high and last[chains[at]] == owner:
                last[chains[at]] = request
                at += 1
            if found < room:
                runs[0, found] = owner
                runs[1, found] = request
                runs[2, found] = at - begin
            found += 1
        seen[request] = at - low
        while at < high:
            last[chains[at]] = request
            at += 1
    return found


def is_compiled() -> bool:
    """Whether the loops of this module are kept on disk; they are compiled together."""
    return is_kept(_runs)


def reuse_gaps(trace: Trace) -> Gaps:
    """Find every run of blocks that an earlier request used. O(B), 12 bytes a run."""
    seen = np.zeros(len(trace), np.int32)
    runs = np.empty((3, 0), np.int32)
    for _ in range(2):
        last = np.full(trace.nodes, -1, np.int32)
        found = int(_runs(trace.starts, trace.chains, last, seen, runs))
        if runs.shape[1] == found:
            break
        runs = np.empty((3, found), np.int32)
    return Gaps(seen, runs[0], runs[1], _stand_for(trace, runs[1], runs[2]))


def _stand_for(trace: Trace, request: NDArray[np.int32], blocks: NDArray[np.int32]) -> NDArray[Any]:
    """Return (G,) blocks of the workload in each run; a request's runs follow one another."""
    if not isinstance(trace, SampledTrace) or not len(blocks):
        return blocks
    end = np.cumsum(blocks, dtype=np.int64)
    first = np.flatnonzero(np.concatenate([[True], request[1:] != request[:-1]]))
    before = np.concatenate([[0], end])[first]
    end += np.repeat(trace.starts[request[first]] - before, np.diff(np.append(first, len(end))))
    stands: NDArray[np.int64] = trace.blocks_to[end] - trace.blocks_to[end - blocks]
    return stands


def _edges(longest: float) -> list[float]:
    """Return 0, then 1, 2, 5, 10, 20, 50, … seconds to beyond ``longest``."""
    edges = [0.0]
    scale = 1.0
    while True:
        for step in (1.0, 2.0, 5.0):
            edges.append(step * scale)
            if edges[-1] > longest:
                return edges
        scale *= 10.0


def time_to_reuse(trace: Trace, gaps: Gaps) -> Reuse:
    """Count reused block references by seconds since their last use. O(G log G)."""
    seconds = trace.time_s[gaps.request] - trace.time_s[gaps.owner]
    edges = _edges(float(seconds.max(initial=0.0)))
    counts, _ = np.histogram(seconds, bins=edges, weights=gaps.blocks)
    order = np.argsort(seconds, kind="stable")
    reached = np.cumsum(gaps.blocks[order], dtype=np.int64)

    def quantile(share: float) -> float | None:
        if not len(reached):
            return None
        # The smallest gap that at least `share` of the reused references do not exceed.
        place = np.searchsorted(reached, share * reached[-1])
        return float(seconds[order[min(int(place), len(order) - 1)]])

    return Reuse(
        blocks=Histogram(edges=tuple(edges), counts=tuple(int(count) for count in counts)),
        median_s=quantile(0.5),
        p90_s=quantile(0.9),
        p99_s=quantile(0.99),
    )


@hot
def _count_nodes(
    starts: NDArray[np.int64],
    chains: NDArray[np.int32],
    request_hits: NDArray[np.int32],
    used: NDArray[np.int64],
    hits: NDArray[np.int64],
    first: NDArray[np.int32],
    last: NDArray[np.int32],
) -> None:
    """Count the uses and hits of every node, and note its first and last request. O(B)."""
    for request in range(len(starts) - 1):
        low = starts[request]
        for at in range(low, starts[request + 1]):
            node = chains[at]
            if used[node] == 0:
                first[node] = request
            used[node] += 1
            last[node] = request
            if at - low < request_hits[request]:
                hits[node] += 1


@hot
def _add_parents(parent: NDArray[np.int32], tokens: NDArray[np.int64]) -> None:
    for node in range(len(parent)):
        above = parent[node]
        if above >= 0:
            tokens[node] += tokens[above]


def path_tokens(trace: Trace) -> NDArray[np.int64]:
    """Return (N,) tokens from the root to each node, itself included. O(N)."""
    if trace.path_tokens is not None:
        return trace.path_tokens
    if not trace.unequal:
        whole: NDArray[np.int64] = trace.depth.astype(np.int64) * trace.block_size + trace.tokens
        return whole
    tokens = trace.tokens.astype(np.int64)
    _add_parents(trace.parent, tokens)
    return tokens


@hot
def _busiest_child(
    parent: NDArray[np.int32], used: NDArray[np.int64], busiest: NDArray[np.int64]
) -> None:
    for node in range(len(parent)):
        above = parent[node]
        if above >= 0 and used[node] > busiest[above]:
            busiest[above] = used[node]


def hottest(replay: Replay) -> tuple[tuple[Prefix, ...], SeenOnce]:
    """Return the prefixes through which most prompt tokens went, and what was seen once. O(B).

    A prefix is named by its deepest node: one that fewer requests continue than reach.
    """
    trace = replay.trace
    used, hits, busiest = (np.zeros(trace.nodes, np.int64) for _ in range(3))
    first, last = (np.zeros(trace.nodes, np.int32) for _ in range(2))
    _count_nodes(trace.starts, trace.chains, replay.request_hits, used, hits, first, last)
    _busiest_child(trace.parent, used, busiest)
    whole = path_tokens(trace)
    weight = np.where((busiest < used) & (used > 1), used * whole, 0)
    count = min(MOST_PREFIXES, int(np.count_nonzero(weight)))
    order = np.lexsort((np.arange(trace.nodes), -weight))[:count]
    labels = trace.session or trace.tenant
    prefixes = []
    for node in order:
        code = int(labels.codes[first[node]]) if labels is not None else -1
        prefixes.append(
            Prefix(
                key=str(int(trace.key[node])),
                label=labels.names[code] if labels is not None and code >= 0 else "",
                blocks=int(trace.depth[node]) + 1,
                tokens=int(whole[node]),
                requests=int(used[node]),
                hits=int(hits[node]),
                last_use_s=float(trace.time_s[last[node]]),
            )
        )
    once = used == 1
    alone = int((once * trace.node_weight).sum())
    share = alone / trace.total_nodes if trace.total_nodes else None
    return tuple(prefixes), SeenOnce(
        blocks=alone,
        share=share,
        tokens=int((trace.tokens * once * trace.node_weight).sum(dtype=np.int64)),
    )


@hot
def _count_returns(
    starts: NDArray[np.int64],
    chains: NDArray[np.int32],
    hits: NDArray[np.int32],
    stored: NDArray[np.int32],
    tokens: NDArray[np.int32],
    weight: NDArray[np.int64],
    before: NDArray[np.uint8],
    totals: NDArray[np.int64],
) -> None:
    for request in range(len(starts) - 1):
        begin = starts[request] + hits[request]
        for at in range(begin, begin + stored[request]):
            node = chains[at]
            if before[node] != 0:
                totals[0] += weight[node]
                totals[1] += weight[node] * tokens[node]
            before[node] = 1


def returned(replay: Replay) -> Returned:
    """Count what had been evicted and was stored again. O(B)."""
    trace = replay.held_trace
    totals = np.zeros(2, np.int64)
    before = np.zeros(trace.nodes, np.uint8)
    _count_returns(
        trace.starts,
        trace.chains,
        replay.request_known,
        replay.request_stored,
        trace.tokens,
        np.broadcast_to(np.int64(1) * trace.node_weight, (trace.nodes,)),
        before,
        totals,
    )
    evictions = replay.evictions
    share = int(totals[0]) / evictions if evictions else None
    return Returned(blocks=int(totals[0]), share=share, tokens=int(totals[1]))
