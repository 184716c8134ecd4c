"""A learner's code is called with a budget of steps, and what it raises is put into words."""

from __future__ import annotations

import contextlib
import linecache
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

from kvsched.lesson.frame import Open, Text

STEPS = 20_000
"""Lines of one call; the solutions take fewer than a hundred in the checks' examples."""

_Result = TypeVar("_Result")
_NOT_THE_LEARNERS = (str(Path(__file__).parents[1]), os.path.dirname(os.__file__), "<frozen ")  # noqa: PTH120


class _TooLong(BaseException):
    """Beyond `Exception`, so that a learner's ``except Exception`` lets it pass."""


class Failed(Exception):  # noqa: N818  # a verdict on the learner's code, no error of ours
    """A call of the learner's that did not return; ``kind`` is the same for the same fault."""

    def __init__(self, kind: str, message: Text) -> None:
        self.kind = kind
        self.message = message
        super().__init__(message.en)


@contextlib.contextmanager
def _budget(steps: int) -> Iterator[None]:
    """Raise _TooLong in the block once it has run ``steps`` lines of the learner's."""
    left = steps

    def line(_frame: FrameType, event: str, _argument: object) -> Any:
        nonlocal left
        if event == "line":
            left -= 1
            if left < 0:
                raise _TooLong
        return line

    def call(frame: FrameType, _event: str, _argument: object) -> Any:
        return None if frame.f_code.co_filename.startswith(_NOT_THE_LEARNERS) else line

    before = sys.gettrace()
    sys.settrace(call)
    try:
        yield
    finally:
        sys.settrace(before)


def guarded(act: Callable[[], _Result], steps: int = STEPS) -> _Result:
    """Return what ``act`` returns.

    Raises `Failed` where it raises, exits or does not end, `Open` where a task is not filled in.
    """
    try:
        with _budget(steps):
            return act()
    except NotImplementedError as error:
        raise Open from error
    except _TooLong:
        raise Failed(
            "endless",
            Text(
                f"does not return within {steps:,} lines: so a loop may have no end",
                f"运行了 {steps:,} 行仍未返回：可能有一个不会结束的循环",
            ),
        ) from None
    except SystemExit:
        raise Failed(
            "exit", Text("ends the program (sys.exit)", "结束了整个程序（sys.exit）")
        ) from None
    except BaseException as error:  # noqa: BLE001  # whatever a learner raises is told to them
        raise Failed(type(error).__name__, raised(error)) from None


def raised(error: BaseException) -> Text:
    """Return in words what was raised, and the learner's line that it came from."""
    said = " ".join(str(error).split())[:200]
    if isinstance(error, SyntaxError):
        said, number, source = error.msg, error.lineno, error.text
    else:
        mine = [
            frame
            for frame in traceback.extract_tb(error.__traceback__)
            if not frame.filename.startswith(_NOT_THE_LEARNERS)
        ]
        number = mine[-1].lineno if mine else None
        source = linecache.getline(mine[-1].filename, number or 0) if mine else ""
    what = f"{type(error).__name__}: {said}" if said else type(error).__name__
    if number is None:
        return Text(f"raises {what}", f"抛出了 {what}")
    code = (source or "").strip()
    return Text(
        f"raises {what} (line {number}: {code})", f"抛出了 {what}（第 {number} 行：{code}）"
    )
