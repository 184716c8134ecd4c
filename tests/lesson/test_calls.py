"""Lessons whose tasks are functions: isolation, results of other kinds, and the real parts."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvsched.cache import KVCacheScheduler, Request
from kvsched.lesson.calls import defined
from kvsched.lesson.exercise import plain_file
from kvsched.lesson.grading import grade
from kvsched.lesson.lessons import find
from kvsched.replay.run import replay
from kvsched.trace.build import build_trace
from kvsched.trace.model import Origin, Trace

PAGED = "kvsched.lesson.paged_blocks"
REUSE = "kvsched.lesson.prefix_reuse"
BLOCK = 4


def statuses(number: int, text: str, folder: Path) -> list[str]:
    file = folder / "mine.py"
    file.write_text(text, encoding="utf-8")
    return [each.status for each in grade(number, file, "en").verdicts]


def test_a_task_is_checked_with_the_other_tasks_right(tmp_path: Path) -> None:
    text = plain_file(find(22), "en", solved=True)
    text = text.replace("(tokens + block_size - 1) // block_size", "1 / 0")
    assert statuses(22, text, tmp_path) == ["failed", "passed", "passed", "passed"]


@pytest.mark.parametrize(
    "body",
    [
        "return None",
        "return 'many'",
        "return [1]",
        "return True",
        "raise KeyError('x')",
        "return float('nan')",
        "return lambda: 0",
        "return (x for x in [1])",
        "while True: pass",
        "return __import__('threading').Lock()",
    ],
)
def test_a_result_of_another_kind_is_told(body: str, tmp_path: Path) -> None:
    text = plain_file(find(22), "en", solved=True)
    text += f"\n\ndef blocks_needed(tokens, block_size):\n    {body}\n"
    assert statuses(22, text, tmp_path) == ["failed", "passed", "passed", "passed"]


def test_a_function_that_is_missing_or_takes_other_arguments(tmp_path: Path) -> None:
    text = plain_file(find(22), "en", solved=True)
    assert statuses(22, text.replace("def allocate(", "def other("), tmp_path)[1] == "failed"
    swapped = text.replace("def append_token(table, length,", "def append_token(table, size,")
    assert statuses(22, swapped, tmp_path)[2] == "failed"


def trace_of(prompts: list[list[int]]) -> Trace:
    ids: dict[Any, int] = {}
    chains = [defined(REUSE)["block_keys"](prompt, BLOCK) for prompt in prompts]
    keys = [ids.setdefault(key, len(ids)) for chain in chains for key in chain]
    return build_trace(
        time_s=np.arange(len(prompts), dtype=np.float64),
        input_tokens=np.array([len(prompt) for prompt in prompts], np.int64),
        output_tokens=np.ones(len(prompts), np.int64),
        starts=np.concatenate([[0], np.cumsum([len(chain) for chain in chains])]).astype(np.int64),
        keys=np.array(keys, np.int64),
        block_size=BLOCK,
        origin=Origin(source="lesson", format="lesson", time_unit="s"),
    )


def some_prompts(seed: int) -> list[list[int]]:
    draw = random.Random(seed)  # noqa: S311
    heads = [[draw.randint(0, 9) for _ in range(draw.randint(1, 20))] for _ in range(3)]
    return [
        [*draw.choice(heads), *(draw.randint(0, 1) for _ in range(draw.randint(0, 9)))]
        for _ in range(30)
    ]


@pytest.mark.parametrize("seed", range(5))
def test_the_reuse_report_is_what_vllms_rules_give_in_a_replay(seed: int) -> None:
    prompts = some_prompts(seed)
    report = defined(REUSE)["reuse_report"](prompts, BLOCK)
    run = replay(
        trace_of(prompts), "lru", 10_000, engine="vllm", cache_generated=False, compiled=False
    )
    assert report["hit_tokens"] == run.hit_tokens > 0
    # Without the rule that something is computed, the generic replay hits more.
    assert replay(trace_of(prompts), "lru", 10_000, compiled=False).hit_tokens > run.hit_tokens


def test_the_chunks_of_the_plan_are_the_suffix() -> None:
    draw = random.Random(0)  # noqa: S311
    for _ in range(200):
        prompt = draw.randint(1, 500)
        hit, budget, decodes = draw.randint(0, prompt - 1), draw.randint(9, 64), draw.randint(0, 8)
        plan = defined(REUSE)["chunk_plan"](hit, prompt, budget, decodes)
        covered = [token for start, end in plan for token in range(start, end)]
        assert covered == list(range(hit, prompt))
        assert max(end - start for start, end in plan) <= budget - decodes


def test_the_report_of_blocks_adds_up_to_the_tables() -> None:
    draw = random.Random(0)  # noqa: S311
    names = defined(PAGED)
    for _ in range(100):
        lengths = [draw.randint(0, 100) for _ in range(draw.randint(0, 9))]
        size = draw.choice((1, 4, 16))
        tables = names["allocate"](lengths, size, list(range(1000)))
        report = names["allocation_report"](lengths, size)
        assert report["allocated_slots"] == sum(map(len, tables)) * size
        assert 0 <= report["unused_tail"] <= max(len(lengths) * (size - 1), 0)
        # Token by token comes to the same blocks.
        grown: list[int] = []
        length, free = 0, list(range(1000))
        for _ in range(sum(lengths)):
            length = names["append_token"](grown, length, size, free)
        assert len(grown) == names["blocks_needed"](sum(lengths), size)


def test_the_reports_are_what_the_live_scheduler_does() -> None:
    for seed in range(3):
        prompts = some_prompts(seed)
        live = KVCacheScheduler(10_000, BLOCK)
        hits = 0
        for prompt in prompts:
            before = live.free_blocks
            with live.acquire(Request(token_ids=prompt)) as lease:
                # The live scheduler says what is there; that something is computed is the engine's.
                hits += min(lease.hit_tokens, (len(prompt) - 1) // BLOCK * BLOCK)
                report = defined(PAGED)["allocation_report"]([len(prompt)], BLOCK)
                assert len(lease.block_ids) * BLOCK == report["allocated_slots"]
                assert before - live.free_blocks <= len(lease.block_ids)
        assert hits == defined(REUSE)["reuse_report"](prompts, BLOCK)["hit_tokens"] > 0
