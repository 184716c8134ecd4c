"""Levels over time, tables and totals of several engines: each row of the log is one engine's."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as given_settings
from hypothesis import strategies as st
from serving import in_sessions, plain

from kvsched.foundation.errors import UsageError
from kvsched.serve.chrome_trace import ENGINE, chrome_events
from kvsched.serve.rows import request_table, step_table
from kvsched.serve.served import Asking, Served, serve
from kvsched.serve.state import (
    LOG_COLUMNS,
    LOG_FREE,
    LOG_RUNNING,
    LOG_SECONDS,
    LOG_START_S,
    LOG_WAITING,
    Float64s,
    Int32s,
)
from kvsched.serve.timeline import Timeline, timeline

CAPACITY = 8
TRACE = plain([(2, 9), (3, 30), (1, 4), (4, 20)] * 5, session=None)
ASKED = Asking(
    model="llama-3.1-8b", gpu="h100", num_gpu_blocks_override=12, max_num_seqs=2, band=False,
    data_parallel_size=2, routing="round-robin",
)  # fmt: skip


def served(**more: Any) -> Served:
    return serve(TRACE, dataclasses.replace(ASKED, **more), compiled=False)


@st.composite
def logs(draw: st.DrawFn) -> tuple[Float64s, Int32s]:
    """Steps of two engines, on a grid of moments so that they often meet."""
    rows, replica = [], []
    for engine in range(2):
        now = 0.0
        for _ in range(draw(st.integers(0, 8))):
            now += draw(st.sampled_from([0.0, 0.0, 0.25, 1.0]))
            row = np.zeros(LOG_COLUMNS)
            row[LOG_START_S], row[LOG_SECONDS] = now, draw(st.sampled_from([0.25, 0.5, 1.25]))
            row[LOG_FREE] = draw(st.integers(0, CAPACITY))
            row[LOG_RUNNING], row[LOG_WAITING] = draw(st.integers(0, 4)), draw(st.integers(0, 9))
            now += row[LOG_SECONDS]
            rows.append(row)
            replica.append(engine)
    table, owner = np.array(rows).reshape(-1, LOG_COLUMNS), np.array(replica, np.int32)
    order = np.argsort(table[:, LOG_START_S], kind="stable")
    return table[order], owner[order]


def at_moments(log: Float64s, replica: Int32s, end_s: float) -> dict[str, tuple[float, float]]:
    """Mean and peak of each level by looking at every eighth of a second of each engine."""
    moments = np.arange(0.0625, end_s, 0.125)
    found = {}
    for name, column in (("kv_use", LOG_FREE), ("running", LOG_RUNNING), ("waiting", LOG_WAITING)):
        level = np.zeros(len(moments))
        for row in log:
            inside = (moments > row[LOG_START_S]) & (moments < row[LOG_START_S] + row[LOG_SECONDS])
            level[inside] += CAPACITY - row[column] if name == "kv_use" else row[column]
        if name == "kv_use":
            level /= 2 * CAPACITY
        found[name] = (float(level.mean()), float(level.max()))
    return found


def agrees(levels: Timeline | None, log: Float64s, replica: Int32s, end_s: float) -> bool:
    assert levels is not None
    looked = at_moments(log, replica, end_s)
    return all(
        np.allclose((getattr(levels, name).mean, getattr(levels, name).peak), looked[name])
        for name in looked
    )


@given(given_log=logs(), idle=st.sampled_from([0.0, 0.5]))
@given_settings(max_examples=60, deadline=None)
def test_levels_of_two_engines_are_their_sums(
    given_log: tuple[Float64s, Int32s], idle: float
) -> None:
    log, replica = given_log
    if not len(log):
        return
    end_s = float((log[:, LOG_START_S] + log[:, LOG_SECONDS]).max()) + idle
    found = timeline(log, CAPACITY, end_s, 7, replica=replica, replicas=2)
    assert agrees(found, log, replica, end_s)
    assert found is not None
    assert found.busy == pytest.approx(log[:, LOG_SECONDS].sum() / end_s / 2)
    # The means of the intervals are those of the whole.
    assert np.mean(found.running.means) == pytest.approx(found.running.mean)


def test_as_if_of_one_engine_they_are_wrong() -> None:
    found = served().simulation
    log, replica = found.step_log, found.step_replica
    assert log is not None
    assert replica is not None
    one = timeline(log, 11, found.end_s)
    both = timeline(log, 11, found.end_s, replica=replica, replicas=2)
    assert one is not None
    assert both is not None
    apart = [timeline(log[replica == engine], 11, found.end_s) for engine in range(2)]
    sums = [each.running.mean for each in apart if each is not None]
    assert both.running.mean == pytest.approx(sum(sums))
    assert both.running.peak == 4 > one.running.peak, "two engines, two requests each"
    assert both.busy <= 1 < one.busy
    kv = [each.kv_use.mean for each in apart if each is not None]
    assert both.kv_use.mean == pytest.approx(sum(kv) / 2)


def test_rounding_between_two_steps_makes_no_peak() -> None:
    log = np.zeros((2, LOG_COLUMNS))
    log[:, LOG_RUNNING] = 3
    log[:, LOG_START_S] = [0.0, 1e3]
    log[:, LOG_SECONDS] = [1e3 + 2e-10, 1.0]
    found = timeline(log, 4, 1001.0, replica=np.zeros(2, np.int32), replicas=2)
    assert found is not None
    assert found.running.peak == 3


def test_a_result_says_what_each_engine_did() -> None:
    both = served()
    result = both.result
    assert result.config["data_parallel_size"] == 2
    assert result.config["routing"] == "round-robin"
    engines = result.summary.engines
    assert [each.requests for each in engines] == [10, 10]
    assert sum(each.finished for each in engines) == result.summary.finished == 20
    levels = result.summary.timeline
    assert levels is not None
    assert levels.busy == pytest.approx(sum(each.busy or 0 for each in engines) / 2)
    assert levels.kv_use.peak <= 1
    assert served(data_parallel_size=1, routing=None).result.summary.engines == ()


def test_tables_and_the_trace_name_the_engine() -> None:
    found = served().simulation
    assert request_table(found)["replica"] == [0, 1] * 10
    assert found.step_log is not None
    steps = step_table(found.step_log, found.step_replica)
    assert set(steps["replica"]) == {0, 1}
    assert max(steps["running"]) == 2
    events = list(chrome_events(found))
    named = [each["args"]["name"] for each in events if each["name"] == "process_name"]
    assert named == ["requests", "engine 0", "engine 1"]
    running = [each for each in events if each["name"] == "running" and each["ph"] == "C"]
    for engine in range(2):
        values = [e["args"]["value"] for e in running if e["pid"] == ENGINE + engine]
        assert max(values) == 2
        assert values[-1] == 0
    one = served(data_parallel_size=1, routing=None).simulation
    assert "replica" not in request_table(one)


def test_admission_and_swap_are_in_the_totals() -> None:
    limited = served(
        data_parallel_size=1, routing=None, max_waiting=3, pause_above=0.5, degrade="unstored",
        degrade_above=0.3,
    )  # fmt: skip
    summary = limited.result.summary
    why = "the queue is full: max_waiting requests wait"
    assert summary.rejected_because == {why: summary.rejected}
    assert summary.rejected > 5
    assert summary.paused_steps == limited.simulation.summary()["paused_steps"] > 0
    assert summary.degraded == limited.simulation.summary()["degraded"] > 0
    table = request_table(limited.simulation)
    turned = [at for at, each in enumerate(table["status"]) if each == "rejected"]
    assert [table["rejected_s"][at] is not None for at in turned] == [True] * len(turned)
    assert sum(table["degraded"]) == summary.degraded
    said = " ".join(limited.result.sentences)
    assert f"Rejected: {summary.rejected} requests ({why})" in said
    assert "Nobody was admitted in" in said
    assert "Served without being stored" in said


def test_a_second_tier_is_counted_in_blocks_of_the_model() -> None:
    tight = {"data_parallel_size": 1, "routing": None, "num_gpu_blocks_override": 7}
    moved = served(swap_space=1.0, swap_bandwidth=25.0, **tight).result
    swap = moved.summary.swap
    assert swap is not None
    # Llama 3.1 8B: 128 KiB a token, so 2 MiB a block of 16 and 512 blocks a GiB.
    assert moved.config["swap_blocks"] == 512
    assert swap.preemptions == moved.summary.preemptions > 0
    assert swap.out_blocks > 0
    assert swap.seconds == pytest.approx((swap.out_blocks + swap.back_blocks) * 2**21 / 25e9)
    full = served(swap_space=0.0, swap_bandwidth=25.0, **tight).result
    assert full.summary.swap is not None
    assert full.summary.swap.refused == full.summary.preemptions
    assert any(each.startswith("The second tier was full") for each in full.sentences)
    assert served(**tight).result.summary.swap is None
    # Two ranks hold half a block each.
    ranks = served(swap_space=1.0, swap_bandwidth=25.0, tensor_parallel_size=2, **tight).result
    assert ranks.config["swap_blocks"] == 1024


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"swap_space": 1.0}, "go together"),
        ({"swap_bandwidth": 1.0}, "go together"),
        ({"swap_space": -1.0, "swap_bandwidth": 1.0}, "at least 0 GiB"),
        ({"swap_space": float("nan"), "swap_bandwidth": 1.0}, "at least 0 GiB"),
        ({"swap_space": 1.0, "swap_bandwidth": 0.0}, "above 0 GB/s"),
        ({"rate": 1.0, "speedup": 2.0}, "none of them is used"),
        ({"think_s": 1.0}, "needs sessions"),
        ({"sessions": True}, "session column"),
        ({"degrade": "unstored"}, "go together"),
        ({"data_parallel_size": 0}, "data_parallel_size"),
        ({"routing": "random"}, "unknown routing"),
    ],
)
def test_faults_are_said_in_one_line(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        served(**wrong)
    assert "\n" not in str(caught.value)


def test_arrivals_reach_the_engine() -> None:
    one = serve(TRACE, dataclasses.replace(ASKED, rate=4.0, seed=3), compiled=False)
    assert one.simulation.arrival_s[-1] == pytest.approx(19 / 4.0)
    other = serve(TRACE, dataclasses.replace(ASKED, rate=4.0, seed=4), compiled=False)
    assert not np.array_equal(one.simulation.arrival_s, other.simulation.arrival_s)
    assert (one.result.config["rate"], one.result.config["speedup"]) == (4.0, None)
    talks = in_sessions(TRACE, [0, 1, 0, 1] * 5)
    asked = dataclasses.replace(ASKED, sessions=True, think_s=2.0)
    waited = serve(talks, asked, compiled=False)
    arrival, end = waited.simulation.arrival_s, waited.simulation.finished_s
    assert arrival[2] == end[0] + 2.0
    assert "wait for answers" in str(waited.result.summary.overload.why_unknown)
    at_once = serve(TRACE, dataclasses.replace(ASKED, rate=float("inf")), compiled=False).result
    assert at_once.config["all_at_once"] is True
    json.dumps(at_once.config, allow_nan=False)


def test_overload_names_the_rate_to_ask() -> None:
    many = plain([(1, 8)] * 120)
    slow = dataclasses.replace(
        ASKED, max_num_seqs=1, data_parallel_size=1, routing=None, burstiness=float("inf")
    )
    alone = serve(plain([(1, 8)]), slow_of(slow), compiled=False).simulation.end_s
    asked = dataclasses.replace(slow, rate=3 / alone)
    (said,) = (
        each
        for each in serve(many, asked, compiled=False).result.sentences
        if each.startswith("OVERLOADED")
    )
    assert f"(--rate {1 / alone:,.2g})" in said


def slow_of(asked: Asking) -> Asking:
    """The same without a rate, for one request alone."""
    return dataclasses.replace(asked, burstiness=1.0)
