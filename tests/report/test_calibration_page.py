"""The page of a calibration, in a real browser and in the terminal."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from make_result import HOSTILE
from opened_page import drawn_figures, opened_page
from rich.console import Console
from synthetic import made

from kvsched.evidence.calibrate.result import CachedDifference, Calibrated
from kvsched.evidence.calibrate.run import calibrate
from kvsched.report.calibration import figures, print_calibration, render_calibration

USUAL = calibrate([made(1, 60), made(4, 60)])
replace = msgspec.structs.replace


def hostile() -> Calibrated:
    """Every hostile name where a name from outside can stand."""
    first, second = USUAL.result.runs
    names = {first.name: HOSTILE[0], second.name: HOSTILE[1]}
    cached = replace(
        first.cached,
        note=HOSTILE[2],
        different=1,
        first=(CachedDifference(index=3, measured=32, predicted=0),),
    )
    runs = (
        replace(first, name=HOSTILE[0], notes=HOSTILE, cached=cached, workload_digest=HOSTILE[3]),
        replace(second, name=HOSTILE[1], engine={HOSTILE[4]: HOSTILE[5]}, notes=HOSTILE[6:]),
    )
    fit = replace(
        USUAL.result.fit, fitted_from=replace(USUAL.result.fit.fitted_from, source=HOSTILE[4])
    )
    result = replace(USUAL.result, runs=runs, fit=fit, sentences=HOSTILE[:6])
    return Calibrated(result, tuple(replace(each, run=names[each.run]) for each in USUAL.pairs))


FOUND = {"usual": USUAL, "hostile": hostile()}


@pytest.mark.parametrize(("name", "width"), [("usual", 1280), ("usual", 375), ("hostile", 375)])
def test_every_figure_is_drawn(browser: Any, tmp_path: Path, name: str, width: int) -> None:
    with opened_page(browser, render_calibration(FOUND[name]), tmp_path, width) as page:
        assert drawn_figures(page) == list(figures(FOUND[name]))
        assert page.locator("img").count() == 0


def test_figures_are_the_numbers() -> None:
    drawn = figures(USUAL)
    assert list(drawn) == [
        "figure-ttft",
        "figure-ttft-requests",
        "figure-tpot",
        "figure-tpot-requests",
    ]
    points = drawn["figure-ttft-requests"]["data"][0]
    mine = [each for each in USUAL.pairs if each.run == "c1"]
    assert points["customdata"] == [each.index for each in mine]
    assert points["x"] == pytest.approx([each.measured_ttft_s for each in mine], rel=1e-5)
    assert points["y"] == pytest.approx([each.predicted_ttft_s for each in mine], rel=1e-5)
    measured = drawn["figure-ttft"]["data"][0]
    error = USUAL.result.runs[0].ttft
    assert error is not None
    assert measured["x"] == sorted(measured["x"])
    assert measured["x"][-1] == pytest.approx(error.measured.max, rel=1e-5)
    assert measured["y"][-1] == 100
    assert render_calibration(USUAL) == render_calibration(USUAL)


def printed(found: Calibrated, encoding: str) -> str:
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding=encoding, newline="")
    print_calibration(found.result, Console(file=file, width=80, highlight=False))
    file.flush()
    return raw.getvalue().decode(encoding)


@pytest.mark.parametrize("name", FOUND)
@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_the_terminal_holds_80_columns(name: str, encoding: str) -> None:
    text = printed(FOUND[name], encoding)
    assert all(len(line) <= 80 for line in text.splitlines())
    assert "\x1b" not in text
    for said in ("TTFT", "step_s", "cached tokens"):
        assert said in text
    # Each number stands under its heading.
    rows = [line for line in text.splitlines() if re.search(r"\d of \d+$", line.rstrip())]
    for row, run in zip(rows, FOUND[name].result.runs, strict=True):
        cached = run.cached
        assert row.rstrip().endswith(f" {cached.different} of {cached.compared}")
