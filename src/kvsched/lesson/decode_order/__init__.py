"""Lesson 36: a decode order in which waiting counts."""

from __future__ import annotations

import random
from typing import Any

from kvsched.lesson.calls import Arguments, tasks
from kvsched.lesson.frame import Lesson, Mistake, Text

_SUM = 'return decoding + request["cached"] + request["priority"] + 0.1 * waited'
_WAITED = 'max(now_s - request["arrival_s"], 0)'
_KEY = '(-score(r, now_s), r["arrival_s"], r["id"])'
_FAIR = "max(0, 1 - (max(waits_s) - min(waits_s)) / max(mean, 1))"

MISTAKES = (
    Mistake(
        "waiting missing",
        1,
        _SUM,
        _SUM.replace(" + 0.1 * waited", ""),
        Text("Waiting does not count: some would starve.", "等待没有计入：有的请求会饿死。"),
    ),
    Mistake(
        "waiting sign flipped",
        1,
        _SUM,
        _SUM.replace("+ 0.1", "- 0.1"),
        Text("Waiting lowers the score; it should raise it.", "等待降低了分数；应当提高。"),
    ),
    Mistake(
        "phase missing",
        1,
        _SUM,
        _SUM.replace("decoding + ", ""),
        Text("The phase does not count: a decode gets 2.", "阶段没有计入：解码加 2。"),
    ),
    Mistake(
        "phase the other way",
        1,
        'decoding = 2 if request["phase"] == "decode"',
        'decoding = 2 if request["phase"] != "decode"',
        Text("The 2 goes to prefill; it is for decode.", "2 给了预填充；应给解码。"),
    ),
    Mistake(
        "cache missing",
        1,
        _SUM,
        _SUM.replace('request["cached"] + ', ""),
        Text("The cached share does not count.", "缓存比例没有计入。"),
    ),
    Mistake(
        "priority missing",
        1,
        _SUM,
        _SUM.replace('request["priority"] + ', ""),
        Text("The priority does not count.", "优先级没有计入。"),
    ),
    Mistake(
        "waiting below 0",
        1,
        _WAITED,
        'now_s - request["arrival_s"]',
        Text(
            "A request that is yet to come has waited 0 seconds, not less.",
            "尚未到达的请求等待为 0 秒，不会更少。",
        ),
    ),
    Mistake(
        "lowest first",
        2,
        _KEY,
        _KEY.replace("-score", "score"),
        Text("The lowest score comes first.", "分数最低的排在了最前。"),
    ),
    Mistake(
        "ties as they come",
        2,
        _KEY,
        "-score(r, now_s)",
        Text(
            "Ties are left as they come; they go by arrival, then by id.",
            "同分没有再排序：应按到达时间，再按 id。",
        ),
    ),
    Mistake(
        "ties by id alone",
        2,
        _KEY,
        '(-score(r, now_s), r["id"])',
        Text("Ties go by arrival before they go by id.", "同分应先按到达时间，再按 id。"),
    ),
    Mistake(
        "a decode takes its prompt",
        3,
        'wanted = 1 if request["phase"] == "decode" else request["tokens"]',
        'wanted = request["tokens"]',
        Text("A decode takes one token a step.", "解码每一步只取一个 token。"),
    ),
    Mistake(
        "budget not reduced",
        3,
        "            budget -= tokens\n",
        "",
        Text("The budget does not shrink as it is given out.", "预算分出去后没有减少。"),
    ),
    Mistake(
        "all or nothing",
        3,
        "tokens = min(wanted, budget)",
        "tokens = wanted if wanted <= budget else 0",
        Text(
            "A prompt that does not fit gets what is left: that is its chunk.",
            "放不下的提示得到剩余的部分：那就是它的一段。",
        ),
    ),
    Mistake(
        "given nothing",
        3,
        "if tokens > 0:",
        "if True:",
        Text("Who gets nothing is not in the list.", "没有得到的不出现在列表中。"),
    ),
    Mistake(
        "mean as it is",
        4,
        _FAIR,
        _FAIR.replace("max(mean, 1)", "(mean or 1)"),
        Text("The mean counts as 1 at least.", "平均值至少算 1。"),
    ),
    Mistake(
        "below 0",
        4,
        _FAIR,
        "1 - (max(waits_s) - min(waits_s)) / max(mean, 1)",
        Text("Fairness ends at 0.", "公平性最低为 0。"),
    ),
    Mistake(
        "nobody is fair",
        4,
        "return None",
        "return 1",
        Text("Without anyone there is nothing to measure: None.", "没有人就没有可测的：None。"),
    ),
)


def _request(draw: random.Random, name: str) -> dict[str, Any]:
    return {
        "id": name,
        "phase": draw.choice(("decode", "prefill")),
        "tokens": draw.randint(1, 9),
        "cached": draw.choice((0.0, 0.5)),
        "priority": draw.randint(0, 2),
        "arrival_s": draw.randint(0, 12),
    }


def _requests(draw: random.Random, size: int) -> list[dict[str, Any]]:
    names = list("abcdefghijk"[:size])
    draw.shuffle(names)
    return [_request(draw, name) for name in names]


def _one(draw: random.Random, _size: int) -> dict[str, Any]:
    return {"request": _request(draw, "a"), "now_s": draw.randint(0, 20)}


def _some(draw: random.Random, size: int) -> dict[str, Any]:
    return {"requests": _requests(draw, size), "now_s": draw.choice((0, 12))}


def _step(draw: random.Random, size: int) -> dict[str, Any]:
    return {**_some(draw, size), "budget": draw.randint(0, 12)}


def _waits(draw: random.Random, size: int) -> dict[str, Any]:
    return {"waits_s": [draw.choice((0.0, 0.25, 0.5, 2.0, 9.0)) for _ in range(size - 1)]}


def _sound(_arguments: Arguments) -> bool:
    return True


def _like(name: str, phase: str, cached: float, arrival_s: int) -> dict[str, Any]:
    return {
        "id": name,
        "phase": phase,
        "tokens": 4,
        "cached": cached,
        "priority": 1,
        "arrival_s": arrival_s,
    }


_task = tasks(__name__, MISTAKES, _sound)


LESSON = Lesson(
    number=36,
    title=Text("Decode order", "解码顺序"),
    package=__name__,
    defines=("score", "order", "step", "fairness"),
    tasks=(
        _task(
            1,
            "score",
            Text("the score", "分数"),
            ({"request": _like("a", "decode", 0.25, 3), "now_s": 10},),
            _one,
        ),
        _task(2, "order", Text("the order", "顺序"), (), _some),
        _task(
            3,
            "step",
            Text("one step", "一步"),
            (
                {
                    "requests": [_like("a", "prefill", 0.0, 0), _like("b", "decode", 0.0, 1)],
                    "now_s": 2,
                    "budget": 3,
                },
            ),
            _step,
        ),
        _task(4, "fairness", Text("fairness", "公平性"), ({"waits_s": [1.0, 3.0]},), _waits),
    ),
    mistakes=MISTAKES,
)
