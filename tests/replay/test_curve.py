"""The one-pass LRU curve, the sweep and the grid."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from factory import make_trace, traces
from hypothesis import given, settings

from kvsched.foundation.errors import UsageError
from kvsched.replay.curve import lru_curve
from kvsched.replay.run import replay
from kvsched.replay.sweep import capacity_grid, on_all_cores, sweep
from kvsched.trace.model import Trace


@settings(deadline=None, max_examples=150, derandomize=True)
@given(trace=traces(requests=30, length=9, keys=2))
def test_curve_equals_replays_at_every_capacity(trace: Trace) -> None:
    curve = lru_curve(trace)
    for capacity in range(1, trace.nodes + 3):
        result = replay(trace, "lru", capacity)
        at = min(capacity, trace.nodes)
        assert curve.hit_blocks[at] == result.hit_blocks
        assert curve.hit_tokens[at] == result.hit_tokens
        assert curve.evictions(capacity) == result.evictions


def test_curve_runs_plain_too(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = make_trace([(1, 2, 3), (1, 2), (4,), (1, 2, 3)], [1] * 4, [3, 0, 0, 0])
    compiled = lru_curve(trace).hit_tokens.tolist()
    monkeypatch.setenv("KVSCHED_COMPILED", "0")
    assert lru_curve(trace).hit_tokens.tolist() == compiled


def test_capacity_for_is_the_smallest() -> None:
    random = np.random.default_rng(2)
    paths = [tuple(random.integers(0, 3, size=6).tolist()) for _ in range(80)]
    curve = lru_curve(make_trace(paths, [1] * 80, [0] * 80))
    for share in (0.1, 0.5, 0.9, 1.0):
        blocks = curve.capacity_for(share * curve.ceiling_tokens)
        assert blocks is not None
        assert curve.hit_tokens[blocks] >= share * curve.ceiling_tokens
        assert blocks == 0 or curve.hit_tokens[blocks - 1] < share * curve.ceiling_tokens
    assert curve.capacity_for(curve.ceiling_tokens + 1) is None


def test_the_grid_includes_what_was_asked_for_and_spans_the_curve() -> None:
    random = np.random.default_rng(2)
    paths = [tuple(random.integers(0, 4, size=8).tolist()) for _ in range(500)]
    curve = lru_curve(make_trace(paths, [1] * 500, [0] * 500))
    grid = capacity_grid(curve, 12, [77])
    assert grid == sorted(set(grid))
    assert 77 in grid
    assert curve.hit_tokens[grid[-1]] >= 0.99 * curve.ceiling_tokens
    assert curve.hit_tokens[grid[0]] <= 0.5 * curve.ceiling_tokens


@pytest.mark.parametrize("capacity", [0, -1, 2**31, True, 1.5])
def test_impossible_capacities_are_refused(capacity: int) -> None:
    trace = make_trace([(1,)], [0], [0])
    with pytest.raises(UsageError):
        replay(trace, "lru", capacity)
    with pytest.raises(UsageError):
        sweep(trace, ["lru"], [capacity])


def test_a_trace_without_blocks_replays_to_nothing() -> None:
    trace = make_trace([(), ()], [0, 1], [5, 0])
    result = replay(trace, "lfu", 10)
    assert (result.hit_blocks, result.total_blocks, result.evictions) == (0, 0, 0)
    assert result.block_hit_ratio is None
    assert lru_curve(trace).ceiling_tokens == 0


def test_an_error_in_one_job_reaches_the_caller() -> None:
    trace = make_trace([(1, 2)], [0], [0])

    def fails() -> object:
        raise UsageError("no")

    jobs = [lambda: replay(trace, "lru", 1), fails]
    with pytest.raises(UsageError, match="no"):
        list(on_all_cores(jobs, threads=2))  # type: ignore[arg-type]


def test_hit_tokens_count_partial_tails(tmp_path: Path) -> None:
    # Blocks of 16 tokens; a prompt of 40 tokens in 3 ids: the last block holds 8.
    line = '{{"timestamp": {}, "input_length": 40, "output_length": 1, "hash_ids": [1, 2, 3]}}\n'
    path = tmp_path / "t.jsonl"
    path.write_text(line.format(0) + line.format(5))
    from kvsched.trace.load import load_trace

    result = replay(load_trace(path, block_size=16), "lru", 10)
    assert (result.hit_tokens, result.total_tokens) == (40, 80)
