"""A run that differs, in words."""

from __future__ import annotations

from typing import Any

from kvsched.lesson.cache_scheduling.runs import Run, State
from kvsched.lesson.frame import Text, shown

_FIELDS = (
    (1, Text("bytes", "字节数 bytes")),
    (2, Text("hits", "命中次数 hits")),
    (3, Text("last use (last_used)", "最近使用时间 last_used")),
    (4, Text("priority", "优先级 priority")),
)


def called(run: Run) -> Text:
    """Say what was called."""
    touches = ", ".join(f"touch({prefix!r}, {size})" for prefix, size in run.touches)
    return Text(
        f"With a capacity of {run.capacity}: {touches}.",
        f"容量为 {run.capacity} 时，依次调用 {touches}。",
    )


def expected_and_came(expected: Any, came: Any, what: Text) -> Text:
    """Say what was expected and what came instead."""
    return Text(
        "\n{what}: expected {expected}, yours is {came}.",
        "\n{what}：应为 {expected}，你的结果是 {came}。",
    ).fill(what=what, expected=shown(expected), came=shown(came))


def _listed(lines: Any) -> str:
    return " ".join(map(str, lines)) or "–"


def told(run: Run, came: State, expected: State) -> Text:
    """Say what was called, what should have come, and what came: the first thing that differs."""
    head = called(run)
    if came.fault is not None:
        last = "touch({!r}, {})".format(*run.touches[-1]) if run.touches else "KVCacheSchedulerSim"
        return head + Text("\nThe last call {fault}.", "\n最后一次调用 {fault}。").fill(
            call=last, fault=came.fault.message
        )
    if came.log != expected.log:
        return head + expected_and_came(
            _listed(expected.log), _listed(came.log), Text("The log", "日志 log")
        )
    if [row[0] for row in came.entries] != [row[0] for row in expected.entries]:
        return head + expected_and_came(
            _listed(row[0] for row in expected.entries),
            _listed(row[0] for row in came.entries),
            Text("What is in the ledger (entries)", "账本 entries 里的前缀"),
        )
    if came.current_bytes != expected.current_bytes:
        return head + expected_and_came(
            expected.current_bytes, came.current_bytes, Text("current_bytes", "current_bytes")
        )
    for mine, right in zip(came.entries, expected.entries, strict=True):
        for field, name in _FIELDS:
            if mine[field] != right[field]:
                what = Text("For {prefix!r}, the {name}", "前缀 {prefix!r} 的{name}")
                filled = what.fill(prefix=mine[0], name=name)
                return head + expected_and_came(_short(right[field]), _short(mine[field]), filled)
    return head + _rest(came, expected)


def _rest(came: State, expected: State) -> Text:
    if came.time != expected.time:
        return expected_and_came(expected.time, came.time, Text("The time", "时钟 time"))
    if came.lost != expected.lost:
        return Text(
            "\nThe heap (queue) has no record (priority, last used, prefix) that is as the entry "
            "of {lost} now: it could never leave in its turn. It holds {queue}.",
            "\n堆 queue 里没有与 {lost} 的条目一致的记录（优先级，最近使用时间，前缀）："
            "轮到它时无法被驱逐。堆里是 {queue}。",
        ).fill(lost=_listed(map(repr, came.lost)), queue=_listed(came.queue))
    if came.changed:
        return Text(
            "\nsnapshot() changed the state; it should only show it.",
            "\nsnapshot() 改变了状态；它只应展示状态。",
        )
    return expected_and_came(expected.snapshot, came.snapshot, Text("snapshot()", "snapshot()"))


def _short(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else shown(value)
