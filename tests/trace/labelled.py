"""Small random traces with names, turns, waits and deadlines; and a trace as plain values."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import numpy as np
from factory import traces
from hypothesis import strategies as st

from kvsched.trace.model import Labels, Trace

LABELS = ("session", "tenant", "type", "model")


def with_own_sizes(trace: Trace, factor: int = 7) -> Trace:
    """The same chains over nodes of unequal size."""
    tokens = (1 + np.arange(trace.nodes) * factor % 40).astype(np.int32)
    held = [
        int(tokens[trace.chains[low:high]].sum())
        for low, high in itertools.pairwise(trace.starts.tolist())
    ]
    tail = trace.input_tokens - trace.chain_tokens
    inputs = np.array(held, np.int64) + tail
    return dataclasses.replace(trace, tokens=tokens, input_tokens=inputs, block_size=0)


@st.composite
def labelled(
    draw: st.DrawFn, *, unequal: bool | None = None, ties: bool = True, **shape: int
) -> Trace:
    """Draw a trace that starts at 0 and may have any optional column."""
    trace = draw(traces(**shape))
    count = len(trace)
    times = trace.time_s - trace.time_s[0]
    if not ties:
        times = times + np.arange(count)
    changes: dict[str, Any] = {"time_s": times}
    for name in LABELS:
        if draw(st.booleans()):
            codes = draw(st.lists(st.integers(-1, 2), min_size=count, max_size=count))
            names = tuple(f"{name} {letter}" for letter in "äb/")
            changes[name] = Labels(np.array(codes, np.int32), names)
    whole = st.lists(st.integers(1, 9), min_size=count, max_size=count)
    part = st.lists(st.sampled_from([0.0, 0.25, 1.5, float("nan")]), min_size=count, max_size=count)
    if draw(st.booleans()):
        changes["turn"] = np.array(draw(whole), np.int32)
        changes["priority"] = np.array(draw(whole), np.int32)
    if draw(st.booleans()):
        changes["delay_s"] = np.array(draw(part))
        changes["deadline_s"] = times + np.array(draw(part))
    trace = dataclasses.replace(trace, **changes)
    if draw(st.booleans()) if unequal is None else unequal:
        trace = with_own_sizes(trace, draw(st.integers(1, 30)))
    return trace


def plain(trace: Trace) -> list[dict[str, Any]]:
    """Every request as plain values: its keys and sizes from the root down, names, numbers."""
    rows = []
    for at in range(len(trace)):
        nodes = trace.chains[trace.starts[at] : trace.starts[at + 1]].tolist()
        row: dict[str, Any] = {
            "time": float(trace.time_s[at]),
            "input": int(trace.input_tokens[at]),
            "output": int(trace.output_tokens[at]),
            "keys": trace.key[nodes].tolist(),
        }
        for name in LABELS:
            labels = getattr(trace, name)
            code = -1 if labels is None else int(labels.codes[at])
            row[name] = None if code < 0 else labels.names[code]
        for name in ("turn", "priority", "delay_s", "deadline_s"):
            column = getattr(trace, name)
            value = None if column is None else column[at].item()
            unknown = value is None or np.isnan(value) or (name == "turn" and value < 0)
            row[name] = None if unknown else value
        rows.append(row)
    return rows


def same_sharing(one: Trace, other: Trace) -> bool:
    """Whether references fall together on nodes in both alike, node by node."""
    pairs = set(zip(one.chains.tolist(), other.chains.tolist(), strict=True))
    return len(pairs) == len({a for a, _ in pairs}) == len({b for _, b in pairs})


def with_another_chain(trace: Trace) -> Trace:
    """The trace with one chain's last block, which others share, swapped for a node of its own."""
    ends = trace.starts[1:][trace.chain_blocks > 0] - 1
    uses = np.bincount(trace.chains, minlength=trace.nodes)
    at = int(ends[np.argmax(uses[trace.chains[ends]])])
    node = int(trace.chains[at])
    assert uses[node] > 1
    chains = trace.chains.copy()
    chains[at] = trace.nodes
    grown = {
        name: np.append(getattr(trace, name), getattr(trace, name)[node])
        for name in ("parent", "depth", "tokens")
    }
    key = np.append(trace.key, trace.key.max() + 1)
    return dataclasses.replace(trace, chains=chains, key=key, **grown)
