"""Prompts share exactly what the trace's requests share, and have exactly their lengths."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsched.evidence.bench import token_ids
from kvsched.evidence.bench.prompts import (
    PromptSettings,
    parse_scale,
    shared_prefix_trace,
    warm_up,
    workload_of,
)
from kvsched.evidence.bench.sent import as_trace, block_keys, workload_digest
from kvsched.evidence.bench.token_ids import TokenIds
from kvsched.foundation.errors import UsageError
from kvsched.serve.traffic import Traffic
from kvsched.trace.build import build_trace
from kvsched.trace.columns import write_columns
from kvsched.trace.load import load_trace
from kvsched.trace.model import Labels, Origin, Trace

BLOCK = 8
CLOSED = Traffic(concurrency=2)


def trace_of(chains: list[list[int]], lengths: list[int], **more: Any) -> Trace:
    starts = np.cumsum([0, *map(len, chains)])
    return build_trace(
        time_s=more.pop("time_s", np.arange(len(chains), dtype=np.float64)),
        input_tokens=np.array(lengths, np.int64),
        output_tokens=more.pop("output_tokens", np.full(len(chains), 4, np.int64)),
        starts=starts.astype(np.int64),
        keys=np.array([key for chain in chains for key in chain], np.int64),
        block_size=BLOCK,
        origin=Origin(source="test", format="test", time_unit="s"),
        **more,
    )


def common(one: Any, other: Any) -> int:
    most = min(len(one), len(other))
    differ = np.flatnonzero(one[:most] != other[:most])
    return int(differ[0]) if len(differ) else most


def shared_in(trace: Trace, one: int, other: int, most: tuple[int, int], block: int) -> int:
    """Tokens that two requests of a trace have in common, from its chains alone."""
    chains = [trace.chains[trace.starts[at] : trace.starts[at + 1]].tolist() for at in (one, other)]
    same = 0
    while same < min(map(len, chains)) and chains[0][same] == chains[1][same]:
        same += 1
    return min(same * block, *most)


@st.composite
def traces(draw: Any) -> Trace:
    count = draw(st.integers(1, 6))
    chains, lengths = [], []
    for _ in range(count):
        chain = draw(st.lists(st.integers(0, 2), max_size=4))
        partial = draw(st.integers(1, BLOCK)) if chain else 0
        tail = draw(st.integers(0, 10)) if partial in (0, BLOCK) else 0
        chains.append(chain)
        lengths.append(max(len(chain) - 1, 0) * BLOCK + partial + (tail or (not chain)))
    return trace_of(chains, lengths)


@settings(max_examples=150)
@given(traces(), st.integers(16, 40), st.integers(0, 3))
def test_prompts_share_what_the_trace_shares(trace: Trace, vocabulary: int, seed: int) -> None:
    found = workload_of(trace, PromptSettings(vocab_size=vocabulary, seed=seed), CLOSED)
    assert [len(each) for each in found.prompts] == trace.input_tokens.tolist()
    for one in range(len(trace)):
        for other in range(one):
            most = (len(found.prompts[one]), len(found.prompts[other]))
            assert common(found.prompts[one], found.prompts[other]) == shared_in(
                trace, one, other, most, BLOCK
            )


def test_without_the_care_for_siblings_more_is_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = trace_of([[at] for at in range(30)], [BLOCK] * 30)

    def longest() -> int:
        found = workload_of(trace, PromptSettings(vocab_size=40), CLOSED).prompts
        return max(common(found[a], found[b]) for a in range(30) for b in range(a))

    assert longest() == 0
    monkeypatch.setattr(
        TokenIds, "firsts", lambda self, parents: self.at(np.arange(len(parents)), parents)
    )
    assert longest() > 0


def test_more_siblings_than_ids_are_refused() -> None:
    trace = trace_of([[at] for at in range(60)], [BLOCK] * 60)
    with pytest.raises(UsageError, match="raise --vocab-size"):
        workload_of(trace, PromptSettings(vocab_size=40), CLOSED)


def test_ids_stay_in_the_vocabulary_and_depend_on_the_seed_alone() -> None:
    trace = trace_of([[0, 1], [0, 2]], [16, 20])
    one = workload_of(trace, PromptSettings(vocab_size=500, seed=3), CLOSED)
    again = workload_of(trace, PromptSettings(vocab_size=500, seed=3), CLOSED)
    other = workload_of(trace, PromptSettings(vocab_size=500, seed=4), CLOSED)
    ids = np.concatenate(one.prompts)
    assert ids.min() >= 50
    assert ids.max() < 500
    assert all(np.array_equal(a, b) for a, b in zip(one.prompts, again.prompts, strict=True))
    assert not np.array_equal(one.prompts[0], other.prompts[0])
    assert TokenIds.of(0, None).low == token_ids.SPECIAL


@settings(max_examples=60)
@given(traces(), st.sampled_from(["1/2", "1/8", "1/16", "0.3"]))
def test_a_scale_keeps_who_shares_with_whom(trace: Trace, text: str) -> None:
    scale = parse_scale(text)
    found = workload_of(trace, PromptSettings(vocab_size=40, scale=scale), CLOSED)
    block = -(-BLOCK * scale.numerator // scale.denominator)
    for one in range(len(trace)):
        for other in range(one):
            most = (len(found.prompts[one]), len(found.prompts[other]))
            assert common(found.prompts[one], found.prompts[other]) == shared_in(
                trace, one, other, most, block
            )
    assert any("scaled" in note for note in found.notes)


def test_what_is_cut_is_told() -> None:
    trace = trace_of(
        [[0, 1], [0, 2], [], [0]],
        [16, 40, 0, 8],
        output_tokens=np.array([4, 9, 5, 0], np.int64),
    )
    found = workload_of(
        trace,
        PromptSettings(max_prompt_tokens=20, max_output_tokens=6, max_model_len=25, seed=1),
        CLOSED,
    )
    assert [len(each) for each in found.prompts] == [16, 8]
    assert found.output_tokens.tolist() == [4, 1]
    text = "; ".join(found.notes)
    for said in (
        "1 of 4 requests have no prompt",
        "1 of 4 requests ask for no token",
        "1 of 4 requests ask for more than 6",
        "1 of 4 requests have prompts of over 20",
        "1 of 4 requests are longer than 25",
    ):
        assert said in text


def test_nothing_left_is_an_error() -> None:
    with pytest.raises(UsageError, match="no request is left"):
        workload_of(trace_of([[0]], [8]), PromptSettings(max_model_len=3), CLOSED)


def test_turns_wait_for_the_answer_before() -> None:
    trace = trace_of(
        [[0], [1], [0, 2], [0, 2, 3]],
        [8, 8, 16, 24],
        session=Labels(np.array([0, -1, 0, 0], np.int32), ("a",)),
        delay_s=np.array([np.nan, np.nan, 0.5, np.nan]),
    )
    found = workload_of(trace, PromptSettings(), Traffic(sessions=True, speedup=2.0))
    assert found.after.tolist() == [-1, -1, 0, 2]
    assert found.think_s.tolist() == [0.0, 0.0, 0.25, 0.5]
    np.testing.assert_array_equal(found.arrival_s, [0.0, 0.5, np.nan, np.nan])
    assert found.session == ("a", "", "a", "a")
    back = as_trace(found, 8)
    assert back.session is not None
    assert back.session.codes.tolist() == [0, -1, 0, 0]
    assert back.delay_s is not None
    np.testing.assert_array_equal(back.delay_s, [np.nan, np.nan, 0.25, 0.5])
    assert back.time_s.tolist() == [0.0, 0.5, 0.5, 0.5]


@settings(max_examples=60)
@given(traces(), st.sampled_from([4, 8, 16]))
def test_as_a_trace_it_has_the_full_blocks_that_are_shared(trace: Trace, block: int) -> None:
    found = workload_of(trace, PromptSettings(vocab_size=40), CLOSED)
    back = as_trace(found, block)
    assert back.input_tokens.tolist() == [len(each) for each in found.prompts]
    seen: set[bytes] = set()
    for prompt in found.prompts:
        for full in range(len(prompt) // block):
            seen.add(prompt[: (full + 1) * block].tobytes())
    assert back.nodes == len(seen)
    for one in range(len(trace)):
        for other in range(one):
            same = common(found.prompts[one], found.prompts[other]) // block * block
            full = tuple(len(found.prompts[at]) // block * block for at in (one, other))
            assert shared_in(back, one, other, full, block) == min(same, *full)


def test_a_block_is_named_by_its_tokens() -> None:
    prompt = np.arange(20, dtype=np.int32)
    keys = block_keys(prompt, 8)
    assert len(keys) == 2
    changed = prompt.copy()
    changed[9] += 1
    assert block_keys(changed, 8)[0] == keys[0]
    assert block_keys(changed, 8)[1] != keys[1]


def test_the_digest_knows_each_part_of_what_is_sent() -> None:
    import dataclasses

    trace = trace_of([[0], [0, 1]], [8, 16], priority=np.array([0, 1], np.int32))
    base = workload_of(trace, PromptSettings(), CLOSED)
    prompt = base.prompts[1].copy()
    prompt[3] += 1
    plan = {"concurrency": 2}
    others = [
        dataclasses.replace(base, prompts=(base.prompts[0], prompt)),
        dataclasses.replace(base, output_tokens=base.output_tokens + 1),
        dataclasses.replace(base, arrival_s=base.arrival_s + 1),
        dataclasses.replace(base, after=np.array([-1, 0], np.int32)),
        dataclasses.replace(base, think_s=base.think_s + 1),
        dataclasses.replace(base, priority=np.array([1, 0], np.int32)),
        dataclasses.replace(base, session=("a", "a")),
    ]
    digests = [workload_digest(each, plan) for each in (base, *others)]
    digests.append(workload_digest(base, {"concurrency": 3}))
    assert len(set(digests)) == len(digests)
    same = dataclasses.replace(base, source={}, notes=("told",))
    assert workload_digest(same, plan) == digests[0]


def test_the_shared_prefix_workload() -> None:
    trace = shared_prefix_trace(3, 4, 20, 5, 7, seed=1)
    found = workload_of(trace, PromptSettings(), CLOSED)
    assert [len(each) for each in found.prompts] == [25] * 12
    assert found.output_tokens.tolist() == [7] * 12
    heads = [prompt[:20].tobytes() for prompt in found.prompts]
    assert sorted(heads.count(head) for head in set(heads)) == [4, 4, 4]
    assert heads != sorted(heads)
    lengths = {common(found.prompts[a], found.prompts[b]) for a in range(12) for b in range(a)}
    assert lengths == {0, 20}
    assert shared_prefix_trace(3, 4, 20, 5, 7, seed=2).digest != trace.digest


@pytest.mark.parametrize("prefix", [0, 16])
def test_a_prompt_may_be_all_prefix_or_all_its_own(prefix: int) -> None:
    found = workload_of(
        shared_prefix_trace(2, 2, prefix, 16 - prefix, 1, 0), PromptSettings(), CLOSED
    )
    assert len({prompt.tobytes() for prompt in found.prompts}) == (2 if prefix else 4)


def test_the_warm_up_shares_no_token() -> None:
    found = workload_of(shared_prefix_trace(2, 3, 16, 4, 2, 0), PromptSettings(), CLOSED)
    warm = warm_up(found, 8, seed=0)
    assert [len(each) for each in warm.prompts] == [20] * 8
    assert not {int(p[0]) for p in warm.prompts} & {int(p[0]) for p in found.prompts}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"limit": 0}, "--limit"),
        ({"scale": Fraction(2)}, "--scale"),
        ({"max_prompt_tokens": 0}, "--max-prompt-tokens"),
    ],
)
def test_settings_that_cannot_be(change: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        PromptSettings(**change)


@pytest.mark.parametrize("text", ["", "1/0", "a half"])
def test_no_scale(text: str) -> None:
    with pytest.raises(UsageError, match="no share"):
        parse_scale(text)


def test_a_slice_of_a_real_trace(shared_traces: Path, tmp_path: Path) -> None:
    trace = load_trace(shared_traces / "mooncake" / "conversation_trace.jsonl")
    found = workload_of(
        trace, PromptSettings(limit=60, scale=Fraction(1, 16), max_output_tokens=8), CLOSED
    )
    back = as_trace(found, 32)
    # A block of 512 is one of 32 now: the shared full blocks are the trace's own.
    whole = trace.input_tokens[:60] // 512
    chains = [
        trace.chains[trace.starts[at] : trace.starts[at] + whole[at]].tolist() for at in range(60)
    ]
    assert back.references >= sum(map(len, chains))
    distinct = {node for chain in chains for node in chain}
    partial_blocks = back.references - sum(map(len, chains))
    assert back.nodes <= len(distinct) + partial_blocks
    write_columns(back, tmp_path / "workload.kvtrace")
    assert load_trace(tmp_path / "workload.kvtrace").digest == back.digest
