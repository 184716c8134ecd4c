"""libcachesim on the Weka sessions' block stream: every policy that both have, two capacities."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import flat
import inputs
from kvsched.replay.run import replay
from kvsched.trace.load import load_trace
from kvsched.trace.model import Origin, Trace
from measure import Section, Side, alternate, at_least, table, timed
from peers import Peer, pins

NAME = "libcachesim"
CAPACITIES = (10_000, 40_000)
PAIRS = (
    ("lru", "LRU", 10.0),
    ("fifo", "FIFO", 3.0),
    ("lfu", "LFU", 3.0),
    ("slru", "SLRU", 3.0),
    ("gdsf", "GDSF", 3.0),
    ("arc", "ARC", 3.0),
    ("s3fifo", "S3FIFO", 3.0),
    ("sieve", "Sieve", 3.0),
    ("wtinylfu", "WTinyLFU", 3.0),
    ("opt", "Belady", 3.0),
    ("opt-fit", "Belady", 3.0),
)
SIMULATED = ("LRU", "FIFO", "LFU", "Belady")
"""What `flat` simulates exactly."""
ROUNDS = 3
"""The peer takes about two minutes for all policies once."""
FITTED = 16
"""Its hash table of 2^16 buckets is about the fastest here; its default has 2^24."""
CHECKED = 200_000

SIDES = """\
kvsched replays chains: {requests:,} requests with {references:,} block references over
{nodes:,} nodes, from its memory-mapped columns; `replay()` as a user calls it, its arrays
allocated inside the time, on one thread. libcachesim {version} (C) runs the flattened stream:
the same {references:,} references in the same order, object = node, every object of size 1, as
an oracleGeneral file read by its own reader; only its `process_trace` is timed, with reader open,
cache made and file in memory. The jobs differ: kvsched keeps the resident set closed under
prefixes and counts the longest resident prefix, libcachesim knows no prefixes. libcachesim's
default hash table (2^24 buckets) is larger than the caches of this machine, which costs it most
of its time; the rows marked *fitted table* give it 2^{fitted} buckets, about its fastest here,
and are held to the same bars."""


def _mapped(trace: Trace) -> Trace:
    from kvsched.trace.columns import write_columns

    path = inputs.made("weka.kvtrace")
    write_columns(trace, path)
    return load_trace(path)


def _head(trace: Trace) -> Trace:
    """The first references as a trace of requests of one block each: what a flat cache sees."""
    _, chains = np.unique(trace.chains[:CHECKED], return_inverse=True)
    references, nodes = len(chains), int(chains.max()) + 1
    return Trace(
        time_s=np.arange(float(references)),
        input_tokens=np.full(references, trace.block_size),
        output_tokens=np.ones(references, np.int64),
        starts=np.arange(references + 1),
        chains=chains.astype(np.int32),
        parent=np.full(nodes, -1, np.int32),
        depth=np.zeros(nodes, np.int32),
        tokens=np.full(nodes, trace.block_size, np.int32),
        key=np.arange(nodes),
        block_size=trace.block_size,
        origin=Origin("flat head", "made", "s"),
    )


def _check(peer: Peer, trace: Trace, path: Path) -> str:
    """Hits on the first references, flat: the peer's, kvsched's, an exact simulation's."""
    nodes = trace.chains[:CHECKED]
    stream = nodes.tolist()
    inputs.write_flat(nodes, path)
    following = inputs.next_uses(nodes).tolist()
    head = _head(trace)
    rows = []
    for capacity in CAPACITIES:
        for ours, theirs, _ in PAIRS:
            found = _ask(peer, path, len(nodes), theirs, capacity, FITTED)["hits"]
            mine = replay(head, ours, capacity).hit_blocks
            exact: int | str = ""
            if theirs in SIMULATED:
                arguments: tuple[Any, ...] = (following,) if theirs == "Belady" else ()
                exact = getattr(flat, theirs.lower())(stream, capacity, *arguments)
            same = "equal" if mine == found else f"differs by {mine - found:+,}"
            rows.append((f"{ours} / {theirs}", capacity, mine, found, exact, same))
    return (
        f"Do both mean the same? Hits on the first {CHECKED:,} references, for kvsched as requests "
        "of one block each, so that there are no prefixes. An exact simulation in a few lines of "
        "Python stands beside where there is one.\n\n"
        + table(("policy", "capacity", "kvsched", "libcachesim", "exact", ""), rows)
    )


def _ask(
    peer: Peer, path: Path, references: int, policy: str, capacity: int, hashpower: int | None
) -> dict[str, Any]:
    return peer.ask(
        file=str(path),
        references=references,
        policy=policy,
        capacity=capacity,
        hashpower=hashpower,
    )


def _versus(
    peer: Peer, trace: Trace, path: Path, ours: str, theirs: str, capacity: int
) -> tuple[list[Side], tuple[int, int]]:
    def peer_seconds(hashpower: int | None) -> float:
        answer = _ask(peer, path, trace.references, theirs, capacity, hashpower)
        return float(answer["seconds"])

    sides = alternate(
        timed(lambda: replay(trace, ours, capacity)),
        lambda: peer_seconds(None),
        lambda: peer_seconds(FITTED),
        rounds=ROUNDS,
    )
    hits = _ask(peer, path, trace.references, theirs, capacity, FITTED)["hits"]
    return sides, (replay(trace, ours, capacity).hit_blocks, hits)


def run() -> Section:
    """Measure."""
    trace = _mapped(inputs.weka())
    section = Section(
        "libcachesim",
        SIDES.format(
            requests=len(trace),
            references=trace.references,
            nodes=trace.nodes,
            version=pins()[NAME],
            fitted=FITTED,
        ),
    )
    path = inputs.made("weka.oracleGeneral.bin")
    inputs.write_flat(trace.chains, path)
    compared = []
    with Peer(NAME, "peer_libcachesim.py") as peer:
        section.tables.append(_check(peer, trace, inputs.made("weka-head.oracleGeneral.bin")))
        for capacity in CAPACITIES:
            for ours, theirs, bar in PAIRS:
                (mine, default, fitted), hits = _versus(peer, trace, path, ours, theirs, capacity)
                what = f"{ours} / {theirs}, {capacity:,} blocks"
                section.rows.append(at_least(what, mine, default, bar))
                section.rows.append(at_least(f"{what}, fitted table", mine, fitted, bar))
                compared.append((ours, capacity, *hits, trace.references))
    section.tables.append(
        "Hits of chains and of the flattened stream; they answer different questions.\n\n"
        + table(("policy", "capacity", "kvsched", "libcachesim", "references"), compared)
    )
    section.notes += [
        "Where counts over the same flat stream differ, the policies do: SLRU is SGLang's (two "
        "segments without a bound, another rule than libcachesim's); libcachesim's S3FIFO puts "
        "what comes after the small queue is full, before the first eviction, into the main "
        "queue, as its source says, the paper's into the small one; its W-TinyLFU was not "
        "reproduced here; `opt` may decline to store.",
        "libcachesim's Belady makes room for every object, needed again or not; kvsched's `opt` "
        "does not store what nothing in the cache is needed later than. That is the whole "
        "difference between the two here: the optimum with bypass over the flattened stream hits "
        "as often as `opt` over chains.",
        "In the flattened stream each block is a moment of its own: LRU and FIFO let the head of "
        "a prefix go before its tail, and a block past the hole still counts as a hit.",
    ]
    return section
