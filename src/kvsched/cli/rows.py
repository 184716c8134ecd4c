"""Rows in files: a row a request, a row a decision; JSON lines or CSV, whole or not at all."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import msgspec

from kvsched.foundation.errors import UsageError
from kvsched.foundation.files import whole_file

if TYPE_CHECKING:
    from kvsched.replay.run import Replay

SUFFIXES = (".jsonl", ".csv")


def check_rows_file(path: str | None) -> None:
    """Raise UsageError unless ``path`` is None or names a file that could be written."""
    if path is None:
        return
    if not path.endswith(SUFFIXES):
        raise UsageError(f"{path}: name it .jsonl or .csv")
    folder = Path(path).parent
    if not folder.is_dir():
        raise UsageError(f"{path}: cannot be written (there is no folder {folder})")
    if Path(path).is_dir():
        raise UsageError(f"{path}: cannot be written (it is a folder)")


Rows = tuple[list[str], Iterable[tuple[Any, ...]]]
"""The names of the columns, and the rows."""


def write_rows(files: list[tuple[str, Rows]]) -> None:
    """Write each file's rows, all files or none. Raises UsageError or KvschedError."""
    if not files:
        return
    (path, (names, rows)), *others = files
    with whole_file(path) as stream:
        _write(stream, path.endswith(".csv"), names, rows)
        stream.flush()
        write_rows(others)


def _write(
    stream: IO[bytes], as_csv: bool, names: list[str], rows: Iterable[tuple[Any, ...]]
) -> None:
    if as_csv:
        text = io.TextIOWrapper(stream, encoding="utf-8", newline="")
        writer = csv.writer(text)
        writer.writerow(names)
        writer.writerows(rows)
        text.flush()
        text.detach()
        return
    encoder = msgspec.json.Encoder()
    for row in rows:
        stream.write(encoder.encode(dict(zip(names, row, strict=True))) + b"\n")


def request_rows(result: Replay) -> Rows:
    """Return a row a request: what it asked for, hit, stored and pushed out."""
    trace = result.trace
    names = [
        "request",
        "time_s",
        "input_tokens",
        "chain_blocks",
        "hit_blocks",
        "hit_tokens",
        "stored_blocks",
        "evictions",
        "session",
        "tenant",
    ]

    if result.rules is not None:
        names.append("refused")

    def labels(column: Any) -> Iterator[str | None]:
        for code in [-1] * len(trace) if column is None else column.codes.tolist():
            yield None if code < 0 else column.names[code]

    rows = zip(
        range(len(trace)),
        trace.time_s.tolist(),
        trace.input_tokens.tolist(),
        trace.chain_blocks.tolist(),
        result.request_hits.tolist(),
        result.request_hit_tokens.tolist(),
        result.request_stored.tolist(),
        result.request_evictions.tolist(),
        labels(trace.session),
        labels(trace.tenant),
        *([] if result.rules is None else [result.request_refused.tolist()]),
        strict=True,
    )
    return names, rows


def decision_rows(result: Replay) -> Rows:
    """Return a row an eviction, in order: who left, when, and for whom.

    A block that no prompt names (generated, or room of a running request) has no key.
    """
    import numpy as np

    trace, decisions = result.trace, result.decisions
    if decisions is None:
        raise UsageError("the replay kept no decisions")
    names = [
        "eviction",
        "request",
        "time_s",
        "victim_node",
        "victim_key",
        "victim_depth",
        "incoming_node",
        "incoming_key",
    ]
    held = result.held_trace

    def keys(nodes: Any) -> Iterator[int | None]:
        for node, key in zip(nodes.tolist(), held.key[nodes].tolist(), strict=True):
            yield key if node < trace.nodes else None

    request = np.repeat(np.arange(len(trace)), result.request_evictions)
    rows = zip(
        range(len(request)),
        request.tolist(),
        trace.time_s[request].tolist(),
        decisions.victim.tolist(),
        keys(decisions.victim),
        held.depth[decisions.victim].tolist(),
        decisions.incoming.tolist(),
        keys(decisions.incoming),
        strict=True,
    )
    return names, rows
