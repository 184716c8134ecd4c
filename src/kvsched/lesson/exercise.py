"""The exercise and the solution, as a plain file and as a notebook, cut from one source.

``solution.py`` of a lesson is Python that runs. Lines ``# en: …`` and ``# zh: …`` are for one
language; what stands between ``# solution begins`` and ``# solution ends`` is the solution.
"""

from __future__ import annotations

import ast
import json
import re
import textwrap
from importlib import resources
from pathlib import Path
from typing import Any

from kvsched.lesson.frame import LANGUAGES, Lesson, Task

_COMMENT = re.compile(rf"^(\s*)# ({'|'.join(LANGUAGES)}): ?(.*)$")


def _read(lesson: Lesson, name: str) -> str:
    return resources.files(lesson.package).joinpath(name).read_text(encoding="utf-8")


def source(lesson: Lesson) -> str:
    """Return the source that everything is cut from, as it is."""
    return _read(lesson, "solution.py")


def story(lesson: Lesson, language: str) -> str:
    """Return the story in Markdown, its sections opened by ``## ``."""
    return _read(lesson, f"story.{language}.md")


def plain_file(lesson: Lesson, language: str, *, solved: bool) -> str:
    """Return the exercise (or the solution) as a Python file."""
    return cut(source(lesson), language, solved=solved)


def cut(text: str, language: str, *, solved: bool) -> str:
    """Return ``text`` in one language, with the solutions or with gaps in their places."""
    lines: list[str] = []
    task = 0
    inside = False
    for line in text.splitlines():
        marker = line.strip()
        comment = _COMMENT.match(line)
        if marker == "# solution begins":
            task += 1
            inside = not solved
            if not solved:
                indent = line[: len(line) - len(line.lstrip())]
                lines.append(f'{indent}raise NotImplementedError("task {task}")')
        elif marker == "# solution ends":
            inside = False
        elif inside or (comment and comment[2] != language):
            continue
        elif comment:
            lines.append(f"{comment[1]}# {comment[3]}".rstrip())
        else:
            lines.append(line)
    return "\n".join(lines) + "\n"


def _markdown(text: str) -> dict[str, Any]:
    return {"cell_type": "markdown", "metadata": {}, "source": text.splitlines(keepends=True)}


def _code(text: str) -> dict[str, Any]:
    return {
        "cell_type": "code",
        "execution_count": None,
        "metadata": {},
        "outputs": [],
        "source": text.strip("\n").splitlines(keepends=True),
    }


def _pieces(text: str, tasks: tuple[Task, ...]) -> tuple[str, dict[str, str]]:
    """Return what stands outside the tasks, and each task's own cell."""
    tree = ast.parse(text)
    lines = text.splitlines(keepends=True)
    cells: dict[str, str] = {}
    taken: set[int] = set()
    fills = {task.fills for task in tasks}

    def take(node: ast.AST) -> str:
        assert isinstance(node, ast.FunctionDef)  # noqa: S101  # asked for below
        end = node.end_lineno or node.lineno
        taken.update(range(node.lineno - 1, end))
        return "".join(lines[node.lineno - 1 : end])

    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name in fills:
            cells[node.name] = take(node)
        if isinstance(node, ast.ClassDef):
            for method in node.body:
                if isinstance(method, ast.FunctionDef) and method.name in fills:
                    cells[method.name] = f"class {node.name}({node.name}):\n{take(method)}"
    rest = "".join(line for number, line in enumerate(lines) if number not in taken)
    return re.sub(r"\n{4,}", "\n\n\n", rest), cells


def notebook(lesson: Lesson, language: str, *, solved: bool) -> str:
    """Return the exercise (or the solution) as a notebook: JSON of nbformat 4.5.

    The story's first section stands at the top; then each task has its section, a cell to fill and
    a cell that checks it.
    """
    text = plain_file(lesson, language, solved=solved)
    head, *sections = re.split(r"(?m)^(?=## )", story(lesson, language))
    given, cells = _pieces(text, lesson.tasks)
    body = [_markdown(head.strip()), _code(given)]
    for task, section in zip(lesson.tasks, sections, strict=False):
        body.append(_markdown(section.strip()))
        body.append(_code(cells[task.fills]))
        body.append(_code(_check_cell(lesson, language, task.number)))
    for section in sections[len(lesson.tasks) :]:
        body.append(_markdown(section.strip()))
    body.append(_code(_check_cell(lesson, language, None)))
    for number, cell in enumerate(body, 1):
        cell["id"] = f"cell-{number}"
    document = {
        "cells": body,
        "metadata": {
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        },
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    return json.dumps(document, ensure_ascii=False, indent=1, sort_keys=True) + "\n"


def _check_cell(lesson: Lesson, language: str, task: int | None) -> str:
    chosen = "" if task is None else f", task={task}"
    return textwrap.dedent(f"""\
        from kvsched.lesson import check

        check({lesson.number}, globals(){chosen}, language="{language}")
    """)


def code_cells(document: Any) -> list[str]:
    """Return the code of a notebook, a cell each; lines for IPython (``%``, ``!``) become blank.

    Raises ValueError for what is no notebook of nbformat 4.
    """
    cells = document.get("cells") if isinstance(document, dict) else None
    if not isinstance(cells, list) or not all(isinstance(cell, dict) for cell in cells):
        raise ValueError("no notebook: it has no list of cells")
    found: list[str] = []
    for cell in cells:
        if cell.get("cell_type") != "code":
            continue
        text = cell.get("source", "")
        text = "".join(map(str, text)) if isinstance(text, list) else str(text)
        # A blank line keeps the numbers of those after it.
        kept = ["" if re.match(r"\s*[%!]", line) else line for line in text.splitlines()]
        found.append("\n".join(kept) + "\n")
    return found


def is_as_given(lesson: Lesson, path: Path) -> bool:
    """Return whether the file at ``path`` has the code of the exercise, nothing filled in."""
    try:
        text = path.read_text(encoding="utf-8")
        if path.suffix != ".ipynb":
            return text in {plain_file(lesson, each, solved=False) for each in LANGUAGES}
        code = [cell.strip() for cell in code_cells(json.loads(text))]
        books = [json.loads(notebook(lesson, each, solved=False)) for each in LANGUAGES]
    except (OSError, ValueError):
        return False
    return any(code == [cell.strip() for cell in code_cells(book)] for book in books)
