"""The kernel on the conversation trace against a bare loop over the same references."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

import inputs
from kvsched.foundation.jit import hot
from kvsched.replay.run import replay
from measure import Row, Section, Side, alternate, at_most, timed

CAPACITY = 5_859
HEAPS = ("fifo", "lfu", "opt", "opt-fit")

LIST = "list (lru, hook by hook)"

SIDES = """\
One replay of the conversation trace ({references:,} references, {nodes:,} nodes) at {capacity:,}
blocks, warm, on one thread: `replay()` as a user calls it, the allocation of its arrays included.
`lru` runs on its own fast path; the list under its hooks, the way a policy of a user's runs, is
timed beside it. Against them a compiled loop over the same requests and references that only reads
one byte of each node's state, and one that reads that and the node's list links (9 bytes)."""


@hot
def _bare(starts: Any, chains: Any, resident: Any) -> int:
    found = 0
    for request in range(len(starts) - 1):
        for at in range(starts[request], starts[request + 1]):
            found += resident[chains[at]]
    return found


@hot
def _bare_links(starts: Any, chains: Any, resident: Any, links: Any) -> int:
    found = 0
    for request in range(len(starts) - 1):
        for at in range(starts[request], starts[request + 1]):
            node = chains[at]
            found += resident[node] + links[node, 0] + links[node, 1]
    return found


def run() -> Section:
    """Measure."""
    trace = inputs.conversation()
    resident = np.zeros(trace.nodes, np.uint8)
    links = np.zeros((trace.nodes + 1, 2), np.int32)
    policies = ("lru", *HEAPS)
    sides = alternate(
        timed(lambda: _bare(trace.starts, trace.chains, resident)),
        timed(lambda: _bare_links(trace.starts, trace.chains, resident, links)),
        timed(lambda: replay(trace, "lru", CAPACITY, fast=False)),
        *(timed(functools.partial(replay, trace, name, CAPACITY)) for name in policies),
        rounds=21,
    )
    byte, linked, hooked, lru, *heaps = sides
    section = Section(
        "Kernel",
        SIDES.format(references=trace.references, nodes=trace.nodes, capacity=CAPACITY),
    )
    section.rows = [
        at_most("lru, loop reads one byte", lru, byte, 2),
        at_most("lru, loop reads the links too", lru, linked, 2),
        at_most(f"{LIST}, loop reads one byte", hooked, byte, 2),
        at_most(f"{LIST}, loop reads the links too", hooked, linked, 2),
        *(
            at_most(f"heap ({name}), loop reads one byte", side, byte, 20)
            for name, side in zip(HEAPS, heaps, strict=True)
        ),
        *(
            Row(f"{name} by reference", _each(side, trace.references))
            for name, side in zip(
                ("bare loop", LIST, *policies), (byte, hooked, lru, *heaps), strict=True
            )
        ),
    ]
    return section


def _each(side: Side, references: int) -> str:
    return f"{side.median / references * 1e9:.1f} ns"
