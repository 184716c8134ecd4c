"""The table of many runs: headings, units, marks and their legend."""

from __future__ import annotations

import dataclasses

import msgspec
import numpy as np
import pytest
from serving import plain

from kvsched.report import format, points_table
from kvsched.report.points_table import asked_line, label, legend, rate_table, sweep_table
from kvsched.report.simulation import band_rows, latency_rows
from kvsched.report.sweep import render_rate, render_sweep
from kvsched.serve.find_rate import find_rate
from kvsched.serve.served import Asking, serve
from kvsched.serve.summary import Objective
from kvsched.serve.sweep import SweepResult, parse_sweep, sweep

TRACE = dataclasses.replace(
    plain([(2, 20), (3, 9)] * 30, session=None), time_s=np.arange(60) * 0.05
)
ASKED = Asking(
    model="llama-3.1-8b", gpu="h100", num_gpu_blocks_override=40, band=False,
    objective=Objective(ttft_s=0.5, tpot_s=0.0625), enable_prefix_caching=False,
)  # fmt: skip
GRID = parse_sweep(["max-num-seqs=2,64 horizon=none,9.5"])
SWEEP = sweep(TRACE, ASKED, GRID, compiled=False, threads=1)


def changed(**figures: object) -> SweepResult:
    """The sweep, its first point on both fronts and with other figures."""
    first, *others = SWEEP.points
    assert first.figures is not None
    point = msgspec.structs.replace(
        first, figures=msgspec.structs.replace(first.figures, **figures)
    )
    return msgspec.structs.replace(
        SWEEP, points=(point, *others), front_ttft=(0,), front_latency=(0,)
    )


def test_options_have_their_own_names_and_units() -> None:
    line = asked_line(SWEEP)
    assert "slo-ttft-ms=500 slo-tpot-ms=62.5" in line
    assert "enable-prefix-caching=false" in line
    assert "_" not in line
    assert "sessions" not in line
    assert [label(point) for point in SWEEP.points[:2]] == [
        "max-num-seqs=2 horizon=none", "max-num-seqs=2 horizon=9.5",
    ]  # fmt: skip


def test_the_columns_are_there_with_an_objective() -> None:
    headings, rows = sweep_table(SWEEP)
    unit = "ms" if all(each == "TTFT p99 ms" for each in headings[3:4]) else "s"
    assert headings == [
        "goodput/s", "req/s", f"TTFT p50 {unit}", f"TTFT p99 {unit}", "TPOT p99 ms",
        headings[5], "hit", "busy",
    ]  # fmt: skip
    for point, (_, cells, _) in zip(SWEEP.points, rows, strict=True):
        found = point.figures
        assert found is not None
        assert cells[1] == format.short(found.requests_s)
        assert cells[7] == format.share(found.utilisation, 0)
        assert float(cells[4]) == pytest.approx(1e3 * (found.tpot_p99_s or 0), rel=0.01)
        scale = 1e3 if unit == "ms" else 1.0
        assert float(cells[2]) == pytest.approx(scale * (found.ttft_p50_s or 0), rel=0.01)
    assert len(headings) == len(rows[0][1])


@pytest.mark.parametrize(
    ("overloaded", "busy", "said"),
    [
        (False, 1.0, "front"),
        (None, 0.5, "front; overload?"),
        (None, 0.995, "front?; overload?"),
        (True, 0.995, "front; overload"),
    ],
)
def test_what_cannot_be_told_has_a_mark(overloaded: bool | None, busy: float, said: str) -> None:
    result = changed(overloaded=overloaded, utilisation=busy, rejected=0, unfinished=0)
    _, rows = sweep_table(result)
    assert rows[0][2] == said
    marks = [line.split(":")[0] for line in legend(rows[:1])]
    assert marks == [mark for mark in points_table.LEGEND if mark in said]
    page = render_sweep(result)
    assert all(line in page for line in legend(rows[:1]))


def test_a_search_marks_it_too() -> None:
    result = find_rate(
        TRACE, dataclasses.replace(ASKED, speedup=4.0, max_num_seqs=2), compiled=False, threads=1
    )
    headings, rows = rate_table(result)
    assert headings[:2] == ["meet it", "req/s"]
    for tried, (_, _, said) in zip(result.tried, rows, strict=True):
        found = tried.point.figures
        assert ("overload?" in said) is (found is not None and found.overloaded is None)
    assert render_rate(result).count('class="advice"') == 1


def test_the_verdict_has_words_or_no_box() -> None:
    page = render_sweep(SWEEP)
    assert SWEEP.sentences
    assert '<div class="advice">' in page
    assert '<div class="advice">' not in render_sweep(msgspec.structs.replace(SWEEP, sentences=()))


@pytest.mark.parametrize(
    ("values", "texts"),
    [
        ([0.00627, 0.0256, None], ["6.27 ms", "25.6 ms", "–"]),
        ([0.99949, 0.5], ["999 ms", "500 ms"]),
        ([0.99999], ["1,000 ms"]),
        ([0.00627, 1.5], ["0.00627 s", "1.5 s"]),
        ([5560.0, 0.5], ["92.7 min", "0.5 s"]),
        ([0.0], ["0 ms"]),
        ([None], ["–"]),
    ],
)
def test_latencies_of_a_row_have_one_unit(values: list[float | None], texts: list[str]) -> None:
    assert format.latencies(values) == texts


def test_no_seconds_have_an_exponent() -> None:
    for value in (5.56e3, 1.9e5, 999.6, 1e-4, 0.0009999, 119.97):
        texts, unit = format.in_unit([value, 1.0])
        assert unit == "s"
        assert "e" not in texts[0]
        assert "e" not in format.seconds(value).replace("sec", "")
    assert format.in_unit([5560.0])[0] == ["5,560"]
    assert format.in_unit([1e-4, 2.0])[0] == ["<0.001", "2"]


def test_the_tables_of_one_run_have_ms() -> None:
    served = serve(TRACE, dataclasses.replace(ASKED, band=True), compiled=False)
    tpot = dict(latency_rows(served.result.summary))["TPOT"]
    assert all(text.endswith(" ms") for text in tpot)
    found = served.result.summary.tpot_s
    assert found is not None
    assert float(tpot[4].split()[0]) == pytest.approx(1e3 * found.p99, rel=0.01)
    assert all(text.endswith(" ms") for text in dict(band_rows(served.result))["TPOT p99"])
