from __future__ import annotations

import os
import signal
from typing import Any

import numpy as np
import pytest
from fake_engine import fake_engine
from sending import MODEL, children, held, workload

from kvsched.engine.target import Target
from kvsched.evidence.bench import load_workers
from kvsched.evidence.bench.load import run_load
from kvsched.evidence.bench.load_job import divide, job_parts, new_job
from kvsched.evidence.bench.load_settings import LoadSettings
from kvsched.foundation.errors import KvschedError, UsageError

AFTER = [-1, -1, 0, -1, 1, 2, -1, 6, -1, -1]


def test_sessions_stay_together() -> None:
    sent = workload(10, after=AFTER, arrival_s=np.arange(10.0), priority=np.arange(10))
    for workers in (1, 2, 3, 6, 9):
        parts = divide(sent, workers)
        assert len(parts) == min(workers, 6)
        assert sorted(np.concatenate([part.index for part in parts]).tolist()) == list(range(10))
        for part in parts:
            for place, index in enumerate(part.index.tolist()):
                before = int(part.after[place])
                assert (before if before < 0 else part.index[before]) == AFTER[index]
                assert part.prompts[place] is sent.prompts[index]
                assert part.priority is not None
                assert part.priority[place] == index
        heads = [int((part.after < 0).sum()) for part in parts]
        assert max(heads) - min(heads) <= 1


def test_a_job_arrives_as_it_was() -> None:
    part = divide(workload(10, after=AFTER, priority=np.arange(10)), 2)[1]
    target = Target("http://127.0.0.1:9", MODEL, api_key="k", headers={"a": "b"})
    settings = LoadSettings(concurrency=3, extra_body={"x": [1, None]})
    back, to, how = job_parts(new_job(part, target, settings))
    assert (to, how) == (target, settings)
    for name in ("index", "output_tokens", "arrival_s", "after", "think_s", "priority"):
        np.testing.assert_array_equal(getattr(back, name), getattr(part, name))
    assert [each.tolist() for each in back.prompts] == [each.tolist() for each in part.prompts]


@pytest.mark.parametrize("concurrency", [None, 3])
def test_workers_send_what_one_process_sends(concurrency: int | None) -> None:
    sent = workload(30, after=[-1] * 20 + list(range(10)), think_s=[0.0] * 20 + [0.003] * 10)
    told: list[tuple[int, int]] = []
    before = held()
    with fake_engine(when={"7": {"status": 500}}) as engine:
        settings = LoadSettings(workers=3, concurrency=concurrency)
        outcomes = run_load(
            sent,
            Target(engine.url, MODEL, api_key="k"),
            settings,
            report=lambda *each: told.append(each),
        )
        stats = engine.stats_when_quiet()
        received = stats["received_s"]
    assert held() == before
    assert (stats["requests"], stats["open"]) == (30, 0)
    assert [outcome.index for outcome in outcomes] == list(range(30))
    assert [outcome.error for outcome in outcomes] == [
        "server_error" if index == 7 else None for index in range(30)
    ]
    assert told[-1] == (30, 30)
    # One clock: from the start on, and in the engine's order.
    sent_s = sorted(outcome.sent_s or -1 for outcome in outcomes)
    assert sent_s[0] >= 0
    spans = np.diff(received)[[0, -1]], sent_s[-1] - sent_s[0]
    assert spans[1] == pytest.approx(received[-1] - received[0], abs=0.5)
    if concurrency is not None:
        assert stats["most_running"] <= concurrency


def test_a_worker_that_is_killed_loses_its_own_alone() -> None:
    scripts = {str(index): {"silent": True} for index in range(10, 20)}
    killed: list[int] = []
    with fake_engine(when=scripts) as engine:
        engines = set(children())

        def report(done: int, total: int) -> None:
            if done and not killed:
                for child in sorted(set(children()) - engines):
                    killed.append(child)
                    os.kill(child, signal.SIGKILL)

        outcomes = run_load(
            workload(20), Target(engine.url, MODEL), LoadSettings(workers=2), report=report
        )
        assert set(children()) == engines
    assert len(killed) == 2
    assert {outcome.error for outcome in outcomes} == {None, "cancelled"}
    lost = [outcome for outcome in outcomes if outcome.error]
    assert {outcome.detail for outcome in lost} == {"its worker process ended"}
    assert {outcome.index for outcome in lost} >= set(range(10, 20))


def test_faults_of_workers_are_the_callers() -> None:
    before = held()
    with pytest.raises(UsageError, match="name and a password"):
        run_load(workload(4), Target("http://a:b@127.0.0.1:9", MODEL), LoadSettings(workers=2))
    assert held() == before


def test_an_error_of_the_callers_ends_the_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    def report(done: int, total: int) -> None:
        raise ZeroDivisionError

    before = held()
    with fake_engine(silent=True, when={"0": {"silent": False}}) as engine:
        with pytest.raises(ZeroDivisionError):
            run_load(workload(9), Target(engine.url, MODEL), LoadSettings(workers=2), report=report)
        assert engine.stats_when_quiet()["open"] == 0
    assert held() == before


def test_a_worker_that_cannot_start(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(*_: Any, **__: Any) -> None:
        raise OSError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(load_workers.subprocess, "Popen", nothing)
    with pytest.raises(KvschedError, match="a worker process cannot be started"):
        run_load(workload(4), Target("http://127.0.0.1:9", MODEL), LoadSettings(workers=2))
