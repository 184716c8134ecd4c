"""Blocks of sizes of their own: capacity in tokens, hits in the nodes' tokens."""

from __future__ import annotations

import dataclasses

import numpy as np
import oracle
import pytest
import queue_oracle
from factory import make_trace, traces, workload_of
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsched.foundation.errors import UsageError
from kvsched.foundation.jit import bind
from kvsched.kernel.table import empty_table
from kvsched.policy.base import Setup
from kvsched.policy.registry import make
from kvsched.replay import loop as loop_module
from kvsched.replay.curve import lru_curve
from kvsched.replay.loop import Counts, Decisions, replay_loop
from kvsched.replay.run import replay
from kvsched.trace.build import build_trace
from kvsched.trace.check import structural_fault
from kvsched.trace.model import Origin, Trace


def unequal(trace: Trace, sizes: list[int]) -> Trace:
    """The same forest, every node with a size of its own, every prompt 3 tokens past its chain."""
    tokens = np.array([sizes[node % len(sizes)] for node in range(trace.nodes)], np.int32)
    before = np.concatenate([[0], np.cumsum(tokens[trace.chains], dtype=np.int64)])
    inputs = before[trace.starts[1:]] - before[trace.starts[:-1]] + 3
    time_s = trace.time_s - trace.time_s[:1]
    return dataclasses.replace(
        trace, time_s=time_s, tokens=tokens, input_tokens=inputs, block_size=0
    )


SIZES = st.lists(st.integers(1, 9), min_size=1, max_size=5)
WORK = {"trace": traces(requests=25, length=6), "sizes": SIZES, "capacity": st.integers(1, 40)}


def steps_of(
    trace: Trace, name: str, capacity: int, room: list[int], usual: int
) -> list[oracle.Step]:
    """What the plain reference of ``name`` does with nodes that take ``room``."""
    if name in queue_oracle.QUEUES:
        return queue_oracle.replay(workload_of(trace), name, capacity, room, usual)
    assert room == trace.tokens.tolist()
    return oracle.replay(workload_of(trace), name, capacity, 1, weighted=True)


@pytest.mark.parametrize("name", sorted([*oracle.KEYS, *queue_oracle.QUEUES]))
@settings(deadline=None, max_examples=60, derandomize=True)
@given(**WORK)
def test_replay_equals_the_definition(
    name: str, trace: Trace, sizes: list[int], capacity: int
) -> None:
    work = unequal(trace, sizes)
    assert structural_fault(work) is None
    steps = steps_of(work, name, capacity, work.tokens.tolist(), work.usual_room)
    found = replay(work, name, capacity, decisions=True, compiled=False)
    assert found.decisions is not None
    assert found.request_hits.tolist() == [step.hits for step in steps]
    assert found.request_stored.tolist() == [step.stored for step in steps]
    assert found.decisions.victim.tolist() == [node for step in steps for node in step.evicted]
    assert found.resident_blocks <= capacity


@pytest.mark.parametrize("name", ["lru", "opt", *queue_oracle.QUEUES])
@settings(deadline=None, max_examples=30, derandomize=True)
@given(**WORK)
def test_compiled_equals_plain(name: str, trace: Trace, sizes: list[int], capacity: int) -> None:
    work = unequal(trace, sizes)
    plain = replay(work, name, capacity, compiled=False)
    compiled = replay(work, name, capacity, compiled=True)
    assert compiled.request_hits.tolist() == plain.request_hits.tolist()
    assert compiled.summary() == plain.summary()


def test_counting_blocks_instead_of_tokens_is_noticed() -> None:
    work = unequal(make_trace([(1, 2), (3,), (1, 2)], [0, 1, 1], [0, 0, 0]), [4, 2, 5])
    right = oracle.replay(workload_of(work), "lru", 8, 1, weighted=True)
    # 4 + 2 tokens, then 5: the tail of 2 leaves, then its head of 4, until 5 fits in 8. Then 4
    # beside 5 does not fit: the 5 leaves.
    assert [step.evicted for step in right] == [[], [1, 0], [2]]
    policy = make("lru")
    counts = Counts(*(np.zeros(len(work), np.int32) for _ in range(3)))
    log = Decisions(*(np.zeros(work.references, np.int32) for _ in range(2)))
    table = empty_table(work.parent, work.depth, work.tokens)
    state = policy.prepare(Setup(work.nodes, 8, 1, work))
    broken = bind(replay_loop, {**policy.hooks(), "weighted": False}, compiled=False)
    broken(table, state, 8, work.time_s, work.starts, work.chains, counts, log)
    assert counts.evicted.tolist() != [len(step.evicted) for step in right]
    assert loop_module.weighted is False, "blocks of one size count as 1 unless asked"


def test_tokens_of_a_prefix_are_the_sums_of_its_nodes() -> None:
    work = unequal(make_trace([(1, 2), (), (1, 2, 3)], [0, 1, 1], [0, 0, 0]), [4, 2, 5])
    assert work.chain_tokens.tolist() == [6, 0, 11]
    assert work.prefix_tokens(np.array([1, 0, 2])).tolist() == [4, 0, 6]
    assert work.prefix_tokens(np.array([9, 9, 9])).tolist() == [6, 0, 11]
    assert work.unit_tokens == 1


def test_capacity_counts_tokens() -> None:
    work = unequal(make_trace([(1,)], [0], [0]), [4])
    assert replay(work, "lru", 3_000_000_000).summary()["capacity_tokens"] == 3_000_000_000
    with pytest.raises(UsageError, match="whole number of tokens"):
        replay(work, "lru", 1.5)  # type: ignore[arg-type]
    assert replay(work, "lru", 3).resident_blocks == 0, "a node larger than the cache stays out"


def test_no_curve_from_one_pass() -> None:
    with pytest.raises(UsageError, match="sweep"):
        lru_curve(unequal(make_trace([(1,)], [0], [0]), [4]))


def test_the_builder_takes_sizes_or_a_block_size() -> None:
    columns = {
        "time_s": np.zeros(2),
        "input_tokens": np.array([9, 9], np.int64),
        "output_tokens": np.zeros(2, np.int64),
        "starts": np.array([0, 2, 4], np.int64),
        "keys": np.array([7, 8, 7, 9], np.int64),
        "origin": Origin("made", "test", "s"),
    }
    sizes = np.array([3, 5, 4, 6], np.int32)
    built = build_trace(**columns, block_size=0, sizes=sizes)
    assert built.tokens.tolist() == [3, 5, 6]
    assert built.origin.notes == ("1 block came again with another size; the first size is kept",)
    with pytest.raises(ValueError, match="not both"):
        build_trace(**columns, block_size=16, sizes=sizes)
    with pytest.raises(ValueError, match="not neither"):
        build_trace(**columns, block_size=0)
