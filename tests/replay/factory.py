"""Small random traces: forests, long chains, repeats, equal times, empty chains, partial tails."""

from __future__ import annotations

import dataclasses
import itertools
from typing import NamedTuple

import numpy as np
from hypothesis import strategies as st
from oracle import Workload

from kvsched.trace.model import Labels, Origin, Trace

BLOCK = 16
PARTIAL = 1000
"""A partial block's key is its tokens times this, plus the key of the full one."""


TYPES = ("chat", "tool", "api")


class About(NamedTuple):
    """What is known of one request beside its chain: plain unless a test says otherwise."""

    session: int = -1
    """-1: none."""
    type: int = 0
    """Number in `TYPES`, -1: none."""
    priority: int = 0


def make_trace(
    paths: list[tuple[int, ...]],
    gaps: list[int],
    tails: list[int],
    about: list[About] | None = None,
) -> Trace:
    """Make a trace of requests whose chains follow ``paths`` of keys from a root down.

    A tail above 0 is as many tokens that no block covers; below 0, the tokens of a last block
    that is partial, and so another node than the full block of that key.
    """
    nodes: dict[tuple[int, ...], int] = {}
    parent, depth, tokens, key, chains, starts, inputs = [], [], [], [], [], [0], []
    for given, tail in zip(paths, tails, strict=True):
        partial = -tail if tail < 0 and given else 0
        path = (*given[:-1], PARTIAL * partial + given[-1]) if partial else given
        for at in range(len(path)):
            prefix = path[: at + 1]
            if prefix not in nodes:
                nodes[prefix] = len(nodes)
                parent.append(nodes[prefix[:-1]] if at else -1)
                depth.append(at)
                tokens.append(partial if partial and at == len(path) - 1 else BLOCK)
                key.append(path[at])
            chains.append(nodes[prefix])
        starts.append(len(chains))
        inputs.append(BLOCK * len(path) + (partial - BLOCK if partial else max(tail, 0)))
    told = about or [About()] * len(paths)
    sessions = [each.session for each in told]
    turns = [sessions[: at + 1].count(each) for at, each in enumerate(sessions)]
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
        session=Labels(np.array(sessions, np.int32), tuple("abcdefgh")),
        type=Labels(np.array([each.type for each in told], np.int32), TYPES),
        priority=np.array([each.priority for each in told], np.int32),
        turn=np.array(turns, np.int32),
    )


def uneven(trace: Trace, seed: int) -> Trace:
    """Return the trace with nodes of any size from 1 to 39 tokens, in blocks of 1."""
    sizes = np.random.default_rng(seed).integers(1, 40, trace.nodes).astype(np.int32)
    bounds = itertools.pairwise(trace.starts.tolist())
    prompts = np.array([sizes[trace.chains[low:high]].sum() for low, high in bounds], np.int64)
    return dataclasses.replace(trace, tokens=sizes, input_tokens=prompts, block_size=1)


def workload_of(trace: Trace) -> Workload:
    bounds = trace.starts.tolist()
    chains = [tuple(trace.chains[low:high].tolist()) for low, high in itertools.pairwise(bounds)]
    assert trace.session is not None
    assert trace.type is not None
    assert trace.turn is not None
    assert trace.priority is not None
    return Workload(
        chains,
        trace.parent.tolist(),
        trace.tokens.tolist(),
        trace.time_s.tolist(),
        trace.input_tokens.tolist(),
        trace.output_tokens.tolist(),
        trace.session.codes.tolist(),
        trace.type.codes.tolist(),
        trace.turn.tolist(),
        trace.priority.tolist(),
    )


@st.composite
def traces(draw: st.DrawFn, requests: int = 14, length: int = 6, keys: int = 2) -> Trace:
    """Draw a trace; few keys make prefixes meet often, and some paths come again as they were."""
    path = st.lists(st.integers(0, keys), max_size=length).map(tuple)
    few = draw(st.lists(path, min_size=1, max_size=3))
    paths = draw(st.lists(path | st.sampled_from(few), min_size=1, max_size=requests))
    shape = draw(st.sampled_from(["forest", "one root", "many roots", "one block"]))
    if shape == "one root":
        paths = [(0, *path[1:]) if path else path for path in paths]
    elif shape == "many roots":
        paths = [
            (sum(path) % 7 + at % 3, *path[1:]) if path else () for at, path in enumerate(paths)
        ]
    elif shape == "one block":
        paths = [(sum(path) % 5,) for path in paths]
    count = len(paths)
    together = draw(st.booleans())
    gap = st.just(0) if together else st.sampled_from([0, 0, 1, 60, 300, 601])
    gaps = draw(st.lists(gap, min_size=count, max_size=count))
    tail = st.sampled_from([0, 0, 0, 5, -1, -3, -15])
    tails = draw(st.lists(tail, min_size=count, max_size=count))
    one = st.builds(
        About, st.integers(-1, 3), st.integers(-1, 2), st.sampled_from([0, 1, 35, 80, -2])
    )
    about = draw(st.none() | st.lists(one, min_size=count, max_size=count))
    return make_trace(paths, gaps, tails, about)
