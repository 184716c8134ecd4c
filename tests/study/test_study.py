"""A study's parts add up, agree with one another, and do not depend on luck."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import jsonschema
import msgspec
import numpy as np
import pytest
from factory import make_trace, traces
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsched.catalog import capacity_from_blocks
from kvsched.foundation.errors import UsageError
from kvsched.replay.run import replay
from kvsched.replay.sweep import Point
from kvsched.study import recommend as module
from kvsched.study.anatomy import Classes, anatomy, classify, turns
from kvsched.study.files import encode
from kvsched.study.result import AnatomyRow, Recommendation, StudyResult
from kvsched.study.resume import Partial
from kvsched.study.reuse import hottest, returned, reuse_gaps, time_to_reuse
from kvsched.study.run import Options, study
from kvsched.study.schema import result_schema
from kvsched.trace.generate import generate, preset
from kvsched.trace.model import Trace

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("hit", "compulsory", "tail", "capacity", "regret")


@pytest.fixture(scope="module")
def chat() -> Trace:
    return generate(preset("chat", requests=1200), 5)


@pytest.fixture(scope="module")
def result(chat: Trace) -> StudyResult:
    return study(chat, 900, model="llama-3.1-8b", gpu="h100", options=Options(points=4))


def check_row(row: AnatomyRow) -> None:
    parts = [getattr(row, part) for part in PARTS]
    assert min(parts) >= 0
    assert sum(parts) == row.tokens


@settings(deadline=None, max_examples=80, derandomize=True)
@given(
    trace=traces(requests=25, length=8, keys=2),
    capacity=st.integers(1, 12),
    policy=st.sampled_from(["lru", "fifo", "lfu", "decay"]),
)
def test_classes_sum_and_match_the_replays(trace: Trace, capacity: int, policy: str) -> None:
    own, fit = replay(trace, policy, capacity), replay(trace, "opt-fit", capacity)
    seen = reuse_gaps(trace).seen
    classes = classify(trace, own.request_hits, fit.request_hits, seen)
    total = sum(getattr(classes, part) for part in PARTS)
    assert total.tolist() == trace.input_tokens.tolist()
    assert classes.hit.tolist() == own.request_hit_tokens.tolist()
    regret, luck = int(classes.regret.sum()), int(classes.luck.sum())
    assert regret - luck == fit.hit_tokens - own.hit_tokens
    # As sets of block references, by the definition, one by one.
    expected = dict.fromkeys(PARTS, 0)
    known: set[int] = set()
    for request in range(len(trace)):
        chain = trace.chains[trace.starts[request] : trace.starts[request + 1]].tolist()
        left = int(trace.input_tokens[request])
        for at, node in enumerate(chain):
            tokens = min(trace.block_size, left)
            left -= tokens
            if at < own.request_hits[request]:
                name = "hit"
            elif node not in known:
                name = "compulsory"
            else:
                name = "regret" if at < fit.request_hits[request] else "capacity"
            expected[name] += tokens
        expected["tail"] += left
        known.update(chain)
    assert {part: int(getattr(classes, part).sum()) for part in PARTS} == expected


@settings(deadline=None, max_examples=40, derandomize=True)
@given(trace=traces(requests=25, length=8, keys=2), capacity=st.integers(1, 12))
def test_every_grouping_sums_to_all(trace: Trace, capacity: int) -> None:
    own, fit, bound = (replay(trace, name, capacity) for name in ("lru", "opt-fit", "opt"))
    found = anatomy(own, fit, bound, reuse_gaps(trace).seen)
    check_row(found.overall)
    for rows in found.by.values():
        for row in rows:
            check_row(row)
        for name in Classes._fields:
            assert sum(getattr(row, name) for row in rows) == getattr(found.overall, name)
    assert found.bypass == bound.hit_tokens - fit.hit_tokens


def test_the_check_of_the_sum_can_fail() -> None:
    row = AnatomyRow(
        label="", requests=1, tokens=10, hit=4, compulsory=3, tail=0, capacity=1, regret=1, luck=0
    )
    with pytest.raises(AssertionError):
        check_row(row)


def test_groups_of_a_real_shape(result: StudyResult) -> None:
    assert {"session", "tenant", "type", "turn", "depth", "window"} <= set(result.anatomy.by)
    for group, rows in result.anatomy.by.items():
        assert len(rows) <= 20, group
        assert sum(row.tokens for row in rows) == result.anatomy.overall.tokens, group
    assert sum(row.requests for row in result.anatomy.by["turn"]) == result.trace.requests


def test_turns_are_counted_where_they_are_not_given(chat: Trace) -> None:
    counted = turns(msgspec_replace(chat, turn=None))
    assert counted is not None
    assert chat.turn is not None
    assert counted.min() == 1
    # Sessions may have begun before the trace: the steps are the same.
    assert chat.session is not None
    for code in np.unique(chat.session.codes)[:200]:
        mine = chat.session.codes == code
        assert np.diff(counted[mine]).tolist() == [1] * (int(mine.sum()) - 1)


def msgspec_replace(trace: Trace, **changes: object) -> Trace:
    import dataclasses

    return dataclasses.replace(trace, **changes)


def test_reuse_by_hand() -> None:
    paths = [(1, 2), (1, 2, 3), (9,), (1, 2, 3), (9,)]
    trace = make_trace(paths, [0, 10, 5, 100, 1], [0] * 5)
    gaps = reuse_gaps(trace)
    assert gaps.seen.tolist() == [0, 2, 0, 3, 1]
    found = time_to_reuse(trace, gaps)
    # Two blocks after 10 s, three after 105 s, one after 101 s.
    assert sum(found.blocks.counts) == 6
    assert found.median_s == 101
    assert found.p90_s == 105
    per_edge = dict(zip(itertools.pairwise(found.blocks.edges), found.blocks.counts, strict=True))
    assert per_edge[10.0, 20.0] == 2
    assert per_edge[100.0, 200.0] == 4


def test_hot_once_and_returned_by_hand() -> None:
    paths = [(1, 2), (1, 2, 3), (9,), (1, 2, 3), (8,), (9,)]
    trace = make_trace(paths, [1] * 6, [0] * 6)
    own = replay(trace, "lru", 3)
    # 0 stores 1 2; 1 hits 2, stores 3; 2 stores 9 over 3; 3 hits 1 2, stores 3 over 9;
    # 4 stores 8 over 3; 5 stores 9 over 2.
    assert own.request_hits.tolist() == [0, 2, 0, 2, 0, 0]
    back = returned(own)
    assert (back.blocks, back.tokens) == (2, 32)
    assert back.share == 2 / 4
    prefixes, once = hottest(own)
    assert (once.blocks, once.tokens) == (1, 16)
    top = prefixes[0]
    assert (top.key, top.blocks, top.tokens, top.requests, top.hits) == ("2", 2, 32, 3, 2) or (
        top.key,
        top.blocks,
        top.tokens,
        top.requests,
        top.hits,
    ) == ("3", 3, 48, 2, 0)
    assert {prefix.key for prefix in prefixes} == {"2", "3", "9"}


def test_rows_agree_with_replays(result: StudyResult, chat: Trace) -> None:
    for row in result.policies:
        alone = replay(chat, row.policy, 900)
        assert row.hit_tokens == alone.hit_tokens
        assert row.evictions == alone.evictions
    by_name = {row.policy: row for row in result.policies}
    assert by_name["lru"].gap_closed == 0.0
    assert by_name["opt-fit"].gap_closed == 1.0
    assert result.ceiling.hit_blocks == replay(chat, "lru", chat.nodes).hit_blocks


def test_curves_pass_through_the_capacity(result: StudyResult) -> None:
    rows = {row.policy: row for row in result.policies}
    for curve in result.curves:
        at = curve.capacity_blocks.index(900)
        assert curve.hit_tokens[at] == rows[curve.policy].hit_tokens
        assert curve.evictions[at] == rows[curve.policy].evictions
        assert list(curve.capacity_blocks) == sorted(set(curve.capacity_blocks))


def test_targets_are_reached_and_not_before(result: StudyResult, chat: Trace) -> None:
    exact = [target for target in result.targets if target.policy == "lru"]
    assert len(exact) == 4
    for target in exact:
        assert target.blocks is not None
        wanted = target.share * result.ceiling.hit_tokens
        assert replay(chat, "lru", target.blocks).hit_tokens >= wanted
        assert replay(chat, "lru", target.blocks - 1).hit_tokens < wanted
        # 16 tokens of 131,072 bytes.
        assert target.gib == target.blocks * 2_097_152 / 2**30


def test_the_advice_is_three_sentences(result: StudyResult) -> None:
    assert len(result.recommendation.sentences) == 3
    for sentence in result.recommendation.sentences:
        assert sentence.endswith(".")


def test_a_policy_is_not_replaced_for_too_little(
    chat: Trace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def advice(worth_changing: float) -> Recommendation:
        monkeypatch.setattr(module, "WORTH_CHANGING", worth_changing)
        options = Options(points=2, policies=("lfu",))
        return study(chat, 900, model="llama-3.1-8b", gpu="h100", options=options).recommendation

    assert replay(chat, "lfu", 900).hit_tokens > replay(chat, "lru", 900).hit_tokens
    kept, replaced = advice(10.0), advice(1.0)
    assert (kept.policy, replaced.policy) == ("lru", "lfu")
    assert kept.sentences[0].startswith("Keep lru")
    assert "too little to change an engine for" in kept.sentences[1]
    assert replaced.sentences[0].startswith("Replace lru by lfu")
    assert "too little" not in replaced.sentences[1]


def test_json_follows_the_published_schema(result: StudyResult) -> None:
    data = json.loads(encode(result))
    schema = json.loads((ROOT / "docs" / "result.schema.json").read_text())
    jsonschema.validate(data, schema)
    del data["capacity"]["blocks"]
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(data, schema)


def test_the_published_schema_is_the_types() -> None:
    text = (ROOT / "docs" / "result.schema.json").read_bytes()
    assert text == msgspec.json.format(msgspec.json.encode(result_schema()), indent=1) + b"\n"


def test_the_result_can_be_read_back(result: StudyResult) -> None:
    again = msgspec.json.decode(encode(result), type=StudyResult)
    assert encode(again) == encode(result)
    assert again.policies == result.policies


def test_the_same_study_gives_the_same_bytes(chat: Trace, result: StudyResult) -> None:
    again = study(chat, 900, model="llama-3.1-8b", gpu="h100", options=Options(points=4, threads=1))
    assert encode(again) == encode(result)


def test_kept_points_are_used_and_a_torn_line_is_not(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    kept = Partial(path, "this")
    first, second = Point("lfu", 5, 1, 2, 3), Point("lfu", 6, 4, 5, 6)
    kept.add(first)
    kept.add(second)
    path.write_bytes(path.read_bytes()[:-9])
    again = Partial(path, "this")
    assert again.points == {("lfu", 5): first}
    again.add(second)
    assert Partial(path, "this").points == {("lfu", 5): first, ("lfu", 6): second}
    assert Partial(path, "another").points == {}


def test_a_resumed_study_does_not_compute_what_it_kept(chat: Trace, tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    fresh = study(chat, 900, options=Options(points=4), partial=path)
    lines = [json.loads(line) for line in path.read_bytes().splitlines() if line]
    kept = Partial(path, lines[0]["identity"])
    assert len(kept.points) == len(lines)
    size = path.stat().st_size
    assert study(chat, 900, options=Options(points=4), partial=path) == fresh
    assert path.stat().st_size == size, "points were computed again"
    grid = next(curve for curve in fresh.curves if curve.policy == "fifo").capacity_blocks
    kept.add(Point("fifo", grid[0], 123, 456, 789))
    marked = study(chat, 900, options=Options(points=4), partial=path)
    curve = next(curve for curve in marked.curves if curve.policy == "fifo")
    assert curve.hit_blocks[0] == 123


def test_points_of_an_edited_policy_are_not_used(chat: Trace, tmp_path: Path) -> None:
    file, path = tmp_path / "own.py", tmp_path / "p.jsonl"
    text = (ROOT / "examples" / "my_lru.py").read_text(encoding="utf-8")
    options = Options(points=3, policies=(f"{file}:MyLRU",))
    file.write_text(text)
    first = study(chat, 900, options=options, partial=path)
    file.write_text(text.replace("state.touched[node]", "-state.touched[node]"))
    second = study(chat, 900, options=options, partial=path)

    def own(result: StudyResult) -> tuple[int, ...]:
        return next(curve for curve in result.curves if curve.policy == "my-lru").hit_blocks

    assert own(first) != own(second)
    assert own(second) == own(study(chat, 900, options=options))


def test_points_of_a_users_policy_are_never_used_again(chat: Trace, tmp_path: Path) -> None:
    """What it does rests on what its `prepare` reads, which nothing here can see."""
    file, path = tmp_path / "own.py", tmp_path / "p.jsonl"
    file.write_text((ROOT / "examples" / "my_lru.py").read_text(encoding="utf-8"))
    options = Options(points=3, policies=("lfu", f"{file}:MyLRU"))
    study(chat, 900, options=options, partial=path)
    lines = [json.loads(line) for line in path.read_bytes().splitlines() if line]
    assert {line["policy"] for line in lines} == {"lfu", "opt", "opt-fit"}


def test_two_policies_of_one_name_are_refused(chat: Trace, tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    text = (ROOT / "examples" / "my_lru.py").read_text(encoding="utf-8")
    file.write_text(text.replace('"my-lru"', '"lru"'))
    with pytest.raises(UsageError, match="two policies are called lru"):
        study(chat, 900, options=Options(policies=(f"{file}:MyLRU",)))


def test_what_cannot_be_studied_is_said(chat: Trace) -> None:
    with pytest.raises(UsageError, match="no block ids"):
        study(make_trace([(), ()], [0, 1], [3, 3]))
    with pytest.raises(UsageError, match="needs the future"):
        study(chat, options=Options(policy="opt"))
    with pytest.raises(UsageError, match="blocks of 32 tokens"):
        study(chat, capacity_from_blocks(10, 32))


@pytest.mark.parametrize(
    "paths", [[(1,)], [(1,), (1,)], [(1, 2, 3)], [(1,), (2,), (3,)], [(1,), (), (1,)]]
)
def test_tiny_traces_are_studied(paths: list[tuple[int, ...]]) -> None:
    trace = make_trace(paths, [0] * len(paths), [0] * len(paths))
    found = study(trace, 1, model="llama-3.1-8b", gpu="h100")
    check_row(found.anatomy.overall)
    assert found.ceiling.hit_blocks == replay(trace, "opt", 10).hit_blocks
