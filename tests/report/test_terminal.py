"""A study's tables in the terminal."""

from __future__ import annotations

import io

import pytest
from by_hand import empty_result, make_result
from rich.console import Console

from kvsched.report.terminal import print_study
from kvsched.study.result import StudyResult


def _printed(result: StudyResult, encoding: str = "utf-8", **console: bool) -> str:
    raw = io.BytesIO()
    with io.TextIOWrapper(raw, encoding=encoding, newline="\n") as file:
        print_study(result, Console(file=file, width=80, highlight=False, **console))
        file.flush()
        return raw.getvalue().decode(encoding)


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
@pytest.mark.parametrize(
    "result",
    [make_result(), make_result(hostile=True), make_result(hardware=False), empty_result()],
    ids=["usual", "hostile", "blocks", "empty"],
)
def test_fits_80_columns(result: StudyResult, encoding: str) -> None:
    lines = _printed(result, encoding).splitlines()
    assert max(map(len, lines)) <= 80
    assert not any("\x1b" in line for line in lines)


def test_says_what_matters() -> None:
    result = make_result()
    text = _printed(result)
    words = " ".join(text.split())
    for sentence in (*result.recommendation.sentences, *result.warnings):
        assert sentence in words
    for expected in ("52.8%", "54.7 GiB", "−8.9%", "(bound)", "regret 20.0%", "1.12×"):
        assert expected in text


def test_the_anatomy_s_bar_is_whole() -> None:
    row = next(line for line in _printed(make_result()).splitlines() if line.startswith("██"))
    assert len(row) == 72
    assert row.count("█") == round(72 * 0.272)


def test_ascii_where_there_is_no_unicode() -> None:
    text = _printed(make_result(), "ascii")
    assert "# hit 27.2%" in text
    assert "-8.9%" in text


def test_markup_in_names_is_text() -> None:
    import msgspec

    base = make_result()
    source = msgspec.structs.replace(base.trace, source="[bold red]x[/] \x1b[31m")
    text = _printed(msgspec.structs.replace(base, trace=source), force_terminal=True)
    assert "[bold red]x[/]" in text
    assert "\ufffd[31m" in text
