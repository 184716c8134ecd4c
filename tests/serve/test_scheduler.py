"""Our steps against recordings of vLLM's own Scheduler, step by step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import recorded_steps
import serve_workload

from kvsched.serve.state import RUNNING_COUNT, State

RANDOM = {row["workload"]: row for row in recorded_steps.read("scheduler-random.jsonl.gz")}
SHORT = sorted(RANDOM, key=lambda name: RANDOM[name]["steps"])
CONVERSATION = (("fcfs", 11275), ("priority", 1500))


@pytest.mark.parametrize("name", RANDOM)
def test_no_difference_from_the_engine(name: str) -> None:
    assert recorded_steps.differs(RANDOM[name], recorded_steps.work_of(name), True) is None


@pytest.mark.parametrize("name", SHORT[:24])
def test_no_difference_when_run_plain(name: str) -> None:
    assert recorded_steps.differs(RANDOM[name], recorded_steps.work_of(name), False) is None


def test_the_recordings_hold_every_case() -> None:
    rows = list(RANDOM.values())
    assert len(rows) >= 60
    assert sum(row["steps"] for row in rows) >= 20_000
    assert sum(row["preemptions"] for row in rows) >= 1_000
    assert sum(row["hit_tokens"] > 0 for row in rows) >= 50
    told = [row["settings"] for row in rows]
    for name, least in (
        ("block_size", 2),
        ("policy", 2),
        ("enable_chunked_prefill", 2),
        ("enable_prefix_caching", 2),
        ("scheduler_reserve_full_isl", 2),
        ("watermark", 3),
        ("long_prefill_token_threshold", 4),
        ("max_num_seqs", 5),
    ):
        assert len({each[name] for each in told}) >= least, name
    for policy in ("fcfs", "priority"):
        mine = [row for row in rows if row["settings"]["policy"] == policy]
        assert sum(row["preemptions"] for row in mine) >= 300, policy


@pytest.mark.parametrize(("policy", "blocks"), CONVERSATION)
def test_the_conversation_trace(policy: str, blocks: int, shared_traces: Path) -> None:
    source = shared_traces / "mooncake" / "conversation_trace.jsonl"
    work = serve_workload.conversation(source, blocks, policy)
    (row,) = recorded_steps.read(f"scheduler-{work.name}.jsonl.gz")
    assert recorded_steps.differs(row, work, True) is None


def first_place(state: State, own: Any, request: int, now: float) -> int:
    return 0


def one_key(state: State, own: Any, request: int, now: float) -> int:
    return 0


def preempted_last(state: State, own: Any, request: int, now: float) -> int:
    return int(state.progress.preemptions[request] > 0)


def last_place(state: State, own: Any, request: int, now: float) -> int:
    return int(state.counts[RUNNING_COUNT] - 1)


def hits_all(work: Any, rules: Any, capacity: int) -> Any:
    return work._replace(limit=work.prompt // rules.block_size), rules, capacity


def keeps_prompts(work: Any, rules: Any, capacity: int) -> Any:
    kept = np.minimum(work.kept, work.prompt // rules.block_size)
    return work._replace(kept=kept), rules, capacity


BROKEN: dict[str, dict[str, Any]] = {
    "heads are freed first": {"names": {"tail_first": False}},
    "blocks without a hash go to the tail": {"names": {"uncached_to_head": False}},
    "duplicates are one block": {"names": {"keep_duplicates": False}},
    "waiting goes on after a preemption": {"names": {"waits_after_preemption": False}},
    "the last token can be hit": {"names": {"last_token_computed": False}},
    "the last token can be hit at first": {"change": hits_all},
    "tokens of the preempted are lost": {"names": {"withdraws": False}},
    "the threshold holds for one alone": {"names": {"alone_is_not_capped": False}},
    "the watermark holds when idle": {"names": {"idle_needs_no_watermark": False}},
    "hits in the free list cost nothing": {"names": {"hits_in_free_list_count": False}},
    "the first is preempted": {"names": {"preempted_place": first_place}},
    "the last is preempted under priority": {"names": {"preempted_place": last_place}},
    "priorities do not count": {"names": {"queue_key": one_key}},
    "the preempted go to the end": {"names": {"queue_key": preempted_last}},
    "generated blocks are not cached": {"change": keeps_prompts},
    "the null block can be used": {"change": lambda work, rules, blocks: (work, rules, blocks + 1)},
    "the full prompt need not fit": {
        "change": lambda work, rules, blocks: (work, rules._replace(reserve_full=0), blocks)
    },
    "the full prompt must fit": {
        "change": lambda work, rules, blocks: (work, rules._replace(reserve_full=1), blocks)
    },
    "prompts are never cut": {
        "change": lambda work, rules, blocks: (work, rules._replace(chunked=0), blocks)
    },
    "the watermark leaves the null block out": {
        "change": lambda work, rules, blocks: (
            work,
            rules._replace(watermark_blocks=max(rules.watermark_blocks - 1, 0)),
            blocks,
        )
    },
}


@pytest.mark.parametrize("which", BROKEN)
def test_a_broken_rule_is_noticed(which: str) -> None:
    broken = BROKEN[which]
    for name in SHORT:
        work = recorded_steps.work_of(name)
        try:
            if recorded_steps.differs(RANDOM[name], work, False, **broken) is not None:
                return
        except (AssertionError, IndexError):  # it stalls, or finds no block
            return
    pytest.fail("no recording differs")
