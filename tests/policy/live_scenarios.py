"""What a live cache asks of a policy, each as a check of any policy: raises AssertionError."""

from __future__ import annotations

import numpy as np
from factory import About, make_trace
from live_checks import check_all
from live_driver import Live
from live_script import play

import kvsched
from kvsched.kernel.sketch import sketch_count
from kvsched.policy import arc, s3fifo
from kvsched.policy.base import Policy
from kvsched.policy.registry import make
from kvsched.replay.run import replay
from kvsched.trace.model import Trace

AHEAD = ("opt", "opt-fit")
HEAD = "priority:head_tokens=20:head_duration_s=60"
TOOLS = "ttl:lifetime_s=60:tool_lifetime_s=100"
CLAIMS = "tlru:threshold_tokens=40:next_prompt_tokens=8"
COSTS = "gdsf:attention_tokens=30"
LABELS = [*(name for name in kvsched.policies() if name not in AHEAD), HEAD, TOOLS, CLAIMS, COSTS]
FORGETFUL = [
    *("lru", "lfu", "slru", "chapter", "decay", "mru", "filo", "fifo", "priority", HEAD, "ttl"),
    *(TOOLS, "gdsf", COSTS, "sieve", "marconi"),
]
"""Policies that remember nothing of nodes that left."""


def sequentially(trace: Trace, policy: Policy, capacity: int, compiled: bool = False) -> Live:
    """Run a trace through a live cache, each request released before the next begins."""
    live = Live(policy, capacity, trace.nodes, compiled=compiled)
    # A trace numbers nodes in the order in which its chains name them, stored or not.
    chains = [
        tuple(trace.chains[low:high].tolist())
        for low, high in zip(trace.starts[:-1], trace.starts[1:], strict=True)
    ]
    for chain in chains:
        for at, node in enumerate(chain):
            assert live.node_of(chain[: at + 1], int(trace.tokens[node])) == node
    assert trace.session is not None
    assert trace.type is not None
    assert trace.turn is not None
    assert trace.priority is not None
    for at, chain in enumerate(chains):
        live.now = float(trace.time_s[at])
        about = About(
            int(trace.session.codes[at]), int(trace.type.codes[at]), int(trace.priority[at])
        )
        lease = live.acquire(
            chain,
            about,
            turn=int(trace.turn[at]),
            answer=int(trace.output_tokens[at]),
            prompt=int(trace.input_tokens[at]),
        )
        live.release(lease)
    return live


def check_sequential(policy: Policy, trace: Trace, capacity: int, compiled: bool = False) -> None:
    found = replay(
        trace, make(policy.label), capacity, decisions=True, compiled=compiled, fast=False
    )
    live = sequentially(trace, policy, capacity, compiled)
    assert found.decisions is not None
    assert live.hits == found.request_hits.tolist(), "hits"
    assert [path[-1] for path in live.victims] == found.decisions.victim.tolist(), "victims"
    assert [path[-1] for path in live.incoming] == found.decisions.incoming.tolist()


def longer_trace(seed: int) -> Trace:
    random = np.random.default_rng(seed)
    count = 120
    paths = [
        tuple(random.integers(0, 3, size=int(random.integers(1, 6))).tolist()) for _ in range(count)
    ]
    gaps = random.choice([0, 1, 20, 60, 61, 240], size=count).tolist()
    about = [
        About(*row)
        for row in zip(
            random.integers(-1, 3, size=count).tolist(),
            random.integers(-1, 3, size=count).tolist(),
            random.choice([0, 20, 35, 80], size=count).tolist(),
            strict=True,
        )
    ]
    return make_trace(paths, gaps, random.choice([0, 5, -3], size=count).tolist(), about)


def once_forgotten(live: Live, node: int) -> bool:
    """Whether a node is no ghost, and nobody claims it."""
    nowhere = {"arc": arc.NOWHERE, "s3fifo": s3fifo.NOWHERE}.get(live.policy.name)
    if nowhere is not None:
        return bool(live.state.where[node] == nowhere)
    return live.policy.name != "tlru" or bool(live.state.needed_by[node] == 0)


def check_recycled(policy: Policy, seed: int) -> None:
    """Compare a cache whose numbers recur with one that has a number for every node there is."""
    numbers = 9 + 3 if policy.label in FORGETFUL else 4 * 9
    again = play(policy, seed, numbers=numbers, may_forget=once_forgotten, steps=200)
    never = play(policy, seed, numbers=400, steps=200)
    assert again.forgotten > 20
    assert never.forgotten == 0
    assert again.hits == never.hits, "hits"
    assert again.victims == never.victims, "victims"


def needs_of(live: Live, path: tuple[int, ...]) -> list[int]:
    return [int(live.state.needed_by[live.number[path[: at + 1]]]) for at in range(len(path))]


def check_claim_goes_on(policy: Policy) -> None:
    """``policy`` is `tlru` by any values: these are set."""
    live = Live(type(policy)(threshold_tokens=24, next_prompt_tokens=8), 12, 12)
    lease = live.acquire((0, 1), About(session=0), answer=0)
    assert needs_of(live, (0, 1)) == [1, 0], "32 tokens, of which 16 can be lost"
    live.extend(lease, (2, 3))
    assert needs_of(live, (0, 1, 2, 3)) == [1, 0, 0, 0]
    live.release(lease)
    assert needs_of(live, (0, 1, 2, 3)) == [1, 1, 1, 0], "64 tokens now"
    live.acquire((0, 1), About(session=0), answer=0)
    assert needs_of(live, (0, 1, 2, 3)) == [1, 0, 0, 0], "the next turn takes its place"


def check_later_request(policy: Policy) -> None:
    live = Live(type(policy)(threshold_tokens=16, next_prompt_tokens=16), 12, 12)
    first = live.acquire((0, 1), About(session=0), answer=0)
    second = live.acquire((5,), About(session=0), answer=0)
    live.extend(first, (2,))
    live.release(first)
    assert needs_of(live, (0, 1, 2)) == [0, 0, 0]
    assert needs_of(live, (5,)) == [1]
    live.release(second)
    check_all(live)


def check_filled_costs(policy: Policy) -> None:
    live = Live(type(policy)(attention_tokens=32), 12, 12)
    lease = live.acquire((0, 1))
    other = live.acquire((5, 6, 7))
    live.extend(lease, (2, 3))
    costs = [int(live.state.cost[node]) / (1 << 24) for node in lease.nodes]
    # 32 tokens after none; 16 after 32; 16 after 48: 1 + (before + half of the tokens) / 32.
    assert costs == [1.5, 1.5, 2.25, 2.75]
    live.release(other)
    live.release(lease)
    assert live.acquire((0, 1, 4)).nodes
    assert live.state.cost[live.number[0, 1, 4]] / (1 << 24) == 1 + (32 + 8) / 32


def check_count_is_forgotten(policy: Policy) -> None:
    live = Live(policy, 4, 12)
    for _ in range(5):
        live.release(live.acquire((0,)))
    node = live.number[0,]
    assert sketch_count(live.state.sketch, node) == 5
    live.drop(node)
    assert sketch_count(live.state.sketch, node) == 5, "a count outlives an eviction"
    live.forget(node)
    assert sketch_count(live.state.sketch, node) == 0


def check_own_lifetime(policy: Policy) -> None:
    for held, other in (((0,), (1,)), ((1,), (0,))):
        live = Live(type(policy)(lifetime_s=10, tool_lifetime_s=100), 2, 12)
        leases = {path: live.acquire(path, About(type=int(path == held))) for path in ((0,), (1,))}
        live.now = 50.0
        live.release(leases[held])
        live.release(leases[other])
        live.now = 120.0
        live.acquire((2,))
        assert live.victims == [other], "the tool's lives until 150"
