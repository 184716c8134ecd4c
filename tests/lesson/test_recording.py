"""A recorded run is the run: the chapter's own class, and the replay, decide the same."""

from __future__ import annotations

import heapq
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsched.foundation.errors import UsageError
from kvsched.lesson import play_policies
from kvsched.lesson.chapter import KVCacheSchedulerSim
from kvsched.lesson.play_policies import DEFAULT_POLICIES, FlatRecorder, as_trace, record
from kvsched.lesson.play_requests import DEFAULT_CAPACITY, DEFAULT_REQUESTS, Request
from kvsched.lesson.play_words import SENTENCES, Message, tell
from kvsched.lesson.recording import ChapterRecorder, Record, Recording, record_chapter
from kvsched.policy.registry import built_in, find, make
from kvsched.replay.run import replay

PREFIXES = ("a", "b", "c", "d", "e")
LIVE = [name for name in built_in() if not find(name).needs]


@st.composite
def runs(draw: st.DrawFn, one_size: bool = False) -> tuple[tuple[Request, ...], int]:
    names = draw(st.lists(st.sampled_from(PREFIXES), min_size=1, max_size=24))
    sizes = {name: draw(st.integers(1, 30)) for name in PREFIXES}
    requests = tuple(
        Request(name, sizes[name] if one_size else draw(st.integers(1, 30))) for name in names
    )
    largest = max(size for _, size in requests)
    return requests, draw(st.integers(largest, largest + 60))


def check_like_the_chapter(run: Recording) -> None:
    sim = KVCacheSchedulerSim(run.capacity)
    pushes = [step for step in run.steps if step.kind == "push"]
    assert len(pushes) == len(run.requests)
    for request, step in zip(run.requests, pushes, strict=True):
        sim.touch(*request)
        heap = [run.records[at] for at in step.heap]
        assert [(each.score, each.last_used, each.prefix) for each in heap] == sim.queue
        assert step.used == sim.current_bytes
        assert [row.prefix for row in step.ledger] == list(sim.entries)
        for row, entry in zip(step.ledger, sim.entries.values(), strict=True):
            assert row[1:4] == (entry.bytes, entry.hits, entry.last_used)
            assert row.terms is not None
            assert row.terms.score == entry.priority
    assert run.log == sim.log
    assert run.snapshot() == sim.snapshot()
    assert run.steps[-1].hits == sum(line.startswith("reuse:") for line in sim.log)
    assert run.steps[-1].evictions == sum(line.startswith("evict:") for line in sim.log)


@given(runs())
def test_the_recorder_is_the_chapter(run: tuple[tuple[Request, ...], int]) -> None:
    check_like_the_chapter(record_chapter(*run))


class NothingIsStale(ChapterRecorder):
    def is_stale(self, record: Record) -> bool:
        return record.prefix not in self.entries


class HoldsARecordTwice(ChapterRecorder):
    def touch(self, request: Request) -> None:
        super().touch(request)
        if self.time == 6:
            self.heap.append(self.heap[0])
            heapq.heapify(self.heap)


@pytest.mark.parametrize("broken", [NothingIsStale, HoldsARecordTwice])
def test_a_broken_recorder_is_noticed(broken: type[ChapterRecorder]) -> None:
    check_like_the_chapter(ChapterRecorder(DEFAULT_REQUESTS, DEFAULT_CAPACITY).run())
    with pytest.raises(AssertionError):
        check_like_the_chapter(broken(DEFAULT_REQUESTS, DEFAULT_CAPACITY).run())


def test_recorded_sequences_of_the_chapter(shared_acceptance: Path) -> None:
    lines = (shared_acceptance / "chapter.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(lines) >= 120
    for line in lines[::6]:
        case = json.loads(line)
        requests = tuple(Request(prefix, size) for prefix, size in case["requests"])
        run = record_chapter(requests, case["capacity_bytes"])
        assert run.log == case["log"]
        assert [list(row) for row in run.snapshot()] == case["snapshot"]
        assert run.steps[-1].used == case["current_bytes"]


@given(runs())
def test_what_is_called_stale_is_stale(run: tuple[tuple[Request, ...], int]) -> None:
    recording = record_chapter(*run)
    for step in recording.steps:
        ledger = {row.prefix: row for row in step.ledger}
        current = {(row.terms.score, row.last_used, row.prefix) for row in step.ledger if row.terms}
        for at in step.heap:
            record = recording.records[at]
            live = (record.score, record.last_used, record.prefix) in current
            waiting = step.kind in ("add", "reuse") and record.prefix in ledger
            assert live or waiting or at in step.stale
            assert not (live and at in step.stale)
        if step.kind == "stale":
            assert step.popped is not None
            record = recording.records[step.popped]
            gone = record.prefix not in ledger
            assert step.said.key == ("stale.gone" if gone else "stale.newer")
            assert step.said.values["score"] == f"{record.score:.4f}"


def test_the_small_run_shows_what_it_is_for() -> None:
    run = record_chapter(DEFAULT_REQUESTS, DEFAULT_CAPACITY)
    said = [step.said.key for step in run.steps]
    assert "stale.newer" in said
    assert "evict.tie" in said
    first = next(step for step in run.steps if step.kind == "evict")
    assert first.gone is not None
    stayed = [row for row in first.ledger if row.hits == first.gone.hits]
    assert all(row.last_used < first.gone.last_used for row in stayed), "the newest one leaves"
    assert all(row.bytes_ < first.gone.bytes_ for row in stayed), "because it is larger"
    last = {row.prefix: row for row in run.steps[-1].ledger}
    assert last["exam"].last_used == 3, "a prefix nobody asks for again is still there at the end"
    assert record(DEFAULT_REQUESTS, DEFAULT_CAPACITY, "lru").steps[-1].hits > run.steps[-1].hits


def decided(recording: Recording) -> tuple[list[bool], list[str]]:
    hit = [step.kind == "reuse" for step in recording.steps if step.kind in ("reuse", "miss")]
    victims = [step.gone.prefix for step in recording.steps if step.gone is not None]
    return hit, victims


def check_like_the_replay(recording: Recording, policy: str) -> None:
    trace = as_trace(recording.requests)
    result = replay(trace, policy, recording.capacity, decisions=True, compiled=False)
    names = list(dict.fromkeys(request.prefix for request in recording.requests))
    assert result.decisions is not None
    hit, victims = decided(recording)
    assert hit == [bool(each) for each in result.request_hits]
    assert victims == [names[node] for node in result.decisions.victim]
    assert recording.steps[-1].used == result.resident_blocks
    assert recording.steps[-1].evictions == result.evictions


@pytest.mark.parametrize("policy", LIVE)
@settings(max_examples=25)
@given(run=runs(one_size=True))
def test_other_policies_decide_as_the_replay_does(
    policy: str, run: tuple[tuple[Request, ...], int]
) -> None:
    check_like_the_replay(FlatRecorder(*run, make(policy)).run(), policy)


def test_a_recorder_that_forgets_hits_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    check_like_the_replay(record(DEFAULT_REQUESTS, DEFAULT_CAPACITY, "lru"), "lru")
    monkeypatch.setattr(play_policies, "on_hit", lambda *_: None)
    run = (Request("a", 5), Request("b", 5), Request("a", 5), Request("c", 5), Request("a", 5))
    recorder = FlatRecorder(run, 10, make("lru"))
    recorder.serve = play_policies.flat_request  # unbound: the hooks do nothing
    with pytest.raises(AssertionError):
        check_like_the_replay(recorder.run(), "lru")


@given(runs())
def test_the_heap_with_stale_records_gives_the_order_of_the_indexed_one(
    run: tuple[tuple[Request, ...], int],
) -> None:
    assert record_chapter(*run).log == FlatRecorder(*run, make("chapter")).run().log


@pytest.mark.parametrize("policy", ["lru", "fifo", "lfu", "slru", "gdsf", "opt", "opt-fit", "mru"])
@given(run=runs(one_size=True))
def test_who_leaves_stood_first(policy: str, run: tuple[tuple[Request, ...], int]) -> None:
    recording = record(*run, policy)
    for before, step in zip(recording.steps, recording.steps[1:], strict=False):
        if step.gone is not None:
            assert step.gone.prefix == before.ledger[0].prefix
            assert step.said.values["standing"] == before.ledger[0].standing


@pytest.mark.parametrize("policy", [*DEFAULT_POLICIES, "fifo", "slru", "arc", "decay", "opt-fit"])
def test_every_step_is_told_in_both_languages(policy: str) -> None:
    for step in record(DEFAULT_REQUESTS, 78, policy).steps:
        for language in ("en", "zh"):
            told = tell(step.said, language)
            assert "{" not in told
            assert told


def test_both_languages_have_the_same_slots() -> None:
    from kvsched.lesson.play_words import _SLOT, LABELS

    for key, (english, chinese) in {**SENTENCES, **LABELS}.items():
        assert set(_SLOT.findall(english)) == set(_SLOT.findall(chinese)), key


def test_a_nested_message_is_told_in_its_language() -> None:
    inner = Message("by.use", {"last": 4})
    outer = {"prefix": "p", "policy": "lru", "standing": inner, "bytes": 3}
    assert "last used at 4" in tell(Message("evict.policy", outer), "en")
    assert "最近使用于 4" in tell(Message("evict.policy", outer), "zh")


def test_a_policy_that_needs_more_is_refused() -> None:
    with pytest.raises(UsageError, match="priority of every request"):
        record(DEFAULT_REQUESTS, DEFAULT_CAPACITY, "priority")
