"""What the benchmarks read: the real traces beside the checkout, and copies made for this run."""

from __future__ import annotations

import functools
import os
from pathlib import Path

import numpy as np

from kvsched.trace.load import load_trace
from kvsched.trace.model import Trace

ROOT = Path(__file__).resolve().parents[1]
MADE = ROOT / ".bench" / "made"


class InputMissingError(Exception):
    """A trace is not there; what needs it is left out and the table says so."""


def shared(*parts: str) -> Path:
    """A file or folder of the real traces."""
    place = Path(os.environ.get("KVSCHED_SHARED", ROOT.parent / "shared"))
    path = place.joinpath("traces", *parts)
    if not path.exists():
        raise InputMissingError(
            f"the trace {'/'.join(parts)} is not beside this checkout (set KVSCHED_SHARED)"
        )
    return path


def conversation_path() -> Path:
    return shared("mooncake", "conversation_trace.jsonl")


@functools.cache
def conversation() -> Trace:
    """Mooncake's conversation trace: 12,031 requests, 288,500 references."""
    return load_trace(conversation_path())


@functools.cache
def weka() -> Trace:
    """52 coding-agent sessions on one clock: 3,110 requests, 4,602,577 references."""
    return load_trace(shared("weka"))


def made(name: str) -> Path:
    """A path for a file that the benchmarks make; the folder is not in version control."""
    MADE.mkdir(parents=True, exist_ok=True)
    return MADE / name


def next_uses(nodes: np.ndarray) -> np.ndarray:
    """For each reference, the position of the next one to the same node, or -1."""
    order = np.argsort(nodes, kind="stable")
    following = np.full(len(nodes), -1, np.int64)
    same = nodes[order[1:]] == nodes[order[:-1]]
    following[order[:-1][same]] = order[1:][same]
    return following


def write_flat(nodes: np.ndarray, path: Path) -> None:
    """Write a stream in libcachesim's oracleGeneral layout: 24 bytes a reference.

    Object = node number, size 1, and the position of its next reference for Belady.
    """
    layout = np.dtype([("time", "<u4"), ("object", "<u8"), ("size", "<u4"), ("next", "<i8")])
    records = np.empty(len(nodes), layout)
    records["time"] = np.arange(len(nodes)) // 1000
    records["object"] = nodes
    records["size"] = 1
    records["next"] = next_uses(nodes)
    records.tofile(path)
