"""Cached tokens, request by request, against a running vLLM that computed on the CPU.

`make parity-vllm-live` makes the recordings again; KVSCHED_LIVE judges those of another folder.
"""

from __future__ import annotations

from typing import Any

import live_engine
import numpy as np
import pytest
from chat_workload import COUNT
from live_engine import mismatches, ours, recorded

SERVED = {row["run"]: recorded(row) for row in live_engine.rows("live-served.jsonl.gz")}
(SENT,) = (recorded(row) for row in live_engine.rows("sent-live.jsonl.gz"))
ALL = {**SERVED, "sent": SENT}


@pytest.mark.parametrize("name", SERVED)
def test_no_request_differs(name: str) -> None:
    """One after another, and eight at a time."""
    found = SERVED[name]
    simulation = ours(found, found.run.concurrency)
    assert mismatches(found, simulation) == []
    assert simulation.finished.all()
    assert simulation.steps == found.row["steps"]
    assert simulation.preemptions.sum() == found.row["preemptions"]


@pytest.mark.parametrize("name", ALL)
def test_no_step_differs(name: str) -> None:
    """Who ran for how many tokens, who was preempted, what was hit, and the free list."""
    assert live_engine.steps_differ(ALL[name]) is None


def test_what_differs_behind_clients_is_when_they_send() -> None:
    """Clients send the next request when they have seen an end: a step late, or more.

    A closed loop without clients decides otherwise. Sent at the steps at which the engine got
    them, no request differs.
    """
    assert mismatches(SENT, ours(SENT, None)) == []
    loop = ours(SENT, SENT.run.concurrency)
    assert loop.steps != SENT.row["steps"]
    sent = np.array([each.step for each in SENT.work.asked])
    at_once = int(mismatches_before(SENT, loop, sent))
    assert at_once == 0


def mismatches_before(found: Any, loop: Any, sent: Any) -> int:
    """Return how many requests differ that came before the first that came late."""
    late = int(np.flatnonzero(loop.arrival_s + sent[0] != sent)[0])
    hits = loop.hit_tokens[:late]
    return int((found.cached[:late] != hits).sum())


def test_the_recordings_hold_what_they_should() -> None:
    for name, found in ALL.items():
        assert len(found.cached) == COUNT >= 500
        used = found.work.settings.blocks * found.work.settings.block_size
        computed = sum(each.request.computed for each in found.work.asked) - found.cached.sum()
        assert computed > 10 * used, f"{name}: little is evicted"
        assert (found.cached > 0).sum() > COUNT / 2
    assert SERVED["one"].run.concurrency == 1
    assert all(found.run.concurrency == 8 for name, found in ALL.items() if name != "one")
    assert min(ALL[name].row["preemptions"] for name in ("eight-tight", "sent")) >= 10
    assert SERVED["eight-queued"].run.settings.max_num_seqs < 8


def first_place(state: Any, own: Any, request: int, now: float) -> int:
    return 0


def keeps_prompts(work: Any, rules: Any, capacity: int) -> Any:
    kept = np.minimum(work.kept, work.prompt // rules.block_size)
    return work._replace(kept=kept), rules, capacity


BROKEN: dict[str, tuple[str, dict[str, Any]]] = {
    "heads are freed first": ("one", {"names": {"tail_first": False}}),
    "blocks without a hash go to the tail": ("one", {"names": {"uncached_to_head": False}}),
    "duplicates are one block": ("eight", {"names": {"keep_duplicates": False}}),
    "the last token can be hit": ("eight", {"names": {"last_token_computed": False}}),
    "the threshold holds for one alone": ("one", {"names": {"alone_is_not_capped": False}}),
    "the first is preempted": ("eight-tight", {"names": {"preempted_place": first_place}}),
    "generated blocks are not cached": ("one", {"change": keeps_prompts}),
    "the null block can be used": (
        "one",
        {"change": lambda work, rules, blocks: (work, rules, blocks + 1)},
    ),
    "the full prompt need not fit": (
        "eight-tight",
        {"change": lambda work, rules, blocks: (work, rules._replace(reserve_full=0), blocks)},
    ),
}


@pytest.mark.parametrize("which", BROKEN)
def test_a_broken_rule_shows_in_the_cached_tokens(which: str) -> None:
    name, broken = BROKEN[which]
    assert (live_engine.hits(ALL[name], **broken) != ALL[name].cached).sum() > 0


def test_the_hits_of_unbroken_rules() -> None:
    """What the broken ones are compared with."""
    for name in ("one", "eight", "eight-tight"):
        assert (live_engine.hits(ALL[name]) == ALL[name].cached).all()
