"""libcachesim on the Weka sessions' block stream: LRU, FIFO, LFU, Belady at two capacities."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import flat
import inputs
from kvsched.replay.run import replay
from kvsched.trace.load import load_trace
from kvsched.trace.model import Trace
from measure import Section, Side, alternate, at_least, table, timed
from peers import Peer, pins

NAME = "libcachesim"
CAPACITIES = (10_000, 40_000)
PAIRS = (("lru", "LRU", 10.0), ("fifo", "FIFO", 3.0), ("lfu", "LFU", 3.0), ("opt", "Belady", 3.0))
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


def _check(peer: Peer, trace: Trace, path: Path) -> str:
    """The peer's hits on the first references against an exact simulation in Python."""
    nodes = trace.chains[:CHECKED]
    stream = nodes.tolist()
    inputs.write_flat(nodes, path)
    following = inputs.next_uses(nodes).tolist()
    rows = []
    for capacity in CAPACITIES:
        for _, policy, _ in PAIRS:
            arguments: tuple[Any, ...] = (following,) if policy == "Belady" else ()
            exact = getattr(flat, policy.lower())(stream, capacity, *arguments)
            found = _ask(peer, path, len(nodes), policy, capacity, FITTED)["hits"]
            same = "equal" if exact == found else f"differs by {found - exact:+,}"
            rows.append((policy, capacity, found, exact, same))
    return (
        f"Is the peer used as it should be? Its hits on the first {CHECKED:,} references against "
        "an exact flat simulation in a few lines of Python.\n\n"
        + table(("policy", "capacity", "libcachesim", "exact", ""), rows)
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
        rounds=5,
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
        "libcachesim's Belady makes room for every object, needed again or not; kvsched's `opt` "
        "does not store what nothing in the cache is needed later than. That is the whole "
        "difference between the two here: the optimum with bypass over the flattened stream hits "
        "as often as `opt` over chains.",
        "In the flattened stream each block is a moment of its own: LRU and FIFO let the head of "
        "a prefix go before its tail, and a block past the hole still counts as a hit.",
    ]
    return section
