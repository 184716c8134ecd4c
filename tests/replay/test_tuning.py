"""A parameter that is `auto`: chosen from a window of the past, by what the plain replay says."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import queue_oracle
from factory import make_trace, workload_of
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import Step

import kvsched
from kvsched.foundation.errors import UsageError
from kvsched.policy.base import Policy, Tunable, Tuned
from kvsched.policy.marconi import Marconi
from kvsched.policy.registry import make
from kvsched.replay import run as run_module
from kvsched.replay.run import replay
from kvsched.replay.tuning import Run, tune
from kvsched.study.run import Options, study
from kvsched.trace.model import Trace

AUTO = "marconi:alpha=auto"


class Short(Marconi):
    """Few candidates and a short window, for small traces."""

    name = "short"
    tunable = Tunable("alpha", (0.0, 0.3, 2.0), 2.0)


def short() -> Policy:
    return make(Short(alpha="auto"))


def trace_of(paths: list[tuple[int, ...]]) -> Trace:
    return make_trace(paths, [1] * len(paths), [0] * len(paths))


LONG = tuple(range(100, 108))
LONG_COMES_BACK = [LONG if at % 4 == 0 else (1000 + at,) for at in range(120)]
"""A long prompt again and again, others once: what is deep is worth keeping."""
SHORT_COMES_BACK = [
    (0,) if at % 2 else tuple(range(1000 * (at + 1), 1000 * (at + 1) + 6)) for at in range(120)
]
"""A short prompt again and again, long ones once: what is deep is not."""


def schedule(value: float, since: int) -> type[queue_oracle.Queues]:
    class Scheduled(queue_oracle.Marconi):
        def alpha(self) -> float:
            return value if self.now >= since else 0.0

    return Scheduled


def steps_of(trace: Trace, value: float, since: int, capacity: int) -> list[Step]:
    """The plain replay whose weight is ``value`` from ``since`` on."""
    queue_oracle.QUEUES["scheduled"] = schedule(value, since)
    try:
        return queue_oracle.replay(workload_of(trace), "scheduled", capacity)
    finally:
        del queue_oracle.QUEUES["scheduled"]


def hit_tokens(trace: Trace, value: float, since: int, capacity: int) -> list[int]:
    """By request, of that replay."""
    steps = steps_of(trace, value, since, capacity)
    found: list[int] = trace.prefix_tokens(np.array([step.hits for step in steps])).tolist()
    return found


def plainly_tuned(trace: Trace, tunable: Tunable, capacity: int) -> Tuned | None:
    """The choice again, from its description."""
    steps = enumerate(steps_of(trace, 0.0, 0, capacity), start=1)
    begin = next((place for place, step in steps if step.evicted), 0)
    if not begin:
        return None
    end = begin + math.ceil(begin * tunable.window)
    if end >= len(trace):
        return None
    past = trace_until(trace, end)
    hits = {v: sum(hit_tokens(past, v, 0, capacity)[begin:]) for v in tunable.candidates}
    best = max(hits.values())
    return Tuned(min(value for value, tokens in hits.items() if tokens == best), end)


def trace_until(trace: Trace, end: int) -> Trace:
    """The trace as if it ended before request ``end``: nothing after is there."""
    nodes = int(trace.chains[: trace.starts[end]].max(initial=-1)) + 1
    columns = {name: getattr(trace, name)[:nodes] for name in ("parent", "depth", "tokens", "key")}
    return dataclasses.replace(
        trace,
        **columns,
        **{
            name: getattr(trace, name)[:end]
            for name in ("time_s", "input_tokens", "output_tokens", "priority", "turn")
        },
        starts=trace.starts[: end + 1],
        chains=trace.chains[: trace.starts[end]],
    )


PATHS = st.lists(
    st.lists(st.integers(0, 3), min_size=1, max_size=6).map(tuple), min_size=20, max_size=40
)


@settings(deadline=None, max_examples=60, derandomize=True)
@given(paths=PATHS, capacity=st.integers(2, 12))
def test_the_choice_is_what_the_plain_replay_says(
    paths: list[tuple[int, ...]], capacity: int
) -> None:
    trace = trace_of(paths)
    found = replay(trace, short(), capacity, compiled=False)
    assert found.tuned == plainly_tuned(trace, Short.tunable, capacity)
    value, since = (0.0, 0) if found.tuned is None else dataclasses.astuple(found.tuned)
    assert found.request_hit_tokens.tolist() == hit_tokens(trace, value, since, capacity)


def test_a_larger_weight_wins_where_what_is_deep_comes_back() -> None:
    found = replay(trace_of(LONG_COMES_BACK), short(), 10, compiled=False)
    assert found.tuned is not None
    assert found.tuned.value > 0
    zero = replay(trace_of(LONG_COMES_BACK), "marconi:alpha=0", 10, compiled=False)
    assert found.hit_tokens > zero.hit_tokens


def test_zero_wins_where_what_is_deep_does_not() -> None:
    found = replay(trace_of(SHORT_COMES_BACK), short(), 10, compiled=False)
    assert found.tuned is not None
    assert found.tuned.value == 0
    zero = replay(trace_of(SHORT_COMES_BACK), "marconi:alpha=0", 10, compiled=False)
    assert found.request_hits.tolist() == zero.request_hits.tolist()
    two = replay(trace_of(SHORT_COMES_BACK), "marconi:alpha=2", 10, compiled=False)
    assert two.hit_tokens < zero.hit_tokens


def with_another_future(since: int) -> tuple[Trace, Trace]:
    """A trace, and one that is the same before request ``since`` and favours the other side."""
    return trace_of(LONG_COMES_BACK), trace_of([*LONG_COMES_BACK[:since], *SHORT_COMES_BACK])


def test_the_future_does_not_change_the_choice() -> None:
    first = replay(trace_of(LONG_COMES_BACK), short(), 10, compiled=False)
    assert first.tuned is not None
    since = first.tuned.since_request
    _, other = with_another_future(since)
    second = replay(other, short(), 10, compiled=False)
    assert second.tuned == first.tuned
    assert second.request_hits[:since].tolist() == first.request_hits[:since].tolist()


def test_no_request_of_the_window_is_decided_with_the_choice() -> None:
    trace = trace_of(LONG_COMES_BACK)
    found = replay(trace, short(), 10, compiled=False)
    zero = replay(trace, "marconi:alpha=0", 10, compiled=False)
    chosen = plainly_tuned(trace, Short.tunable, 10)
    assert chosen is not None
    since = chosen.since_request
    assert found.request_hits[:since].tolist() == zero.request_hits[:since].tolist()
    assert found.request_hits[since:].tolist() != zero.request_hits[since:].tolist()


def knows_the_future(trace: Trace, policy: Policy, run: Run) -> Tuned | None:
    """Broken: candidates are compared over all of the trace."""
    found = tune(trace, policy, run)
    if found is None or policy.tunable is None:
        return found

    def tokens(value: float) -> int:
        counts = run(policy.with_tuned(Tuned(value, 0)), len(trace))
        return int(trace.prefix_tokens(counts.hits).sum())

    return Tuned(max(policy.tunable.candidates, key=tokens), found.since_request)


def from_the_start(trace: Trace, policy: Policy, run: Run) -> Tuned | None:
    """Broken: the choice decides the window that it comes from."""
    found = tune(trace, policy, run)
    return None if found is None else Tuned(found.value, 0)


def test_broken_tuning_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_module, "tune", knows_the_future)
    with pytest.raises(AssertionError):
        test_the_future_does_not_change_the_choice()
    monkeypatch.setattr(run_module, "tune", from_the_start)
    with pytest.raises(AssertionError):
        test_no_request_of_the_window_is_decided_with_the_choice()


def test_nothing_is_chosen_where_nothing_leaves_or_the_trace_is_too_short() -> None:
    for capacity, requests in ((1_000, 120), (10, 12)):
        found = replay(trace_of(LONG_COMES_BACK[:requests]), short(), capacity, compiled=False)
        assert found.tuned is None
        assert found.summary()["tuned"] is None
    assert "tuned" not in replay(trace_of(LONG_COMES_BACK), "marconi", 10).summary()


def test_it_is_named_in_the_label_and_the_result() -> None:
    policy = make(AUTO)
    assert policy.label == AUTO
    assert policy.auto
    assert policy.values == {"alpha": 0.0}
    assert not make("marconi:alpha=0").auto
    trace = trace_of(LONG_COMES_BACK * 2)
    found = replay(trace, AUTO, 10, compiled=False)
    assert found.policy.label == AUTO
    assert found.tuned is not None
    expected = {"alpha": found.tuned.value, "since_request": found.tuned.since_request}
    assert found.summary()["tuned"] == expected
    assert found.tuned.value > 0
    swept = kvsched.sweep(trace, [AUTO], [10, 12])
    assert [point.policy for point in swept] == [AUTO, AUTO]
    assert swept[0].hit_tokens == found.hit_tokens
    rows = {row.policy: row for row in study(trace, 10, options=Options((AUTO,))).policies}
    assert rows[AUTO].tuned == expected
    assert rows["lru"].tuned is None


@pytest.mark.parametrize("name", ["decay:half_life_s=auto", "marconi:alpha=automatic"])
def test_other_parameters_must_be_numbers(name: str) -> None:
    with pytest.raises(UsageError, match="must be a number"):
        make(name)


def test_plain_and_compiled_choose_alike() -> None:
    trace = trace_of(LONG_COMES_BACK * 2)
    found: list[Any] = [replay(trace, AUTO, 10, compiled=each) for each in (True, False)]
    assert found[0].tuned == found[1].tuned
    assert found[0].request_hits.tolist() == found[1].request_hits.tolist()
