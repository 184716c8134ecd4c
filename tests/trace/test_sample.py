"""A trace contracted to a sample: which nodes, which forest, what they stand for."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsched.foundation.errors import UsageError
from kvsched.trace.model import Trace
from kvsched.trace.sample import SampledTrace, path_hashes, sample

sys.path.insert(0, str(Path(__file__).parents[1] / "replay"))
from factory import make_trace, traces

Paths = list[tuple[int, ...]]


def random_paths(seed: int = 1, requests: int = 300) -> Paths:
    random = np.random.default_rng(seed)
    return [
        tuple(random.integers(0, 3, size=random.integers(1, 9)).tolist()) for _ in range(requests)
    ]


def trace_of(paths: Paths) -> Trace:
    return make_trace(paths, [1] * len(paths), [0] * len(paths))


def node_paths(trace: Trace) -> list[tuple[int, ...]]:
    """The keys from the root to each node of a whole trace."""
    found: list[tuple[int, ...]] = []
    for parent, key in zip(trace.parent.tolist(), trace.key.tolist(), strict=True):
        found.append((*(found[parent] if parent >= 0 else ()), key))
    return found


def names(sampled: SampledTrace, whole: Trace) -> list[tuple[int, ...]]:
    """The whole paths of the sample's nodes, found by their hash."""
    known = dict(
        zip(path_hashes(whole, sampled.settings.seed).tolist(), node_paths(whole), strict=True)
    )
    return [known[each] for each in sampled.path.tolist()]


@settings(deadline=None, max_examples=80, derandomize=True)
@given(trace=traces(), one_in=st.integers(1, 4), seed=st.integers(0, 5))
def test_the_forest_is_contracted(trace: Trace, one_in: int, seed: int) -> None:
    """Against the definition: drop what is left out of every chain, look upwards for parents."""
    found = sample(trace, one_in, seed)
    whole = node_paths(trace)
    held = names(found, trace)
    kept = set(held)
    chains = [found.chains[low:high].tolist() for low, high in itertools.pairwise(found.starts)]
    asked = [trace.chains[low:high].tolist() for low, high in itertools.pairwise(trace.starts)]
    for chain, full in zip(chains, asked, strict=True):
        assert [held[node] for node in chain] == [
            whole[node] for node in full if whole[node] in kept
        ]
    for node, path in enumerate(held):
        above = next(
            (path[:size] for size in range(len(path) - 1, 0, -1) if path[:size] in kept), None
        )
        parent = int(found.parent[node])
        assert (held[parent] if parent >= 0 else None) == above
        assert found.depth[node] == len(path) - 1
        assert found.key[node] == path[-1]


@settings(deadline=None, max_examples=60, derandomize=True)
@given(trace=traces())
def test_one_in_one_is_the_trace(trace: Trace) -> None:
    found = sample(trace, 1)
    for name, column in trace.columns().items():
        assert column.tolist() == found.columns()[name].tolist()
    hits = trace.chain_blocks // 2
    assert found.prefix_tokens(hits).tolist() == trace.prefix_tokens(hits).tolist()
    assert found.prefix_blocks(hits).tolist() == hits.tolist()
    assert found.located_tokens(hits).tolist() == trace.prefix_tokens(hits).tolist()


def test_the_choice_rests_on_paths_alone() -> None:
    """Requests in another order number the nodes anew; the sample has the same paths."""
    paths = random_paths()
    first, second = trace_of(paths), trace_of(paths[::-1])
    assert first.key.tolist() != second.key.tolist()
    for seed in range(3):
        one, two = (sample(trace, 5, seed) for trace in (first, second))
        assert set(names(one, first)) == set(names(two, second))
    assert names(sample(first, 5, 0), first) != names(sample(first, 5, 1), first)


def test_a_lower_rate_takes_a_part_of_a_higher() -> None:
    trace = trace_of(random_paths(requests=3000))
    kept = [set(sample(trace, one_in).path.tolist()) for one_in in (1, 2, 10, 100)]
    assert all(small < large for large, small in itertools.pairwise(kept))


def test_the_rate_is_kept() -> None:
    random = np.random.default_rng(4)
    trace = trace_of([tuple(random.integers(0, 10**6, size=10).tolist()) for _ in range(4000)])
    for one_in in (2, 10, 40):
        found = sample(trace, one_in)
        expected = trace.nodes / one_in
        assert abs(found.nodes - expected) < 5 * expected**0.5


def test_same_key_at_two_roots_that_share_nothing_is_hashed_apart() -> None:
    """A reader's scopes leave roots of the same key: drawn together they would be one draw."""
    trace = trace_of([(1, 2), (7, 2), (8, 2)])
    alike = Trace(**{**vars_of(trace), "key": np.array([1, 2, 1, 2, 1, 2], np.int64)})
    assert len(set(path_hashes(alike, 0).tolist())) == 6


def vars_of(trace: Trace) -> dict[str, object]:
    import dataclasses

    return {each.name: getattr(trace, each.name) for each in dataclasses.fields(Trace)}


def test_nodes_used_most_are_kept_for_themselves() -> None:
    paths: Paths = [(0, *path) for path in random_paths(requests=3000)]
    trace = trace_of(paths)
    for seed in range(8):
        found = sample(trace, 50, seed)
        assert found.always[0]
        assert found.depth[0] == 0
        assert found.node_weight[0] == 1
    dropped = [sample(trace, 50, seed, always_above=1.0) for seed in range(8)]
    assert not all(each.depth[0] == 0 for each in dropped)


def test_sums_come_to_what_the_trace_has() -> None:
    trace = trace_of([(0, *path) for path in random_paths(requests=3000)])
    found = sample(trace, 10)
    assert found.nodes < trace.nodes / 3
    assert int(found.chain_tokens.sum()) == int(trace.chain_tokens.sum())
    assert int(found.prefix_blocks(found.chain_blocks).sum()) == trace.references
    assert found.total_nodes == trace.nodes
    assert found.tail_tokens.tolist() == trace.tail_tokens.tolist()
    half = found.prefix_blocks(found.chain_blocks // 2)
    assert (half >= 0).all()
    assert int(half.sum()) < trace.references
    located = found.located_tokens(found.chain_blocks // 2)
    assert (located <= trace.chain_tokens).all()


def test_parts_share_only_what_is_always_kept() -> None:
    trace = trace_of([(0, *path) for path in random_paths(requests=3000)])
    found = sample(trace, 4)
    parts = [found.part(number, 3) for number in range(3)]
    always = set(found.path[found.always].tolist())
    drawn = [set(part.path.tolist()) - always for part in parts]
    assert all(always <= set(part.path.tolist()) for part in parts)
    assert sum(map(len, drawn)) == len(set.union(*drawn))
    assert set.union(always, *drawn) == set(found.path.tolist())
    assert all(part.settings.one_in == 12 for part in parts)


def test_same_seed_same_bytes_and_plain_as_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = trace_of(random_paths())
    digests = [sample(trace, 5, seed).digest for seed in (0, 0, 1, 2**63 + 1)]
    assert digests[0] == digests[1]
    assert len(set(digests)) == 3
    monkeypatch.setenv("KVSCHED_COMPILED", "0")
    assert sample(trace, 5).digest == digests[0]
    assert sample(trace, 5, 2**63 + 1).digest == digests[3]


@pytest.mark.parametrize("one_in", [0, -1, 1_000_001])
def test_impossible_rates_are_refused(one_in: int) -> None:
    with pytest.raises(UsageError, match="1 node in"):
        sample(trace_of([(1,)]), one_in)


def test_a_trace_without_blocks_has_an_empty_sample() -> None:
    found = sample(make_trace([(), ()], [0, 1], [5, 0]), 10)
    assert found.nodes == found.references == 0
    assert found.located_tokens(found.chain_blocks).tolist() == [0, 0]
