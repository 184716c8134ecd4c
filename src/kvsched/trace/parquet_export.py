"""A trace written as Parquet: one request a row, in time order, under the readers' usual names."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kvsched.foundation.errors import KvschedError
from kvsched.foundation.files import whole_file
from kvsched.foundation.version import VERSION
from kvsched.trace import roles
from kvsched.trace.build import build_trace
from kvsched.trace.model import UNKNOWN, Int32s, Labels, Trace
from kvsched.trace.parquet import NOTE, load_polars, nulled

if TYPE_CHECKING:
    import polars

_ROWS = 1 << 16


def root_scopes(trace: Trace) -> Int32s | None:
    """(R,) what tells a request's root from others of the same key: its rank among them.

    None where no two roots have one key. O(R + N).
    """
    roots = np.flatnonzero(trace.parent < 0)
    order = np.argsort(trace.key[roots], kind="stable")
    keys = trace.key[roots][order]
    fresh = np.ones(len(keys), bool)
    fresh[1:] = keys[1:] != keys[:-1]
    if fresh.all():
        return None
    first = np.maximum.accumulate(np.where(fresh, np.arange(len(keys)), 0))
    rank = np.zeros(trace.nodes, np.int32)
    rank[roots[order]] = np.arange(len(keys)) - first
    scopes = np.zeros(len(trace), np.int32)
    some = trace.chain_blocks > 0
    scopes[some] = rank[trace.chains[trace.starts[:-1][some]]]
    return scopes


def lost_columns(trace: Trace) -> tuple[str, ...]:
    """Columns of the trace that a reader of its Parquet would find otherwise.

    A node's size follows from the first prompt that has it: a trace cut from a longer one may
    say another. Costs the building of a trace, in time and in memory.
    """
    again = build_trace(
        time_s=trace.time_s,
        input_tokens=trace.input_tokens,
        output_tokens=trace.output_tokens,
        starts=trace.starts,
        keys=trace.key[trace.chains],
        sizes=trace.tokens[trace.chains] if trace.unequal else None,
        scope=root_scopes(trace),
        block_size=trace.block_size,
        origin=trace.origin,
    )
    found = again.columns()
    lost = [
        name
        for name, column in trace.columns().items()
        if name in found and not np.array_equal(column, found[name])
    ]
    for name in roles.LABELS:
        labels: Labels | None = getattr(trace, name)
        if labels is not None and len(set(labels.names)) < len(labels.names):
            lost.append(name)
    return tuple(lost)


def write_parquet(trace: Trace, path: Path) -> tuple[str, ...]:
    """Write ``trace`` to ``path``, whole or not at all; return notes on what is not kept.

    The same trace gives the same bytes under the same polars. Raises UsageError where polars is
    missing or nothing can be written, and KvschedError where the disk gives out on the way.
    """
    pl = load_polars()
    frame = pl.concat(list(_frames(trace)))
    origin = trace.origin
    kept = {
        "block_size": trace.block_size,
        "notes": list(origin.notes),
        "settings": origin.settings,
        "source": origin.source,
        "format": origin.format,
        "version": VERSION,
    }
    lost = lost_columns(trace)
    note = {NOTE: json.dumps(kept, sort_keys=True)}
    with whole_file(path) as stream:
        try:
            frame.write_parquet(stream, row_group_size=_ROWS, metadata=note)
        except pl.exceptions.PolarsError as error:
            # Polars wraps what the disk says in words of its own.
            full = os.strerror(errno.ENOSPC)
            fault = full if full in str(error) else " ".join(str(error).split())
            raise KvschedError(f"{path}: cannot be written ({fault})") from error
    if not lost:
        return ()
    return (f"Parquet cannot keep {', '.join(lost)} as they are: it reads back to another digest",)


def _frames(trace: Trace) -> Iterator[polars.DataFrame]:
    """The table, some rows at a time."""
    scopes = root_scopes(trace)
    sizes = trace.tokens if trace.unequal else None
    orders = {name: _enumerated(getattr(trace, name)) for name in roles.LABELS}
    for low in range(0, max(len(trace), 1), _ROWS):
        yield _frame(trace, slice(low, low + _ROWS), scopes, sizes, orders)


def _enumerated(labels: Labels | None) -> bool:
    """Whether the order of the names must be kept: it is not that of their first appearance."""
    if labels is None or len(set(labels.names)) < len(labels.names):
        return False
    used, first = np.unique(labels.codes[labels.codes != UNKNOWN], return_index=True)
    return (
        not len(used)
        or len(used) < len(labels.names)
        or bool((np.argsort(first) != np.arange(len(used))).any())
    )


def _frame(
    trace: Trace,
    rows: slice,
    scopes: Int32s | None,
    sizes: Int32s | None,
    orders: dict[str, bool],
) -> polars.DataFrame:
    pl = load_polars()
    columns: dict[str, Any] = {
        "time_s": trace.time_s[rows],
        "input_tokens": trace.input_tokens[rows],
        "output_tokens": trace.output_tokens[rows],
    }
    if trace.references:
        columns["hash_ids"] = _lists(trace, rows, trace.key)
        if sizes is not None:
            columns["block_tokens"] = _lists(trace, rows, sizes)
    if scopes is not None:
        columns["scope"] = scopes[rows]
    for name in roles.LABELS:
        labels: Labels | None = getattr(trace, name)
        if labels is not None:
            dtype = pl.Enum(labels.names) if orders[name] else pl.String
            names = [None if c == UNKNOWN else labels.names[c] for c in labels.codes[rows].tolist()]
            columns[name] = pl.Series(names, dtype=dtype)
    if trace.turn is not None:
        turn = trace.turn[rows]
        columns["turn"] = nulled(pl.Series(turn), turn == UNKNOWN)
    if trace.priority is not None:
        columns["priority"] = trace.priority[rows]
    for name in ("deadline_s", "delay_s"):
        column = getattr(trace, name)
        if column is not None:
            columns[name] = pl.Series(column[rows], nan_to_null=True)
    frame: polars.DataFrame = pl.DataFrame(columns)
    return frame


def _lists(trace: Trace, rows: slice, of_nodes: Any) -> polars.Series:
    """A list a row: what ``of_nodes`` (N,) says of the nodes of its chain; null where empty."""
    pl = load_polars()
    counts = trace.chain_blocks[rows]
    low = int(trace.starts[rows.start])
    nodes = trace.chains[low : low + int(counts.sum())]
    row = np.repeat(np.arange(len(counts)), counts)
    listed = pl.DataFrame({"row": row, "item": of_nodes[nodes]}).group_by(
        "row", maintain_order=True
    )
    every = pl.DataFrame({"row": np.arange(len(counts))})
    joined = every.join(listed.agg("item"), on="row", how="left", maintain_order="left")
    found: polars.Series = joined["item"]
    return found
