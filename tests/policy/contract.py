"""What every policy must hold to, as checks that raise AssertionError, and a loop to break."""

from __future__ import annotations

from typing import Any

import numpy as np
import oracle
from factory import workload_of

from kvsched.foundation.jit import bind
from kvsched.kernel.table import empty_table
from kvsched.policy.base import Policy, Setup
from kvsched.replay.loop import Counts, Decisions, replay_loop
from kvsched.trace.model import Trace


class Run:
    """One plain replay with its whole history, by any loop."""

    def __init__(
        self, trace: Trace, policy: Policy, capacity: int, loop: Any = replay_loop, room: int = 0
    ) -> None:
        self.trace = trace
        self.capacity = capacity
        state = policy.prepare(Setup(trace.nodes, capacity + room, trace.block_size, trace))
        self.table = empty_table(trace.parent, trace.depth, trace.tokens)
        size = len(trace)
        self.counts = Counts(*(np.zeros(size, np.int32) for _ in range(3)))
        references = trace.references
        log = Decisions(np.full(references, -1, np.int32), np.full(references, -1, np.int32))
        run = bind(loop, policy.hooks(), compiled=False)
        self.used = run(
            self.table,
            state,
            capacity + room,
            trace.time_s,
            trace.starts,
            trace.chains,
            self.counts,
            log,
        )
        self.victims = log.victim[: int(self.counts.evicted.sum())].tolist()


def check_history(run: Run) -> None:
    """Follow the log: capacity, ancestors, leaves, the running chain, hits, at every step."""
    trace, held = run.trace, set()
    parent = trace.parent.tolist()
    victims = iter(run.victims)
    for request in range(len(trace)):
        chain = trace.chains[trace.starts[request] : trace.starts[request + 1]].tolist()
        hits = 0
        while hits < len(chain) and chain[hits] in held:
            hits += 1
        assert run.counts.hits[request] == hits, "a hit is the longest resident prefix"
        stored, evicted = int(run.counts.stored[request]), int(run.counts.evicted[request])
        for at in range(hits, hits + stored):
            if len(held) == run.capacity and evicted:
                victim = next(victims)
                evicted -= 1
                assert victim in held, "only a resident node can leave"
                assert victim not in chain, "the running request's chain is protected"
                assert all(parent[node] != victim for node in held), "only a leaf can leave"
                held.remove(victim)
            held.add(chain[at])
            assert len(held) <= run.capacity, "never above the capacity"
            assert parent[chain[at]] < 0 or parent[chain[at]] in held, "closed under ancestors"
        assert evicted == 0, "a block leaves only to make room"
    assert len(held) == run.used, "the ledger is the sum of the residents"
    assert set(np.flatnonzero(run.table.resident).tolist()) == held


def check_against_oracle(run: Run, policy: str) -> None:
    """Compare every request and every eviction with the definition."""
    steps = oracle.replay(workload_of(run.trace), policy, run.capacity, run.trace.block_size)
    assert run.counts.hits.tolist() == [step.hits for step in steps], "hits"
    assert run.counts.stored.tolist() == [step.stored for step in steps], "stored"
    assert run.counts.evicted.tolist() == [len(step.evicted) for step in steps], "evicted"
    if policy not in ("opt", "opt-fit"):
        # Nodes that are never used again are all the same to an optimum.
        assert run.victims == [node for step in steps for node in step.evicted], "victims"


def check_optimal(run: Run, bypass: bool) -> None:
    """Compare the hit blocks with the best of all possible decisions."""
    most = oracle.most_hits(workload_of(run.trace), run.capacity, bypass)
    assert int(run.counts.hits.sum()) == most, "the true optimum"
