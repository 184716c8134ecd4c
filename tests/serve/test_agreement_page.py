"""docs/simulate.md, Agreement: its numbers are those of the recordings."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import recorded_steps
from live_engine import Recorded, mismatches, ours, recorded

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "simulate.md").read_text(encoding="utf-8")
SECTION = PAGE.partition("## Agreement\n")[2].partition("\n## ")[0]


def kept(name: str) -> list[dict[str, Any]]:
    """Return the repository's own recording, whatever else is judged."""
    return recorded_steps.read(name)


def random_workloads() -> str:
    rows = kept("scheduler-random.jsonl.gz")
    steps, preempted = (sum(row[name] for row in rows) for name in ("steps", "preemptions"))
    return f"{len(rows)} random workloads, {steps:,} steps, {preempted:,} preemptions"


def one_after_another() -> str:
    found = recorded(kept("live-served.jsonl.gz")[0])
    prompts = sum(len(turn.tokens) for turn in found.run.turns())
    return (
        f"{len(found.cached)} requests, {found.cached.sum():,} of {prompts:,} prompt tokens "
        f"cached, {found.row['steps']:,} steps"
    )


def eight() -> str:
    rows = kept("live-served.jsonl.gz")[1:]
    steps, preempted = (sum(row[name] for row in rows) for name in ("steps", "preemptions"))
    requests = {row["requests"] for row in rows}
    return f"{len(rows)} × {max(requests)} requests, {steps:,} steps, {preempted} preemptions"


def sent() -> Recorded:
    return recorded(kept("sent-live.jsonl.gz")[0])


def clients() -> str:
    row = sent().row
    return f"{row['requests']} requests, {row['steps']:,} steps, {row['preemptions']} preemptions"


def closed_loop() -> str:
    found = sent()
    return f"**The {len(mismatches(found, ours(found, found.run.concurrency)))} requests.**"


def late() -> str:
    found = sent()
    steps = np.array([each.step for each in found.work.asked])
    ends = np.sort(ours(found, None).finished_s) + steps[0]
    later = steps[found.run.concurrency :]
    gaps = Counter((later - ends[: len(later)]).astype(int).tolist())
    assert set(gaps) == {0, 1, 2, 3}
    return (
        f"of {len(later)} next requests {gaps[1]} reached the engine one step later, {gaps[2]} "
        f"two, {gaps[3]} three, {gaps[0]} none"
    )


def defaults() -> str:
    return f"| {len(kept('vllm-defaults.jsonl.gz')):,} settings | 0 |"


def asynchronous() -> str:
    """What vLLM's asynchronous scheduler hits, beside ours in a closed loop."""
    runs = [recorded(row) for row in kept("live-served.jsonl.gz")] + [sent()]
    differing, most = [], 0.0
    for row, found in zip(kept("scheduler-async.jsonl.gz"), runs, strict=True):
        assert row["run"] == found.run.name
        # Ours in a closed loop has the requests as they were sent.
        simulation = ours(found, found.run.concurrency)
        assert found.order == sorted(found.order)
        mine, its = simulation.hit_tokens, np.array(row["cached_tokens"])
        differing.append(int((mine != its).sum()))
        most = max(most, abs(int(mine.sum()) - int(its.sum())) / int(its.sum()))
    *first, last = map(str, differing)
    return (
        f"{', '.join(first)} and {last} hit otherwise, and all hits together differ by at most "
        f"{most:.2%}"
    )


@pytest.mark.parametrize(
    "said",
    [
        random_workloads,
        one_after_another,
        eight,
        clients,
        closed_loop,
        late,
        defaults,
        asynchronous,
    ],
)
def test_the_page_says_what_was_recorded(said: Any) -> None:
    assert said() in SECTION
