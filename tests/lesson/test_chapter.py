from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kvsched.lesson import KVCacheSchedulerSim
from kvsched.lesson.chapter import Entry


def outcome(sim: KVCacheSchedulerSim, case: dict[str, Any]) -> dict[str, Any]:
    log = sim.schedule([tuple(request) for request in case["requests"]])
    return {
        "capacity_bytes": case["capacity_bytes"],
        "requests": case["requests"],
        "log": log,
        "snapshot": [list(row) for row in sim.snapshot()],
        "current_bytes": sim.current_bytes,
        "scores": [
            [hits, size, last_used, sim._score(hits, size, last_used)]
            for hits, size, last_used, _ in case["scores"]
        ],
        "time": sim.time,
    }


def cases(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "chapter.jsonl").read_text().splitlines()]


def test_it_does_what_the_chapters_class_does(shared_acceptance: Path) -> None:
    found = cases(shared_acceptance)
    assert len(found) == 120
    for case in found:
        assert outcome(KVCacheSchedulerSim(case["capacity_bytes"]), case) == case


class Forgetful(KVCacheSchedulerSim):
    """Without the stale check."""

    def _pop_lowest(self) -> Entry:
        while self.queue:
            entry = self.entries.get(__import__("heapq").heappop(self.queue)[2])
            if entry is not None:
                return entry
        raise AssertionError


class LatestFirst(KVCacheSchedulerSim):
    """Ties of the snapshot the other way round."""

    def snapshot(self) -> list[tuple[str, int, float, int]]:
        rows = sorted(self.entries.values(), key=lambda each: (-each.priority, -each.last_used))
        return [(row.prefix, row.bytes, round(row.priority, 4), row.hits) for row in rows]


@pytest.mark.parametrize("wrong", [Forgetful, LatestFirst])
def test_the_sequences_notice_a_wrong_version(
    wrong: type[KVCacheSchedulerSim], shared_acceptance: Path
) -> None:
    differ = [
        case
        for case in cases(shared_acceptance)
        if outcome(wrong(case["capacity_bytes"]), case) != case
    ]
    assert len(differ) >= 5


@pytest.mark.parametrize("capacity", [0, -1, -0.5, float("-inf")])
def test_a_capacity_must_be_positive(capacity: float) -> None:
    with pytest.raises(ValueError, match="capacity"):
        KVCacheSchedulerSim(capacity)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("prefix", "size"),
    [("", 1), (None, 1), (7, 1), (b"a", 1), ("b", 0), ("b", -3), ("b", 11), ("a", 0), ("a", 11)],
)
def test_what_is_refused_changes_nothing(prefix: Any, size: int) -> None:
    sim = KVCacheSchedulerSim(10)
    sim.touch("a", 4)
    before = (sim.time, sim.current_bytes, sim.log.copy(), sim.queue.copy(), sim.snapshot())
    with pytest.raises(ValueError, match=r"prefix|bytes"):
        sim.touch(prefix, size)
    assert (sim.time, sim.current_bytes, sim.log, sim.queue, sim.snapshot()) == before


def test_a_request_that_is_refused_leaves_those_before_it_applied() -> None:
    sim = KVCacheSchedulerSim(10)
    with pytest.raises(ValueError, match="does not fit"):
        sim.schedule([("a", 4), ("b", 11), ("c", 4)])
    assert sim.log == ["add:a"]


def test_schedule_returns_a_copy_of_the_whole_log() -> None:
    sim = KVCacheSchedulerSim(10)
    sim.schedule([("a", 4)])
    log = sim.schedule(iter([("a", 9), ("b", 5)]))
    assert log == sim.log == ["add:a", "reuse:a", "add:b"]
    log.clear()
    assert len(sim.log) == 3
    assert sim.entries["a"].bytes == 4


def test_a_hit_leaves_its_old_record_in_the_heap() -> None:
    sim = KVCacheSchedulerSim(10)
    sim.schedule([("a", 4), ("a", 4)])
    assert sorted(sim.queue) == [(1.4, 1, "a"), (2.4, 2, "a")]


def test_a_cleared_heap_still_gives_the_lowest() -> None:
    sim = KVCacheSchedulerSim(10)
    sim.schedule([("a", 4), ("a", 4), ("b", 4), ("c", 2)])
    sim.queue.clear()
    sim.touch("d", 2)
    assert sim.log[-2:] == ["evict:b", "add:d"]


def test_snapshot_changes_nothing() -> None:
    sim = KVCacheSchedulerSim(10)
    sim.schedule([("a", 4), ("b", 4), ("a", 4)])
    queue, time = sim.queue.copy(), sim.time
    assert sim.snapshot() == sim.snapshot() == [("a", 4, 2.4, 2), ("b", 4, 1.4, 1)]
    assert (sim.queue, sim.time) == (queue, time)


def test_the_class_loads_without_numba_and_numpy() -> None:
    code = (
        "import sys, kvsched.lesson; print(sorted({'numba', 'numpy', 'typer'} & set(sys.modules)))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"
