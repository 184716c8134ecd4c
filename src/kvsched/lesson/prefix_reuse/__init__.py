"""Lesson 34: prefix caching and chunked prefill."""

from __future__ import annotations

import random
from typing import Any

from kvsched.lesson.calls import Arguments, defined, tasks
from kvsched.lesson.frame import Lesson, Mistake, Text

_KEY = "before = (before, tuple(tokens[start : start + block_size]))"
_STARTS = "range(0, len(tokens) - block_size + 1, block_size)"
_BREAK = "if key not in cached or hit + block_size >= len(tokens):\n            break"
_STORE = "        cached.extend(block_keys(tokens, block_size))\n"
_CHUNKS = "[(start, min(start + room, prompt)) for start in range(hit, prompt, room)]"

MISTAKES = (
    Mistake(
        "no chain",
        1,
        _KEY,
        "before = (None, tuple(tokens[start : start + block_size]))",
        Text(
            "The key leaves out what stands before: equal tokens after another beginning would "
            "hit.",
            "键没有包含前面的内容：开头不同而 token 相同的块会命中。",
        ),
    ),
    Mistake(
        "a partial block has a key",
        1,
        _STARTS,
        "range(0, len(tokens), block_size)",
        Text("Only full blocks have a key.", "只有完整的块才有键。"),
    ),
    Mistake(
        "the last full block left out",
        1,
        _STARTS,
        "range(0, len(tokens) - block_size, block_size)",
        Text("A last block that is full has a key too.", "最后一块如果完整，也有键。"),
    ),
    Mistake(
        "gaps are hit",
        2,
        _BREAK,
        "if hit + block_size >= len(tokens):\n            break\n"
        "        if key not in cached:\n            continue",
        Text(
            "A block after a missing one cannot be used: the hit ends at the first gap.",
            "缺块之后的块不能用：命中到第一个缺口为止。",
        ),
    ),
    Mistake(
        "nothing left to compute",
        2,
        _BREAK,
        "if key not in cached:\n            break",
        Text(
            "The whole prompt is hit; at least its last token must be computed.",
            "整个提示都命中了；至少要计算最后一个 token。",
        ),
    ),
    Mistake(
        "blocks instead of tokens",
        2,
        "        hit += block_size\n    return hit",
        "        hit += block_size\n    return hit // block_size",
        Text("That counts blocks; tokens are asked for.", "数的是块；要的是 token。"),
    ),
    Mistake(
        "a prompt hits itself",
        3,
        "        hits += cached_tokens(tokens, block_size, cached)\n",
        "        cached.extend(block_keys(tokens, block_size))\n"
        "        hits += cached_tokens(tokens, block_size, cached)\n",
        Text(
            "A prompt is stored before it is looked up: it hits itself.",
            "先存后查：提示命中了自己。",
        ),
    ),
    Mistake(
        "nothing stored",
        3,
        _STORE,
        "",
        Text("Nothing is stored, so nothing hits.", "什么都没存，所以什么都不命中。"),
    ),
    Mistake(
        "only the last prompt kept",
        3,
        _STORE,
        "        cached = block_keys(tokens, block_size)\n",
        Text(
            "Only the prompt before is kept; the cache never loses one.",
            "只保留了上一个提示；缓存从不丢失。",
        ),
    ),
    Mistake(
        "budget for prefill alone",
        4,
        "room = budget - decodes",
        "room = budget",
        Text(
            "The decodes take their tokens of the budget first.",
            "解码要先从预算中取走各自的 token。",
        ),
    ),
    Mistake(
        "from the beginning",
        4,
        "range(hit, prompt, room)",
        "range(0, prompt, room)",
        Text(
            "The cached tokens are computed again; start at hit.",
            "已缓存的 token 又算了一遍；应从 hit 开始。",
        ),
    ),
    Mistake(
        "past the end",
        4,
        _CHUNKS,
        _CHUNKS.replace("min(start + room, prompt)", "start + room"),
        Text("The last chunk goes past the end of the prompt.", "最后一段超出了提示的末尾。"),
    ),
    Mistake(
        "all at once",
        4,
        _CHUNKS,
        "[(hit, prompt)] if hit < prompt else []",
        Text(
            "The suffix is computed in one piece; a step has its budget.",
            "后缀一次算完了；每一步有预算。",
        ),
    ),
)


def _tokens(draw: random.Random, most: int) -> list[int]:
    return [draw.randint(1, 2) for _ in range(draw.randint(0, most))]


def _keys(draw: random.Random, size: int) -> dict[str, Any]:
    return {"tokens": _tokens(draw, 3 * size), "block_size": draw.randint(1, 3)}


def _look(draw: random.Random, size: int) -> dict[str, Any]:
    block_size = draw.randint(1, 3)
    tokens = _tokens(draw, 3 * size)
    keys = defined(__name__)["block_keys"](tokens, block_size)
    kept = [key for key in keys if draw.random() < 0.8]
    return {"tokens": tokens, "block_size": block_size, "cached": kept}


def _prompts(draw: random.Random, size: int) -> dict[str, Any]:
    prompts = [_tokens(draw, 2 * size) for _ in range(draw.randint(0, size))]
    return {"prompts": prompts, "block_size": draw.randint(1, 3)}


def _plan(draw: random.Random, size: int) -> dict[str, Any]:
    prompt = draw.randint(1, 10 * size)
    return {
        "hit": draw.randint(0, prompt - 1),
        "prompt": prompt,
        "budget": draw.randint(1, 8),
        "decodes": draw.randint(0, 4),
    }


def _sound(arguments: Arguments) -> bool:
    """Whether blocks have room, and a prompt is longer than what is hit of it."""
    if "prompt" in arguments:
        return bool(arguments["hit"] < arguments["prompt"] and arguments["budget"] >= 1)
    return bool(arguments["block_size"] >= 1)


_task = tasks(__name__, MISTAKES, _sound)


LESSON = Lesson(
    number=34,
    title=Text("Prefix caching and chunked prefill", "前缀缓存与分块预填充"),
    package=__name__,
    defines=("block_keys", "cached_tokens", "reuse_report", "chunk_plan"),
    tasks=(
        _task(
            1,
            "block_keys",
            Text("keys of blocks", "块的键"),
            ({"tokens": [1, 2, 1, 2, 3], "block_size": 2},),
            _keys,
        ),
        _task(
            2,
            "cached_tokens",
            Text("the longest cached prefix", "最长的已缓存前缀"),
            ({"tokens": [1, 2, 3], "block_size": 1, "cached": [(None, (1,))]},),
            _look,
        ),
        _task(
            3,
            "reuse_report",
            Text("the reuse report", "复用报告"),
            ({"prompts": [[1, 2, 3], [1, 2, 4]], "block_size": 1},),
            _prompts,
        ),
        _task(
            4,
            "chunk_plan",
            Text("the chunk plan", "分块计划"),
            ({"hit": 4, "prompt": 15, "budget": 6, "decodes": 2},),
            _plan,
        ),
    ),
    mistakes=MISTAKES,
)
