"""Recordings of real engines: what they were asked, as a trace, and what they did."""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kvsched.trace.build import build_trace
from kvsched.trace.model import Labels, Origin, Trace

FOLDER = Path(__file__).with_name("recordings")
ANONYMOUS = 1 << 20
"""A generated block that no later request names is recorded as -1 - (request × this + place)."""


@dataclass(frozen=True)
class Recording:
    """A header, and a row a request."""

    name: str
    head: dict[str, Any]
    rows: list[Any]

    @property
    def capacity(self) -> int:
        return int(self.head["capacity_blocks"])


def read(name: str) -> Recording:
    with gzip.open(FOLDER / name, "rt", encoding="utf-8") as stream:
        head, *rows = map(json.loads, stream)
    return Recording(name, head, rows)


def names(pattern: str) -> list[str]:
    return sorted(path.name for path in FOLDER.glob(pattern))


def trace_of(recording: Recording) -> Trace:
    """The prompts of a recording that holds its workload."""
    rows = recording.rows
    keys = [block for row in rows for block in row["ids"]]
    sessions = [row["session"] for row in rows]
    labels = None
    if any(session is not None for session in sessions):
        labels = Labels(np.array(sessions, np.int32), tuple(map(str, range(1 + max(sessions)))))
    return build_trace(
        time_s=np.arange(len(rows), dtype=np.float64),
        input_tokens=np.array([row["prompt"] for row in rows], np.int64),
        output_tokens=np.array([row["output"] for row in rows], np.int64),
        starts=np.concatenate([[0], np.cumsum([len(row["ids"]) for row in rows])]),
        keys=np.array(keys, np.int64),
        block_size=recording.head["block_size"],
        origin=Origin("recorded", "test", "s"),
        session=labels,
    )


def ids_of(trace: Trace, held: Trace) -> list[int]:
    """The recording's id of every node of ``held``: those after ``trace``'s are anonymous."""
    found: list[int] = held.key.tolist()
    owner = np.repeat(np.arange(len(held)), held.chain_blocks)
    new = np.flatnonzero(held.chains >= trace.nodes)
    for request, node in zip(owner[new].tolist(), held.chains[new].tolist(), strict=True):
        found[node] = -1 - (request * ANONYMOUS + int(held.depth[node]))
    return found
