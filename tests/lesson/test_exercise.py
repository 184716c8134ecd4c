from __future__ import annotations

import ast
import itertools
import json
import random
from pathlib import Path
from typing import Any

import pytest

from kvsched.foundation.errors import UsageError
from kvsched.lesson import KVCacheSchedulerSim
from kvsched.lesson.exercise import code_cells, is_as_given, notebook, plain_file, source, story
from kvsched.lesson.frame import LANGUAGES, choose_language
from kvsched.lesson.lessons import find, numbers

CHINESE = range(0x4E00, 0xA000)


def has_chinese(text: str) -> bool:
    return any(ord(each) in CHINESE for each in text)


@pytest.mark.parametrize("number", numbers())
@pytest.mark.parametrize("language", LANGUAGES)
def test_the_exercise_has_a_gap_for_every_task(number: int, language: str) -> None:
    lesson = find(number)
    task = plain_file(lesson, language, solved=False)
    solved = plain_file(lesson, language, solved=True)
    for each in lesson.tasks:
        assert f'raise NotImplementedError("task {each.number}")' in task
    assert task.count("NotImplementedError") == len(lesson.tasks)
    assert "NotImplementedError" not in solved
    for text in (task, solved):
        ast.parse(text)
        assert "# solution" not in text
        assert "# en:" not in text
        assert "# zh:" not in text
        assert has_chinese(text) == (language == "zh")


@pytest.mark.parametrize("number", numbers())
def test_both_languages_say_as_much(number: int) -> None:
    lesson = find(number)
    lines = [line.strip() for line in source(lesson).splitlines()]
    for before, line in itertools.pairwise(lines):
        if line.startswith("# zh:"):
            assert before.startswith(("# en:", "# zh:"))
    heads = [
        [line.split(" ")[0] for line in story(lesson, each).splitlines() if line.startswith("#")]
        for each in LANGUAGES
    ]
    assert heads[0] == heads[1]
    assert heads[0].count("##") >= len(lesson.tasks)
    assert has_chinese(story(lesson, "zh"))
    assert not has_chinese(story(lesson, "en"))


def run_cells(text: str) -> tuple[dict[str, Any], list[Any]]:
    """Run a notebook's cells in order; return its names, and each cell's last expression."""
    names: dict[str, Any] = {"__name__": __name__}
    values = []
    for code in code_cells(json.loads(text)):
        tree = ast.parse(code)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, "cell", "exec"), names)  # noqa: S102
        if last is not None:
            expression = ast.Expression(last.value)  # type: ignore[attr-defined]
            values.append(eval(compile(expression, "cell", "eval"), names))  # noqa: S307
    return names, values


@pytest.mark.parametrize("number", numbers())
@pytest.mark.parametrize("language", LANGUAGES)
def test_the_notebooks_run_from_the_first_cell_to_the_last(number: int, language: str) -> None:
    lesson = find(number)
    _, reports = run_cells(notebook(lesson, language, solved=True))
    assert len(reports) == len(lesson.tasks) + 1
    assert all(each.passed for each in reports)
    _, reports = run_cells(notebook(lesson, language, solved=False))
    assert not any(each.passed for each in reports)
    assert {each.status for report in reports for each in report.verdicts} == {"open"}
    assert reports[0]._repr_html_().startswith("<pre>")


@pytest.mark.parametrize("number", numbers())
@pytest.mark.parametrize("solved", [True, False])
def test_a_notebook_has_the_form_that_jupyter_reads(number: int, solved: bool) -> None:
    book = json.loads(notebook(find(number), "en", solved=solved))
    assert (book["nbformat"], book["nbformat_minor"]) == (4, 5)
    assert set(book) == {"cells", "metadata", "nbformat", "nbformat_minor"}
    ids = [cell["id"] for cell in book["cells"]]
    assert len(set(ids)) == len(ids)
    for cell in book["cells"]:
        assert all(isinstance(line, str) for line in cell["source"])
        code = {"execution_count", "outputs"} if cell["cell_type"] == "code" else set()
        assert set(cell) == {"cell_type", "id", "metadata", "source"} | code
    kinds = [cell["cell_type"] for cell in book["cells"]]
    assert kinds[:2] == ["markdown", "code"]


def test_the_solution_does_what_the_chapter_does() -> None:
    names: dict[str, Any] = {"__name__": __name__}
    exec(compile(plain_file(find(37), "zh", solved=True), "solution", "exec"), names)  # noqa: S102
    draw = random.Random(1)  # noqa: S311
    for _ in range(50):
        capacity = draw.randint(5, 100)
        requests = [
            (f"p{draw.randint(0, 9)}", draw.randint(1, capacity // 2 + 1)) for _ in range(60)
        ]
        one, other = names["KVCacheSchedulerSim"](capacity), KVCacheSchedulerSim(capacity)
        assert one.schedule(requests) == other.schedule(requests)
        assert one.snapshot() == other.snapshot()
        assert (one.current_bytes, one.time) == (other.current_bytes, other.time)


def test_what_was_filled_in_is_known_from_what_was_given(tmp_path: Path) -> None:
    lesson = find(37)
    for name, make in (("a.py", plain_file), ("a.ipynb", notebook)):
        file = tmp_path / name
        for language in LANGUAGES:
            file.write_text(make(lesson, language, solved=False), encoding="utf-8")
            assert is_as_given(lesson, file)
        file.write_text(make(lesson, "en", solved=True), encoding="utf-8")
        assert not is_as_given(lesson, file)
    book = json.loads(notebook(lesson, "en", solved=False))
    book["cells"][3]["outputs"] = [{"output_type": "stream", "name": "stdout", "text": ["x"]}]
    file.write_text(json.dumps(book), encoding="utf-8")
    assert is_as_given(lesson, file)


@pytest.mark.parametrize(
    ("environment", "language"),
    [
        ({"LANG": "zh_CN.UTF-8"}, "zh"),
        ({"LANG": "en_US.UTF-8"}, "en"),
        ({"LANG": "de_DE.UTF-8"}, "en"),
        ({"LANG": "zh_CN.UTF-8", "LC_ALL": "C"}, "en"),
        ({"LANG": "C", "LC_ALL": "zh_TW.UTF-8"}, "zh"),
        ({}, "en"),
    ],
)
def test_the_language_is_the_locales(
    environment: dict[str, str], language: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("LC_ALL", "LC_MESSAGES", "LANG"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert choose_language(None) == language
    assert choose_language("zh") == "zh"


def test_another_language_is_wrong_use() -> None:
    with pytest.raises(UsageError, match="the lessons are in en and zh"):
        choose_language("fr")
