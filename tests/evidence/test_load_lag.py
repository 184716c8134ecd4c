from __future__ import annotations

import time

import numpy as np
import pytest
from fake_engine import fake_engine
from sending import MODEL, workload

from kvsched.engine.target import Target
from kvsched.evidence.bench.load import run_load
from kvsched.evidence.bench.load_lag import lag_facts
from kvsched.evidence.bench.load_settings import LoadSettings
from kvsched.evidence.bench.measured import RequestOutcome


def outcomes(lags_ms: list[float], gap_ms: float, attempts: int = 1) -> list[RequestOutcome]:
    return [
        RequestOutcome(
            index=index,
            attempts=attempts,
            due_s=index * gap_ms / 1e3,
            sent_s=(index * gap_ms + lag_ms) / 1e3,
            sent_prompt_tokens=1,
            asked_output_tokens=1,
        )
        for index, lag_ms in enumerate(lags_ms)
    ]


def test_lag_is_from_due_to_sent() -> None:
    facts = lag_facts(outcomes([1.0, 2.0, 3.0], gap_ms=100))
    assert facts is not None
    assert facts.p50_ms == pytest.approx(2.0)
    assert facts.p99_ms == pytest.approx(2.98)
    assert facts.max_ms == pytest.approx(3.0)
    assert facts.warning is None


@pytest.mark.parametrize(
    ("lag_ms", "gap_ms", "warns"),
    [
        (9.0, 20.0, False),
        (11.0, 20.0, True),  # above the bar
        (6.0, 5.0, True),  # more than a gap
        (4.0, 5.0, False),
        (0.9, 0.1, False),  # below what a loop's clock tells apart
        (1.1, 0.1, True),
    ],
)
def test_who_falls_behind_is_told(lag_ms: float, gap_ms: float, warns: bool) -> None:
    facts = lag_facts(outcomes([lag_ms] * 100, gap_ms))
    assert facts is not None
    assert (facts.warning is not None) == warns
    if facts.warning is not None:
        assert "fell behind" in facts.warning
        assert f"{lag_ms:.1f} ms" in facts.warning


def test_what_was_sent_again_or_never_does_not_count() -> None:
    assert lag_facts([]) is None
    assert lag_facts(outcomes([500.0] * 3, gap_ms=1, attempts=2)) is None
    unsent = RequestOutcome(index=0, due_s=0.0, sent_prompt_tokens=1, asked_output_tokens=1)
    assert lag_facts([unsent]) is None


def test_a_generator_that_is_held_up_says_so() -> None:
    """No coordinated omission: requests that could not be sent in time were due in time."""
    held_up: list[int] = []

    def report(done: int, total: int) -> None:
        if 5 <= done < total and not held_up:
            held_up.append(done)
            time.sleep(0.3)

    sent = workload(100, arrival_s=np.arange(100) * 0.004)
    with fake_engine() as engine:
        told = run_load(sent, Target(engine.url, MODEL), LoadSettings(), report=report)
    assert held_up
    assert [outcome.due_s for outcome in told] == sent.arrival_s.tolist()
    facts = lag_facts(told)
    assert facts is not None
    assert facts.max_ms > 100
    assert facts.warning is not None
