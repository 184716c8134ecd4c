"""One request at a time, a live cache decides as the replay does: every trace, every policy."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from live_scenarios import LABELS

import kvsched
from kvsched.cache import Request
from kvsched.cache.drive import Driven, cache_for, columns_of, drive
from kvsched.foundation.errors import UsageError
from kvsched.kernel.table import Table
from kvsched.policy.base import Policy
from kvsched.policy.lfu import LFU
from kvsched.policy.registry import make
from kvsched.policy.wild import Wild
from kvsched.replay.run import Replay, replay
from kvsched.trace.generate import PRESETS, generate, preset
from kvsched.trace.model import Labels, Trace
from kvsched.trace.slice import slice_trace


def told(trace: Trace, seed: int) -> Trace:
    """Return a trace with columns for policies that need them, where it has none."""
    random = np.random.default_rng(seed)
    count = len(trace)
    made: dict[str, Any] = {
        "session": Labels(
            random.integers(-1, 400, count).astype(np.int32), tuple(f"s{at}" for at in range(400))
        ),
        "type": Labels(
            random.integers(-1, 11, count).astype(np.int32),
            (*(f"k{at}" for at in range(10)), "tool"),
        ),
        "priority": random.integers(-2, 80, count).astype(np.int32),
    }
    lacks = {name: column for name, column in made.items() if getattr(trace, name) is None}
    return dataclasses.replace(trace, **lacks)


def differences(found: Replay, driven: Driven) -> int:
    """Return how many requests hit, stored or pushed out otherwise, or did not run."""
    other = found.request_hits != driven.hits
    other |= found.request_stored != driven.stored
    other |= found.request_evictions != driven.evicted
    return int(np.count_nonzero(other | driven.rejected))


def both(trace: Trace, policy: str | Policy | type[Policy], capacity: int) -> int:
    """Return in how many requests the two differ; something must have hit and left."""
    found = replay(trace, policy, capacity, fast=False)
    assert found.hit_blocks > 0
    assert found.evictions > 100
    return differences(found, drive(trace, cache_for(trace, policy, capacity)))


@pytest.fixture(scope="module")
def conversation(shared_traces: Path) -> Trace:
    return told(kvsched.load_trace(shared_traces / "mooncake" / "conversation_trace.jsonl"), 1)


@pytest.fixture(scope="module")
def synthetic(shared_traces: Path) -> Trace:
    return told(kvsched.load_trace(shared_traces / "mooncake" / "synthetic_trace.jsonl"), 2)


@pytest.fixture(scope="module")
def weka(shared_traces: Path) -> Trace:
    whole = kvsched.load_trace(shared_traces / "weka")
    return told(slice_trace(whole, first=500), 3)


@pytest.fixture(scope="module")
def generated() -> dict[str, Trace]:
    return {name: told(generate(preset(name, requests=500), 4), 4) for name in PRESETS}


@pytest.mark.parametrize("label", LABELS)
def test_the_whole_conversation(conversation: Trace, label: str) -> None:
    assert both(conversation, label, 5_000) == 0


@pytest.mark.parametrize("label", LABELS)
def test_synthetic(synthetic: Trace, label: str) -> None:
    assert both(synthetic, label, 2_000) == 0


@pytest.mark.parametrize("label", LABELS)
def test_chains_longer_than_the_cache(synthetic: Trace, label: str) -> None:
    head = slice_trace(synthetic, first=700)
    assert head.chain_blocks.max() > 90
    assert both(head, label, 60) == 0


@pytest.mark.parametrize("label", LABELS)
def test_sessions_of_which_each_has_ids_of_its_own(weka: Trace, label: str) -> None:
    roots = weka.key[weka.parent < 0]
    assert len(np.unique(roots)) < len(roots), "two sessions share an id"
    assert both(weka, label, 8_000) == 0


@pytest.mark.parametrize("label", LABELS)
def test_generated(generated: dict[str, Trace], label: str) -> None:
    for trace in generated.values():
        assert both(trace, label, max(20, trace.nodes // 12)) == 0


def test_tenants_are_told_to_the_policy_and_share_blocks(generated: dict[str, Trace]) -> None:
    trace = next(iter(generated.values()))
    assert trace.tenant is not None
    assert len(trace.tenant.names) > 1
    cache = cache_for(trace, "lru", 500)
    columns = cache.store.home_of("").partition.columns
    codes: Any = columns["tenant"]
    seen = []
    acquire = cache.acquire

    def noted(request: Request) -> Any:
        admission = acquire(request)
        seen.append(int(codes.codes[0]))
        return admission

    cache.acquire = noted  # type: ignore[method-assign]
    drive(trace, cache)
    assert seen == trace.tenant.codes.tolist()


# Shown to fail where one of the two is broken.


def _forget_uses(table: Table, state: Any, node: int, rank: int) -> None:
    state.uses[node] = 1
    state.touched[node] = rank


class ReleaseForgets(LFU):
    on_release = staticmethod(_forget_uses)


def test_a_hook_that_forgets_at_a_release_is_noticed(synthetic: Trace) -> None:
    assert both(synthetic, ReleaseForgets, 2_000) > 10


def test_a_history_that_is_too_short_is_noticed(synthetic: Trace) -> None:
    found = replay(synthetic, "arc", 2_000)
    cache = kvsched.KVCacheScheduler(
        2_000, synthetic.block_size, "arc", when_oversize="degrade", isolate_tenants=False
    )
    assert differences(found, drive(synthetic, cache)) > 10


@pytest.mark.parametrize("label", ["wild", "ttl", "decay"])
def test_a_clock_that_stands_still_is_noticed(conversation: Trace, label: str) -> None:
    head = slice_trace(conversation, first=3_000)
    policy = {"ttl": "ttl:lifetime_s=6:tool_lifetime_s=900", "decay": "decay:half_life_s=9"}.get(
        label, label
    )
    found = replay(head, policy, 2_000)
    still = dataclasses.replace(head, time_s=np.zeros(len(head)))
    assert differences(found, drive(still, cache_for(head, policy, 2_000))) > 10


@pytest.mark.parametrize(
    ("label", "column"),
    [("wild", "type"), ("tlru", "session"), ("priority", "priority")],
)
def test_a_column_that_is_not_passed_on_is_noticed(
    synthetic: Trace, label: str, column: str
) -> None:
    found = replay(synthetic, label, 2_000)
    cache = cache_for(synthetic, label, 2_000)
    without = dataclasses.replace(synthetic, **{column: None})
    assert differences(found, drive(without, cache)) > 10


def test_priorities_that_the_cache_heeds_itself_are_noticed(synthetic: Trace) -> None:
    found = replay(synthetic, "lru", 2_000)
    cache = cache_for(synthetic, "lru", 2_000)
    cache.blocks.levels = True
    assert differences(found, drive(synthetic, cache)) > 10


def test_tokens_of_a_partial_block_count(synthetic: Trace) -> None:
    found = replay(synthetic, "decay:size_weight=9", 2_000)
    full = dataclasses.replace(synthetic, tokens=np.full(synthetic.nodes, 512, np.int32))
    cache = cache_for(synthetic, "decay:size_weight=9", 2_000)
    assert differences(found, drive(full, cache)) > 0
    assert both(synthetic, "decay:size_weight=9", 2_000) == 0


# What cannot be driven.


def test_unequal_blocks_are_refused(shared_traces: Path) -> None:
    trace = kvsched.load_trace(shared_traces / "ragpulse" / "0_trace.jsonl")
    with pytest.raises(UsageError, match="unequal"):
        cache_for(trace, "lru", 5_000)


def test_a_trace_without_blocks_hits_nothing(shared_traces: Path) -> None:
    trace = kvsched.load_trace(shared_traces / "azure" / "AzureLLMInferenceTrace_conv.csv")
    assert trace.nodes == 0, "lengths alone: nothing to compare"


def test_policies_that_look_ahead_are_refused(synthetic: Trace) -> None:
    with pytest.raises(UsageError, match="cannot run live"):
        cache_for(synthetic, "opt", 2_000)


def test_another_block_size_is_refused(synthetic: Trace) -> None:
    with pytest.raises(UsageError, match="blocks of 512 tokens, and the cache of 16"):
        drive(synthetic, kvsched.KVCacheScheduler(100, 16))


def test_columns_are_those_of_the_trace(synthetic: Trace) -> None:
    assert columns_of(synthetic) == ["session", "type", "priority", "turn"]
    assert "turn" not in columns_of(dataclasses.replace(synthetic, session=None))
    assert isinstance(make("wild"), Wild)
