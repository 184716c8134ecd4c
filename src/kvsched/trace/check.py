"""The structure that compiled code relies on: no index out of range, every chain a path."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvsched.trace.model import Trace

_STEP = 1 << 20
_MOST_TOKENS = 2**31 - 1


def structural_fault(trace: Trace) -> str | None:
    """What is wrong with the trace, in words, or None. O(B + N), a few ns a reference.

    Works through the columns in steps, so that the memory stays small.
    """
    return (
        _sizes_fault(trace) or _values_fault(trace) or _forest_fault(trace) or _chain_fault(trace)
    )


def _sizes_fault(trace: Trace) -> str | None:
    requests, nodes = len(trace.time_s), len(trace.parent)
    per_node = ("parent", "depth", "tokens", "key")
    for name, column in trace.columns().items():
        if name in per_node:
            expected = nodes
        elif name == "starts":
            expected = requests + 1
        elif name == "chains":
            expected = len(trace.chains)
        else:
            expected = requests
        if len(column) != expected:
            return f"{name} has {len(column)} entries, not {expected}"
    starts = trace.starts
    if starts[0] != 0 or starts[-1] != len(trace.chains) or (starts[1:] < starts[:-1]).any():
        return "starts do not run from 0 to the number of references"
    return None


def _within(column: NDArray[Any], low: float, high: float) -> bool:
    """Whether every entry is from ``low`` to ``high``; NaN is not."""
    return not len(column) or bool(column.min() >= low and column.max() <= high)


def _values_fault(trace: Trace) -> str | None:
    time = trace.time_s
    if (
        not _within(time, 0.0, np.finfo(np.float64).max)
        or time[:1].any()
        or (time[1:] < time[:-1]).any()
    ):
        return "time_s does not ascend from 0"
    if not 0 <= trace.block_size <= _MOST_TOKENS:
        return "block_size is out of range"
    if not _within(trace.input_tokens, 0, _MOST_TOKENS):
        return "input_tokens are out of range"
    if not _within(trace.output_tokens, 0, _MOST_TOKENS):
        return "output_tokens are out of range"
    full = trace.chain_blocks
    if ((full > 0) & ((full - 1) * trace.block_size >= trace.input_tokens)).any():
        return "a request has fewer tokens than its chain needs"
    for name in ("tenant", "session", "type", "model"):
        labels = getattr(trace, name)
        if labels is not None and not _within(labels.codes, -1, len(labels.names) - 1):
            return f"{name} codes are out of range"
    for name in ("deadline_s", "delay_s"):
        column = getattr(trace, name)
        if column is not None and np.isinf(column).any():
            return f"{name} is infinite"
    return None


def _forest_fault(trace: Trace) -> str | None:
    if not _within(trace.tokens, 1, trace.block_size or _MOST_TOKENS):
        return "tokens of a node are out of range"
    for low in range(0, trace.nodes, _STEP):
        parent = trace.parent[low : low + _STEP]
        number = np.arange(low, low + len(parent))
        if not _within(parent, -1, trace.nodes - 1) or (parent >= number).any():
            return "a parent is not below its child"
        above = np.where(parent < 0, -1, trace.depth[np.maximum(parent, 0)])
        if (trace.depth[low : low + _STEP] != above + 1).any():
            return "a depth is not its parent's plus 1"
    return None


def _chain_fault(trace: Trace) -> str | None:
    chains = trace.chains
    heads = trace.starts[:-1][trace.chain_blocks > 0]
    for low in range(0, len(chains), _STEP):
        piece = chains[low : low + _STEP]
        if not _within(piece, 0, trace.nodes - 1):
            return "a chain names a node that does not exist"
        expected = np.empty_like(piece)
        expected[1:] = piece[:-1]
        expected[0] = chains[low - 1] if low else -1
        here = heads[np.searchsorted(heads, low) : np.searchsorted(heads, low + len(piece))]
        expected[here - low] = -1
        if (trace.parent[piece] != expected).any():
            return "a chain is not a path from a root"
    return None
