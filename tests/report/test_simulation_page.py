"""A simulated run in a real browser and in the terminal."""

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

from kvsched.report.simulation import figures, print_simulation, render_simulation
from kvsched.serve.served import Asking, ServeResult, serve
from kvsched.serve.summary import Objective
from kvsched.trace.model import Labels


def made(horizon: float | None = None, requests: int = 60, **more: Any) -> ServeResult:
    tenant = Labels(np.arange(requests, dtype=np.int32) % 2, ("a", "b"))
    trace = plain([(2, 20)] * requests, tenant=tenant)
    trace = dataclasses.replace(trace, time_s=np.arange(requests) * 0.01)
    asked = Asking(
        model="llama-3.1-8b", gpu="h100", num_gpu_blocks_override=40, max_num_seqs=2,
        horizon_s=horizon, objective=Objective(ttft_s=0.5, tpot_s=0.1),
    )  # fmt: skip
    return serve(trace, dataclasses.replace(asked, **more), compiled=False).result


USUAL = made()
LOST = made(horizon=1e-9)


def hostile() -> ServeResult:
    """Every hostile name where a name from outside can stand."""
    trace = {**USUAL.trace, "source": HOSTILE[0]}
    config = {**USUAL.config, "scheduling_policy": HOSTILE[1], "eviction_policy": HOSTILE[3]}
    config |= {"model": HOSTILE[4]}
    step_time = msgspec.structs.replace(
        USUAL.step_time, file=HOSTILE[5], assumptions=(HOSTILE[2], HOSTILE[6])
    )
    return msgspec.structs.replace(
        USUAL, trace=trace, config=config, step_time=step_time, derivation=HOSTILE
    )


RESULTS = {
    "usual": USUAL,
    "lost": LOST,
    "hostile": hostile(),
    "plain": made(band=False, objective=None),
}


def test_the_runs_are_what_they_are_for() -> None:
    assert USUAL.summary.overload.overloaded is True
    assert LOST.summary.finished == 0
    assert LOST.summary.ttft_s is not None, "one step was made"


@pytest.mark.parametrize(
    ("name", "width"),
    [("usual", 1280), ("usual", 375), ("hostile", 375), ("lost", 1280), ("plain", 375)],
)
def test_every_figure_is_drawn(browser: Any, tmp_path: Path, name: str, width: int) -> None:
    with opened_page(browser, render_simulation(RESULTS[name]), tmp_path, width) as page:
        assert drawn_figures(page) == list(figures(RESULTS[name]))
        assert page.locator("img").count() == 0


def test_the_page_says_what_the_result_says() -> None:
    html = render_simulation(USUAL)
    for text in ("What requests saw", "figure-kv", "figure-queue", "OVERLOADED", "TTFT p99"):
        assert text in html
    assert html.index('class="warning" role="note"') > 0
    assert render_simulation(USUAL) == html
    assert "TTFT p99" not in render_simulation(RESULTS["plain"])
    assert "figure-tpot" not in figures(LOST)


def test_figures_are_the_numbers() -> None:
    drawn = figures(USUAL)
    mean, peak = drawn["figure-kv"]["data"]
    levels = USUAL.summary.timeline
    assert levels is not None
    assert mean["y"] == pytest.approx([100 * value for value in levels.kv_use.means], rel=1e-5)
    assert peak["y"] == pytest.approx([100 * value for value in levels.kv_use.peaks], rel=1e-5)
    assert len(mean["x"]) == len(levels.edges_s) - 1
    middle, low, high = drawn["figure-ttft"]["data"]
    assert (middle["name"], low["name"], high["name"]) == ("middle", "low", "high")
    found = USUAL.summary.ttft_s
    assert found is not None
    assert middle["x"][6] == pytest.approx(found.p75, rel=1e-5)
    assert middle["y"][6] == 75
    assert middle["x"] == sorted(middle["x"])
    queue = drawn["figure-queue"]["data"][0]["y"]
    assert max(queue) > 40


def printed(result: ServeResult, encoding: str = "utf-8", width: int = 80) -> str:
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding=encoding, newline="")
    print_simulation(result, Console(file=file, width=width, highlight=False))
    file.flush()
    return raw.getvalue().decode(encoding)


@pytest.mark.parametrize("name", RESULTS)
@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_the_terminal_holds_80_columns(name: str, encoding: str) -> None:
    text = printed(RESULTS[name], encoding)
    assert all(len(line) <= 80 for line in text.splitlines())
    assert "\x1b" not in text
    for said in ("TTFT", "queue wait", "percentiles: linear between neighbours"):
        assert said in text


def test_the_terminal_says_what_the_result_says() -> None:
    text = " ".join(printed(USUAL, width=200).split())
    assert "OVERLOADED: 100 requests arrive a second" in text
    assert "meta-llama/Llama-3.1-8B on 1 × H100-SXM; 39 blocks of 16 tokens" in text
    assert "With the step time's band low middle high" in text
    assert "fairness of rates" in text
    assert "(TTFT ≤ 0.5 s, TPOT ≤ 0.1 s)" in text
    for term, meaning in USUAL.definitions.items():
        assert f"{term}: {meaning}" in text
    without = printed(RESULTS["plain"], width=200)
    assert "low" not in without.split("In total")[0].split("middle")[0]
    assert "goodput  " not in without
