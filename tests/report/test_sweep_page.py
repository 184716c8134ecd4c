"""A sweep and a search for a rate, in a real browser and in the terminal."""

from __future__ import annotations

import dataclasses
import io
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from make_result import HOSTILE
from opened_page import drawn_figures, opened_page
from rich.console import Console
from serving import plain

from kvsched.report.sweep import (
    print_rate,
    print_sweep,
    rate_figure,
    render_rate,
    render_sweep,
    sweep_figures,
)
from kvsched.serve.find_rate import RateResult, find_rate
from kvsched.serve.served import Asking
from kvsched.serve.summary import Objective
from kvsched.serve.sweep import SweepResult, parse_sweep, sweep

TRACE = dataclasses.replace(
    plain([(2, 20), (3, 9)] * 30, session=None), time_s=np.arange(60) * 0.05
)
ASKED = Asking(
    model="llama-3.1-8b", gpu="h100", num_gpu_blocks_override=40, band=False,
    objective=Objective(ttft_s=0.5),
)  # fmt: skip
GRID = parse_sweep(["max-num-seqs=1,2,64 speedup=1,8 max-num-batched-tokens=32,2000"])
SWEEP = sweep(TRACE, ASKED, GRID, compiled=False, threads=1)
RATE = find_rate(TRACE, dataclasses.replace(ASKED, max_num_seqs=2), compiled=False, threads=1)


def hostile() -> SweepResult:
    points = tuple(
        msgspec.structs.replace(point, settings={"model": name}, fault=name if at else None)
        for at, (point, name) in enumerate(zip(SWEEP.points, HOSTILE, strict=False))
    )
    return msgspec.structs.replace(
        SWEEP, trace={**SWEEP.trace, "source": HOSTILE[0]}, asked={"model": HOSTILE[1]},
        points=points, front_ttft=(0,), front_latency=(0,),
    )  # fmt: skip


PAGES = {
    "sweep": (render_sweep(SWEEP), list(sweep_figures(SWEEP))),
    "hostile": (render_sweep(hostile()), list(sweep_figures(hostile()))),
    "rate": (render_rate(RATE), ["figure-rate"]),
}


@pytest.mark.parametrize(("name", "width"), [("sweep", 1280), ("hostile", 375), ("rate", 375)])
def test_every_figure_is_drawn(browser: Any, tmp_path: Path, name: str, width: int) -> None:
    html, expected = PAGES[name]
    with opened_page(browser, html, tmp_path, width) as page:
        assert drawn_figures(page) == expected


def test_the_figure_is_the_front() -> None:
    for latency, front in (("ttft", SWEEP.front_ttft), ("latency", SWEEP.front_latency)):
        data = sweep_figures(SWEEP)[f"figure-{latency}-front"]["data"]
        (on,) = (each for each in data if each["name"] == "front")
        assert on["mode"] == "lines+markers"
        figures = [SWEEP.points[at].figures for at in front]
        expected = [getattr(each, f"{latency}_p99_s") for each in figures]
        assert on["x"] == pytest.approx(expected, rel=1e-5)
        assert on["y"] == pytest.approx([each and each.goodput_s for each in figures], rel=1e-5)
        drawn = sum(len(each["x"]) for each in data)
        assert drawn == sum(point.figures is not None for point in SWEEP.points)
    assert any(point.fault for point in SWEEP.points)
    assert any(point.figures and point.figures.overloaded for point in SWEEP.points)


def test_the_figure_of_a_search_has_every_rate() -> None:
    data = rate_figure(RATE)["data"]
    drawn = sorted(x for each in data for x in each["x"])
    assert drawn == pytest.approx([tried.value for tried in RATE.tried], rel=1e-5)
    assert [each["name"] for each in data] == ["holds", "fails"]


def printed(result: SweepResult | RateResult, encoding: str = "utf-8", width: int = 80) -> str:
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding=encoding, newline="")
    console = Console(file=file, width=width, highlight=False)
    if isinstance(result, RateResult):
        print_rate(result, console)
    else:
        print_sweep(result, console)
    file.flush()
    return raw.getvalue().decode(encoding)


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
@pytest.mark.parametrize("result", [SWEEP, RATE, hostile()])
def test_the_terminal_holds_80_columns(result: Any, encoding: str) -> None:
    text = printed(result, encoding)
    assert all(len(line) <= 80 for line in text.splitlines())
    assert "\x1b" not in text


def test_the_terminal_says_what_the_result_says() -> None:
    text = " ".join(printed(SWEEP, width=200).split())
    assert "12 points: max-num-seqs · speedup · max-num-batched-tokens" in text
    assert "front" in text.split("front: points that")[0]
    assert "overload" in text
    for sentence in SWEEP.sentences:
        assert sentence in text
    assert "could not run: max_num_batched_tokens" in text
    assert "slo-ttft-ms=500" in text
    assert "slo_ttft" not in PAGES["sweep"][0].split("<body")[1].split("<script")[0]
    text = " ".join(printed(RATE, width=300).split())
    for sentence in RATE.sentences:
        assert sentence in text
    assert render_sweep(SWEEP) == PAGES["sweep"][0]
