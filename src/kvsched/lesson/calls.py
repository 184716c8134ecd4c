"""Checks of tasks that are functions: calls, what should come, and the smallest that differs."""

from __future__ import annotations

import copy
import functools
import itertools
import random
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any

from kvsched.lesson.exercise import cut
from kvsched.lesson.frame import NOTHING, Mistake, Namespace, Task, Text, Wrong, shown
from kvsched.lesson.guard import Failed, guarded

CALLS = 200
ALIKE = 100
PLACES = 9

Arguments = Mapping[str, Any]


@dataclass(frozen=True)
class Calls:
    """How one function is checked.

    ``given`` are calls by hand, small ones first; ``draw`` makes one of about a size. The arguments
    are plain values: numbers, texts, lists, dicts. What the solution refuses with ValueError must
    be refused.
    """

    function: str
    package: str
    given: tuple[Arguments, ...]
    draw: Callable[[random.Random, int], Arguments]
    mistakes: tuple[Mistake, ...]
    task: int
    sound: Callable[[Arguments], bool] = lambda _: True
    """Whether arguments can be at all: the smallest example is looked for among these."""

    def check(self, namespace: Namespace) -> None:
        """Compare with the solution. Raises `Wrong` with the smallest call that differs, `Open`."""
        learners = namespace.get(self.function)
        if not callable(learners):
            raise Wrong(
                Text(
                    f"There is no function {self.function}.",
                    f"没有找到函数 {self.function}。",
                )
            )
        right = defined(self.package)[self.function]
        learners = _alone(learners, defined(self.package))
        for arguments in self._examples():
            if _outcome(right, arguments) != _outcome(learners, arguments):
                raise Wrong(self._told(learners, right, self._shrunk(learners, right, arguments)))

    def _examples(self) -> Iterator[Arguments]:
        yield from self.given
        draw = random.Random(self.task)  # noqa: S311  # examples, no secrets
        for number in range(CALLS):
            yield self.draw(draw, 1 + number // 20)

    def _told(
        self, learners: Callable[..., Any], right: Callable[..., Any], arguments: Arguments
    ) -> Text:
        came, expected = _outcome(learners, arguments), _outcome(right, arguments)
        listed = ", ".join(f"{name}={value!r}" for name, value in arguments.items())
        text = Text(f"{self.function}({listed}).", f"调用 {self.function}({listed})。")
        text += Text(
            "\nExpected {expected}; yours {came}.", "\n应为 {expected}；你的{came}。"
        ).fill(expected=expected.said(), came=came.yours())
        return text + self._hint(learners, arguments)

    def _hint(self, learners: Callable[..., Any], arguments: Arguments) -> Text:
        """Return the hint of the mistake that does the same here, and most often elsewhere."""
        came = _outcome(learners, arguments)
        most, hint = 0, NOTHING
        for mistake in self.mistakes:
            if mistake.task != self.task:
                continue
            wrong = defined(self.package, mistake)[self.function]
            if _outcome(wrong, arguments) != came:
                continue
            calls = itertools.islice(self._examples(), ALIKE)
            alike = 1 + sum(_outcome(wrong, each) == _outcome(learners, each) for each in calls)
            if alike > most:
                most, hint = alike, Text("\n", "\n") + mistake.hint
        return hint

    def _shrunk(
        self, learners: Callable[..., Any], right: Callable[..., Any], arguments: Arguments
    ) -> Arguments:
        """Return a call as small as can be found in which the two still differ."""
        refused = _outcome(right, arguments).failed
        smaller = True
        while smaller:
            smaller = False
            for candidate in filter(self.sound, _smaller(dict(arguments))):
                expected = _outcome(right, candidate)
                if expected.failed == refused and expected != _outcome(learners, candidate):
                    arguments, smaller = candidate, True
                    break
        return arguments


def tasks(
    package: str, mistakes: tuple[Mistake, ...], sound: Callable[[Arguments], bool]
) -> Callable[..., Task]:
    """Return what makes the tasks of a lesson whose functions are checked by calls."""

    def make(
        number: int,
        fills: str,
        title: Text,
        given: tuple[Arguments, ...],
        draw: Callable[[random.Random, int], Arguments],
    ) -> Task:
        calls = Calls(fills, package, given, draw, mistakes, number, sound)
        return Task(number, fills, fills, title, calls.check)

    return make


def _alone(learners: Callable[..., Any], right: Mapping[str, Any]) -> Callable[..., Any]:
    """Return the learner's function, calling the solution's for all other tasks."""
    if not isinstance(learners, types.FunctionType):
        return learners
    others = {
        name: each
        for name, each in right.items()
        if isinstance(each, types.FunctionType) and name != learners.__name__
    }
    alone = types.FunctionType(
        learners.__code__,
        {**learners.__globals__, **others},
        learners.__name__,
        learners.__defaults__,
        learners.__closure__,
    )
    alone.__kwdefaults__ = learners.__kwdefaults__
    return alone


@functools.cache
def defined(package: str, mistake: Mistake | None = None) -> dict[str, Any]:
    """Return what a lesson's solution defines, with one mistake or none."""
    text = resources.files(package).joinpath("solution.py").read_text(encoding="utf-8")
    code = cut(text, "en", solved=True)
    if mistake:
        code = code.replace(mistake.old, mistake.new, 1)
    namespace: dict[str, Any] = {"__name__": __name__}
    name = mistake.name if mistake else "solution"
    exec(compile(code, f"<{name}>", "exec"), namespace)  # noqa: S102  # our own source
    return namespace


@dataclass(frozen=True)
class _Outcome:
    """What a call returned, or how it ended; and its arguments afterwards."""

    value: Any = None
    failed: str = ""
    message: Text = NOTHING
    after: Any = None
    """The arguments that the call changed."""

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Outcome) or self.failed != other.failed:
            return False
        return bool(_near(self.value, other.value) and _near(self.after, other.after))

    def said(self) -> Text:
        if self.failed:
            return Text(f"that it raises {self.failed}", f"抛出 {self.failed}")
        return Text(*[_repr(self.value)] * 2) + self._changed()

    def yours(self) -> Text:
        if self.failed:
            return self.message
        said = Text(f"returns {_repr(self.value)}", f"返回 {_repr(self.value)}")
        return said + self._changed()

    def _changed(self) -> Text:
        if self.after is None:
            return NOTHING
        now = ", ".join(f"{name}={_repr(value)}" for name, value in self.after.items())
        return Text(f" and leaves {now}", f"，之后 {now}")

    __hash__ = None  # type: ignore[assignment]  # never a key


def _outcome(function: Callable[..., Any], arguments: Arguments) -> _Outcome:
    mine = copy.deepcopy(dict(arguments))
    try:
        value = guarded(lambda: function(**mine))
    except Failed as failed:
        return _Outcome(failed=failed.kind, message=failed.message)
    changed = {name: each for name, each in mine.items() if each != arguments[name]}
    # What the call returns may be an argument itself, changed later: a copy, and no object of ours.
    return _Outcome(copy.deepcopy(value), after=changed or None)


def _repr(value: Any) -> str:
    return shown(repr(value))


def _near(one: Any, other: Any) -> bool:
    """Whether two results are the same, numbers to `PLACES`; a list is no tuple's equal in kind."""
    if isinstance(one, bool) or isinstance(other, bool):
        return bool(one is other)
    if isinstance(one, int | float) and isinstance(other, int | float):
        return bool(abs(one - other) <= 10.0**-PLACES)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(_near, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_near(one[key], other[key]) for key in one)
    return bool(one == other)


def _smaller(value: Any) -> Iterator[Any]:
    """Yield values like ``value`` and a little smaller."""
    if isinstance(value, bool):
        return
    if isinstance(value, int) and value > 0:
        yield from sorted({0, value // 2, value - 1})
    elif isinstance(value, float) and value > 0:
        yield from (each for each in (0.0, float(round(value))) if each < value)
    elif isinstance(value, list):
        for at in range(len(value)):
            yield value[:at] + value[at + 1 :]
        for at, item in enumerate(value):
            for less in _smaller(item):
                yield [*value[:at], less, *value[at + 1 :]]
    elif isinstance(value, dict):
        for key, item in value.items():
            for less in _smaller(item):
                yield {**value, key: less}
