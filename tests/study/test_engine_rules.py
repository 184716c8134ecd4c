"""A study under an engine's rules: sums, ceilings and what is said of them."""

from __future__ import annotations

import dataclasses

import msgspec
import numpy as np
import pytest
from factory import make_trace, traces
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsched.foundation.errors import UsageError
from kvsched.replay.vllm import VLLM
from kvsched.study.anatomy import classify
from kvsched.study.result import StudyResult
from kvsched.study.run import Options, asked_policies, study
from kvsched.trace.model import Trace


def conversation() -> Trace:
    """Sessions of exact and partial prompts that meet, and one that no small cache holds."""
    random = np.random.default_rng(5)
    paths = [tuple(random.integers(0, 2, size=random.integers(1, 7)).tolist()) for _ in range(120)]
    paths[50] = (9,) * 40
    tails = random.choice([0, 0, 5, -3], size=120).tolist()
    trace = make_trace(paths, [1] * 120, tails)
    return dataclasses.replace(trace, output_tokens=random.integers(0, 60, size=120))


def studied(trace: Trace, **options: object) -> StudyResult:
    chosen = Options(policies=("lfu",), points=4, engine="vllm", threads=1, **options)  # type: ignore[arg-type]
    return study(trace, 20, options=chosen)


def test_a_study_of_vllm() -> None:
    trace = conversation()
    result = studied(trace)
    rules = VLLM(trace)
    own = next(row for row in result.policies if row.policy == result.policy)
    assert result.policy == "free-list"
    assert own.hit_blocks == rules.replay(None, 20).hit_blocks
    assert result.ceiling.hit_blocks == int(rules.ceiling().sum())
    assert result.ceiling.hit_blocks == rules.replay("lru", 10_000).hit_blocks
    assert result.anatomy.overall.tokens == int(trace.input_tokens.sum())
    row = result.anatomy.overall
    assert row.tokens == row.hit + row.compulsory + row.tail + row.capacity + row.regret
    uncovered = int((trace.input_tokens - trace.chain_tokens).sum())
    unreachable = trace.prefix_tokens(rules.seen()) - trace.prefix_tokens(rules.ceiling())
    assert int(unreachable.sum()) > 0
    assert row.tail == uncovered + int(unreachable.sum())
    assert row.hit == own.hit_tokens
    for groups in result.anatomy.by.values():
        for name in ("tokens", "hit", "compulsory", "tail", "capacity", "regret", "luck"):
            assert sum(getattr(each, name) for each in groups) == getattr(row, name)
    assert not any(curve.exact_everywhere for curve in result.curves)
    assert result.definitions["engine"].startswith("vllm: ")
    assert result.config["engine"] == "vllm"
    assert not result.optimum_is_exact
    assert result.warnings[0].startswith("1 request can never fit and did not run: number 51 ")
    assert result.recommendation.policy != "lru"


def test_generated_tokens_can_be_left_out() -> None:
    trace = conversation()
    both = [studied(trace, cache_generated=cached) for cached in (True, False)]
    assert both[0].ceiling.hit_blocks > both[1].ceiling.hit_blocks
    said = [result.definitions["generated_tokens_cached"].split()[0] for result in both]
    assert said == ["yes:", "no:"]


def test_the_same_bytes_again() -> None:
    first, second = (msgspec.json.encode(studied(conversation())) for _ in range(2))
    assert first == second


def test_lru_is_no_alternative_to_the_free_list() -> None:
    made = asked_policies(Options(engine="vllm", policies=()))
    assert list(made) == ["lru", "free-list", "opt-fit", "opt"]
    with pytest.raises(UsageError, match="unknown engine"):
        asked_policies(Options(engine="vlm"))


@settings(deadline=None, max_examples=80, derandomize=True)
@given(trace=traces(requests=14, length=5), capacity=st.integers(1, 9), answer=st.integers(0, 40))
def test_the_classes_sum_and_a_missing_limit_shows(
    trace: Trace, capacity: int, answer: int
) -> None:
    trace = dataclasses.replace(trace, output_tokens=np.full(len(trace), answer, np.int64))
    rules = VLLM(trace)
    hits = rules.replay(None, capacity, compiled=False).request_hits
    fit = rules.replay("opt-fit", capacity, compiled=False).request_hits
    classes = classify(trace, hits, fit, rules.seen(), hittable=rules.ceiling())
    parts = classes.hit + classes.compulsory + classes.tail + classes.capacity + classes.regret
    assert parts.tolist() == trace.input_tokens.tolist()
    assert all((column >= 0).all() for column in classes)
    assert (hits <= rules.ceiling()).all()


def test_blocks_seen_by_hand() -> None:
    # A prompt of exactly two blocks, twice; its partial sibling; what the first one generated.
    paths = [(1, 2), (1, 2), (1, 2, 3), (1, 2, 3), (1, 2, 3, 4)]
    trace = make_trace(paths, [1] * 5, [0, 0, -3, -3, 5])
    trace = dataclasses.replace(trace, output_tokens=np.array([17, 1, 1, 1, 1]))
    rules = VLLM(trace)
    assert rules.ceiling().tolist() == [0, 1, 2, 2, 3]
    # The last block of the second is seen and cannot be hit, as is the partial one of the fourth.
    assert rules.seen().tolist() == [0, 2, 2, 3, 3]
