"""The files of a run: aiperf's shape, the trace of what ran when, the tables, all or none."""

from __future__ import annotations

import dataclasses
import errno
import itertools
import json
import math
from pathlib import Path
from typing import IO, Any

import numpy as np
import polars as pl
import pytest
from serving import plain

from kvsched.foundation import files as whole_files
from kvsched.foundation.errors import KvschedError, UsageError
from kvsched.serve import chrome_trace as chrome
from kvsched.serve.aiperf import aiperf_export
from kvsched.serve.chrome_trace import chrome_events, chrome_trace, slots
from kvsched.serve.files import NAMES, file_names, prepare_folder, write_served
from kvsched.serve.rows import request_table, step_table
from kvsched.serve.served import Asking, Served, serve
from kvsched.serve.state import LOG_PREEMPTED, LOG_TOKENS
from kvsched.serve.summary import Objective
from kvsched.trace.model import Labels

GOAL = Objective(ttft_s=0.05, tpot_s=0.02)
TENANT = Labels(np.array([0, 1, -1] * 4, np.int32), ("a", "b"))


def served(**more: Any) -> Served:
    """A run with preemptions, a rejection and idle time."""
    trace = plain(
        [(1, 60), (2, 80), (3, 40), (1, 90)] * 3,
        [0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0],
        tenant=TENANT,
    )
    asked = Asking(
        model="llama-3.1-8b", gpu="h100", num_gpu_blocks_override=9, max_num_seqs=4,
        max_num_batched_tokens=64, band=False, objective=GOAL,
    )  # fmt: skip
    return serve(trace, dataclasses.replace(asked, **more), compiled=False)


RUN = served()


def test_the_run_has_what_the_tests_need() -> None:
    total = RUN.result.summary
    assert total.preemptions > 0
    assert served(max_model_len=45).result.summary.rejected > 0
    assert total.timeline is not None
    assert total.timeline.busy < 0.9


def test_aiperfs_shape() -> None:
    found = aiperf_export(RUN)
    sim = RUN.simulation
    first = found["time_to_first_token"]
    assert list(first) == [
        "unit", "avg", "p1", "p5", "p10", "p25", "p50", "p75", "p90", "p95", "p99", "min", "max",
        "std", "count", "sum",
    ]  # fmt: skip
    assert first["unit"] == "ms"
    assert first["avg"] == pytest.approx(1e3 * np.mean(sim.first_token_s - sim.arrival_s))
    assert first["p99"] == pytest.approx(1e3 * np.percentile(sim.ttft_s, 99))
    between = (sim.latency_s - sim.ttft_s) / (sim.trace.output_tokens - 1)
    assert found["inter_token_latency"]["p50"] == pytest.approx(1e3 * np.median(between))
    per_user = found["output_token_throughput_per_user"]
    assert per_user["unit"] == "tokens/sec/user"
    assert per_user["avg"] == pytest.approx(np.mean(1 / between))
    assert found["request_throughput"] == {"unit": "requests/sec", "avg": 12 / sim.end_s}
    assert found["total_osl"]["avg"] == sim.trace.output_tokens.sum()
    assert found["output_sequence_length"]["sum"] == found["total_osl"]["avg"]
    assert found["request_count"] == {"unit": "requests", "avg": 12}
    good = sum(
        t <= 0.05 and b <= 0.02 for t, b in zip(sim.ttft_s.tolist(), between.tolist(), strict=True)
    )
    assert found["good_request_count"]["avg"] == good
    assert found["goodput"]["avg"] == good / sim.end_s
    assert found["error_summary"] == []
    for name, block in found.items():
        if isinstance(block, dict) and name != "kvsched":
            assert all(math.isfinite(value) for value in block.values() if value != block["unit"])


def test_aiperf_counts_who_did_not_finish_as_errors() -> None:
    run = served(max_model_len=45, horizon_s=0.1)
    found = aiperf_export(run)
    sim = run.simulation
    assert found["request_count"]["avg"] == sim.finished.sum()
    assert found["request_count"]["avg"] + found["error_request_count"]["avg"] == 12
    assert (
        sum(each["count"] for each in found["error_summary"])
        == (found["error_request_count"]["avg"])
    )
    if sim.finished.any():
        assert found["request_latency"]["count"] == sim.finished.sum()
    assert "time_to_second_token" not in found, "what is not measured is left out"


def test_slots_never_overlap_and_are_few() -> None:
    drawn = np.random.default_rng(2)
    starts = np.sort(drawn.uniform(0, 50, 200))
    ends = starts + drawn.exponential(2.0, 200)
    found = np.array(slots(starts, ends))
    for slot in set(found.tolist()):
        mine = np.flatnonzero(found == slot)
        assert (starts[mine][1:] >= ends[mine][:-1]).all()
    most = max(int(((starts <= at) & (ends > at)).sum()) for at in starts)
    assert found.max() + 1 == most
    assert slots(np.array([0.0, 1.0]), np.array([1.0, 2.0])) == [0, 0]


def test_what_ran_when() -> None:
    document = json.loads(b"".join(chrome_trace(RUN.simulation)))
    events = document["traceEvents"]
    sim = RUN.simulation
    bars = [event for event in events if event["ph"] == "X"]
    assert {event["cat"] for event in bars} == {"prefill", "decode"}
    for request in range(12):
        mine = [event for event in bars if event["args"]["request"] == request]
        assert [event["cat"] for event in mine] == ["prefill", "decode"]
        assert mine[0]["ts"] == pytest.approx(1e6 * sim.scheduled_s[request], abs=1e-3)
        assert mine[1]["ts"] == pytest.approx(1e6 * sim.first_token_s[request], abs=1e-3)
        assert mine[1]["ts"] + mine[1]["dur"] == pytest.approx(
            1e6 * sim.finished_s[request], abs=2e-3
        )
    for track in {event["tid"] for event in bars}:
        mine = sorted((e["ts"], e["dur"]) for e in bars if e["tid"] == track)
        assert all(a + d <= b + 1e-2 for (a, d), (b, _) in itertools.pairwise(mine))
    instants = [event for event in events if event["ph"] == "i"]
    assert sum(event["args"]["requests"] for event in instants) == (RUN.result.summary.preemptions)
    named = {event["args"]["name"] for event in events if event["ph"] == "M"}
    assert {"requests", "engine", "slot 0"} <= named
    for event in events:
        assert {"ph", "name", "pid", "tid"} <= set(event)
        assert event["ph"] == "M" or event["ts"] >= 0


def counter(events: list[dict[str, Any]], name: str) -> list[tuple[float, float]]:
    return [
        (event["ts"], event["args"]["value"])
        for event in events
        if event["ph"] == "C" and event["name"] == name
    ]


def test_counters_fall_to_0_where_nothing_runs() -> None:
    found = counter(list(chrome_events(RUN.simulation)), "running")
    values = [value for _, value in found]
    assert values[-1] == 0
    assert 0 in values[1:-1], "between two rushes nobody runs"
    assert max(values) == RUN.result.summary.timeline.running.peak  # type: ignore[union-attr]
    times = [at for at, _ in found]
    assert times == sorted(times)
    assert all(a != b for a, b in itertools.pairwise(values)), "only changes"
    # The integral of the counter is that of the level.
    area = sum(v * (b - a) for (a, v), (b, _) in itertools.pairwise(found))
    levels = RUN.result.summary.timeline
    assert levels is not None
    assert area / 1e6 == pytest.approx(levels.running.mean * RUN.simulation.end_s, rel=1e-6)


def test_many_steps_become_means(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chrome, "MOST_STEPS", 20)
    found = counter(list(chrome_events(RUN.simulation)), "running")
    assert 5 < len(found) <= 21
    area = sum(v * (b - a) for (a, v), (b, _) in itertools.pairwise(found))
    levels = RUN.result.summary.timeline
    assert levels is not None
    assert area / 1e6 == pytest.approx(levels.running.mean * RUN.simulation.end_s, rel=1e-6)


def test_a_rejection_is_an_instant_with_its_reason() -> None:
    run = served(max_model_len=45)
    found = [event for event in chrome_events(run.simulation) if event["ph"] == "i"]
    rejected = [event["args"] for event in found if event["name"] == "rejection"]
    assert {each["request"] for each in rejected} == set(
        np.flatnonzero(run.simulation.rejected).tolist()
    )
    assert {each["reason"] for each in rejected} == {"its prompt reaches max_model_len"}


def test_tables() -> None:
    table = request_table(RUN.simulation, GOAL)
    assert {len(column) for column in table.values()} == {12}
    assert table["tenant"][:3] == ["a", "b", None]
    assert "session" in table
    nameless = dataclasses.replace(RUN.simulation.trace, session=None)
    assert "session" not in request_table(dataclasses.replace(RUN.simulation, trace=nameless))
    assert sum(table["good"]) == RUN.result.summary.goodput.requests  # type: ignore[union-attr]
    assert "good" not in request_table(RUN.simulation)
    cut = request_table(served(max_model_len=45, horizon_s=0.1).simulation)
    at = cut["status"].index("rejected")
    assert cut["reason"][at] == "its prompt reaches max_model_len"
    assert cut["ttft_s"][at] is None
    assert set(cut["status"]) >= {"rejected", "not arrived"}
    log = RUN.simulation.step_log
    assert log is not None
    steps = step_table(log)
    assert sum(steps["tokens"]) == log[:, LOG_TOKENS].sum() == RUN.result.summary.computed_tokens
    assert sum(steps["preempted"]) == log[:, LOG_PREEMPTED].sum()
    assert steps["step"] == list(range(RUN.result.summary.steps))


def written(folder: Path, run: Served = RUN, **more: Any) -> dict[str, bytes]:
    folder.mkdir(exist_ok=True)
    write_served(run, folder, "<p>", **more)
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_files(tmp_path: Path) -> None:
    found = written(tmp_path / "a", objective=GOAL, exports=("jsonl", "parquet"), step_log=True)
    assert set(found) == {
        *NAMES, "requests.jsonl", "requests.parquet", "steps.jsonl", "steps.parquet"
    }  # fmt: skip
    again = written(
        tmp_path / "b", served(), objective=GOAL, exports=("jsonl", "parquet"), step_log=True
    )
    assert again == found, "the same bytes"
    other = written(tmp_path / "c", served(max_num_seqs=3))
    assert set(other) == {*NAMES, "requests.jsonl"}
    assert other["result.json"] != found["result.json"]
    rows = [json.loads(line) for line in found["requests.jsonl"].splitlines()]
    table = request_table(RUN.simulation, GOAL)
    assert rows == [dict(zip(table, row, strict=True)) for row in zip(*table.values(), strict=True)]
    assert pl.read_parquet(tmp_path / "a" / "requests.parquet").to_dicts() == rows
    steps = pl.read_parquet(tmp_path / "a" / "steps.parquet")
    assert steps["tokens"].sum() == RUN.result.summary.computed_tokens
    assert json.loads(found["summary.json"]) == json.loads(json.dumps(aiperf_export(RUN)))


def test_a_column_without_values_has_its_type(tmp_path: Path) -> None:
    run = served(horizon_s=0.001)
    written(tmp_path / "a", run, exports=("parquet",))
    frame = pl.read_parquet(tmp_path / "a" / "requests.parquet")
    assert frame["finished_s"].is_null().all()
    assert frame.schema["finished_s"] == pl.Float64
    assert frame.schema["reason"] == pl.String


@pytest.mark.parametrize("after", [0, 2, 4])
def test_a_full_disk_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "result.json").write_text("before")
    calls = []

    def full(*_: Any) -> None:
        calls.append(0)
        if len(calls) > after:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(whole_files.os, "fsync", full)
    with pytest.raises(KvschedError, match="No space left"):
        write_served(RUN, folder, "<p>")
    assert [path.name for path in folder.iterdir()] == ["result.json"]
    assert (folder / "result.json").read_text() == "before"


def test_a_fault_on_the_way_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(stream: IO[bytes], *_: Any) -> None:
        stream.write(b"half")
        raise KvschedError("broken")

    monkeypatch.setattr("kvsched.serve.files._write_table", broken)
    with pytest.raises(KvschedError, match="broken"):
        write_served(RUN, tmp_path, "<p>")
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_written_is_said_before(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"unknown export csv \(known: jsonl, parquet\)"):
        file_names(["csv"], step_log=False)
    (tmp_path / "report.html").mkdir()
    with pytest.raises(UsageError, match="is a folder"):
        prepare_folder(tmp_path, NAMES)
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot be made"):
        prepare_folder(tmp_path / "file", NAMES)
