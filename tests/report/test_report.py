"""The report and the tables, without a browser."""

from __future__ import annotations

import io
import re

import pytest
from make_result import hostile_result, real_result, unequal_result
from rich.console import Console

from kvsched.report import format
from kvsched.report.html import render_html
from kvsched.report.terminal import print_study
from kvsched.study.result import StudyResult


@pytest.fixture(scope="module")
def result() -> StudyResult:
    return real_result()


def without_plotly(page: str) -> str:
    """Cut plotly's own script, which is most of the page and not ours."""
    start = page.index("<script>/**")
    return page[:start] + page[page.index("</script>", start) + len("</script>") :]


def test_the_same_result_gives_the_same_bytes(result: StudyResult) -> None:
    assert render_html(result) == render_html(result)


def test_the_page_asks_for_nothing(result: StudyResult) -> None:
    page = without_plotly(render_html(result))
    assert not re.search(r"(src|href)=[\"']?(https?:)?//", page)
    assert "@import" not in page
    assert '<link rel="icon" href="data:,">' in page


def test_the_page_holds_what_was_promised(result: StudyResult) -> None:
    page = without_plotly(render_html(result))
    for sentence in result.recommendation.sentences:
        assert sentence.replace("'", "&#39;") in page
    for row in result.policies:
        assert format.count(row.evictions) in page
    assert result.trace.digest in page
    assert "kvsched study x" in page
    for word in ("ceiling", "compulsory", "regret", "bypass", "luck", "knee"):
        assert word in page.lower()


def test_names_of_the_trace_are_escaped() -> None:
    page = without_plotly(render_html(hostile_result()))
    assert "<script>window" not in page
    assert "<img" not in page
    assert "<a href='javascript" not in page
    assert "49" not in re.findall(r"<h1>(.*?)</h1>", page)[0]
    assert "\u202e" not in page
    assert "\x1b" not in page
    assert "n" * 10_000 not in re.sub(r"<dd>.*?</dd>", "", page)
    assert page.count("</script>") == page.count("<script")


def test_the_check_of_escaping_can_fail() -> None:
    page = without_plotly(render_html(hostile_result()))
    broken = page.replace("&lt;img", "<img", 1)
    assert broken != page
    assert "<img" in broken


def test_without_model_and_gpu_nothing_is_made_up() -> None:
    page = without_plotly(render_html(real_result(gpu=False)))
    assert "name a model and a GPU to know" in page
    assert 'id="figure-curves-gib"' not in page
    assert "None" not in re.sub(r"<style>.*?</style>", "", page, flags=re.DOTALL)


@pytest.mark.parametrize("terminal", [True, False])
def test_tables_fit_80_columns(result: StudyResult, terminal: bool) -> None:
    stream = io.StringIO()
    print_study(result, Console(file=stream, width=80, force_terminal=terminal, highlight=False))
    plain = re.sub(r"\x1b\[[0-9;]*m", "", stream.getvalue())
    assert max(len(line) for line in plain.splitlines()) <= 80
    for row in result.policies:
        assert row.policy in plain
    assert "Ceiling" in plain
    assert ("\x1b[" in stream.getvalue()) == terminal


def test_hostile_names_cannot_style_the_terminal() -> None:
    stream = io.StringIO()
    print_study(hostile_result(), Console(file=stream, width=80, force_terminal=False))
    assert "\x1b" not in stream.getvalue()


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (format.share(0.3661), "36.6%"),
        (format.share(None), "–"),
        (format.short(12_345_678), "12.3 M"),
        (format.short(3.27e18), "3.27 E"),
        (format.gib(1272.9), "1,273 GiB"),
        (format.seconds(0.00004), "40 µs"),
        (format.seconds(600), "10 min"),
        (format.seconds(None), "–"),
        (format.times(1.125), "1.12×"),
        (format.name("a\nb\u202e"), "a\ufffdb\ufffd"),
        (format.name("x" * 100), "x" * 59 + "…"),
    ],
)
def test_how_numbers_are_written(written: str, expected: str) -> None:
    assert written == expected


def test_unequal_blocks_are_studied_in_tokens() -> None:
    result = unequal_result()
    overall = result.anatomy.overall
    classes = (overall.hit, overall.compulsory, overall.tail, overall.capacity, overall.regret)
    assert sum(classes) == overall.tokens == result.trace.prompt_tokens
    assert result.capacity.tokens == result.capacity.blocks == 5000
    assert not result.optimum_is_exact
    assert not any(curve.exact_everywhere for curve in result.curves)
    for curve in result.curves:
        assert curve.hit_tokens[-1] <= result.ceiling.hit_tokens
    page = without_plotly(render_html(result))
    assert "Policies at 5,000 tokens" in page
    assert "of unequal size" in page
    assert "heuristic" in page
    console = Console(file=io.StringIO(), width=100)
    print_study(result, console)
    said = console.file.getvalue()
    assert "Capacity: 5,000 tokens" in said
    assert "heuristics" in said
