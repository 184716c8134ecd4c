"""The queue policies on a flat stream beside libcachesim, request by request."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import flat_queues
import inputs
from kvsched.replay.run import replay
from kvsched.trace.model import Origin, Trace
from measure import Section, table
from peers import Peer, pins

NAME = "libcachesim"
CAPACITIES = (1_000, 5_860, 22_550)
"""Multiples of ten: the shares of both sides round alike."""
PAIRS = (
    ("sieve", "Sieve"),
    ("arc", "ARC"),
    ("s3fifo", "S3FIFO"),
    ("wtinylfu", "WTinyLFU"),
    ("wtinylfu:counters=1024", "WTinyLFU"),
)
AS_PEER = {"S3FIFO": {"ghost_share": 0.9, "fills_main": True}}

SIDES = """\
The {references:,} references of the conversation trace as a stream of single blocks: kvsched
replays chains of one block, libcachesim {version} gets one object a request, and the papers'
algorithms in a few lines of Python stand between. Each column counts the requests whose hit or
miss is not the same."""


def _flat(trace: Trace) -> Trace:
    references, nodes = trace.references, trace.nodes
    return Trace(
        time_s=np.arange(references, dtype=np.float64),
        input_tokens=np.full(references, trace.block_size, np.int64),
        output_tokens=np.zeros(references, np.int64),
        starts=np.arange(references + 1, dtype=np.int64),
        chains=trace.chains.copy(),
        parent=np.full(nodes, -1, np.int32),
        depth=np.zeros(nodes, np.int32),
        tokens=np.full(nodes, trace.block_size, np.int32),
        key=np.arange(nodes, dtype=np.int64),
        block_size=trace.block_size,
        origin=Origin("conversation, flat", "made", "s"),
    )


def _asked(peer: Peer, path: Path, policy: str, capacity: int) -> NDArray[np.bool_]:
    answer = inputs.made("flat-answer.bin")
    peer.ask(file=str(path), policy=policy, capacity=capacity, answer=str(answer))
    return np.fromfile(answer, np.uint8).astype(bool)


def run() -> Section:
    """Compare; nothing is timed."""
    trace = inputs.conversation()
    flat = _flat(trace)
    path = inputs.made("flat.int64.bin")
    trace.chains.astype(np.int64).tofile(path)
    stream = trace.chains.tolist()
    section = Section(
        "Queue policies on a flat stream",
        SIDES.format(references=trace.references, version=pins()[NAME]),
    )
    rows = []
    with Peer(NAME, "peer_flat.py") as peer:
        for capacity in CAPACITIES:
            for ours, theirs in PAIRS:
                published = getattr(flat_queues, ours.partition(":")[0])
                paper = np.array(published(stream, capacity))
                as_peer = np.array(published(stream, capacity, **AS_PEER.get(theirs, {})))
                found = replay(flat, ours, capacity).request_hits > 0
                told = _asked(peer, path, theirs, capacity)
                differ = [int((a != b).sum()) for a, b in ((found, paper), (told, as_peer))]
                rows.append((ours, capacity, int(found.sum()), int(told.sum()), *differ))
    heads = ("policy", "capacity", "hits", "libcachesim's", "we differ", "it differs")
    section.tables.append(table(heads, rows))
    section.notes += [
        "*We differ*: from the paper's algorithm. *It differs*: libcachesim from the same, with "
        "its own choices for S3-FIFO: before the first eviction a full small queue sends what is "
        "new to the main one, where the paper's keeps growing.",
        "W-TinyLFU with the usual sketch of 16 counters a block errs by collisions; with 1,024 it "
        "is the paper's with exact counts. libcachesim's is another variant: it counts hits of the "
        "main part and insertions only, counts the window's last object once more whenever that "
        "competes, and halves after 32 hits an object of the main part.",
    ]
    return section
