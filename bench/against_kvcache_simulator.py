"""kvcache-simulator on the conversation trace: 13 capacities of FIFO, LRU and the optimum."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np

import flat
import inputs
from kvsched.replay.run import replay
from kvsched.replay.sweep import cores, sweep
from kvsched.trace.model import Trace
from measure import Section, Side, alternate, at_least, process, table, timed
from peers import HERE, Peer, environment, pins

NAME = "kvcache-simulator"
CAPACITIES = (
    1_000, 1_414, 2_000, 2_828, 4_000, 5_859, 8_000, 11_314, 16_000, 22_550, 32_000, 45_000, 64_000,
)  # fmt: skip
"""All full before the second half: it stops at once where a cache is not, and reports nothing."""
PAIRS = (("fifo", "fifo"), ("lru", "lru"), ("opt", "optimal"))
MODEL = "glm-5.2"

SIDES = """\
Both sweep {points} points (13 capacities × FIFO, LRU, optimum) over the conversation trace:
{requests:,} requests, {references:,} references. *Simulating*: kvsched sweeps a `Trace` in memory,
on {cores} threads and on one; kvcache-simulator {version} runs its `run_cpp_sweep` over a trace
that it has parsed (it writes the trace to temporary files and starts its C++ core, compiled
beforehand, which builds the prefix trie and runs the points on one thread). Building the trie is
reading, not simulating: the second pair of rows takes off what its call costs with no point at
all. *Whole process*: each starts, reads the JSON lines, sweeps and prints JSON."""

DEFINITIONS = """\
Its definitions, and what ours become to match: hits are **tokens** of the longest resident prefix,
with a block's tokens those it covers, so a partial tail counts with its real length (all
{references:,} blocks sum to {tokens:,} tokens on both sides); budgets are whole **blocks**, a
partial one takes a whole; nodes are (parent, id); order is the file's, time ignored; only the
**last half of the requests** ({window:,} of {requests:,}) is counted, the first half warms the
cache, and a capacity that is not full by then is left out. LRU touches and evicts leaves only and
protects the running chain, as ours does. Its optimum is Belady on leaves **with bypass** (a block
is not stored when no candidate is needed later): our `opt`, not `opt-fit`."""

FIFO_NOTE = """\
FIFO differs because it is another policy there: its queue holds single blocks, heads leave before
tails, ancestors leave under resident children and the running request's own blocks may leave; a
hole in the chain ends the hit while the blocks behind it stay and take room until their turn.
The last column is that FIFO in a few lines of Python against the peer's.
kvsched evicts leaves only, so what it holds can always be hit."""


def _bytes_per_block(python: Path, path: Path) -> float:
    """What its catalogue takes a block of the model for, so that budgets in GiB give our blocks."""
    command = [
        str(python), "-m", "kvcache_sim", "run", "--trace", str(path), "--block-size", "512",
        "--model", MODEL, "--policies", "fifo", "--budgets-gib", "64", "--format", "json",
        "--no-progress",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(json.loads(done.stdout)["metadata"]["bytesPerBlock"])


def _whole(python: Path, path: Path) -> list[Side]:
    block = _bytes_per_block(python, path)
    budgets = ",".join(repr((blocks + 0.5) * block / 2**30) for blocks in CAPACITIES)
    theirs = [
        str(python), "-m", "kvcache_sim", "run", "--trace", str(path), "--block-size", "512",
        "--model", MODEL, "--policies", ",".join(theirs for _, theirs in PAIRS),
        "--budgets-gib", budgets, "--format", "json", "--no-progress",
    ]  # fmt: skip
    mine = [
        sys.executable, str(HERE / "process_sweep.py"), str(path),
        ",".join(ours for ours, _ in PAIRS), ",".join(map(str, CAPACITIES)),
    ]  # fmt: skip
    return alternate(process(mine), process(theirs), rounds=5)


def _agreement(trace: Trace, points: list[tuple[str, int, int, int]]) -> tuple[str, bool]:
    """Our hits on its definitions beside its own; whether LRU and the optimum are equal."""
    found = {(policy, capacity): (hits, total) for policy, capacity, hits, total in points}
    half = len(trace) // 2
    total = int(trace.chain_tokens[half:].sum())
    rows = []
    equal = True
    chains = np.split(trace.chains, trace.starts[1:-1])
    lists = [chain.tolist() for chain in chains]
    for capacity in CAPACITIES:
        row: list[int | str] = [capacity]
        for ours, theirs in PAIRS:
            hits = int(replay(trace, ours, capacity).request_hit_tokens[half:].sum())
            peer_hits, peer_total = found.get((theirs, capacity), (0, 0))
            same = (hits, total) == (peer_hits, peer_total)
            equal = equal and (same or ours == "fifo")
            row += [hits, "equal" if same else peer_hits]
        blocks = np.array(flat.block_fifo(lists, capacity))
        explained = int(trace.prefix_tokens(blocks)[half:].sum())
        row.append("equal" if explained == row[2] else explained)
        rows.append(row)
    head = ["blocks"]
    for ours, theirs in PAIRS:
        head += [f"{ours}, kvsched", f"{theirs}, peer"]
    head.append("its fifo, rebuilt")
    return f"Of {total:,} tokens.\n\n" + table(head, rows), equal


def _less(side: Side, other: Side) -> Side:
    return Side(tuple(each - other.median for each in side.seconds))


def run() -> Section:
    """Measure."""
    trace = inputs.conversation()
    path = inputs.conversation_path()
    python = environment(NAME)
    policies = [ours for ours, _ in PAIRS]
    with Peer(NAME, "peer_kvcache_simulator.py", str(path)) as peer:

        def theirs(*policies: str) -> float:
            capacities = list(CAPACITIES) if policies else [1]
            return float(peer.ask(capacities=capacities, policies=policies)["seconds"])

        mine, single, sweeping, nothing = alternate(
            timed(lambda: sweep(trace, policies, CAPACITIES)),
            timed(lambda: sweep(trace, policies, CAPACITIES, threads=1)),
            lambda: theirs(*(theirs for _, theirs in PAIRS)),
            theirs,
        )
        every = [theirs for _, theirs in PAIRS]
        answer = peer.ask(capacities=list(CAPACITIES), policies=every)
    whole, their_whole = _whole(python, path)
    points = [tuple(point) for point in answer["points"]]
    agreement, equal = _agreement(trace, points)
    window = len(trace) - len(trace) // 2
    numbers = {"requests": len(trace), "references": trace.references}
    section = Section(
        "kvcache-simulator",
        SIDES.format(points=len(points), cores=cores(), version=pins()[NAME], **numbers),
    )
    simulating = _less(sweeping, nothing)
    section.rows = [
        at_least("simulating, all cores", mine, sweeping, 3),
        at_least("simulating, one thread each", single, sweeping, None),
        at_least("the same without its trie, all cores", mine, simulating, 3),
        at_least("the same without its trie, one thread each", single, simulating, None),
        at_least("whole process", whole, their_whole, 1),
    ]
    tokens = int(trace.chain_tokens.sum())
    section.notes.append(DEFINITIONS.format(window=window, tokens=tokens, **numbers))
    agree = "agree exactly at every capacity" if equal else "do **not** agree everywhere"
    section.notes.append(f"On these definitions LRU and the optimum {agree}. {FIFO_NOTE}")
    section.tables.append("Hit tokens of the counted half. " + agreement)
    return section
