"""The lessons there are. A new one is a folder and a line here."""

from __future__ import annotations

import importlib

from kvsched.foundation.errors import UsageError
from kvsched.lesson.frame import Lesson

_FOLDERS = {
    22: "paged_blocks",
    34: "prefix_reuse",
    36: "decode_order",
    37: "cache_scheduling",
}


def numbers() -> list[int]:
    """Return the numbers of the lessons, in order."""
    return sorted(_FOLDERS)


def find(number: int) -> Lesson:
    """Return lesson ``number``. Raises UsageError where there is none."""
    if number not in _FOLDERS:
        there = ", ".join(map(str, numbers()))
        raise UsageError(f"there is no lesson {number}; there are {there}")
    lesson: Lesson = importlib.import_module(f"kvsched.lesson.{_FOLDERS[number]}").LESSON
    return lesson
