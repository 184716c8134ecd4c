"""What is said while something runs: on a terminal a bar, elsewhere nothing but a long wait."""

from __future__ import annotations

import pytest

from kvsched.cli.progress import described, steps


def test_a_bar_says_how_many() -> None:
    assert described("points", 3, 36) == "points 3 of 36"
    assert described("reading", 3, 1_000_000) == "reading"
    assert described("report", 0, 1) == "report"
    assert described("compiling", 0, 1, "some 10 s") == "compiling (once, some 10 s)"
    text = "compiling 3 of 11 (once, some 10 s each)"
    assert described("compiling", 2, 11, "some 10 s") == text
    assert described("compiling", 11, 11, "some 10 s").startswith("compiling 11 of 11")


def test_piped_one_line_says_that_it_compiles(capsys: pytest.CaptureFixture[str]) -> None:
    with steps("some 10 s") as told:
        told("simulating", 0, 1)
        for done in range(3):
            told("compiling", done, 3)
    assert capsys.readouterr().err == "compiling 3 loops (once, some 10 s each)\n"
    with steps() as told:
        told("compiling", 0, 1)
    assert capsys.readouterr().err == ""
