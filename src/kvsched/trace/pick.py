"""Some requests of a trace as a trace of their own: nodes renumbered, the clock from 0 again."""

from __future__ import annotations

from typing import Any

import numpy as np

from kvsched.foundation.jit import hot
from kvsched.trace.model import UNKNOWN, Float64s, Int32s, Int64s, Labels, Origin, Trace


def shifted(times: Float64s, by_s: float) -> Float64s:
    """Times moved by some seconds, to the nanosecond; the same where they are not moved.

    A difference of two decimal fractions is not the float nearest to the decimal one; rounded, it
    is what a reader makes of the same time in a file.
    """
    return np.round(times + by_s, 9) if by_s else times


def pick(trace: Trace, order: Int64s, origin: Origin) -> Trace:
    """Return the trace of the requests ``order`` (K,), no index twice, in that order.

    Their times must ascend in that order, wherever ``trace`` has them; they are `shifted` to
    start at 0, deadlines with them. Nodes are numbered in order of first appearance, and a node's
    size is the first one seen among these requests, as `build_trace` has it: reading a file of
    these requests alone gives the same. Nodes with sizes of their own keep them. Names that none
    of the requests has are dropped, and so is a column in which all of them are unknown. O(B + N),
    a few ns each.
    """
    starts = np.zeros(len(order) + 1, np.int64)
    np.cumsum(trace.chain_blocks[order], out=starts[1:])
    chains = np.empty(int(starts[-1]), np.int32)
    number = np.full(trace.nodes, -1, np.int32)
    nodes = min(trace.nodes, len(chains))
    parent, depth, tokens = (np.empty(nodes, np.int32) for _ in range(3))
    key = np.empty(nodes, np.int64)
    found = _renumber(
        order, trace.starts, trace.chains, trace.input_tokens, trace.block_size,
        trace.tokens, trace.key, number, chains, parent, depth, tokens, key,
    )  # fmt: skip
    for column in (parent, depth, tokens, key):
        column.resize(found, refcheck=False)
    times = trace.time_s[order]
    first = float(times[0]) if len(times) else 0.0
    deadline = _known(trace.deadline_s, order)
    return Trace(
        time_s=shifted(times, -first),
        input_tokens=trace.input_tokens[order],
        output_tokens=trace.output_tokens[order],
        starts=starts,
        chains=chains,
        parent=parent,
        depth=depth,
        tokens=tokens,
        key=key,
        block_size=trace.block_size,
        origin=origin,
        tenant=_used(trace.tenant, order),
        session=_used(trace.session, order),
        type=_used(trace.type, order),
        model=_used(trace.model, order),
        turn=_known(trace.turn, order),
        priority=None if trace.priority is None else trace.priority[order],
        deadline_s=None if deadline is None else shifted(deadline, -first),
        delay_s=_known(trace.delay_s, order),
    )


def _used(labels: Labels | None, order: Int64s) -> Labels | None:
    """The labels of these requests, without the names that none of them has."""
    if labels is None:
        return None
    codes = labels.codes[order]
    used = np.bincount(codes[codes >= 0], minlength=len(labels.names)) > 0
    if not used.any():
        return None
    # The last entry stands for -1: no name.
    renamed = np.append(np.cumsum(used) - 1, UNKNOWN).astype(np.int32)
    names = tuple(name for name, kept in zip(labels.names, used.tolist(), strict=True) if kept)
    return Labels(renamed[codes], names)


def _known(column: Any, order: Int64s) -> Any:
    """A column of these requests, or None where it says nothing about any of them."""
    if column is None:
        return None
    taken = column[order]
    unknown = np.isnan(taken) if taken.dtype.kind == "f" else taken == UNKNOWN
    return None if unknown.all() else taken


@hot
def _renumber(
    order: Int64s,
    starts: Int64s,
    chains: Int32s,
    input_tokens: Int64s,
    block_size: int,
    tokens: Int32s,
    key: Int64s,
    number: Int32s,
    new_chains: Int32s,
    new_parent: Int32s,
    new_depth: Int32s,
    new_tokens: Int32s,
    new_key: Int64s,
) -> int:
    """Number the nodes of these chains by first appearance; ``number`` (N,) starts at -1.

    A block size of 0 means that nodes have sizes of their own.
    """
    nodes = 0
    out = 0
    for turn in range(len(order)):
        request = order[turn]
        above = -1
        left = int(input_tokens[request])
        first = int(starts[request])
        for at in range(first, int(starts[request + 1])):
            old = chains[at]
            node = int(number[old])
            if node < 0:
                node = nodes
                nodes += 1
                number[old] = node
                new_parent[node] = above
                new_depth[node] = at - first
                new_tokens[node] = min(block_size, left) if block_size > 0 else tokens[old]
                new_key[node] = key[old]
            left -= block_size
            new_chains[out] = node
            out += 1
            above = node
    return nodes
