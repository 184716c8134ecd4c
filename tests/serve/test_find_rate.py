"""The highest rate that holds an objective: on made-up answers, and on the simulation."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as given_settings
from hypothesis import strategies as st
from serving import in_sessions, plain

from kvsched.foundation.errors import UsageError
from kvsched.serve import find_rate as module
from kvsched.serve.find_rate import RateResult, Search, find_rate, holds
from kvsched.serve.points import Records
from kvsched.serve.served import Asking, serve
from kvsched.serve.summary import Objective
from kvsched.trace.model import Trace

TRACE = dataclasses.replace(plain([(1, 8)] * 80, session=None), time_s=np.arange(80) * 0.05)
ASKED = Asking(
    model="llama-3.1-8b", gpu="h100", num_gpu_blocks_override=100, max_num_seqs=2,
    objective=Objective(ttft_s=0.1),
)  # fmt: skip


def searched(
    answer: Callable[[float], bool], start: float = 1.0, tolerance: float = 0.01
) -> Search:
    def run(values: Sequence[float]) -> list[bool]:
        assert len(set(values)) == len(values)
        return [answer(value) for value in values]

    found = Search(run, start, tolerance)
    found.go()
    return found


@given(
    edge=st.floats(1e-3, 1e3), start=st.floats(0.1, 20), tolerance=st.sampled_from([0.01, 0.1, 0.5])
)
@given_settings(max_examples=80, deadline=None)
def test_the_edge_is_found(edge: float, start: float, tolerance: float) -> None:
    found = searched(lambda rate: rate <= edge, start, tolerance)
    assert found.found is not None
    assert found.fails_at is not None
    assert found.found <= edge < found.fails_at
    assert found.fails_at <= found.found * (1 + tolerance) * (1 + 1e-9)
    assert found.reversals == ()
    assert len(found.held) <= 45


def test_never_and_always() -> None:
    never = searched(lambda _rate: False)
    assert (never.found, never.fails_at) == (None, pytest.approx(2.0**-16, rel=1e-5))
    assert len(never.held) == 6, "it is not halved down to nothing"
    always = searched(lambda _rate: True)
    assert (always.found, always.fails_at) == (pytest.approx(2.0**17, rel=1e-5), None)


def with_a_gap(rate: float) -> bool:
    """Holds up to 3, not up to 3.5, and again up to 5."""
    return rate <= 3 or 3.5 < rate <= 5


def test_a_higher_rate_that_holds_is_found_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    found = searched(with_a_gap, 0.4)
    assert found.found == pytest.approx(5, rel=0.01)
    assert found.reversals
    for low, high in found.reversals:
        assert not with_a_gap(low)
        assert with_a_gap(high)
        assert low < high
    monkeypatch.setattr(module, "AROUND", (1.0,))
    blind = searched(with_a_gap, 0.4)
    assert blind.found == pytest.approx(3, rel=0.01), "who does not look around misses it"
    assert blind.reversals == ()


def test_a_lower_rate_that_fails_is_told() -> None:
    found = searched(lambda rate: rate <= 4 and not 1.9 < rate < 2.1, 3.0)
    assert found.found == pytest.approx(4, rel=0.01)
    assert [low for low, _ in found.reversals] == [pytest.approx(2, rel=0.05)]


def found_in(trace: Trace = TRACE, asked: Asking = ASKED, **more: Any) -> RateResult:
    return find_rate(trace, asked, **{"compiled": False, "threads": 1, **more})


RESULT = found_in()


def test_what_is_found_holds_and_the_next_does_not() -> None:
    result = RESULT
    assert result.by == "speedup"
    assert result.found is not None
    assert result.fails_at is not None
    assert result.found < result.fails_at <= 1.01 * result.found

    def share(speedup: float) -> float:
        asked = dataclasses.replace(ASKED, speedup=speedup, band=False)
        served = serve(TRACE, asked, compiled=False)
        late = served.simulation.ttft_s > 0.1
        over = served.result.summary.overload.overloaded
        return 0.0 if over else 1 - float(late.mean())

    assert share(result.found) >= 0.99 > share(result.fails_at)
    assert result.found_requests_s == pytest.approx(result.found * 79 / TRACE.time_s[-1])
    for tried in result.tried:
        assert tried.holds is (share(tried.value) >= 0.99)
    values = [tried.value for tried in result.tried]
    assert values == sorted(values)
    assert f"--speedup {result.found:.4g}" in result.sentences[0]
    assert "cannot be told" in " ".join(result.sentences) or all(
        tried.point.figures and tried.point.figures.overloaded is not None for tried in result.tried
    )


def test_overload_fails_whatever_the_share() -> None:
    (over, *_) = (each.point for each in reversed(found_in(share=0.01).tried) if each.point.figures)
    assert over.figures is not None
    loaded = msgspec.structs.replace(over.figures, overloaded=True, goodput_share=1.0)
    assert not holds(msgspec.structs.replace(over, figures=loaded), 0.5)
    light = msgspec.structs.replace(loaded, overloaded=None)
    assert holds(msgspec.structs.replace(over, figures=light), 0.5)
    assert not holds(msgspec.structs.replace(over, figures=None, fault="no"), 0.5)


def test_a_rate_in_requests_a_second() -> None:
    result = found_in(asked=dataclasses.replace(ASKED, rate=30.0, burstiness=float("inf")))
    assert result.by == "rate"
    assert result.found == result.found_requests_s
    # Evenly spaced arrivals, as the trace's own are: the same edge.
    assert result.found == pytest.approx(RESULT.found_requests_s, rel=0.05)
    assert f"{result.found:.4g} requests a second" in result.sentences[0]


def test_sessions_have_no_rate_of_requests() -> None:
    talks = in_sessions(TRACE, [at // 2 for at in range(80)])
    asked = dataclasses.replace(ASKED, sessions=True)
    result = found_in(talks, asked)
    assert result.by == "speedup"
    assert result.found is not None
    assert {tried.requests_s for tried in result.tried} == {None}
    assert "a second" not in result.sentences[0]
    by_rate = found_in(talks, dataclasses.replace(asked, rate=5.0))
    assert by_rate.found_requests_s == by_rate.found
    assert "sessions a second" in by_rate.sentences[0]


def test_words_where_nothing_or_everything_holds() -> None:
    hard = dataclasses.replace(ASKED, objective=Objective(ttft_s=1e-6))
    result = found_in(asked=hard)
    assert (result.found, result.found_requests_s) == (None, None)
    assert result.sentences[0].startswith("The objective does not hold even at the lowest tried")
    # Of so few requests overload is not told.
    few = dataclasses.replace(plain([(1, 2)] * 9, session=None), time_s=np.arange(9) * 1.0)
    result = found_in(few, dataclasses.replace(ASKED, objective=Objective(ttft_s=1e6)))
    assert result.fails_at is None
    assert result.sentences[0].startswith("The objective holds even at the highest tried")


def test_threads_and_interruptions_change_no_byte(tmp_path: Path) -> None:
    whole = msgspec.json.encode(RESULT)
    assert msgspec.json.encode(found_in(threads=3)) == whole
    path = tmp_path / "points.jsonl"

    def told(_what: str, done: int, _all: int) -> None:
        if done > 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        found_in(records=Records(path), report=told)
    kept = Records(path)
    assert len(kept.points) > 4
    assert msgspec.json.encode(found_in(records=kept)) == whole


@pytest.mark.parametrize(
    ("change", "more", "said"),
    [
        ({"concurrency": 2}, {}, "a closed loop has no rate"),
        ({"objective": None}, {}, "needs an objective"),
        ({"rate": float("inf")}, {}, "not at infinity"),
        ({}, {"share": 0.0}, "the share must be above 0"),
        ({}, {"tolerance": 0.0}, "the tolerance must be between"),
        ({"scheduling_policy": "lifo"}, {}, "unknown order"),
    ],
)
def test_faults_are_said_in_one_line(change: Any, more: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        found_in(asked=dataclasses.replace(ASKED, **change), **more)
    assert "\n" not in str(caught.value)


def test_a_trace_without_time_needs_a_rate() -> None:
    with pytest.raises(UsageError, match="arrive at once"):
        found_in(plain([(1, 1)] * 3, session=None))
