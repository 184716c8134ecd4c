"""What every policy must hold to, as checks that raise AssertionError.

A `Run` is a plain replay with every call of a hook written down; each check reads that history
on its own, so a broken policy or loop shows by name which rule it breaks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import oracle
import queue_oracle
from factory import workload_of

from kvsched.foundation.jit import bind
from kvsched.kernel.table import NONE, empty_table
from kvsched.policy.base import Policy, Setup
from kvsched.replay.loop import Counts, Decisions, replay_loop
from kvsched.trace.model import Trace

Event = tuple[Any, ...]
"""The hook's name, then its arguments without table and state; `victim` ends with its answer."""

LOOK_AHEAD = ("opt", "opt-fit")


class Run:
    """One plain replay by any loop, with its history. ``room`` lies to the loop about capacity."""

    def __init__(
        self, trace: Trace, policy: Policy, capacity: int, loop: Any = replay_loop, room: int = 0
    ) -> None:
        self.trace = trace
        self.capacity = capacity
        self.tracks_leaves = policy.track_leaves
        self.requests: list[list[Event]] = []
        self.before: list[set[int]] = []
        self._entered: set[float] = set()
        self.used = NONE
        self.crash: Exception | None = None
        self.table = empty_table(trace.parent, trace.depth, trace.tokens)
        self.counts = Counts(*(np.zeros(len(trace), np.int32) for _ in range(3)))
        self.log = Decisions(*(np.full(trace.references, NONE, np.int32) for _ in range(2)))
        size = capacity + room
        state = policy.prepare(Setup(trace.nodes, size, trace.block_size, trace))
        run = bind(loop, self._watched(policy), compiled=False)
        arrays = (trace.time_s, trace.starts, trace.chains)
        try:
            self.used = run(self.table, state, size, *arrays, self.counts, self.log)
        except (IndexError, ValueError) as error:
            self.crash = error

    def _watched(self, policy: Policy) -> dict[str, Any]:
        hooks = policy.hooks()

        def watch(name: str) -> Any:
            own = bind(hooks[name], hooks, compiled=False)

            def watched(table: Any, state: Any, *given: Any) -> Any:
                if name == "begin":
                    self.requests.append([])
                    self.before.append(self.resident())
                plain = tuple(map(float if name == "begin" else int, given))
                if name == "victim":
                    answer = own(table, state, *given)
                    self.requests[-1].append((name, *plain, int(answer)))
                    return answer
                self.requests[-1].append((name, *plain))
                if name == "enter":
                    self._entered.add(plain[0])
                elif name == "leave" or (name == "on_evict" and policy.track_leaves):
                    if plain[0] not in self._entered:
                        raise ValueError(f"{name} of {plain[0]}, which never entered")
                    self._entered.remove(plain[0])
                return own(table, state, *given)

            return watched

        return {
            name: watch(name) if callable(hook) and name != "key" else hook
            for name, hook in hooks.items()
        }

    def resident(self) -> set[int]:
        return set(np.flatnonzero(self.table.resident).tolist())

    def chain(self, request: int) -> list[int]:
        low, high = self.trace.starts[request : request + 2]
        found: list[int] = self.trace.chains[low:high].tolist()
        return found

    def named(self, request: int, name: str) -> list[Event]:
        return [event for event in self.requests[request] if event[0] == name]

    def leaves(self, held: set[int]) -> set[int]:
        return held - {int(self.trace.parent[node]) for node in held}

    def steps(self) -> Iterator[tuple[int, set[int], Event]]:
        """Yield every call with the nodes held just before it, and an ``end`` a request."""
        held: set[int] = set()
        for request, events in enumerate(self.requests):
            for event in [*events, ("end",)]:
                yield request, held, event
                if event[0] == "on_evict":
                    held.discard(event[1])
                elif event[0] == "on_insert":
                    held.add(event[1])


def check_ran(run: Run, name: str) -> None:
    assert run.crash is None, run.crash
    assert len(run.requests) == len(run.trace), "every request begins"
    for request, events in enumerate(run.requests):
        last_rank = int(run.trace.starts[request + 1]) - 1
        assert events[0] == ("begin", request, run.trace.time_s[request], last_rank)


def check_hits(run: Run, name: str) -> None:
    for request, held in enumerate(run.before):
        chain, hits = run.chain(request), 0
        while hits < len(chain) and chain[hits] in held:
            hits += 1
        assert run.counts.hits[request] == hits, "a hit is the longest resident prefix"
        root_rank = int(run.trace.starts[request + 1]) - 1
        touched = [("on_hit", chain[at], root_rank - at) for at in range(hits)]
        assert run.named(request, "on_hit") == touched, "every hit is touched, the root first"


def check_ceiling(run: Run, name: str) -> None:
    seen: set[int] = set()
    for request, hits in enumerate(run.counts.hits.tolist()):
        chain = run.chain(request)
        assert hits <= sum(node in seen for node in chain), "no more than an unlimited cache"
        seen.update(chain)


def check_capacity(run: Run, name: str) -> None:
    for request, held, event in run.steps():
        assert len(held) <= run.capacity, "never above the capacity"
        if event[0] == "begin":
            assert held == run.before[request], "the table says what the hooks were told"
        if event[0] == "victim":
            assert len(held) == run.capacity, "a block leaves only to make room"


def check_closed(run: Run, name: str) -> None:
    parent = run.trace.parent.tolist()
    for _, held, _ in run.steps():
        assert all(parent[node] in held for node in held if parent[node] >= 0), (
            "closed under ancestors"
        )


def check_victims(run: Run, name: str) -> None:
    for request, held, event in run.steps():
        if event[0] == "victim" and event[-1] != NONE:
            assert event[-1] in held, "only a resident node can leave"
            assert event[-1] in run.leaves(held), "only a leaf can leave"
            assert event[-1] not in run.chain(request), "the running chain is protected"


def check_refusals(run: Run, name: str) -> None:
    """A running request must hold its blocks; `opt` alone may decline."""
    for request, held, event in run.steps():
        if event[0] == "victim" and event[-1] == NONE and name != "opt":
            assert run.leaves(held) <= set(run.chain(request)), "refused with a candidate there"


def check_stored(run: Run, name: str) -> None:
    for request, events in enumerate(run.requests):
        chain, hits = run.chain(request), int(run.counts.hits[request])
        root_rank = int(run.trace.starts[request + 1]) - 1
        inserted = run.named(request, "on_insert")
        until = hits + len(inserted)
        expected = [
            ("on_insert", node, root_rank - at)
            for at, node in enumerate(chain[hits:until], start=hits)
        ]
        assert inserted == expected, "missing nodes are stored in the order of the chain"
        assert run.counts.stored[request] == len(inserted)
        assert run.counts.evicted[request] == len(run.named(request, "on_evict"))
        refused = [event for event in events if event[0] == "victim" and event[-1] == NONE]
        assert bool(refused) == (until < len(chain)), "all is stored unless the policy refuses"


def check_ledger(run: Run, name: str) -> None:
    assert run.used == len(run.resident()), "the ledger is the sum of the residents"
    stored, evicted = int(run.counts.stored.sum()), int(run.counts.evicted.sum())
    assert stored - evicted == run.used, "what was stored left or is there"


def check_log(run: Run, name: str) -> None:
    asked = [
        (event[-1], event[1])
        for events in run.requests
        for event in events
        if event[0] == "victim" and event[-1] != NONE
    ]
    evicted = int(run.counts.evicted.sum())
    log = list(zip(run.log.victim.tolist(), run.log.incoming.tolist(), strict=True))
    assert log[:evicted] == asked, "the log says who left for whom"
    assert set(log[evicted:]) <= {(NONE, NONE)}, "and nothing else"


def check_candidates(run: Run, name: str) -> None:
    """`enter` and `leave` tell a policy exactly which nodes are evictable."""
    entered: set[int] = set()
    for request, held, event in run.steps():
        if not run.tracks_leaves:
            assert event[0] not in ("enter", "leave"), "nobody asked"
        elif event[0] == "enter":
            assert event[1] not in entered, "entered twice"
            entered.add(event[1])
        elif event[0] in ("leave", "on_evict"):
            assert event[1] in entered, "left without having entered"
            entered.remove(event[1])
        elif event[0] == "victim":
            assert entered == run.leaves(held) - set(run.chain(request)), "the candidates"
        elif event[0] in ("begin", "end"):
            assert entered == run.leaves(held), "every leaf is evictable between requests"


def check_oracle(run: Run, name: str) -> None:
    """Compare every request and every eviction with the definition."""
    work = workload_of(run.trace)
    if name in queue_oracle.QUEUES:
        steps = queue_oracle.replay(work, name, run.capacity)
    else:
        steps = oracle.replay(work, name, run.capacity, run.trace.block_size)
    assert run.counts.hits.tolist() == [step.hits for step in steps], "hits"
    assert run.counts.stored.tolist() == [step.stored for step in steps], "stored"
    left = [[event[1] for event in run.named(at, "on_evict")] for at in range(len(steps))]
    assert left == [step.evicted for step in steps], "victims"


def check_optimal(run: Run, name: str) -> None:
    """Compare the hit blocks with the best of all possible decisions; for tiny traces only."""
    tiny = len(run.trace) < 8 and run.trace.nodes <= 12 and run.capacity <= 4
    if name in LOOK_AHEAD and tiny:
        most = oracle.most_hits(workload_of(run.trace), run.capacity, bypass=name == "opt")
        assert int(run.counts.hits.sum()) == most, "the true optimum"


Check = Callable[[Run, str], None]

CHECKS: dict[str, Check] = {
    "ran": check_ran,
    "hits": check_hits,
    "ceiling": check_ceiling,
    "capacity": check_capacity,
    "closed": check_closed,
    "victims": check_victims,
    "refusals": check_refusals,
    "stored": check_stored,
    "ledger": check_ledger,
    "log": check_log,
    "candidates": check_candidates,
    "oracle": check_oracle,
    "optimal": check_optimal,
}
