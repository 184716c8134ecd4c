"""Small random traces: forests, long chains, repeats, equal times, empty chains, partial tails."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import strategies as st
from oracle import Workload

from kvsched.trace.model import Origin, Trace

BLOCK = 16


def make_trace(paths: list[tuple[int, ...]], gaps: list[int], tails: list[int]) -> Trace:
    """Make a trace of requests whose chains follow ``paths`` of keys from a root down."""
    nodes: dict[tuple[int, ...], int] = {}
    parent, depth, tokens, key, chains, starts, inputs = [], [], [], [], [], [0], []
    for path, tail in zip(paths, tails, strict=True):
        for at in range(len(path)):
            prefix = path[: at + 1]
            if prefix not in nodes:
                nodes[prefix] = len(nodes)
                parent.append(nodes[prefix[:-1]] if at else -1)
                depth.append(at)
                tokens.append(BLOCK)
                key.append(path[at])
            chains.append(nodes[prefix])
        starts.append(len(chains))
        inputs.append(BLOCK * len(path) + tail)
    return Trace(
        time_s=np.cumsum(np.array(gaps, np.float64)),
        input_tokens=np.array(inputs, np.int64),
        output_tokens=np.full(len(paths), 7, np.int64),
        starts=np.array(starts, np.int64),
        chains=np.array(chains, np.int32),
        parent=np.array(parent, np.int32),
        depth=np.array(depth, np.int32),
        tokens=np.array(tokens, np.int32),
        key=np.array(key, np.int64),
        block_size=BLOCK,
        origin=Origin("made", "test", "s"),
    )


def workload_of(trace: Trace) -> Workload:
    bounds = trace.starts.tolist()
    chains = [tuple(trace.chains[low:high].tolist()) for low, high in itertools.pairwise(bounds)]
    return Workload(chains, trace.parent.tolist(), trace.tokens.tolist(), trace.time_s.tolist())


@st.composite
def traces(draw: st.DrawFn, requests: int = 14, length: int = 6, keys: int = 2) -> Trace:
    """Draw a trace; few keys make prefixes meet often."""
    path = st.lists(st.integers(0, keys), max_size=length).map(tuple)
    paths = draw(st.lists(path, min_size=1, max_size=requests))
    count = len(paths)
    gaps = draw(st.lists(st.integers(0, 300), min_size=count, max_size=count))
    tails = draw(st.lists(st.integers(0, BLOCK - 1), min_size=count, max_size=count))
    return make_trace(paths, gaps, tails)
