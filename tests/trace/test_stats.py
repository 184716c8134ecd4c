"""The figures of a trace, against plain counting; distances, against their definition."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import math
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from labelled import labelled, plain, with_another_chain

from kvsched.foundation.errors import UsageError
from kvsched.foundation.jit import compilation_enabled
from kvsched.replay.curve import lru_curve
from kvsched.trace.compare import compare_traces, distance
from kvsched.trace.generate import generate, preset
from kvsched.trace.load import load_trace
from kvsched.trace.model import Trace
from kvsched.trace.stats import QUANTILES, blocks_seen, spread, trace_stats

QUICK = settings(deadline=None, max_examples=120, derandomize=True)


def chains_of(trace: Trace) -> list[tuple[int, ...]]:
    bounds = trace.starts.tolist()
    return [tuple(trace.chains[low:high].tolist()) for low, high in itertools.pairwise(bounds)]


@QUICK
@given(trace=labelled())
def test_reuse_by_plain_counting(trace: Trace) -> None:
    met: set[int] = set()
    seen, tokens = [], 0
    depths: collections.Counter[int] = collections.Counter()
    every: collections.Counter[int] = collections.Counter()
    for request, chain in enumerate(chains_of(trace)):
        known = [node for node in chain if node in met]
        met.update(chain)
        seen.append(len(known))
        blocks = np.zeros(len(trace), np.int64)
        blocks[request] = len(known)
        tokens += int(trace.prefix_tokens(blocks)[request])
        every.update(range(len(chain)))
        depths.update(range(len(known)))
    assert blocks_seen(trace).tolist() == seen
    found = trace_stats(trace)["reuse"]
    assert (found["blocks"], found["tokens"]) == (sum(seen), tokens)
    lengths = trace.chain_blocks.tolist()
    pairs = list(zip(seen, lengths, strict=True))
    assert found["requests_without"] == sum(k == 0 < length for k, length in pairs)
    assert found["requests_wholly"] == sum(k == length > 0 for k, length in pairs)
    counted = [(row["name"], row["references"], row["seen"]) for row in found["by_depth"]]
    bins = {"block 1": [0], "block 2": [1], "blocks 3-4": [2, 3], "blocks 5-8": [4, 5, 6, 7]}
    assert counted == [
        (name, sum(every[d] for d in depth), sum(depths[d] for d in depth))
        for name, depth in bins.items()
        if any(every[d] for d in depth)
    ]


@QUICK
@given(trace=labelled())
def test_sharing_by_plain_counting(trace: Trace) -> None:
    rows = {row["name"]: row for row in trace_stats(trace)["sharing"]}
    for blocks in (1, 2, 4, 8):
        heads = [chain[:blocks] for chain in chains_of(trace) if len(chain) >= blocks]
        row = rows.get("first block" if blocks == 1 else f"first {blocks} blocks")
        if not heads:
            assert row is None
            continue
        groups = collections.Counter(heads)
        assert row is not None
        assert row["requests"] == len(heads)
        assert row["prefixes"] == len(groups)
        assert row["shared_requests"] == sum(n for n in groups.values() if n > 1)
        assert row["commonest"] == max(groups.values())


@QUICK
@given(trace=labelled())
def test_sessions_and_names_by_plain_counting(trace: Trace) -> None:
    found = trace_stats(trace)
    times: dict[str, list[float]] = {}
    for row in plain(trace):
        if row["session"] is not None:
            times.setdefault(row["session"], []).append(row["time"])
    if trace.session is None:
        assert found["sessions"] is None
    else:
        gaps = [b - a for own in times.values() for a, b in itertools.pairwise(own)]
        assert found["sessions"]["sessions"] == len(times)
        assert found["sessions"]["requests_in_sessions"] == sum(map(len, times.values()))
        assert found["sessions"]["requests_per_session"]["max"] == max(
            map(len, times.values()), default=None
        )
        assert found["sessions"]["session_gap_s"]["count"] == len(gaps)
        assert found["sessions"]["session_gap_s"]["max"] == max(gaps, default=None)
    tenants = collections.Counter(r["tenant"] for r in plain(trace) if r["tenant"] is not None)
    if trace.tenant is not None:
        largest = {row["name"]: row["requests"] for row in found["tenants"]["largest"]}
        assert largest == dict(tenants)


@QUICK
@given(values=st.lists(st.integers(0, 50), min_size=1, max_size=60))
def test_quantiles_by_their_definition(values: list[int]) -> None:
    found = spread(np.array(values))
    for share in QUANTILES:
        fits = [
            v for v in sorted(values) if sum(w <= v for w in values) * 100 >= share * len(values)
        ]
        assert found[f"p{share}"] == fits[0]
    assert (found["min"], found["max"], found["count"]) == (min(values), max(values), len(values))
    assert found["mean"] == pytest.approx(statistics.fmean(values))
    assert found["sd"] == pytest.approx(statistics.pstdev(values))


def test_nothing_is_none() -> None:
    found = spread(np.empty(0))
    assert found["count"] == 0
    assert {value for name, value in found.items() if name != "count"} == {None}


@QUICK
@given(trace=labelled(), width=st.integers(1, 700))
def test_windows_by_plain_counting(trace: Trace, width: int) -> None:
    found = trace_stats(trace, float(width))["arrivals"]
    windows = int(trace.duration_s // width)
    counts = [0] * windows
    for at in (int(t // width) for t in trace.time_s.tolist()):
        if at < windows:
            counts[at] += 1
    assert found["windows"] == windows
    assert found["rate"]["max"] == (max(counts) / width if counts else None)
    assert found["distinct_times"] == len(set(trace.time_s.tolist()))
    if counts:
        assert found["rate"]["mean"] == pytest.approx(sum(counts) / width / windows)


def arrivals_at(times: np.ndarray) -> dict[str, Any]:
    made = generate(preset("chat", requests=20), 1)
    count = len(times)
    trace = dataclasses.replace(
        made,
        time_s=times - times[0],
        input_tokens=np.full(count, 100),
        output_tokens=np.full(count, 100),
        starts=np.zeros(count + 1, np.int64),
        chains=np.empty(0, np.int32),
        session=None,
        tenant=None,
        type=None,
        turn=None,
        delay_s=None,
    )
    return trace_stats(trace)["arrivals"]  # type: ignore[no-any-return]


def test_burstiness_of_known_processes() -> None:
    regular = arrivals_at(np.arange(5000.0))
    assert regular["burstiness"] == -1
    assert {row["index"] for row in regular["dispersion"]} == {0.0}
    rng = np.random.Generator(np.random.PCG64(3))
    poisson = arrivals_at(np.cumsum(rng.exponential(0.5, 40_000)))
    assert abs(poisson["burstiness"]) < 0.02
    # The index of n windows lies within 4 standard deviations, sqrt(2 / n), of 1.
    for row in poisson["dispersion"]:
        assert abs(row["index"] - 1) < 4 * math.sqrt(2 / row["windows"]), row
    bursts = arrivals_at(np.repeat(np.cumsum(rng.exponential(10, 2000)), 20))
    assert bursts["burstiness"] > 0.5
    assert bursts["dispersion"][1]["index"] > 10


def test_a_real_trace(shared_traces: Path) -> None:
    trace = load_trace(shared_traces / "mooncake" / "conversation_trace.jsonl")
    found = trace_stats(trace)
    curve = lru_curve(trace)
    assert found["reuse"]["blocks"] == curve.ceiling_blocks
    assert found["reuse"]["tokens"] == curve.ceiling_tokens
    assert found["reuse"]["blocks"] == trace.references - trace.nodes
    assert found["arrivals"]["distinct_times"] == 1_180
    assert sum(row["references"] for row in found["reuse"]["by_depth"]) == trace.references
    assert sum(row["seen"] for row in found["reuse"]["by_depth"]) == found["reuse"]["blocks"]
    broken = trace_stats(with_another_chain(trace))
    assert broken["reuse"]["blocks"] == found["reuse"]["blocks"] - 1


@pytest.mark.skipif(not compilation_enabled(), reason="a ratio of compiled code")
def test_it_costs_less_than_reading(shared_traces: Path) -> None:
    path = shared_traces / "mooncake" / "conversation_trace.jsonl"
    trace = load_trace(path)
    trace_stats(trace)  # compiles

    def once() -> float:
        start = time.perf_counter()
        load_trace(path)
        read = time.perf_counter()
        trace_stats(trace)
        return (time.perf_counter() - read) / (read - start)

    assert min(once() for _ in range(5)) < 0.5


@pytest.mark.parametrize("window", [0.0, -1.0, float("nan"), float("inf")])
def test_a_window_that_is_none(window: float) -> None:
    with pytest.raises(UsageError, match="a window of"):
        trace_stats(generate(preset("chat", requests=20), 1), window)


def test_too_many_windows() -> None:
    with pytest.raises(UsageError, match="over 1,000,000 of them"):
        trace_stats(generate(preset("chat", requests=200), 1), 1e-6)


@QUICK
@given(
    a=st.lists(st.integers(0, 12), min_size=1, max_size=25),
    b=st.lists(st.integers(0, 12), min_size=1, max_size=25),
)
def test_distance_by_its_definition(a: list[int], b: list[int]) -> None:
    def share(sample: list[int], value: int) -> float:
        return sum(each <= value for each in sample) / len(sample)

    found = distance(np.array(a), np.array(b))
    assert found is not None
    assert found["distance"] == pytest.approx(max(abs(share(a, v) - share(b, v)) for v in a + b))
    assert found["share_a"] == pytest.approx(share(a, found["at"]))
    assert found["share_b"] == pytest.approx(share(b, found["at"]))
    assert found["beyond_chance"] == (found["distance"] > found["chance"])


def test_distances_in_words() -> None:
    low, high = np.arange(100), np.arange(100, 300)
    apart = distance(low, high)
    assert apart is not None
    assert (apart["distance"], apart["at"]) == (1, 99)
    # The published large-sample factor for 1%: 1.63.
    assert apart["chance"] == pytest.approx(1.63 * math.sqrt(300 / 20_000), rel=0.002)
    assert apart["reading"] == (
        "they differ strongly: 100.0% of a's are at most 99, 0.0% of b's "
        "(distance 1.000, chance 0.199)"
    )
    same = distance(low, low)
    assert same is not None
    assert same["reading"] == "no difference beyond chance (distance 0.000, chance 0.230)"
    many = np.arange(100_000)
    words = {by: distance(many, many + by) for by in (5_000, 20_000)}
    assert "slightly" in words[5_000]["reading"]  # type: ignore[index]
    assert "clearly" in words[20_000]["reading"]  # type: ignore[index]
    assert distance(low, low[:0]) is None


def test_chance_is_exceeded_once_in_a_hundred() -> None:
    rng = np.random.Generator(np.random.PCG64(7))
    beyond = 0
    for _ in range(2000):
        found = distance(rng.random(300), rng.random(200))
        assert found is not None
        beyond += found["beyond_chance"]
    assert 5 <= beyond <= 35


def test_two_traces_side_by_side() -> None:
    a = generate(preset("chat", requests=300), 1)
    b = generate(preset("rag", requests=300), 1)
    same = compare_traces(a, a)
    assert {row["difference"] for row in same["figures"]} <= {0, None}
    assert all(found["distance"] == 0 for found in same["distributions"].values())
    both = compare_traces(a, b)
    rows = {row["figure"]: row for row in both["figures"]}
    assert both["a"] == trace_stats(a)
    assert both["b"] == trace_stats(b, both["a"]["arrivals"]["window_s"])
    row = rows["input_tokens.p50"]
    assert row["a"] == trace_stats(a)["input_tokens"]["p50"]
    assert row["difference"] == row["b"] - row["a"]
    assert row["ratio"] == row["b"] / row["a"]
    assert "reuse.by_depth[block 1].share" in rows
    assert both["distributions"]["input_tokens"] == distance(a.input_tokens, b.input_tokens)
    for row in rows.values():
        assert (row["a"], row["b"]) != (None, None)
