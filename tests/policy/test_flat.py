"""On chains of one block the queue policies are the published algorithms, request by request."""

from __future__ import annotations

import importlib.util
import random
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from factory import make_trace
from hypothesis import given, settings
from hypothesis import strategies as st
from mutants import edited

from kvsched.replay.run import replay

PATH = Path(__file__).resolve().parents[2] / "bench" / "flat_queues.py"


def published() -> ModuleType:
    """The papers' algorithms over plain lists, as the benchmarks hold a peer to them."""
    spec = importlib.util.spec_from_file_location("flat_queues", PATH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


FLAT = published()
PAIRS = {
    "lru": ("lru", {}),
    "sieve": ("sieve", {}),
    "s3fifo": ("s3fifo", {}),
    "s3fifo:small=0.5:ghost=0.5": ("s3fifo", {"small_share": 0.5, "ghost_share": 0.25}),
    "arc": ("arc", {}),
    # So many counters that no two nodes share one in every row: as exact counts.
    "wtinylfu:counters=4096": ("wtinylfu", {}),
    "wtinylfu:counters=4096:window=0.3:sample=3": ("wtinylfu", {"window_share": 0.3, "sample": 3}),
    # One class of depth, and one of requests.
    "marconi": ("lru", {}),
}


def hits_of(stream: Sequence[int], policy: str, capacity: int, compiled: bool) -> list[bool]:
    trace = make_trace([(key,) for key in stream], [1] * len(stream), [0] * len(stream))
    found = replay(trace, policy, capacity, compiled=compiled).request_hits > 0
    return [bool(hit) for hit in found]


def streams(seed: int, length: int) -> list[int]:
    """Some keys often, some in loops, many once."""
    drawn = random.Random(seed)  # noqa: S311  # not for secrets
    made: list[int] = []
    while len(made) < length:
        kind = drawn.randrange(3)
        if kind == 0:
            made += [int(drawn.paretovariate(0.7)) % 200 for _ in range(20)]
        elif kind == 1:
            first = drawn.randrange(200)
            made += list(range(first, first + drawn.randrange(4, 30))) * 2
        else:
            made += [drawn.randrange(60) for _ in range(20)]
    return made[:length]


@pytest.mark.parametrize("policy", PAIRS)
@settings(deadline=None, max_examples=40, derandomize=True)
@given(stream=st.lists(st.integers(0, 12), min_size=1, max_size=120), half=st.integers(1, 6))
def test_short_streams(policy: str, stream: list[int], half: int) -> None:
    name, options = PAIRS[policy]
    expected = getattr(FLAT, name)(stream, 2 * half, **options)
    assert hits_of(stream, policy, 2 * half, compiled=False) == expected


# Half of one block is no block: such a share begins at two.
LONG = [(c, p) for c in (1, 2, 10, 40, 100) for p in PAIRS if c > 1 or "=0.5" not in p]


@pytest.mark.parametrize(("capacity", "policy"), LONG)
def test_long_streams(capacity: int, policy: str) -> None:
    name, options = PAIRS[policy]
    for seed in range(6):
        stream = streams(seed, 4_000)
        expected = getattr(FLAT, name)(stream, capacity, **options)
        assert hits_of(stream, policy, capacity, compiled=True) == expected


WRONG = {
    "sieve": ("hand = after", "hand = None"),
    "s3fifo": ("if freq[tail] > 1:", "if freq[tail] > 2:"),
    "arc": ("p = max(p - step(b2, b1), 0)", "p = max(p - 1, 0)"),
    "wtinylfu": ("counts[candidate] > counts[rival]", "counts[candidate] >= counts[rival]"),
    "lru": ("cache.move_to_end(item)", "pass"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_detail_that_is_otherwise_shows(name: str) -> None:
    """The comparison tells the published algorithm from one that is nearly it."""
    wrong: Any = edited(getattr(FLAT, name), FLAT, *WRONG[name])
    policy = "wtinylfu:counters=4096" if name == "wtinylfu" else name
    stream = streams(1, 4_000)
    assert hits_of(stream, policy, 40, compiled=True) == getattr(FLAT, name)(stream, 40)
    assert hits_of(stream, policy, 40, compiled=True) != wrong(stream, 40)


def test_marconi_is_lru_without_a_weight(shared_traces: Path) -> None:
    from kvsched.trace.load import load_trace

    trace = load_trace(shared_traces / "mooncake" / "conversation_trace.jsonl")
    zero, lru = replay(trace, "marconi:alpha=0", 5_859), replay(trace, "lru", 5_859)
    assert np.array_equal(zero.request_hits, lru.request_hits)
