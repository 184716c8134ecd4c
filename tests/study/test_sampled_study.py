"""A study of a sample: the whole study at rate 1, marked estimates below it."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from kvsched.study.result import StudyResult
from kvsched.study.run import Options, study
from kvsched.trace.generate import generate, preset
from kvsched.trace.model import Trace
from kvsched.trace.sample import sample

OPTIONS = Options(policies=("fifo", "lfu"), points=4)


@pytest.fixture(scope="module")
def trace() -> Trace:
    return generate(preset("chat", requests=3000), 1)


def studied(trace: Trace, capacity: int = 20_000) -> StudyResult:
    return study(trace, capacity, options=OPTIONS, model="llama-3.1-8b", gpu="h100")


@pytest.fixture(scope="module")
def whole(trace: Trace) -> StudyResult:
    return studied(trace)


def test_rate_one_is_the_whole_study(trace: Trace, whole: StudyResult) -> None:
    found = studied(sample(trace, 1))
    assert found.sample is not None
    assert {each.expected_error for each in found.sample.errors} == {0.0}
    same = msgspec.structs.replace(
        found,
        sample=None,
        trace=msgspec.structs.replace(found.trace, digest=whole.trace.digest),
    )
    assert msgspec.json.encode(same) == msgspec.json.encode(whole)
    assert msgspec.json.encode(studied(sample(trace, 2))) != msgspec.json.encode(found)


def test_a_sample_is_marked_and_near(trace: Trace, whole: StudyResult) -> None:
    found = studied(sample(trace, 10))
    assert found.sample is not None
    assert found.sample.one_in == 10
    assert found.sample.references < trace.references / 5
    assert {each.policy for each in found.sample.errors} == {row.policy for row in found.policies}
    assert all(each.expected_error > 0 for each in found.sample.errors)
    assert "sample" in found.definitions
    assert any("estimates" in text for text in found.warnings)
    asked = {row.policy for row in found.policies}
    warned = any("misjudges fifo " in text for text in found.warnings)
    assert warned == ("fifo" in asked)
    assert not any("misjudges" in text for text in whole.warnings)
    assert re.search(r"one node in 10 was sampled", found.recommendation.sentences[-1])
    assert not any(target.exact for target in found.targets)
    assert "depth" not in found.anatomy.by
    for said in ("requests", "blocks", "distinct_blocks", "prompt_tokens", "chain_tokens"):
        assert getattr(found.trace, said) == getattr(whole.trace, said)
    assert found.ceiling.token_share == pytest.approx(whole.ceiling.token_share, abs=0.002)
    for estimate, row in zip(found.policies, whole.policies, strict=True):
        assert estimate.token_share == pytest.approx(row.token_share, abs=0.04)
    assert found.seen_once.share == pytest.approx(whole.seen_once.share, abs=0.03)
    assert sum(found.reuse.blocks.counts) == pytest.approx(sum(whole.reuse.blocks.counts), rel=0.01)
    # Left as the sample has them, the counts would be a tenth.
    assert sum(found.reuse.blocks.counts) > 2 * found.sample.references


def test_the_classes_sum_to_the_prompt(trace: Trace) -> None:
    found = studied(sample(trace, 10)).anatomy
    for rows in ((found.overall,), *found.by.values()):
        for row in rows:
            classes = (row.hit, row.compulsory, row.tail, row.capacity, row.regret)
            assert sum(classes) == row.tokens
            assert min(classes) >= 0
    assert found.overall.tokens == int(trace.input_tokens.sum())


def test_worth_is_near_what_the_whole_says(trace: Trace, whole: StudyResult) -> None:
    found = studied(sample(trace, 10)).worth
    assert found is not None
    assert whole.worth is not None
    assert found.prefill_flops == whole.worth.prefill_flops
    assert found.prefill_flops_saved == pytest.approx(whole.worth.prefill_flops_saved, rel=0.15)


def test_a_study_of_a_sample_resumes(trace: Trace, tmp_path: Path) -> None:
    found = sample(trace, 10)
    partial = tmp_path / "partial.jsonl"
    first = study(found, 20_000, options=OPTIONS, partial=partial)
    kept = partial.read_bytes()
    again = study(found, 20_000, options=OPTIONS, partial=partial)
    assert msgspec.json.encode(first) == msgspec.json.encode(again)
    assert partial.read_bytes() == kept
    study(sample(trace, 11), 20_000, options=OPTIONS, partial=partial)
    assert partial.read_bytes() != kept
