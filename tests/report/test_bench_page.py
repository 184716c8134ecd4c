"""The pages of measured runs: self-contained, escaped, the same bytes, a dash for None."""

from __future__ import annotations

import io
import re
from typing import Any

import numpy as np
import pytest
from bench_results import NOTHING_SAID, failed, outcome, result, run
from rich.console import Console

from kvsched.engine.counters import Growth
from kvsched.engine.kinds.registry import KINDS
from kvsched.evidence.bench.bootstrap import BootstrapSettings
from kvsched.evidence.bench.compare import BenchComparison, compare_runs
from kvsched.evidence.bench.measured import RequestOutcome
from kvsched.evidence.bench.summary import EngineSaid
from kvsched.report.bench import MOST_LINES, figures, print_bench, render_bench, timeline
from kvsched.report.bench_compare import intervals, print_bench_comparison, render_bench_comparison

SAMPLES = {
    "at_s": [0.0, 0.5],
    "running": [1.0, 2.0],
    "waiting": [0.0, None],
    "kv_use": [None, None],
}
EVIL = "<script>alert(1)</script>"


def outcomes() -> list[RequestOutcome]:
    return [outcome(0), outcome(1, due_s=0.1, cached=32), failed(2, due_s=0.2)]


def comparison(**more: Any) -> BenchComparison:
    base = np.random.default_rng(0).gamma(4, 20, 40)
    pace = np.random.default_rng(1).normal(5, 0.5, (2, 40))
    one = run("off", base, tpot=pace[0])
    other = run("on", base / 2, tpot=pace[1], cached=32, **more)
    return compare_runs([one], [other], bootstrap=BootstrapSettings(draws=200))


def console() -> Console:
    return Console(file=io.StringIO(), width=80, highlight=False)


def text_of(shown: Console) -> str:
    assert isinstance(shown.file, io.StringIO)
    return shown.file.getvalue()


def outside(html: str) -> list[str]:
    """Addresses that a browser would fetch, plotly's own code left out."""
    bare = re.sub(r"<script>.*?</script>", "", html, flags=re.DOTALL)
    return re.findall(r"""(?:src|href)=["']?(?!data:|#)[^"'> ]+|@import|url\(""", bare)


def test_a_run_has_one_page_that_needs_nothing() -> None:
    found = result(outcomes(), said=EngineSaid(KINDS["vllm"], Growth({}, {}), {}))
    html = render_bench(found, outcomes(), SAMPLES)
    assert outside(html) == []
    assert html == render_bench(found, outcomes(), SAMPLES)
    for part in ("figure-ttft", "figure-itl", "figure-timeline", "figure-running", "failed: reset"):
        assert part in html
    assert 'id="figure-kv-use"' not in html
    assert outside('<link href="https://example.org/x.css">')


def test_names_are_escaped() -> None:
    found = result(outcomes(), name=EVIL, engine={"kind": EVIL, "model": EVIL}, warnings=(EVIL,))
    assert EVIL not in render_bench(found, outcomes(), {})
    assert EVIL not in render_bench_comparison(comparison(engine={"arguments": [f"--x={EVIL}"]}))


def test_what_was_not_measured_is_a_dash_with_its_reason() -> None:
    nothing = [failed(0)]
    html = render_bench(result(nothing), nothing, {})
    assert "no request ended well" in html
    assert "figure-ttft" not in html
    shown = console()
    print_bench(result(nothing), shown)
    assert re.search(r"request throughput +–", text_of(shown))
    assert re.search(r"failed: reset +1", text_of(shown))


def test_the_timeline_draws_each_request_up_to_a_limit() -> None:
    drawn = timeline(outcomes())
    assert [trace["name"] for trace in drawn["data"]] == ["to the first token", "answer", "failed"]
    assert drawn["data"][0]["x"][:3] == [0.0, 0.02, None]
    assert drawn["data"][2]["y"] == [2]
    many = [outcome(at) for at in range(MOST_LINES + 1)]
    shown = timeline(many)["data"][0]["y"]
    assert len(shown) == 3 * (MOST_LINES // 2 + 1)
    html = render_bench(result(many), many, {})
    assert "1,001 of 2,001 are drawn" in html


def test_gauges_leave_out_what_is_missing() -> None:
    drawn = figures(result(outcomes(), said=NOTHING_SAID), outcomes(), SAMPLES)
    assert drawn["figure-waiting"]["data"][0]["x"] == [0.0]
    assert "figure-kv-use" not in drawn


def test_a_comparison_has_a_page_too() -> None:
    found = comparison()
    html = render_bench_comparison(found)
    assert outside(html) == []
    assert html == render_bench_comparison(found)
    assert found.reason.replace("'", "&#39;") in html
    drawn = intervals(found)["data"]
    assert [trace["name"] for trace in drawn[:2]] == ["TTFT mean", "TTFT p50"]
    assert drawn[0]["x"][1] == pytest.approx(-50, abs=0.5)


def test_a_comparison_in_a_terminal_of_80_columns() -> None:
    shown = console()
    found = comparison()
    print_bench_comparison(found, shown)
    text = text_of(shown)
    assert "TTFT p50, ms" in text
    assert "contains 0" in text
    assert "…" in text
    assert max(map(len, text.splitlines())) <= 80
    assert "accept: " in text.replace("\n", " ")


def test_pages_open_in_a_browser(browser: Any, tmp_path: Any) -> None:
    for name, html in (
        ("run", render_bench(result(outcomes()), outcomes(), SAMPLES)),
        ("comparison", render_bench_comparison(comparison())),
    ):
        path = tmp_path / f"{name}.html"
        path.write_text(html)
        page = browser.new_page()
        faults: list[str] = []
        page.on("pageerror", lambda error, faults=faults: faults.append(str(error)))
        page.goto(path.as_uri())
        page.wait_for_selector(".figure .main-svg")
        figures_drawn = page.evaluate("document.querySelectorAll('.figure .main-svg').length")
        assert figures_drawn
        assert faults == []
        page.close()
