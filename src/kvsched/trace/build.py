"""From columns of requests and their block ids to a `Trace`: order, clock and forest."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from kvsched.foundation.errors import UsageError
from kvsched.foundation.jit import hot
from kvsched.trace.model import (
    NO_PARENT,
    Float64s,
    Int32s,
    Int64s,
    Labels,
    Origin,
    Trace,
)
from kvsched.trace.raw import RawChains
from kvsched.trace.reading import Sampling, counted
from kvsched.trace.sample import SampledTrace, SampleSettings, sample
from kvsched.trace.spool import Keys, in_memory
from kvsched.trace.thin import Thinned, thinned

_WORD = 0xFFFFFFFF
_FIRST_TABLE = 1 << 20


def build_trace(
    *,
    time_s: Float64s,
    input_tokens: Int64s,
    output_tokens: Int64s,
    starts: Int64s,
    keys: Keys,
    block_size: int,
    origin: Origin,
    sizes: Int32s | None = None,
    scope: Int32s | None = None,
    tenant: Labels | None = None,
    session: Labels | None = None,
    type: Labels | None = None,
    model: Labels | None = None,
    turn: Int32s | None = None,
    priority: Int32s | None = None,
    deadline_s: Float64s | None = None,
    delay_s: Float64s | None = None,
    note_sorting: bool = True,
    sampling: Sampling | None = None,
) -> Trace:
    """Build the trace of R requests; ``keys[starts[r]:starts[r+1]]`` are request r's block ids.

    ``time_s`` (R,) may be on any clock and in any order: requests are sorted by it (equal
    times keep their order), which a note tells unless ``note_sorting`` is off, and shifted to
    start at 0 (``deadline_s`` with it); ``origin.settings["first_timestamp_s"]`` keeps what was
    there, unless the reader set it. Requests of different ``scope`` (R,) >= 0 never share a
    node. Every request's tokens must reach into its last block. Nodes are numbered in order of
    first appearance; a node's size is the first one seen: what ``block_size`` leaves of the
    prompt, or, where ``block_size`` is 0, what ``sizes`` (B,) gives beside ``keys``.

    With ``sampling`` the trace is what `sample` takes of it, and its forest is laid without the
    whole (`thinned`); the whole itself where it has no blocks.

    Cost: O(B), 50 to 200 ns a reference. Memory: the trace's columns, ``keys``, and a table of
    at most 16 bytes a node. Raises UsageError where the forest has over 2^31 nodes.
    """
    count = len(time_s)
    if len(starts) != count + 1 or starts[-1] != len(keys):
        raise ValueError("starts must have one entry more than there are requests, and end at B")
    if (block_size == 0) != (sizes is not None):
        raise ValueError("blocks have one size, or sizes of their own: not both, not neither")
    notes = list(origin.notes)
    late = int((np.diff(time_s) < 0).sum())
    order: Int64s | None = None
    if late:
        order = np.argsort(time_s, kind="stable")
        if note_sorting:
            out = int((time_s < np.maximum.accumulate(time_s)).sum())
            notes.append(f"{counted(out, 'row was', 'rows were')} out of time order and sorted")

    def take(column: Any) -> Any:
        return column if column is None or order is None else column[order]

    def relabel(labels: Labels | None) -> Labels | None:
        return (
            labels if labels is None or order is None else Labels(labels.codes[order], labels.names)
        )

    chains = RawChains(order, starts, keys, sizes, input_tokens, scope, block_size)
    settings = None
    thin: Thinned | None = None
    if sampling is not None and len(keys):
        settings = SampleSettings(sampling.rate(len(keys)), sampling.seed)
        thin = thinned(chains, settings, sampling.progress) if settings.one_in > 1 else None
    forest, resized = _intern(chains) if thin is None else thin
    if resized:
        blocks = counted(resized, "block", "blocks")
        notes.append(f"{blocks} came again with another size; the first size is kept")
    times = time_s if order is None else time_s[order]
    first = float(times[0]) if count else 0.0
    asked = {"first_timestamp_s": first, **origin.settings}
    kind = Trace if thin is None else SampledTrace
    trace = kind(
        time_s=times - first,
        input_tokens=take(input_tokens),
        output_tokens=take(output_tokens),
        **forest,
        block_size=block_size,
        origin=dataclasses.replace(origin, notes=tuple(notes), settings=asked),
        tenant=relabel(tenant),
        session=relabel(session),
        type=relabel(type),
        model=relabel(model),
        turn=take(turn),
        priority=take(priority),
        deadline_s=None if deadline_s is None else take(deadline_s) - first,
        delay_s=take(delay_s),
    )
    if settings is None or thin is not None:
        return trace
    return sample(trace, settings.one_in, settings.seed)


def _intern(raw: RawChains) -> tuple[dict[str, Any], int]:
    """Number the nodes of all chains; return the trace's columns of them, and sizes that differ."""
    order = np.arange(len(raw)) if raw.order is None else raw.order
    scope = np.zeros(len(raw), np.int32) if raw.scope is None else raw.scope
    sizes = np.empty(0, np.int32) if raw.sizes is None else raw.sizes
    keys = in_memory(raw.keys)
    references = len(keys)
    chains = np.empty(references, np.int32)
    # Room for the worst case costs nothing: a page that is never written is never there.
    parent, depth, tokens = (np.empty(references, np.int32) for _ in range(3))
    key = np.empty(references, np.int64)
    room = max(16, min(2 * references, _FIRST_TABLE))
    table = np.full(1 << (room - 1).bit_length(), -1, np.int32)
    state = np.zeros(4, np.int64)  # next request, references written, nodes, sizes that differ
    while True:
        _intern_chains(
            order, raw.starts, keys, raw.inputs, scope, raw.block_size, sizes,
            chains, parent, depth, tokens, key, table, state,
        )  # fmt: skip
        if state[0] == len(order):
            break
        if len(table) >= 1 << 32:
            raise UsageError("the trace has more than 2^31 distinct blocks: cut it in pieces")
        length = 2 * len(table)
        del table  # never two at once
        table = np.full(length, -1, np.int32)
        _fill_table(table, parent, key, int(state[2]))
    nodes = int(state[2])
    for column in (parent, depth, tokens, key):
        column.resize(nodes, refcheck=False)
    np.maximum(parent, NO_PARENT, out=parent)
    forest = {"chains": chains, "parent": parent, "depth": depth, "tokens": tokens, "key": key}
    forest["starts"] = raw.whole_starts()
    return forest, int(state[3])


def _mix(above: int, key: int) -> int:
    """A hash in 0 … 2^63 - 1; no product overflows, compiled or plain."""
    value = ((above & _WORD) * 0x5BD1E995) ^ ((key & _WORD) * 0x2C1B3C6D)
    value ^= ((key >> 32) & _WORD) * 0x297A2D39
    value ^= value >> 31
    value = (value & _WORD) * 0x45D9F3B5
    return value ^ (value >> 29)


@hot
def _intern_chains(
    order: Int64s,
    starts: Int64s,
    keys: Int64s,
    input_tokens: Int64s,
    scope: Int32s,
    block_size: int,
    sizes: Int32s,
    chains: Int32s,
    parent: Int32s,
    depth: Int32s,
    tokens: Int32s,
    key: Int64s,
    table: Int32s,
    state: Int64s,
) -> None:
    """Intern request after request, until all are done or the table is half full.

    A root's parent is kept as -1 - scope, so that roots of different scopes are different.
    """
    mask = len(table) - 1
    at = int(state[1])
    nodes = int(state[2])
    resized = int(state[3])
    turn = int(state[0])
    while turn < len(order):
        request = int(order[turn])
        first = int(starts[request])
        last = int(starts[request + 1])
        if 2 * (nodes + last - first) > len(table):
            break
        above = -1 - int(scope[request])
        left = int(input_tokens[request])
        for place in range(first, last):
            name = int(keys[place])
            size = min(block_size, left) if len(sizes) == 0 else int(sizes[place])
            left -= block_size
            slot = _mix(above, name) & mask
            node = int(table[slot])
            while node >= 0 and (parent[node] != above or key[node] != name):
                slot = (slot + 1) & mask
                node = int(table[slot])
            if node < 0:
                node = nodes
                nodes += 1
                table[slot] = node
                parent[node] = above
                key[node] = name
                depth[node] = place - first
                tokens[node] = size
            elif tokens[node] != size:
                resized += 1
            chains[at] = node
            at += 1
            above = node
        turn += 1
    state[0] = turn
    state[1] = at
    state[2] = nodes
    state[3] = resized


@hot
def _fill_table(table: Int32s, parent: Int32s, key: Int64s, nodes: int) -> None:
    """Enter the first ``nodes`` nodes into an empty table."""
    mask = len(table) - 1
    for node in range(nodes):
        slot = _mix(int(parent[node]), int(key[node])) & mask
        while table[slot] >= 0:
            slot = (slot + 1) & mask
        table[slot] = node
