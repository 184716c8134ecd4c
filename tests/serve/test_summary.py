"""Definitions, held to computations of their own: percentiles, levels, goodput, fairness."""

from __future__ import annotations

import dataclasses
import math
import statistics
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as given_settings
from hypothesis import strategies as st
from serving import plain, settings, work

from kvsched.foundation.errors import UsageError
from kvsched.serve import timeline as timelines
from kvsched.serve.cost import linear_cost
from kvsched.serve.distribution import distribution
from kvsched.serve.fairness import course_fairness, fairness, jain
from kvsched.serve.result import Simulation
from kvsched.serve.settings import Settings
from kvsched.serve.simulate import simulate
from kvsched.serve.state import (
    LOG_COLUMNS,
    LOG_FREE,
    LOG_RUNNING,
    LOG_SECONDS,
    LOG_START_S,
    LOG_WAITING,
)
from kvsched.serve.summary import Objective, Summary, meets, summarise
from kvsched.serve.timeline import timeline
from kvsched.trace.model import Labels, Trace

COST = linear_cost(1.0, 0.01)


def percentile(values: list[float], at: float) -> float:
    """Between neighbours, written out."""
    ordered = sorted(values)
    place = at / 100 * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=60), st.integers(0, 5))
def test_a_distribution(values: list[float], gaps: int) -> None:
    found = distribution(np.array(values + [math.nan] * gaps))
    assert found is not None
    assert found.count == len(values)
    assert found.mean == pytest.approx(statistics.fmean(values), rel=1e-9)
    assert (found.min, found.max) == (min(values), max(values))
    assert found.sum == pytest.approx(math.fsum(values), rel=1e-9)
    for at in (1, 5, 10, 25, 50, 75, 90, 95, 99):
        assert getattr(found, f"p{at}") == pytest.approx(percentile(values, at), rel=1e-9, abs=1e-9)
    if len(values) > 1:
        expected = statistics.stdev(values)
        assert found.std == pytest.approx(expected, rel=1e-6, abs=1e-6 * max(values) + 1e-9)
    else:
        assert found.std is None


def test_nothing_has_no_distribution() -> None:
    assert distribution(np.array([math.nan])) is None
    assert distribution(np.zeros(0)) is None


def by_hand(**more: Any) -> tuple[Simulation, Summary]:
    # As `test_simulate.test_by_hand`: 21 s, 13.5 s, 2 s, 1.5 s; then nothing until 100 s.
    trace = plain([(2, 3), (2, 3), (1, 1)], [0, 0, 100])
    told = Settings(num_gpu_blocks=100, max_num_seqs=8, max_num_batched_tokens=40)
    found = simulate(trace, told, cost=linear_cost(1.0, 0.5), step_log=True, compiled=False, **more)
    return found, summarise(found, Objective(ttft_s=30.0, tpot_s=2.0))


def test_by_hand() -> None:
    found, total = by_hand()
    assert found.end_s == 109
    assert (total.requests, total.finished, total.rejected, total.unfinished) == (3, 3, 0, 0)
    assert total.ttft_s is not None
    assert total.ttft_s.mean == (21 + 34.5 + 9) / 3
    assert total.ttft_s.p50 == 21
    assert total.tpot_s is not None
    assert total.tpot_s.count == 2, "an answer of one token has none"
    assert (total.tpot_s.min, total.tpot_s.max) == (1.75, 7.75)
    assert total.queue_wait_s is not None
    assert total.queue_wait_s.max == 0
    assert total.throughput is not None
    assert total.throughput.requests_s == 3 / 109
    assert total.throughput.input_tokens_s == 80 / 109
    assert total.throughput.output_tokens_s == 7 / 109
    # The first is too slow between tokens, the second to its first, the last has one token.
    assert meets(found, Objective(ttft_s=30.0, tpot_s=2.0)).tolist() == [False, False, True]
    assert total.goodput is not None
    assert (total.goodput.requests, total.goodput.share) == (1, 1 / 3)
    assert total.goodput.requests_s == 1 / 109
    assert (total.prompt_tokens, total.hit_tokens, total.hit_ratio) == (80, 0, 0.0)
    levels = total.timeline
    assert levels is not None
    assert levels.busy == (21 + 13.5 + 2 + 1.5 + 9) / 109
    assert levels.running.mean == pytest.approx((2 * 36.5 + 1.5 + 9) / 109)
    assert levels.running.peak == 2
    assert levels.waiting.peak == 0
    # Blocks of 16: 2 + 1, 3 + 2, 3 + 3, 3, 1.
    used = (3 * 21 + 5 * 13.5 + 6 * 2 + 3 * 1.5 + 1 * 9) / 100
    assert levels.kv_use.mean == pytest.approx(used / 109)
    assert levels.kv_use.peak == 0.06


def test_without_a_log_or_an_objective() -> None:
    trace = plain([(2, 3)])
    found = simulate(trace, Settings(num_gpu_blocks=9), cost=COST, compiled=False)
    total = summarise(found)
    assert total.timeline is None
    assert total.goodput is None
    assert summarise(found, Objective()).goodput is None
    with pytest.raises(UsageError, match="tpot_s must be above 0"):
        Objective(tpot_s=0.0)


def test_the_limits_are_met_at_them() -> None:
    found, _ = by_hand()
    assert meets(found, Objective(ttft_s=34.5)).tolist() == [True, True, True]
    assert meets(found, Objective(ttft_s=34.4)).tolist() == [True, False, True]
    assert meets(found, Objective(tpot_s=7.75)).tolist() == [True, True, True]
    assert meets(found, Objective(tpot_s=7.7)).tolist() == [False, True, True]


def test_who_did_not_finish_is_in_no_rate() -> None:
    trace = plain([(2, 3), (2, 3), (90, 1)], [0, 0, 1])
    told = Settings(num_gpu_blocks=50, max_num_seqs=1, max_num_batched_tokens=40)
    found = simulate(trace, told, cost=COST, horizon_s=4.0, step_log=True, compiled=False)
    total = summarise(found, Objective(ttft_s=100.0))
    assert (total.finished, total.rejected, total.unfinished) == (1, 1, 1)
    assert total.rejected_because == {"it needs more blocks than there are": 1}
    assert total.unfinished_as == {"running": 1}
    assert total.goodput is not None
    assert total.goodput.share == 1 / 3
    assert total.throughput is not None
    assert total.throughput.input_tokens_s == 32 / found.end_s
    assert total.prompt_tokens == 64, "who was rejected asked for no block"


def log_of(rows: list[tuple[float, float, int, int, int]]) -> Any:
    log = np.zeros((len(rows), LOG_COLUMNS))
    columns = (LOG_START_S, LOG_SECONDS, LOG_FREE, LOG_RUNNING, LOG_WAITING)
    for at, row in enumerate(rows):
        log[at, list(columns)] = row
    return log


@st.composite
def logs(draw: st.DrawFn) -> list[tuple[float, float, int, int, int]]:
    rows, now = [], 0.0
    for _ in range(draw(st.integers(1, 12))):
        now += draw(st.sampled_from([0.0, 0.0, 0.25, 3.0]))
        seconds = draw(st.sampled_from([0.0, 0.125, 1.0, 7.5]))
        level = [draw(st.integers(0, 10)) for _ in range(3)]
        rows.append((now, seconds, *level))
        now += seconds
    return rows


@given(logs(), st.integers(1, 9))
def test_levels_are_what_a_sum_over_a_fine_grid_gives(
    rows: list[tuple[float, float, int, int, int]], bins: int
) -> None:
    end = rows[-1][0] + rows[-1][1]
    found = timeline(log_of(rows), 10, end, bins)
    if end == 0:
        assert found is None
        return
    assert found is not None
    # Every edge of a step is a multiple of 1/8 s; a bin's are cut into pieces of their own.
    for at in range(bins):
        low, high = found.edges_s[at], found.edges_s[at + 1]
        used = running = waiting = 0.0
        most = 0
        for start, seconds, free, runs, waits in rows:
            over = max(min(high, start + seconds) - max(low, start), 0.0)
            used += over * (1 - free / 10)
            running += over * runs
            waiting += over * waits
            if over > 1e-9:
                most = max(most, runs)
        length = high - low
        assert found.kv_use.means[at] == pytest.approx(used / length, abs=1e-9)
        assert found.running.means[at] == pytest.approx(running / length, abs=1e-9)
        assert found.waiting.means[at] == pytest.approx(waiting / length, abs=1e-9)
        assert found.running.peaks[at] >= most
    busy = sum(seconds for _, seconds, *_ in rows)
    assert found.busy == pytest.approx(busy / end)
    assert found.running.mean == pytest.approx(np.mean(found.running.means), abs=1e-9)
    assert max(found.running.peaks) == found.running.peak == max(row[3] for row in rows)


@given(logs(), st.integers(1, 9), st.integers(1, 4))
def test_levels_do_not_depend_on_how_many_steps_are_looked_at_together(
    rows: list[tuple[float, float, int, int, int]], bins: int, together: int
) -> None:
    end = rows[-1][0] + rows[-1][1]
    whole = timeline(log_of(rows), 10, end, bins)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(timelines, "_ROWS", together)
        parts = timeline(log_of(rows), 10, end, bins)
    if whole is None:
        assert parts is None
        return
    assert parts is not None
    for name in ("kv_use", "running", "waiting"):
        one, other = getattr(whole, name), getattr(parts, name)
        assert one.peaks == other.peaks
        assert one.means == pytest.approx(other.means, abs=1e-9)
        assert one.mean == pytest.approx(other.mean, abs=1e-9)


def test_a_long_step_is_in_every_interval_that_it_reaches() -> None:
    found = timeline(log_of([(0, 1, 9, 1, 0), (1, 8, 4, 3, 2), (9, 1, 9, 1, 0)]), 10, 10.0, 10)
    assert found is not None
    assert found.running.peaks == (1, 3, 3, 3, 3, 3, 3, 3, 3, 1)
    assert found.waiting.means == (0, 2, 2, 2, 2, 2, 2, 2, 2, 0)


@given_settings(max_examples=60)
@given(work(), settings(), st.none() | st.integers(1, 4))
def test_sums_agree(trace: Trace, told: Settings, concurrency: int | None) -> None:
    found = simulate(trace, told, cost=COST, concurrency=concurrency, step_log=True, compiled=False)
    total = summarise(found, Objective(ttft_s=5.0), closed_loop=concurrency is not None)
    assert total.finished + total.rejected + total.unfinished == total.requests
    assert sum(total.rejected_because.values()) == total.rejected
    assert sum(total.unfinished_as.values()) == total.unfinished
    if total.timeline is None:
        return
    # Little's law on the batch where nobody is preempted: seconds running, counted twice.
    if not total.preemptions:
        inside = (found.finished_s - found.scheduled_s)[found.finished].sum()
        assert total.timeline.running.mean * found.end_s == pytest.approx(inside)
    assert 0 <= total.timeline.kv_use.mean <= total.timeline.kv_use.peak <= 1
    assert total.goodput is not None
    expected = sum(1 for each in found.ttft_s[found.finished] if each <= 5.0)
    assert total.goodput.requests == expected


def test_littles_law_can_fail() -> None:
    found, total = by_hand()
    inside = (found.finished_s - found.scheduled_s).sum()
    assert total.timeline is not None
    assert total.timeline.running.mean * found.end_s == pytest.approx(inside)
    assert found.step_log is not None
    found.step_log[0, LOG_RUNNING] += 1
    wrong = timeline(found.step_log, 100, found.end_s)
    assert wrong is not None
    assert wrong.running.mean * found.end_s != pytest.approx(inside)


def test_fairness_by_hand() -> None:
    assert course_fairness(np.zeros(0)) is None
    assert course_fairness(np.array([3.0])) == 1
    assert course_fairness(np.array([0.1, 0.3])) == pytest.approx(0.8), "short waits over a second"
    assert course_fairness(np.array([10.0, 30.0])) == 0
    assert course_fairness(np.array([9.0, 11.0])) == pytest.approx(0.8)
    assert jain(np.zeros(3)) is None
    assert jain(np.array([5.0, 5.0, 5.0])) == 1
    assert jain(np.array([1.0, 0.0, 0.0, 0.0])) == 0.25
    assert jain(np.array([1.0, 3.0])) == 16 / 20


def test_fairness_is_the_lessons() -> None:
    from kvsched.lesson.decode_order import solution

    drawn = np.random.default_rng(1)
    for _ in range(50):
        waits = drawn.exponential(drawn.choice([0.1, 2.0, 50.0]), drawn.integers(1, 9))
        expected = solution.fairness(waits.tolist())
        assert course_fairness(waits) == pytest.approx(expected)


def test_fairness_over_tenants() -> None:
    tenant = Labels(np.array([0, 1, 0, 1, -1], np.int32), ("a", "b", "idle"))
    trace = dataclasses.replace(plain([(2, 4)] * 5), tenant=tenant)
    told = Settings(num_gpu_blocks=100, max_num_seqs=1, max_num_batched_tokens=64)
    found = simulate(trace, told, cost=linear_cost(1.0), compiled=False)
    # Each runs 4 s after the one before: waits 0, 4, 8, 12, 16.
    assert found.queued_s.tolist() == [0, 4, 8, 12, 16]
    told_of = fairness(found)
    assert told_of.requests == course_fairness(np.array([0.0, 4, 8, 12, 16]))
    assert told_of.tenants == 2
    assert told_of.tenant_waits == pytest.approx(1 - 4 / 6)
    # 72 tokens of each, in 4 + 12 and 8 + 16 seconds.
    assert told_of.tenant_rates == pytest.approx(jain(np.array([72 / 16, 72 / 24])))
    assert told_of.tenant_rates < 1
    nameless = dataclasses.replace(found, trace=dataclasses.replace(found.trace, tenant=None))
    assert fairness(nameless).tenants is None
    assert fairness(nameless).tenant_rates is None
