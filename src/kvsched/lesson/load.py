"""A learner's file or notebook, run into a namespace."""

from __future__ import annotations

import json
import linecache
import sys
import types
from pathlib import Path
from typing import Any

from kvsched.lesson.exercise import code_cells
from kvsched.lesson.frame import Text, Wrong
from kvsched.lesson.guard import Failed, guarded

LOAD_STEPS = 2_000_000
_NAME = "exercise"


def load(path: Path) -> tuple[dict[str, Any], tuple[Text, ...]]:
    """Run the file at ``path``; return its names, and what went wrong in cells of a notebook.

    A plain file must run to its end; a notebook's cells run in order, and one that fails is passed
    over, as a learner would. Raises `Wrong` where there is nothing to check.
    """
    # Dataclasses look their module up by name.
    module = types.ModuleType(_NAME)
    sys.modules[_NAME] = module
    sys.path.append(str(path.parent.resolve()))
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise Wrong(Text("The file is not UTF-8 text.", "文件不是 UTF-8 文本。")) from None
    if path.suffix != ".ipynb":
        fault = _run(text, path.name, module)
        if fault:
            raise Wrong(Text("The file {fault}.", "文件{fault}。").fill(fault=fault))
        return vars(module), ()
    try:
        cells = code_cells(json.loads(text))
    except ValueError:
        raise Wrong(Text("The file is no notebook.", "文件不是 notebook。")) from None
    faults: list[Text] = []
    for number, cell in enumerate(cells, 1):
        fault = _run(cell, f"{path.name}, cell {number}", module)
        if fault:
            said = Text("Code cell {number} {fault}.", "第 {number} 个代码单元{fault}。")
            faults.append(said.fill(number=number, fault=fault))
    return vars(module), tuple(faults)


def _run(text: str, name: str, module: types.ModuleType) -> Text | None:
    """Run ``text`` in ``module``; return what went wrong."""
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)

    def act() -> None:
        exec(compile(text, name, "exec"), vars(module))  # noqa: S102  # that is what it is for

    try:
        guarded(act, LOAD_STEPS)
    except Failed as failed:
        return failed.message
    except Exception as error:  # noqa: BLE001  # `Open` among them: a cell that calls a gap
        return Text(f"raises {type(error.__cause__ or error).__name__}", "抛出了异常")
    return None
