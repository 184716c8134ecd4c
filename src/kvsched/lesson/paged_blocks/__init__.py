"""Lesson 22: a KV cache in pages."""

from __future__ import annotations

import random
from typing import Any

from kvsched.lesson.calls import Arguments, tasks
from kvsched.lesson.frame import Lesson, Mistake, Text

_CEILING = "return (tokens + block_size - 1) // block_size"
_TAKE = "        tables.append(free[:need])\n        del free[:need]"
_FULL = "if length == len(table) * block_size:"

MISTAKES = (
    Mistake(
        "rounded down",
        1,
        _CEILING,
        "return tokens // block_size",
        Text(
            "That rounds down: the last tokens have no block.",
            "这是向下取整：最后的 token 没有块。",
        ),
    ),
    Mistake(
        "one too many",
        1,
        _CEILING,
        "return tokens // block_size + 1",
        Text(
            "That is one block too many where the tokens fill their blocks exactly.",
            "恰好填满时多了一块。",
        ),
    ),
    Mistake(
        "nothing refused",
        1,
        "if block_size < 1 or tokens < 0:",
        "if block_size == 0:",
        Text("Impossible sizes are not refused.", "没有拒绝不可能的大小。"),
    ),
    Mistake(
        "a part is given",
        2,
        "if need > len(free):",
        "if not free and need:",
        Text(
            "A request that does not fit gets a part; it is all or nothing.",
            "放不下的请求得到了一部分；应当要么全给，要么不给。",
        ),
    ),
    Mistake(
        "nothing after the first refusal",
        2,
        "            continue\n",
        "            return tables + [None] * (len(lengths) - len(tables))\n",
        Text(
            "After one that does not fit, the next may still fit.", "一个放不下，下一个也许放得下。"
        ),
    ),
    Mistake(
        "blocks stay free",
        2,
        _TAKE,
        "        tables.append(free[:need])",
        Text(
            "What was given stays in free, and is given twice.",
            "给出的块还在 free 里，会给第二次。",
        ),
    ),
    Mistake(
        "from the back",
        2,
        _TAKE,
        "        tables.append([free.pop() for _ in range(need)])",
        Text("Blocks come from the front of free, in order.", "块应从 free 的前端按顺序取。"),
    ),
    Mistake(
        "a block a token",
        3,
        _FULL,
        "if True:",
        Text(
            "A block is added for every token; only a full last block needs another.",
            "每个 token 都加了一块；只有最后一块满了才需要。",
        ),
    ),
    Mistake(
        "one token late",
        3,
        _FULL,
        "if length > len(table) * block_size:",
        Text(
            "The block comes one token late: a full block has no place for another.",
            "加块晚了一个 token：满的块放不下新的。",
        ),
    ),
    Mistake(
        "length not counted",
        3,
        "return length + 1",
        "return length",
        Text("The new token is not counted.", "新 token 没有计入长度。"),
    ),
    Mistake(
        "tokens in one piece",
        4,
        "sum(blocks_needed(tokens, block_size) for tokens in lengths) * block_size",
        "blocks_needed(logical, block_size) * block_size",
        Text(
            "The lengths are added up first; each request has a last block of its own.",
            "先把长度加在一起了；每个请求都有自己的最后一块。",
        ),
    ),
    Mistake(
        "nothing is 0",
        4,
        "logical / slots if slots else None",
        "logical / slots if slots else 0.0",
        Text(
            "Without a block there is nothing to measure: None, not 0.",
            "没有块就没有可测的：None，不是 0。",
        ),
    ),
    Mistake(
        "upside down",
        4,
        "logical / slots if slots else None",
        "slots / logical if slots else None",
        Text(
            "Utilisation is tokens over slots, at most 1.",
            "利用率是 token 数除以位置数，最多为 1。",
        ),
    ),
)


def _sizes(draw: random.Random, size: int) -> dict[str, Any]:
    return {"tokens": draw.randint(-1, 8 * size), "block_size": draw.randint(0, 4 + size)}


def _requests(draw: random.Random, size: int) -> dict[str, Any]:
    block_size = draw.randint(1, 4)
    lengths = [draw.randint(0, 3 * block_size) for _ in range(draw.randint(0, size))]
    free = draw.sample(range(3 * size), draw.randint(0, 3 * size))
    return {"lengths": lengths, "block_size": block_size, "free": free}


def _grown(draw: random.Random, size: int) -> dict[str, Any]:
    block_size = draw.randint(1, 4)
    blocks = draw.randint(0, size)
    least = max(blocks - 1, 0) * block_size + (1 if blocks else 0)
    ids = draw.sample(range(20), blocks + draw.randint(0, 2))
    return {
        "table": ids[:blocks],
        "length": draw.randint(least, blocks * block_size),
        "block_size": block_size,
        "free": ids[blocks:],
    }


def _lengths(draw: random.Random, size: int) -> dict[str, Any]:
    lengths = [draw.randint(0, 40) for _ in range(draw.randint(0, size))]
    return {"lengths": lengths, "block_size": draw.choice((1, 4, 16))}


def _sound(arguments: Arguments) -> bool:
    """Whether a block has room, and a request's tokens reach into the last of its blocks."""
    size = arguments["block_size"]
    if "table" not in arguments:
        return "tokens" in arguments or size >= 1
    blocks = len(arguments["table"])
    held = range((blocks - 1) * size + 1, blocks * size + 1) if blocks else range(1)
    return size >= 1 and arguments["length"] in held


_task = tasks(__name__, MISTAKES, _sound)


LESSON = Lesson(
    number=22,
    title=Text("Paged blocks", "分页的块"),
    package=__name__,
    defines=("blocks_needed", "allocate", "append_token", "allocation_report"),
    tasks=(
        _task(
            1,
            "blocks_needed",
            Text("how many blocks", "需要多少块"),
            ({"tokens": 5, "block_size": 4}, {"tokens": 4, "block_size": 4}),
            _sizes,
        ),
        _task(
            2,
            "allocate",
            Text("block tables", "块表"),
            ({"lengths": [2, 5], "block_size": 4, "free": [7, 3, 9]},),
            _requests,
        ),
        _task(
            3,
            "append_token",
            Text("one more token", "再来一个 token"),
            ({"table": [7], "length": 3, "block_size": 4, "free": [5]},),
            _grown,
        ),
        _task(
            4,
            "allocation_report",
            Text("the allocation report", "分配报告"),
            ({"lengths": [5, 6], "block_size": 4}, {"lengths": [], "block_size": 4}),
            _lengths,
        ),
    ),
    mistakes=MISTAKES,
)
