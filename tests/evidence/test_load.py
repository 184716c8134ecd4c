from __future__ import annotations

import asyncio
import email.utils
import os
import resource
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from fake_engine import fake_engine
from sending import MODEL, held, workload

from kvsched.engine.openai_answer import Answer
from kvsched.engine.target import Target
from kvsched.evidence.bench import load_send
from kvsched.evidence.bench.load import run_load
from kvsched.evidence.bench.load_send import retry_wait_s
from kvsched.evidence.bench.load_settings import LoadSettings
from kvsched.evidence.bench.measured import RequestOutcome
from kvsched.foundation.errors import UsageError


def target(engine: Any) -> Target:
    return Target(engine.url, MODEL)


def kinds(outcomes: list[RequestOutcome]) -> set[str | None]:
    return {outcome.error for outcome in outcomes}


def test_each_request_has_its_outcome_in_order() -> None:
    with fake_engine() as engine:
        sent = workload(50, output_tokens=4, arrival_s=np.arange(50)[::-1] * 1e-3)
        outcomes = run_load(sent, target(engine), LoadSettings())
        stats = engine.stats_when_quiet()
    assert [outcome.index for outcome in outcomes] == list(range(50))
    assert kinds(outcomes) == {None}
    assert [outcome.due_s for outcome in outcomes] == sent.arrival_s.tolist()
    for outcome in outcomes:
        moments = (outcome.due_s, outcome.sent_s, outcome.first_token_s, outcome.finished_s)
        assert list(moments) == sorted(moments)  # type: ignore[type-var]
        assert outcome.first_token_s == outcome.token_s[0]
        assert outcome.token_counts == (1, 1, 1, 1)
        assert (outcome.sent_prompt_tokens, outcome.asked_output_tokens) == (20, 4)
        assert (outcome.prompt_tokens, outcome.output_tokens) == (20, 4)
        assert (outcome.attempts, outcome.http_status) == (1, 200)
        assert outcome.finish_reason == "length"
    assert (stats["requests"], stats["answered"], stats["open"]) == (50, 50, 0)


def test_cached_tokens_are_what_the_engine_counts() -> None:
    sent = workload(6, prompt_tokens=50)
    for prompt in sent.prompts[1::2]:
        prompt[:40] = sent.prompts[0][:40]
    with fake_engine() as engine:
        outcomes = run_load(sent, target(engine), LoadSettings(concurrency=1))
        stats = engine.stats()
    assert [outcome.cached_tokens for outcome in outcomes] == [0, 32, 0, 32, 0, 32]
    assert (stats["hits"], stats["queries"]) == (96, 300)


def test_an_open_loop_waits_for_no_answer() -> None:
    with fake_engine(silent=True) as engine:
        outcomes = run_load(workload(30), target(engine), LoadSettings(ttft_timeout_s=0.5))
        assert engine.stats_when_quiet()["requests"] == 30
    assert kinds(outcomes) == {"timeout_first_token"}
    assert max(outcome.sent_s or 9 for outcome in outcomes) < min(
        outcome.finished_s or 0 for outcome in outcomes
    )


def test_a_closed_loop_sends_the_next_when_one_ends() -> None:
    with fake_engine(ttft_s=0.002) as engine:
        outcomes = run_load(workload(30), target(engine), LoadSettings(concurrency=3))
        stats = engine.stats_when_quiet()
    assert stats["most_running"] == 3
    assert stats["open"] == 0
    events = [(outcome.sent_s, 1) for outcome in outcomes]
    events += [(outcome.finished_s, -1) for outcome in outcomes]
    running = np.cumsum([change for _, change in sorted(events)])  # type: ignore[type-var]
    assert running.max() == 3
    sent = [outcome.sent_s for outcome in outcomes]
    assert sent == sorted(sent)  # type: ignore[type-var]
    ends = sorted(outcome.finished_s or 0 for outcome in outcomes)
    # Its turn has come when another has ended.
    assert [outcome.due_s for outcome in outcomes[3:]] == ends[:27]
    assert [outcome.due_s for outcome in outcomes[:3]] == [0.0] * 3


@pytest.mark.parametrize("concurrency", [None, 2])
def test_a_later_turn_waits_for_the_turn_before_and_thinks(concurrency: int | None) -> None:
    after = [-1, -1, 0, 2, 1, -1, 3]
    think = [0.0, 0.0, 0.01, 0.0, 0.03, 0.0, 0.02]
    sent = workload(7, after=after, think_s=think)
    with fake_engine(ttft_s=0.001) as engine:
        outcomes = run_load(sent, target(engine), LoadSettings(concurrency=concurrency))
    assert kinds(outcomes) == {None}
    for place, before in enumerate(after):
        if before >= 0:
            due_s = (outcomes[before].finished_s or 0) + think[place]
            assert outcomes[place].due_s == pytest.approx(due_s, abs=1e-9)
            assert (outcomes[place].sent_s or 0) >= due_s - 0.002  # uvloop counts milliseconds
    if concurrency is not None:
        # The sixth is a session of its own: it begins when a client has seen one to its end.
        ends = outcomes[6].finished_s, outcomes[4].finished_s
        assert outcomes[5].due_s == min(ends)  # type: ignore[type-var]


def test_a_turn_is_sent_though_the_turn_before_failed() -> None:
    sent = workload(3, after=[-1, 0, 1])
    with fake_engine(when={"0": {"status": 500}, "1": {"reset_after": 1}}) as engine:
        outcomes = run_load(sent, target(engine), LoadSettings())
    assert [outcome.error for outcome in outcomes] == ["server_error", "reset", None]


def test_priorities_are_sent_as_the_engine_counts_them() -> None:
    sent = workload(2, priority=np.array([3, 0], np.int32))
    for low_first, expected in ((True, [-3, 0]), (False, [3, 0])):
        settings = LoadSettings(
            concurrency=1,
            low_priority_first=low_first,
            extra_body={"top_k": 1, "return_token_ids": None},
        )
        with fake_engine(keep_bodies=2) as engine:
            run_load(sent, target(engine), settings)
            bodies = engine.stats()["bodies"]
        assert [body["priority"] for body in bodies] == expected
        assert [body["top_k"] for body in bodies] == [1, 1]
        assert not any("return_token_ids" in body for body in bodies)


@pytest.mark.parametrize("retry_after", [None, "0", "Thu, 01 Jan 1970 00:00:00 GMT"])
def test_429_is_sent_again(retry_after: str | None) -> None:
    script = {"status": 429, "retry_after": retry_after, "fail_times": 2}
    settings = LoadSettings(longest_retry_wait_s=0.01)
    with fake_engine(when={"1": script}) as engine:
        outcomes = run_load(workload(3), target(engine), settings)
    assert kinds(outcomes) == {None}
    assert [outcome.attempts for outcome in outcomes] == [1, 3, 1]
    assert outcomes[1].http_status == 200


@pytest.mark.parametrize(("retry_after", "attempts"), [(None, 3), ("0", 3), ("3600", 1)])
def test_429_without_end_is_rate_limited(retry_after: str | None, attempts: int) -> None:
    settings = LoadSettings(retries=2, longest_retry_wait_s=0.01)
    with fake_engine(status=429, retry_after=retry_after) as engine:
        (outcome,) = run_load(workload(1), target(engine), settings)
        assert engine.stats()["requests"] == attempts
    assert (outcome.error, outcome.attempts, outcome.http_status) == ("rate_limited", attempts, 429)


def refusal(retry_after: str | None) -> Answer:
    answer = Answer(1)
    answer.retry_after = retry_after
    return answer


def test_how_long_a_429_waits() -> None:
    settings = LoadSettings(retries=9, longest_retry_wait_s=30)
    assert retry_wait_s(refusal(" 7 "), 1, 0, settings) == 7
    assert retry_wait_s(refusal("31"), 1, 0, settings) is None
    date = email.utils.formatdate(time.time() + 20, usegmt=True)
    waits = retry_wait_s(refusal(date), 1, 0, settings)
    assert waits is not None
    assert 0 < waits <= 20
    # Without it, or with one that says nothing: 0.5 s, doubled, up to half as much again.
    for text in (None, "soon", "-1", "1.5e3", "", "Mon, 99 Jan 2030 00:00:00 GMT"):
        waits_s = [retry_wait_s(refusal(text), attempt, 0, settings) for attempt in range(1, 10)]
        assert waits_s == [0.5, 1, 2, 4, 8, 16, 30, 30, 30]
        assert retry_wait_s(refusal(text), 10, 0, settings) is None
    spread = [retry_wait_s(refusal(None), 1, index, settings) or 0 for index in range(100)]
    assert len(set(spread)) == 100
    assert 0.5 <= min(spread) < max(spread) < 0.75


def test_an_engine_that_dies_during_the_run() -> None:
    with fake_engine(die_after=10) as engine:
        settings = LoadSettings(concurrency=2, stop_after_refusals=5)
        outcomes = run_load(workload(60), target(engine), settings)
        assert engine.process.wait(10) == 1
    assert len(outcomes) == 60
    errors = [outcome.error for outcome in outcomes]
    assert errors.count(None) in (8, 9, 10)
    assert set(errors) == {None, "reset", "refused"} or set(errors) == {None, "refused"}
    assert errors[-1] == "refused"
    unsent = [outcome for outcome in outcomes if outcome.attempts == 0]
    assert len(unsent) > 40
    assert unsent[-1].detail == "not sent: 5 connections in a row were refused"
    assert unsent[-1].sent_s is None


def test_refusals_can_be_asked_to_the_end() -> None:
    with fake_engine() as engine:
        gone = target(engine)
    after = [-1] * 9 + [8]
    settings = LoadSettings(stop_after_refusals=None)
    outcomes = run_load(workload(10, after=after), gone, settings)
    assert {(outcome.error, outcome.attempts) for outcome in outcomes} == {("refused", 1)}
    stopped = LoadSettings(stop_after_refusals=3, concurrency=1)
    outcomes = run_load(workload(10, after=after), gone, stopped)
    assert [outcome.attempts for outcome in outcomes] == [1] * 3 + [0] * 7
    assert kinds(outcomes) == {"refused"}


def interrupting(at: int) -> Callable[[int, int], None]:
    """A report that interrupts this process, once ``at`` requests have ended."""
    sent: list[int] = []

    def report(done: int, total: int) -> None:
        if done >= at and not sent:
            sent.append(done)
            os.kill(os.getpid(), signal.SIGINT)

    return report


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("concurrency", [None, 4])
def test_an_interruption_keeps_what_has_ended(workers: int, concurrency: int | None) -> None:
    sent = workload(40, after=[-1] * 30 + list(range(20, 30)))
    scripts = {str(index): {"silent": True} for index in range(15, 40)}
    before, handler = held(), signal.getsignal(signal.SIGINT)
    with fake_engine(when=scripts) as engine:
        within = held()
        settings = LoadSettings(concurrency=concurrency, workers=workers)
        outcomes = run_load(sent, target(engine), settings, report=interrupting(1))
        stats = engine.stats_when_quiet()
        assert held() == within
    assert held() == before
    assert signal.getsignal(signal.SIGINT) is handler
    assert [outcome.index for outcome in outcomes] == list(range(40))
    assert kinds(outcomes) == {None, "cancelled"}
    assert {outcome.error for outcome in outcomes[15:]} == {"cancelled"}
    assert {outcome.detail for outcome in outcomes if outcome.error} == {"the run was interrupted"}
    assert stats["open"] == 0


@pytest.mark.parametrize("workers", [1, 2])
def test_nothing_leaks(workers: int) -> None:
    scripts: dict[str, Any] = {
        "1": {"reset_after": 1},
        "2": {"status": 500},
        "3": {"invalid_after": 0},
        "4": {"silent": True},
        "5": {"fin_after": 1},
        "6": {"endless": True, "itl_s": 0.01},
    }
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    settings = LoadSettings(ttft_timeout_s=0.4, timeout_s=0.6, workers=workers)
    run_load(workload(0), Target("http://127.0.0.1:9", MODEL), settings)
    before = held()
    with fake_engine(when=scripts) as engine:
        within = held()
        outcomes = run_load(workload(20), target(engine), settings)
        assert engine.stats_when_quiet()["open"] == 0
        assert held() == within
        assert within != before  # the engine is a child: the count does see one
    assert {"reset", "server_error", "invalid_json", "timeout_first_token"} <= kinds(outcomes)
    assert held() == before
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == limits


def test_progress_is_reported() -> None:
    told: list[tuple[int, int]] = []
    with fake_engine() as engine:
        run_load(
            workload(5), target(engine), LoadSettings(), report=lambda *each: told.append(each)
        )
    assert told[-1] == (5, 5)
    assert told == sorted(told)


def test_an_empty_workload_needs_no_engine() -> None:
    for settings in (LoadSettings(), LoadSettings(concurrency=3, workers=2)):
        assert run_load(workload(0), Target("http://127.0.0.1:9", MODEL), settings) == []


def test_a_bug_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A callback that raises must not leave a request that never ends."""

    def broken(*_: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(load_send.Sender, "_outcome", broken)
    before = held()
    with fake_engine() as engine, pytest.raises(ZeroDivisionError):
        run_load(workload(3), target(engine), LoadSettings())
    assert held() == before


@pytest.mark.parametrize("workers", [1, 2])
def test_in_a_notebook_whose_event_loop_runs(workers: int) -> None:
    async def cell(url: str) -> list[RequestOutcome]:
        return run_load(workload(3), Target(url, MODEL), LoadSettings(workers=workers))

    before = held()
    with fake_engine() as engine:
        outcomes = asyncio.run(cell(engine.url))
    assert [each.error for each in outcomes] == [None] * 3
    assert held() == before


def test_an_interrupted_cell_keeps_what_has_ended() -> None:
    async def cell(url: str) -> list[RequestOutcome]:
        return run_load(workload(3), Target(url, MODEL), LoadSettings())

    with fake_engine(requests={1: {"silent": True}}) as engine:
        timer = threading.Timer(1.0, os.kill, [os.getpid(), signal.SIGINT])
        # As in a notebook; a job in the background would ignore it.
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        timer.start()
        loop = asyncio.new_event_loop()
        try:
            outcomes = loop.run_until_complete(cell(engine.url))
        finally:
            signal.signal(signal.SIGINT, before)
            loop.close()
        timer.join()
    assert sorted(str(each.error) for each in outcomes) == ["None", "None", "cancelled"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"workers": 0},
        {"workers": 1000},
        {"retries": -1},
        {"concurrency": 0},
        {"timeout_s": 0.0},
        {"ttft_timeout_s": float("nan")},
        {"longest_retry_wait_s": float("inf")},
        {"stop_after_refusals": 0},
    ],
)
def test_settings_that_cannot_be(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        LoadSettings(**wrong)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_closed_loop_has_its_connections_before_time_begins(workers: int) -> None:
    def accepted(settings: LoadSettings, arrival_s: list[float]) -> tuple[int, int]:
        """Connections accepted before the first request, and between it and the last."""
        with fake_engine(ttft_s=0.05) as engine:
            began_s = time.perf_counter()
            run_load(workload(8, arrival_s=arrival_s), target(engine), settings)
            stats = engine.stats_when_quiet()
        first, last = min(stats["received_s"]), max(stats["received_s"])
        moments = [each for each in stats["accepted_s"] if each > began_s]
        return sum(each < first for each in moments), sum(first < each < last for each in moments)

    few = [at * 0.01 for at in range(8)]
    assert accepted(LoadSettings(concurrency=4, workers=workers), few) == (4, 0)
    # In an open loop a connection is opened for the request that needs it.
    before, later = accepted(LoadSettings(workers=workers), few)
    assert before <= workers
    assert later > 0
