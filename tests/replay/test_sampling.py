"""What a sample says of the whole: exact at rate 1, near it at lower ones, and how near."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from factory import traces
from hypothesis import given, settings

from kvsched.foundation.errors import UsageError
from kvsched.policy.registry import make
from kvsched.replay.curve import lru_curve
from kvsched.replay.run import replay
from kvsched.replay.sampling import PARTS, one_in_for, parse_sample, sampling_errors
from kvsched.replay.sweep import capacity_grid, sweep
from kvsched.trace import sample as sampling
from kvsched.trace.load import load_trace
from kvsched.trace.model import Trace
from kvsched.trace.sample import MOST_ONE_IN, SampledTrace, path_hashes, sample

NAMES = ["mooncake/conversation_trace.jsonl", "mooncake/synthetic_trace.jsonl", "weka"]
POLICIES = ["lru", "lfu", "fifo", "opt"]
BAR = 0.015


@functools.cache
def read(path: Path) -> Trace:
    return load_trace(path)


@functools.cache
def whole(path: Path) -> tuple[list[int], dict[str, list[float]]]:
    """The study's own grid, and the hit ratios of the whole trace on it."""
    trace = read(path)
    grid = capacity_grid(lru_curve(trace), 12)
    assert len(grid) >= 12
    return grid, ratios(trace, grid)


def ratios(trace: Trace, grid: list[int]) -> dict[str, list[float]]:
    points = sweep(trace, POLICIES, grid)
    found: dict[str, list[float]] = {name: [] for name in POLICIES}
    for point in points:
        found[point.policy].append(point.hit_blocks / trace.total_references)
    return found


def mean_error(found: dict[str, list[float]], true: dict[str, list[float]], policy: str) -> float:
    return float(np.abs(np.array(found[policy]) - np.array(true[policy])).mean())


@settings(deadline=None, max_examples=40, derandomize=True)
@given(trace=traces())
def test_rate_one_is_the_whole(trace: Trace) -> None:
    found = sample(trace, 1)
    for name, capacity in itertools.product(("lru", "lfu", "fifo", "opt", "chapter"), (1, 3, 50)):
        assert replay(found, name, capacity).summary() == replay(trace, name, capacity).summary()
    assert lru_curve(found).hit_tokens.tolist() == lru_curve(trace).hit_tokens.tolist()


@pytest.mark.parametrize("name", NAMES)
def test_a_tenth_is_within_a_point_and_a_half(name: str, shared_traces: Path) -> None:
    grid, true = whole(shared_traces / name)
    found = ratios(sample(read(shared_traces / name), 10), grid)
    errors = {policy: mean_error(found, true, policy) for policy in POLICIES}
    assert max(errors.values()) <= BAR, errors


def unscaled(trace: Trace) -> SampledTrace:
    """Broken: every node takes one block of a capacity that is not scaled."""
    found = sample(trace, 10)
    return dataclasses.replace(found, always=np.ones(found.nodes, np.bool_))


def whole_roots(trace: Trace) -> SampledTrace:
    """Broken: roots are drawn, and all below them kept."""
    path = path_hashes(trace, 0)
    root = np.arange(trace.nodes)
    for node, parent in enumerate(trace.parent.tolist()):
        if parent >= 0:
            root[node] = root[parent]
    chosen = sampling.SampleSettings(10)
    kept = (path[root] >> sampling.HIGH_BITS) < chosen.below
    return sampling._contracted(trace, kept, np.zeros(trace.nodes, np.bool_), path, chosen)


def drawn_alone(trace: Trace) -> SampledTrace:
    """Broken: nodes that are used most are drawn like the others."""
    return sample(trace, 10, always_above=1.0)


@pytest.mark.parametrize("broken", [unscaled, whole_roots, drawn_alone])
def test_broken_samples_are_noticed(
    broken: Callable[[Trace], SampledTrace], shared_traces: Path
) -> None:
    grid, true = whole(shared_traces / NAMES[0])
    found = ratios(broken(read(shared_traces / NAMES[0])), grid)
    assert max(mean_error(found, true, policy) for policy in POLICIES) > BAR


@pytest.mark.parametrize("name", NAMES)
def test_the_curve_of_a_sample_is_lru_on_it(name: str, shared_traces: Path) -> None:
    found = sample(read(shared_traces / name), 10)
    curve = lru_curve(found)
    assert curve.step == 1
    for capacity in (1, 40, 500, 5859, 22550):
        result = replay(found, "lru", capacity)
        assert curve.at(capacity) == (result.hit_blocks, result.hit_tokens)


def test_a_curve_in_steps_lies_between_its_entries(
    shared_traces: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = sample(read(shared_traces / NAMES[1]), 10)
    fine = lru_curve(found)
    monkeypatch.setattr(sys.modules["kvsched.replay.curve"], "MOST_ENTRIES", 500)
    coarse = lru_curve(found)
    assert coarse.step > 1
    assert coarse.ceiling_blocks == fine.ceiling_blocks
    for entry in range(1, len(coarse.hit_blocks) - 1, 37):
        assert coarse.at(entry * coarse.step) == fine.at(entry * coarse.step)
    middle = coarse.step * 10 + coarse.step // 2
    assert coarse.hit_blocks[10] <= coarse.at(middle)[0] <= coarse.hit_blocks[11]
    wanted = coarse.capacity_for(0.5 * coarse.ceiling_tokens)
    exact = fine.capacity_for(0.5 * fine.ceiling_tokens)
    assert wanted is not None
    assert exact is not None
    assert 0 <= wanted - exact < coarse.step


def test_the_ceiling_is_exact_but_for_rounding(shared_traces: Path) -> None:
    for name in NAMES:
        trace = read(shared_traces / name)
        curve, true = lru_curve(sample(trace, 50)), lru_curve(trace)
        assert curve.ceiling_blocks == pytest.approx(true.ceiling_blocks, rel=1e-3)


def test_the_expected_error_is_about_what_seeds_show(shared_traces: Path) -> None:
    """The error of many seeds, measured against the whole, is of the size that each one states."""
    trace = read(shared_traces / NAMES[0])
    grid, true = whole(shared_traces / NAMES[0])
    policies = [make("lru")]
    squares, stated, blind = [], [], []
    for seed in range(12):
        found = sample(trace, 20, seed)
        hits = [lru_curve(found).at(blocks)[0] for blocks in grid]
        off = np.array(hits) / trace.references - np.array(true["lru"])
        squares.append(float((off**2).mean()))
        (error,) = sampling_errors(found, policies, grid, {"lru": hits})
        stated.append(error.expected)
        blind.append(_without_noise(found, grid))
    measured = float(np.sqrt(np.mean(squares)))
    assert 0.5 * measured < np.mean(stated) < 2.5 * measured
    assert not 0.5 * measured < np.mean(blind) < 2.5 * measured


def _without_noise(found: SampledTrace, grid: list[int]) -> float:
    """Broken: parts that are all the same show no differences."""
    part = found.part(0, 4)
    hits = np.array([[lru_curve(part).at(blocks)[0] for blocks in grid[:2]] for _ in range(2)])
    return float(hits.std(axis=0).mean())


def test_nothing_is_off_where_nothing_is_left_out() -> None:
    from factory import make_trace

    found = sample(make_trace([(1, 2), (1, 2)], [0, 1], [0, 0]), 1)
    (error,) = sampling_errors(found, [make("lfu")], [1], {"lfu": [1]})
    assert error.expected == 0.0


@pytest.mark.parametrize(
    ("text", "one_in"),
    [("0.1", 10), ("1/10", 10), ("1", 1), ("0.01", 100), ("1/7", 7), ("0.3333333", 3),
     ("auto", None)],
)  # fmt: skip
def test_rates_are_read(text: str, one_in: int | None) -> None:
    assert parse_sample(text) == one_in


@pytest.mark.parametrize("text", ["", "x", "0", "-0.1", "2", "0.3", "1/0", "nan", "inf", "1e-9"])
def test_other_rates_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--sample"):
        parse_sample(text)


def test_a_budget_gives_a_rate() -> None:
    assert one_in_for(288_500, 96, 60.0) == 1
    large = one_in_for(10**9, 96, 60.0)
    assert large == 320
    assert one_in_for(10**9, 96, 120.0) == large // 2
    assert one_in_for(10**9, 96, 1e-320) == MOST_ONE_IN // PARTS
    for budget in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(UsageError, match="--sample-budget"):
            one_in_for(1, 1, budget)


def test_same_seed_same_integers(shared_traces: Path) -> None:
    trace = read(shared_traces / NAMES[1])
    results = [replay(sample(trace, 10, seed), "lfu", 500).summary() for seed in (0, 0, 1)]
    assert results[0] == results[1]
    assert results[0] != results[2]


def test_plain_and_compiled_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    from factory import make_trace

    random = np.random.default_rng(3)
    paths = [tuple(random.integers(0, 3, size=7).tolist()) for _ in range(200)]
    found = sample(make_trace(paths, [1] * 200, [0] * 200), 3)
    compiled = [replay(found, name, 40, compiled=True).summary() for name in POLICIES]
    curve = lru_curve(found).hit_blocks.tolist()
    monkeypatch.setenv("KVSCHED_COMPILED", "0")
    again = sample(make_trace(paths, [1] * 200, [0] * 200), 3)
    assert [replay(again, name, 40).summary() for name in POLICIES] == compiled
    assert lru_curve(again).hit_blocks.tolist() == curve


@pytest.mark.parametrize("policy", ["gdsf:attention_tokens=30000", "pgdsf"])
def test_policies_that_count_context_see_the_whole_prompt(
    policy: str, shared_traces: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They weigh how far down a prompt a block is: in a sample, a tenth of its ancestors is left.

    With the context of the contracted chain, the state would differ.
    """
    trace = read(shared_traces / NAMES[0])
    grid = whole(shared_traces / NAMES[0])[0]
    true = np.array([replay(trace, policy, blocks).hit_blocks for blocks in grid])
    found = sample(trace, 10)
    hits = np.array([replay(found, policy, blocks).hit_blocks for blocks in grid])
    assert float(np.abs(hits - true).mean()) / trace.references <= BAR
    monkeypatch.setattr(SampledTrace, "begins", None)
    blind = sample(trace, 10)
    without = np.array([replay(blind, policy, blocks).hit_blocks for blocks in grid])
    assert without.tolist() != hits.tolist()
