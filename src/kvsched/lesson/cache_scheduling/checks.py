"""The checks of lesson 37: each task alone, in the chapter's class, then all of them together."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

from kvsched.lesson.cache_scheduling import runs
from kvsched.lesson.cache_scheduling.mistakes import MISTAKES
from kvsched.lesson.cache_scheduling.words import called, expected_and_came, told
from kvsched.lesson.chapter import Entry, KVCacheSchedulerSim
from kvsched.lesson.exercise import cut
from kvsched.lesson.frame import NOTHING, Mistake, Namespace, Text, Wrong
from kvsched.lesson.guard import Failed, guarded

CLASS = "KVCacheSchedulerSim"
FILLS = ("_score", "_refresh_queue", "_evict_until_fit", "touch", "snapshot")
_OURS = (*FILLS, "_pop_lowest")


def alone(learner: type[Any], task: int) -> type[Any]:
    """Return the learner's class with the chapter's methods for every task but ``task``.

    Raises `Wrong` where the learner's has no method for that one.
    """
    mine = FILLS[task - 1]
    if not callable(getattr(learner, mine, None)):
        raise Wrong(
            Text(f"The class {CLASS} has no method {mine}.", f"类 {CLASS} 没有方法 {mine}。")
        )
    theirs = {name: vars(KVCacheSchedulerSim)[name] for name in _OURS if name != mine}
    return type(learner.__name__, (learner,), theirs)


def learners_class(namespace: Namespace) -> type[Any]:
    """Return the class to check. Raises `Wrong` where there is none."""
    found = namespace.get(CLASS)
    if not isinstance(found, type):
        raise Wrong(Text(f"There is no class {CLASS}.", f"没有找到类 {CLASS}。"))
    return found


@functools.cache
def _wrong_class(mistake: Mistake) -> type[Any]:
    from importlib import resources

    text = resources.files(__package__ or "").joinpath("solution.py").read_text(encoding="utf-8")
    namespace: dict[str, Any] = {"__name__": __name__}  # dataclasses look it up
    wrong = cut(text, "en", solved=True).replace(mistake.old, mistake.new, 1)
    exec(compile(wrong, f"<{mistake.name}>", "exec"), namespace)  # noqa: S102  # our own source
    found: type[Any] = namespace[CLASS]
    return found


def _hint(task: int, alike: Callable[[type[Any]], bool]) -> Text:
    """Return the hint of the mistake of ``task`` that does the same as the learner's version."""
    for mistake in MISTAKES:
        if mistake.task == task and alike(alone(_wrong_class(mistake), task)):
            return Text("\n", "\n") + mistake.hint
    return NOTHING


def in_runs(learner: type[Any], task: int) -> None:
    """Compare in seeded runs. Raises `Wrong` with the smallest that differs."""
    found = runs.smallest(learner)
    if found:
        run, came, expected = found
        hint = _hint(task, lambda wrong: runs.same(wrong, learner, run)) if task else NOTHING
        raise Wrong(told(run, came, expected) + hint)


def _call(act: Callable[[], Any], head: Text) -> Any:
    try:
        return guarded(act)
    except Failed as fault:
        raise Wrong(
            head + Text("\nIt {fault}.", "\n它{fault}。").fill(fault=fault.message)
        ) from None


def _number(value: Any) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def check_score(namespace: Namespace) -> None:
    """Task 1: the score, now and later, of small and large entries."""
    make = alone(learners_class(namespace), 1)
    # Capacity, time, hits, size, last used: one term at a time.
    for capacity, time, hits, size, last_used in (
        (8, 5, 1, 4, 4),
        (8, 5, 3, 4, 5),
        (8, 5, 1, 8, 5),
        (8, 5, 1, 4, 2),
        (8, 9, 1, 4, 2),
        (100, 20, 2, 66, 17),
    ):
        arguments = (hits, size, last_used)

        def score(
            kind: type[Any], at: int = time, room: int = capacity, with_: Any = arguments
        ) -> Any:
            sim = kind(room)
            sim.time = at
            return sim._score(*with_)

        head = Text(
            f"With a capacity of {capacity}, at time {time}: "
            f"_score(hits={hits}, size={size}, last_used={last_used}).",
            f"容量 {capacity}，时刻 {time}：调用 "
            f"_score(hits={hits}, size={size}, last_used={last_used})。",
        )
        right = score(KVCacheSchedulerSim)
        came = _call(functools.partial(score, make), head)
        if not _near(came, right):
            hint = _hint(1, lambda wrong, came=came, score=score: _near(came, score(wrong)))  # type: ignore[misc]
            shown = f"{came:.6g}" if isinstance(came, int | float) else repr(came)
            what = Text("The score", "分数")
            raise Wrong(head + expected_and_came(f"{right:.6g}", shown, what) + hint)
    in_runs(make, 1)


def _near(came: Any, right: Any) -> bool:
    one, other = _number(came), _number(right)
    return one is not None and other is not None and abs(one - other) < 1e-9


def check_refresh(namespace: Namespace) -> None:
    """Task 2: the score is kept in the entry, and a record is pushed."""
    in_runs(alone(learners_class(namespace), 2), 2)


def check_evict(namespace: Namespace) -> None:
    """Task 3: stale records are passed over, and only what must leave leaves."""
    in_runs(alone(learners_class(namespace), 3), 3)


def check_touch(namespace: Namespace) -> None:
    """Task 4: hits and new entries; what makes no sense is refused."""
    make = alone(learners_class(namespace), 4)
    for prefix, size in (("", 1), ("b", 0), ("b", 9)):
        _refuses(make, prefix, size)
    in_runs(make, 4)


def _refuses(make: type[Any], prefix: str, size: int) -> None:
    run = runs.Run(8, (("a", 4), (prefix, size)))
    sim = make(8)
    _call(lambda: sim.touch("a", 4), called(runs.Run(8, (("a", 4),))))
    try:
        guarded(lambda: sim.touch(prefix, size))
    except Failed as fault:
        if fault.kind == "ValueError":
            return
    raise Wrong(
        called(run)
        + Text("\nThe last call should raise ValueError.", "\n最后一次调用应抛出 ValueError。")
    )


_TIES = Text(
    "Rows of the same priority go by last use, the earlier first, then by prefix.",
    "优先级相同的行按最近使用时间（早的在前），再按前缀排序。",
)
_ROWS = (
    (
        (("b", 1, 1, 2, 1.5), ("a", 1, 1, 1, 2.5)),
        Text("The highest priority comes first.", "优先级最高的在最前。"),
    ),
    ((("a", 1, 1, 2, 1.5), ("c", 1, 1, 1, 1.5), ("b", 1, 1, 3, 1.5)), _TIES),
    ((("b", 1, 1, 1, 1.5), ("a", 1, 1, 1, 1.5)), _TIES),
    (
        (("a", 1, 1, 1, 1.00001), ("b", 1, 1, 2, 1.00002)),
        Text(
            "Rows go by the priority as it is; the one that is shown has 4 places.",
            "按未舍入的优先级排序；显示的优先级保留 4 位小数。",
        ),
    ),
)


def check_snapshot(namespace: Namespace) -> None:
    """Task 5: the order, ties and rounding included; nothing changes."""
    make = alone(learners_class(namespace), 5)
    for entries, rule in _ROWS:
        _shows(make, entries, rule)
    in_runs(make, 5)


def _shows(
    make: type[Any], entries: Iterable[tuple[str, int, int, int, float]], rule: Text
) -> None:
    def rows(kind: type[Any]) -> Any:
        sim = kind(8)
        sim.entries = {row[0]: Entry(*row) for row in entries}
        return sim.snapshot()

    listed = "; ".join(
        f"{prefix!r}: priority {priority}, last used {last_used}"
        for prefix, _, _, last_used, priority in entries
    )
    chinese = "；".join(
        f"{prefix!r}：优先级 {priority}，最近使用 {last_used}"
        for prefix, _, _, last_used, priority in entries
    )
    head = Text(
        f"With these entries: {listed}. snapshot().", f"账本为 {chinese}。调用 snapshot()。"
    )
    right = rows(KVCacheSchedulerSim)
    came = _call(lambda: rows(make), head)
    if came != right:
        hint = _hint(5, lambda wrong: bool(rows(wrong) == came)) or Text("\n", "\n") + rule
        raise Wrong(head + expected_and_came(right, came, Text("The rows", "结果")) + hint)


def check_together(namespace: Namespace) -> None:
    """All five at once: the learner's class as it is."""
    in_runs(learners_class(namespace), 0)
