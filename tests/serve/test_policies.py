"""Any policy as the memory of the timed simulation: what it holds, and the replay's decisions."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as given_settings
from hypothesis import strategies as st
from serving import COST, plain, same, settings, work

import kvsched
from kvsched.foundation.errors import UsageError
from kvsched.kernel.table import NONE
from kvsched.policy.lru import LRU
from kvsched.policy.registry import built_in
from kvsched.replay.vllm import FreeList
from kvsched.serve.asked import NO_REASON, prepare
from kvsched.serve.cost import StepCost
from kvsched.serve.engine import bound_loop, find_eviction, memory_of
from kvsched.serve.loop import DONE
from kvsched.serve.orders.fcfs import FCFS
from kvsched.serve.settings import Settings
from kvsched.serve.simulate import simulate
from kvsched.serve.state import FREE_BLOCKS, PRIVATE, REJECTED, RESIDENT, State, new_state
from kvsched.trace.load import load_trace
from kvsched.trace.model import Labels, Trace
from kvsched.trace.slice import slice_trace

INSTANT = StepCost(np.zeros(4))
"""Steps take no time: with one request at a time each runs at its own arrival."""
LIVE = [name for name in built_in() if not name.startswith("opt")]


def one_at_a_time(
    trace: Trace, policy: str, blocks: int, *, seqs: int = 1, cached: bool = True
) -> Any:
    told = Settings(
        num_gpu_blocks=blocks,
        max_num_seqs=seqs,
        max_num_batched_tokens=30,
        cache_generated=cached,
    )
    return simulate(trace, told, cost=INSTANT, policy=policy, compiled=False).hit_tokens


@pytest.mark.parametrize("policy", LIVE)
@given_settings(max_examples=60)
@given(trace=work(), blocks=st.integers(1, 30))
def test_one_at_a_time_hits_what_the_replay_hits(policy: str, trace: Trace, blocks: int) -> None:
    replayed = kvsched.replay(trace, policy, blocks, engine="vllm", compiled=False)
    assert (one_at_a_time(trace, policy, blocks) == replayed.request_hit_tokens).all()


@pytest.mark.parametrize("policy", LIVE)
def test_a_real_trace_hits_what_the_replay_hits(policy: str, shared_traces: Path) -> None:
    """400 requests here; whole traces under every policy are the benchmarks' `serve-agreement`."""
    trace = load_trace(shared_traces / "mooncake" / "conversation_trace.jsonl")
    number = np.arange(len(trace), dtype=np.int32)
    sessions = Labels(number % 50, tuple(map(str, range(50))))
    trace = dataclasses.replace(trace, priority=number % 3, session=sessions)
    trace = slice_trace(trace, first=400)
    told = Settings(num_gpu_blocks=300, max_num_seqs=1, max_num_batched_tokens=8192)
    found = simulate(trace, told, cost=INSTANT, policy=policy, compiled=False)
    replayed = kvsched.replay(trace, policy, 300, engine="vllm", compiled=False)
    assert found.hit_tokens.tolist() == replayed.request_hit_tokens.tolist()
    assert replayed.evictions > 1000


def test_the_comparison_can_fail() -> None:
    trace = plain([(2, 3), (3, 1), (1, 20), (4, 2)])
    rng = np.random.default_rng(5)
    order = rng.integers(0, 4, 40)
    starts = np.concatenate([[0], np.cumsum(trace.chain_blocks[order])])
    chains = np.concatenate([trace.chains[trace.starts[r] : trace.starts[r + 1]] for r in order])
    again = Trace(
        time_s=np.zeros(40),
        input_tokens=trace.input_tokens[order],
        output_tokens=trace.output_tokens[order],
        starts=starts,
        chains=chains,
        parent=trace.parent,
        depth=trace.depth,
        tokens=trace.tokens,
        key=trace.key,
        block_size=16,
        origin=trace.origin,
    )
    replayed = kvsched.replay(again, "lru", 7, engine="vllm", compiled=False).request_hit_tokens
    assert one_at_a_time(again, "lru", 7).tolist() == replayed.tolist()
    assert one_at_a_time(again, "mru", 7).tolist() != replayed.tolist()
    assert one_at_a_time(again, "lru", 7, cached=False).tolist() != replayed.tolist()
    assert one_at_a_time(again, "lru", 7, seqs=2).tolist() != replayed.tolist()


def check_memory(state: State, capacity: int) -> None:
    """What is counted is what is there, and every resident node has its parent."""
    table, counts = state.table, state.counts
    there = table.resident != 0
    assert int(there.sum()) == counts[RESIDENT]
    held = state.references > 0
    assert there[held].all(), "what is held is resident"
    assert counts[FREE_BLOCKS] == capacity - held.sum() - counts[PRIVATE]
    assert counts[RESIDENT] + counts[PRIVATE] <= capacity
    parents = table.parent[there]
    assert there[parents[parents != NONE]].all()
    children = np.bincount(parents[parents != NONE], minlength=len(there))
    assert (children == table.children).all()
    running = state.running[: state.counts[0]]
    private = state.progress.blocks[running] - state.progress.hashed[running]
    assert private.sum() == counts[PRIVATE]


@pytest.mark.parametrize("policy", ["lru", "fifo", "s3fifo", "lfu", "ttl", "wild"])
@given_settings(max_examples=40)
@given(trace=work(), told=settings())
def test_memory_is_sound_after_every_step(policy: str, trace: Trace, told: Settings) -> None:
    asked = prepare(trace, told)
    chosen = find_eviction(policy, trace)
    rules = told.rules(16, closed_loop=False)
    memory = memory_of(asked, chosen, told)
    capacity = told.num_gpu_blocks
    arrivals = trace.time_s - trace.time_s[0]
    state = new_state(asked.work, arrivals, len(trace), 0, capacity, rules, **memory)
    state.progress.status[asked.reason != NO_REASON] = REJECTED
    loop = bound_loop(FCFS, COST, chosen, False)
    status = -1
    while status != DONE:
        status = loop(state, rules, np.zeros(0), COST.arrays(), 1, np.inf, False)
        check_memory(state, capacity)
    assert state.counts[PRIVATE] == 0
    assert not state.references.any()


@pytest.mark.parametrize("policy", ["lru", "fifo", "s3fifo", "ttl"])
@given_settings(max_examples=50)
@given(trace=work(), told=settings(), order=st.sampled_from(["fcfs", "priority"]))
def test_jumps_change_nothing(policy: str, trace: Trace, told: Settings, order: str) -> None:
    more: dict[str, Any] = {
        "cost": COST, "order": order, "policy": policy, "step_log": True, "compiled": False,
    }  # fmt: skip
    assert same(simulate(trace, told, **more), simulate(trace, told, jumps=False, **more))


def test_the_free_list_is_the_pool() -> None:
    trace = plain([(2, 30), (3, 10), (1, 20), (2, 40)])
    told = Settings(num_gpu_blocks=8, max_num_seqs=4, max_num_batched_tokens=64)
    pool = simulate(trace, told, cost=COST, step_log=True, compiled=False)
    for policy in ("free-list", FreeList, FreeList()):
        assert same(
            pool, simulate(trace, told, cost=COST, policy=policy, step_log=True, compiled=False)
        )
    assert pool.policy is None


def test_compiled_is_plain() -> None:
    trace = plain([(1, 60), (2, 80), (3, 40), (1, 90)] * 5, [0, 1, 3, 1] * 5)
    told = Settings(num_gpu_blocks=12, max_num_seqs=8, max_num_batched_tokens=64)
    more: dict[str, Any] = {"cost": COST, "policy": "fifo", "step_log": True}
    assert same(
        simulate(trace, told, compiled=True, **more), simulate(trace, told, compiled=False, **more)
    )


class Careless(LRU):
    """It names a node that is held, or none at all."""

    name = "careless"

    def live_form(self) -> Any:
        return self

    @staticmethod
    def victim(table: Any, state: Any, incoming: int, rank: int) -> int:
        return int(table.parent[incoming])


def test_what_cannot_run_is_said() -> None:
    trace = plain([(2, 30)] * 4)
    told = Settings(num_gpu_blocks=5, max_num_seqs=4, max_num_batched_tokens=64)
    with pytest.raises(UsageError, match="needs the whole trace: it cannot run live"):
        simulate(trace, told, cost=COST, policy="opt", compiled=False)
    with pytest.raises(UsageError, match="unknown policy none-such"):
        simulate(trace, told, cost=COST, policy="none-such", compiled=False)
    with pytest.raises(UsageError, match=r"victim for request .* is no evictable node"):
        simulate(trace, told, cost=COST, policy=Careless, compiled=False)
