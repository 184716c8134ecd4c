"""What a lesson is: a number, a story, tasks with checks, and mistakes that are known by name.

A lesson is a folder of this room: ``__init__.py`` with ``LESSON``, ``solution.py`` (from which the
exercise is cut) and ``story.en.md``, ``story.zh.md``. `kvsched.lesson.lessons` lists them.
"""

from __future__ import annotations

import locale
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kvsched.foundation.errors import UsageError

LANGUAGES = ("en", "zh")

Namespace = Mapping[str, Any]
"""What a learner's file defines, by name."""


@dataclass(frozen=True)
class Text:
    """One text in every language of `LANGUAGES`."""

    en: str
    zh: str

    def say(self, language: str) -> str:
        """Return the text in ``language``."""
        return self.zh if language == "zh" else self.en

    def fill(self, **values: object) -> Text:
        """Return the text with ``{name}`` replaced; a value that is a `Text` goes by language."""
        return Text(
            *(
                self.say(language).format(
                    **{
                        name: value.say(language) if isinstance(value, Text) else value
                        for name, value in values.items()
                    }
                )
                for language in LANGUAGES
            )
        )

    def __bool__(self) -> bool:
        return bool(self.en or self.zh)

    def __add__(self, other: Text) -> Text:
        return Text(self.en + other.en, self.zh + other.zh)


NOTHING = Text("", "")
MOST_SHOWN = 400


def shown(value: object) -> str:
    """Return a learner's value as it is told: its repr, the end left out where it is long."""
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}…"


class Wrong(Exception):  # noqa: N818  # a verdict on the learner's code, no error of ours
    """The smallest example found in which a learner's code does something else, in words."""

    def __init__(self, message: Text) -> None:
        self.message = message
        super().__init__(message.en)


class Open(Exception):  # noqa: N818  # the same
    """The task has not been filled in: it still raises NotImplementedError."""


@dataclass(frozen=True)
class Task:
    """One gap to fill.

    ``fills`` is the function or method the learner writes; ``check`` takes what the learner's file
    defines and raises `Wrong` (or `Open`) where it does not do what it should.
    """

    number: int
    name: str
    fills: str
    title: Text
    check: Callable[[Namespace], None]


@dataclass(frozen=True)
class Mistake:
    """A wrong version that is known: ``old`` in the solution written as ``new``.

    A check that fails looks whether one of these does the same in the same example, and says so.
    """

    name: str
    task: int
    old: str
    new: str
    hint: Text


@dataclass(frozen=True)
class Lesson:
    """A lesson. ``package`` is where its solution and its story lie."""

    number: int
    title: Text
    package: str
    defines: tuple[str, ...]
    tasks: tuple[Task, ...]
    mistakes: tuple[Mistake, ...]
    together: Callable[[Namespace], None] | None = None
    """A check of all tasks at once, made when each passes alone."""


def choose_language(language: str | None) -> str:
    """Return ``language``, or the locale's where it is None, or English.

    Raises UsageError for a language that the lessons are not written in.
    """
    if language is None:
        named = (os.environ.get(name) for name in ("LC_ALL", "LC_MESSAGES", "LANG"))
        first = next((name for name in named if name), None) or locale.getlocale()[0] or ""
        return "zh" if first.lower().startswith(("zh", "chinese")) else "en"
    if language not in LANGUAGES:
        raise UsageError(f"--language {language}: the lessons are in {' and '.join(LANGUAGES)}")
    return language
