"""What a request generates, and the blocks it holds, by hand; the recordings check it at large."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
from factory import make_trace

from kvsched.foundation.errors import UsageError
from kvsched.replay.generated import Held, extensions, held_blocks, walk
from kvsched.replay.vllm import VLLM
from kvsched.trace.model import Labels, Trace


def trace_of(
    paths: list[tuple[int, ...]], tails: list[int], outputs: list[int], sessions: list[int] | None
) -> Trace:
    trace = make_trace(paths, [1] * len(paths), tails)
    labels = None if sessions is None else Labels(np.array(sessions, np.int32), ("a", "b", "c"))
    return dataclasses.replace(trace, output_tokens=np.array(outputs, np.int64), session=labels)


def chains(held: Held) -> list[list[int]]:
    bounds = held.trace.starts.tolist()
    return [held.trace.chains[low:high].tolist() for low, high in itertools.pairwise(bounds)]


def test_the_same_session_names_before_an_earlier_stranger() -> None:
    paths = [(1,), (1, 2), (1, 3), (1,)]
    trace = trace_of(paths, [0] * 4, [17] * 4, [0, 1, 0, -1])
    full = trace.chain_blocks
    source, by_session = extensions(trace, full)
    assert source.tolist() == [2, -1, -1, -1]
    assert by_session.tolist() == [True, False, False, False]
    source, by_session = extensions(dataclasses.replace(trace, session=None), full)
    assert source.tolist() == [1, -1, -1, -1]
    assert not by_session.any()


def test_a_stranger_names_where_the_session_does_not() -> None:
    trace = trace_of([(1,), (2,), (1, 5)], [0] * 3, [17] * 3, [0, 0, 1])
    source, by_session = extensions(trace, trace.chain_blocks)
    assert source.tolist() == [2, -1, -1]
    assert not by_session.any()


def test_without_a_full_block_only_the_session_names() -> None:
    # The first prompt has 3 tokens; no stranger's root can be told to go on from it.
    trace = trace_of([(1,), (2,), (7, 8)], [-3, 0, 0], [20, 1, 1], [0, 1, 0])
    held = held_blocks(trace, cache_generated=True)
    assert held.full.tolist() == [0, 1, 2]
    assert chains(held)[0] == [trace.chains[2], trace.nodes]
    assert held.kept.tolist() == [1, 1, 2]
    assert held.named == (1, 0, 0)
    alone = held_blocks(dataclasses.replace(trace, session=None), cache_generated=True)
    assert alone.named == (0, 0, 1)


def test_blocks_held_at_the_longest() -> None:
    # Blocks of 16. 32 + 33 tokens: the last is never computed, so 64 are: 4 full blocks, one of
    # which the next prompt names. Then 21 + 0 tokens, 48 + 1, and 37 + 12.
    paths = [(1, 2), (9,), (1, 2, 3), (1, 2, 6)]
    trace = trace_of(paths, [0, 5, 0, -5], [33, 0, 1, 12], None)
    held = held_blocks(trace, cache_generated=True)
    a, b, nine, c = (int(trace.chains[at]) for at in (0, 1, 2, 5))
    new = trace.nodes
    assert chains(held) == [[a, b, c, new], [nine, new + 1], [a, b, c], [a, b, new + 2]]
    assert held.kept.tolist() == [4, 1, 3, 3]
    assert held.limit.tolist() == [1, 1, 2, 2]
    assert held.named == (0, 1, 2)
    assert held.trace.parent[new:].tolist() == [c, nine, b]
    assert held.trace.depth[new:].tolist() == [3, 1, 2]
    prompts = held_blocks(trace, cache_generated=False)
    assert prompts.kept.tolist() == [2, 1, 3, 2]
    assert [len(chain) for chain in chains(prompts)] == [4, 2, 3, 3]
    assert all(len(set(chain)) == len(chain) for chain in chains(prompts)), "no node twice"
    assert prompts.named == (0, 0, 0)


def test_an_answer_of_its_own_is_named_by_nobody() -> None:
    # The next prompt goes on after this one, but with what the trace's answer was.
    trace = trace_of([(1, 2), (1, 2, 3)], [0, 0], [33, 1], [0, 0])
    named = held_blocks(trace, cache_generated=True)
    assert named.named == (1, 0, 1)
    alone = held_blocks(trace, cache_generated=True, name_generated=False)
    assert alone.named == (0, 0, 2)
    # It takes the same room, and is stored all the same.
    assert alone.kept.tolist() == named.kept.tolist()
    new = trace.nodes
    assert chains(alone)[0] == [*trace.chains[:2].tolist(), new, new + 1]
    assert alone.trace.parent[new:].tolist() == [trace.chains[1], new]


@pytest.mark.parametrize("compiled", ["1", "0"])
def test_an_unlimited_cache(compiled: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVSCHED_COMPILED", compiled)
    # The partial block of the first prompt is seen by the second, and cannot be hit.
    trace = trace_of([(1, 2), (1, 2), (1, 3)], [-5, -5, 5], [1, 1, 1], None)
    held = held_blocks(trace, cache_generated=True)
    hits, seen = walk(trace, held.trace, held.kept, held.limit)
    assert hits.tolist() == [0, 1, 1]
    assert seen.tolist() == [0, 2, 1]


def test_unequal_blocks_are_refused() -> None:
    trace = dataclasses.replace(make_trace([(1,)], [1], [0]), block_size=0)
    with pytest.raises(UsageError, match="blocks of one size"):
        VLLM(trace).replay(None, 5)
