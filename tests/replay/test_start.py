"""A replay from a saved cache goes on as the replay of the whole trace would have."""

from __future__ import annotations

import csv
import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import kvsched
from kvsched.cache import KVCacheScheduler, Request, Tenant
from kvsched.cache.drive import cache_for, drive
from kvsched.foundation.errors import InputError, UsageError
from kvsched.replay.run import Replay, replay
from kvsched.replay.start import Start
from kvsched.trace.model import Labels, Trace
from kvsched.trace.slice import slice_trace

CAPACITY = 3_000


@pytest.fixture(scope="module")
def conversation(shared_traces: Path) -> Trace:
    return kvsched.load_trace(shared_traces / "mooncake" / "conversation_trace.jsonl")


@pytest.fixture(scope="module")
def cut(conversation: Trace) -> int:
    """The first request behind the middle that comes later than the one before it."""
    later = np.flatnonzero(np.diff(conversation.time_s) > 0) + 1
    return int(later[later >= len(conversation) // 2][0])


def halves(trace: Trace, at: int) -> tuple[Trace, Trace, float]:
    gap = float(trace.time_s[at] - trace.time_s[at - 1])
    first = slice_trace(trace, requests=(0, at))
    return first, slice_trace(trace, requests=(at, len(trace))), gap


def saved(trace: Trace, policy: str, path: Path, whole: Trace | None = None) -> None:
    """Save a cache that a trace went through, with room to remember the whole one's blocks."""
    cache = cache_for(whole or trace, policy, CAPACITY)
    drive(trace, cache)
    cache.save(path)


def start_of(result: Replay) -> Start:
    assert result.start is not None
    return result.start


def same(whole: Replay, part: Replay, at: int) -> bool:
    return bool(
        np.array_equal(whole.request_hits[at:], part.request_hits)
        and np.array_equal(whole.request_stored[at:], part.request_stored)
        and np.array_equal(whole.request_evictions[at:], part.request_evictions)
        and whole.resident_blocks == part.resident_blocks
    )


@pytest.mark.parametrize(
    "policy", ["lru", "lfu", "s3fifo", "arc", "wtinylfu", "ttl:lifetime_s=90", "wild", "decay"]
)
def test_half_and_half_are_the_whole(
    conversation: Trace, cut: int, tmp_path: Path, policy: str
) -> None:
    first, second, gap = halves(conversation, cut)
    assert gap > 0
    saved(first, policy, tmp_path / "half.kvcache", conversation)
    part = kvsched.replay(second, start=tmp_path / "half.kvcache", start_gap_s=gap)
    whole = replay(conversation, policy, CAPACITY)
    assert same(whole, part, cut)
    assert not same(replay(second, policy, CAPACITY), part, 0), "it started warm"
    assert part.policy.label == policy
    start = start_of(part)
    assert start.cached_blocks == CAPACITY
    assert start.learnt_anew == ()
    assert part.summary()["start"]["known_blocks"] == start.known_blocks
    in_second = set(second.key.tolist())
    cache = KVCacheScheduler.restore(tmp_path / "half.kvcache")
    live = cache.store.homes[""].partition.live
    keys = live.names.keys[live.table.resident == 1, 0].tolist()
    assert start.known_blocks == sum(key in in_second for key in keys) > 500


def test_a_gap_that_is_left_out_shows(conversation: Trace, cut: int, tmp_path: Path) -> None:
    first, second, gap = halves(conversation, cut)
    saved(first, "wild", tmp_path / "half.kvcache", conversation)
    whole = replay(conversation, "wild", CAPACITY)
    assert same(whole, replay(second, start=tmp_path / "half.kvcache", start_gap_s=gap), cut)
    late = replay(second, start=tmp_path / "half.kvcache", start_gap_s=gap + 600)
    assert not same(whole, late, cut)


def test_a_history_that_is_too_short_shows(conversation: Trace, cut: int, tmp_path: Path) -> None:
    first, second, gap = halves(conversation, cut)
    saved(first, "arc", tmp_path / "half.kvcache", slice_trace(first, first=100))
    part = replay(second, start=tmp_path / "half.kvcache", start_gap_s=gap)
    assert not same(replay(conversation, "arc", CAPACITY), part, cut)


def test_another_policy_learns_what_is_cached(
    conversation: Trace, cut: int, tmp_path: Path
) -> None:
    first, second, gap = halves(conversation, cut)
    saved(first, "lru", tmp_path / "half.kvcache")
    found = replay(second, "sieve", start=tmp_path / "half.kvcache", start_gap_s=gap)
    assert found.policy.label == "sieve"
    assert start_of(found).learnt_anew == ("sieve takes over from lru",)
    assert found.hit_blocks > replay(second, "sieve", CAPACITY).hit_blocks


def test_what_the_capacity_may_be(conversation: Trace, cut: int, tmp_path: Path) -> None:
    first, second, _ = halves(conversation, cut)
    path = tmp_path / "half.kvcache"
    saved(first, "lru", path)
    with pytest.raises(UsageError, match=r"has 3,000 blocks, and keeps them: leave out .* 4,000"):
        replay(second, None, 4_000, start=path)
    assert same(replay(second, None, CAPACITY, start=path), replay(second, start=path), 0)


def test_what_does_not_go_together(conversation: Trace, tmp_path: Path) -> None:
    path = tmp_path / "half.kvcache"
    first = slice_trace(conversation, first=200)
    saved(first, "lru", path)
    for wrong in ({"decisions": True}, {"engine": "vllm"}):
        with pytest.raises(UsageError, match="keeps no decisions, follows no engine's rules"):
            replay(first, start=path, **wrong)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="start_gap_s"):
        replay(first, start=path, start_gap_s=-1.0)
    with pytest.raises(UsageError, match="needs `session`"):
        replay(first, "tlru", start=path)
    KVCacheScheduler(50, 16).save(path)
    with pytest.raises(UsageError, match="blocks of 512 tokens, and the cache of 16"):
        replay(first, start=path)
    path.write_bytes(b"something else")
    with pytest.raises(InputError, match="is no saved cache"):
        replay(first, start=path)


def test_a_cache_of_other_keys_has_nothing_of_the_trace(
    conversation: Trace, tmp_path: Path
) -> None:
    path = tmp_path / "live.kvcache"
    first = slice_trace(conversation, first=200)
    cache = KVCacheScheduler(CAPACITY, 512)
    cache.acquire(Request(token_ids=range(5_120))).lease.close()  # type: ignore[union-attr]
    cache.save(path)
    found = replay(first, start=path)
    assert start_of(found).cached_blocks == 10
    assert start_of(found).known_blocks == 0
    assert np.array_equal(replay(first, "lru", CAPACITY).request_hits, found.request_hits)


def test_requests_that_a_quota_turns_away_are_counted(conversation: Trace, tmp_path: Path) -> None:
    path = tmp_path / "live.kvcache"
    first = slice_trace(conversation, first=50)
    theirs = dataclasses.replace(first, tenant=Labels(np.zeros(50, np.int32), ("a",)))
    cache = KVCacheScheduler(CAPACITY, 512, tenants={"a": Tenant(quota_blocks=4)})
    held = cache.acquire(Request(hashes=[1, 2, 3, 4], tokens=2_048, tenant="a")).lease
    assert held is not None
    cache.computed(held, 2_048)
    cache.save(path)
    assert start_of(replay(theirs, start=path)).rejected_requests == 0, "the head that fits"
    cache.pin(held, "me")
    cache.save(path)
    found = replay(theirs, start=path)
    too_long = np.count_nonzero(first.chain_blocks > 4)
    assert 0 < too_long < 50
    assert start_of(found).rejected_requests == 50 - too_long
    assert found.hit_blocks == found.stored_blocks == 0


def test_on_the_command_line(
    conversation: Trace, cut: int, tmp_path: Path, shared_traces: Path
) -> None:
    first, _, gap = halves(conversation, cut)
    saved(first, "arc", tmp_path / "half.kvcache", conversation)
    lines = (shared_traces / "mooncake" / "conversation_trace.jsonl").read_bytes().splitlines(True)
    (tmp_path / "second.jsonl").write_bytes(b"".join(lines[cut:]))
    command = [sys.executable, "-m", "kvsched", "replay", "second.jsonl", "--start", "half.kvcache"]

    def run(*more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*command, *more], cwd=tmp_path, capture_output=True, text=True, check=False
        )

    done = run("--start-gap", str(gap), "--format", "json", "--per-request", "rows.csv")
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    whole = replay(conversation, "arc", CAPACITY)
    assert summary["policy"] == "arc"
    assert summary["capacity_blocks"] == CAPACITY
    assert summary["hit_blocks"] == int(whole.request_hits[cut:].sum())
    assert summary["start"]["file"] == "half.kvcache"
    with (tmp_path / "rows.csv").open(newline="") as stream:
        hits = [int(row["hit_blocks"]) for row in csv.DictReader(stream)]
    assert hits == whole.request_hits[cut:].tolist()
    known = summary["start"]["known_blocks"]
    text = run("--policy", "lru", "--capacity-blocks", "3000").stdout
    assert f"half.kvcache: 3,000 blocks, {known:,} of them in the trace; lru takes over" in text
    for more, said in (
        (["--capacity-blocks", "5"], "has 3,000 blocks"),
        (["--engine", "vllm"], "--start goes with"),
        (["--sample", "0.5"], "--start goes with"),
        (["--dump-decisions", "d.csv"], "--start keeps no decisions"),
    ):
        refused = run(*more)
        assert refused.returncode == 2, more
        assert said in refused.stderr
        assert len(refused.stderr.strip().splitlines()) == 1
