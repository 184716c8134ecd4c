"""vLLM's rules against recordings of its own classes, decision by decision."""

from __future__ import annotations

import functools
import hashlib
import itertools
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import recorded
from factory import make_trace

from kvsched.foundation.errors import UsageError
from kvsched.foundation.jit import bind
from kvsched.replay import vllm
from kvsched.replay.run import new_columns, new_limits, replay
from kvsched.replay.vllm import VLLM, empty_pool, pool_loop
from kvsched.trace.load import load_trace
from kvsched.trace.model import Trace

WHOLE = [*recorded.names("vllm-chats-*"), *recorded.names("vllm-trees-*")]
CONVERSATION = recorded.names("vllm-conversation-*")


class Found(NamedTuple):
    """What a replay did, in the recording's terms."""

    hit_tokens: list[int]
    refused: list[bool]
    victims: list[list[int]]


@functools.cache
def asked(name: str) -> tuple[recorded.Recording, VLLM]:
    recording = recorded.read(name)
    cached = recording.head.get("cache_generated", True)
    return recording, VLLM(recorded.trace_of(recording), cache_generated=cached)


def by_request(flat: Any, counts: Any) -> list[list[int]]:
    ends = np.cumsum(counts).tolist()
    return [flat[low:high] for low, high in itertools.pairwise([0, *ends])]


def ours(rules: VLLM, capacity: int, compiled: bool | None = None) -> Found:
    result = rules.replay(None, capacity, decisions=True, compiled=compiled)
    ids = recorded.ids_of(rules.trace, rules.held.trace)
    assert result.decisions is not None
    victims = [ids[node] for node in result.decisions.victim.tolist()]
    return Found(
        result.request_hit_tokens.tolist(),
        result.request_refused.tolist(),
        by_request(victims, result.request_evictions),
    )


def theirs(recording: recorded.Recording) -> Found:
    rows = recording.rows
    return Found(*([row[name] for row in rows] for name in ("hit", "refused", "victims")))


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("name", WHOLE)
def test_no_difference_from_the_engine(name: str, compiled: bool) -> None:
    recording, rules = asked(name)
    assert ours(rules, recording.capacity, compiled) == theirs(recording)


@pytest.mark.parametrize("name", WHOLE)
def test_generated_blocks_are_those_of_a_plain_search(name: str) -> None:
    recording, rules = asked(name)
    held, size = rules.held, recording.head["block_size"]
    ids = recorded.ids_of(rules.trace, held.trace)
    for at, row in enumerate(recording.rows):
        low = int(held.trace.starts[at])
        mine = held.trace.chains[low : low + int(held.kept[at])].tolist()
        wanted = [*row["ids"][: row["prompt"] // size], *row["generated"]]
        assert [ids[node] for node in mine] == wanted


def test_the_recordings_hold_every_case() -> None:
    rows = [
        (row, asked(name)[0].head["block_size"]) for name in WHOLE for row in asked(name)[0].rows
    ]
    assert sum(row["hit"] > 0 for row, _ in rows) > 500
    assert sum(row["refused"] for row, _ in rows) > 10
    assert sum(len(row["victims"]) for row, _ in rows) > 5000
    exact = [row for row, size in rows if row["prompt"] % size == 0 and row["hit"] > 0]
    assert sum(row["hit"] == row["prompt"] - size for row, size in rows if row in exact) > 50
    assert sum(any(block >= 0 for block in row["generated"]) for row, _ in rows) > 100
    assert sum(any(block < 0 for block in row["generated"]) for row, _ in rows) > 100
    doubles = [name for name in WHOLE if broken_differs(name, "duplicates are one block")]
    assert len(doubles) >= 3


def test_the_conversation_trace(shared_traces: Path, tmp_path: Path) -> None:
    trace = first_of_the_conversation(shared_traces, tmp_path)
    for name in CONVERSATION:
        recording = recorded.read(name)
        assert digests(ours(VLLM(trace), recording.capacity)) == recording.rows
        off = VLLM(trace, cache_generated=False)
        assert digests(ours(off, recording.capacity)) != recording.rows, "it can fail"


def first_of_the_conversation(shared_traces: Path, folder: Path) -> Trace:
    source = shared_traces / "mooncake" / "conversation_trace.jsonl"
    with source.open() as stream:
        head = list(itertools.islice(stream, 2000))
    (folder / "first.jsonl").write_text("".join(head))
    return load_trace(folder / "first.jsonl")


def digests(found: Found) -> list[list[Any]]:
    state = hashlib.sha256()
    rows = []
    for hit, refused, victims in zip(*found, strict=True):
        state.update("".join(f"{victim}\n" for victim in victims).encode())
        rows.append([hit, int(refused), len(victims), state.hexdigest()[:8]])
    return rows


class Broken(NamedTuple):
    """One rule broken: names bound in the loop, or columns that it is given."""

    names: dict[str, Any] = {}  # noqa: RUF012  # never changed
    limit: Any = None
    kept: Any = None
    capacity: int = 0


BROKEN = {
    "the last token can be hit": Broken(
        limit=lambda rules: rules.trace.input_tokens // rules.trace.block_size
    ),
    "uncached blocks go to the tail": Broken({"uncached_to_head": False}),
    "heads are freed first": Broken({"tail_first": False}),
    "duplicates are one block": Broken({"keep_duplicates": False}),
    "partial blocks are cached": Broken(kept=lambda rules: rules.held.trace.chain_blocks),
    "generated blocks are not cached": Broken(
        kept=lambda rules: np.minimum(rules.held.kept, rules.trace.input_tokens // BLOCK(rules))
    ),
    "the null block can be used": Broken(capacity=1),
    "a block less can be used": Broken(capacity=-1),
}


def BLOCK(rules: VLLM) -> int:  # noqa: N802  # a size
    return rules.trace.block_size


def broken_differs(name: str, which: str) -> bool:
    """Whether the loop with one rule broken differs from the recording."""
    recording, rules = asked(name)
    broken = BROKEN.get(which, Broken())
    held, capacity = rules.held, recording.capacity + broken.capacity
    counts, log = new_columns(len(rules.trace), held.trace.references)
    limit = held.limit if broken.limit is None else broken.limit(rules)
    kept = held.kept if broken.kept is None else broken.kept(rules)
    longest = int(held.trace.chain_blocks.max())
    pool = empty_pool(capacity, held.trace.nodes, longest)
    loop = bind(pool_loop, broken.names, compiled=False)
    limits = new_limits(limit, kept)
    loop(pool, capacity, held.trace.starts, held.trace.chains, limits, counts, log)
    ids = recorded.ids_of(rules.trace, held.trace)
    victims = [ids[node] for node in log.victim[: int(counts.evicted.sum())].tolist()]
    hits = rules.trace.prefix_tokens(counts.hits).tolist()
    found = Found(hits, limits.refused.tolist(), by_request(victims, counts.evicted))
    return found != theirs(recording)


@pytest.mark.parametrize("which", BROKEN)
def test_a_broken_rule_is_noticed(which: str) -> None:
    assert any(broken_differs(name, which) for name in WHOLE)


@pytest.mark.parametrize("name", WHOLE)
def test_the_rules_as_they_are_pass_the_same_check(name: str) -> None:
    assert not broken_differs(name, "nothing")


def test_the_rules_by_hand() -> None:
    # Blocks of 16: two prompts of exactly two blocks, then one that goes on, one token generated.
    trace = make_trace([(1, 2), (1, 2), (1, 2, 3), (9,) * 6], [1] * 4, [0, 0, -5, 0])
    object.__setattr__(trace, "output_tokens", np.array([1, 1, 1, 1], np.int64))
    result = replay(trace, None, 5, engine="vllm", decisions=True)
    # The second prompt hits one block of two; its last block becomes a second copy.
    assert result.request_hits.tolist() == [0, 1, 2, 0]
    assert result.request_refused.tolist() == [False, False, False, True]
    assert result.refused == 1
    assert result.resident_blocks == 3, "blocks 1 and 2, and the copy of 2"
    assert result.summary()["engine"] == "vllm"
    assert result.policy.label == "free-list"


def test_the_free_list_needs_the_engine() -> None:
    trace = make_trace([(1,)], [1], [0])
    with pytest.raises(UsageError, match="needs --engine vllm"):
        replay(trace, vllm.FreeList, 5)
    with pytest.raises(UsageError, match="unknown policy free-list"):
        replay(trace, "free-list", 5)
    assert replay(trace, "free-list", 5, engine="vllm").policy.label == "free-list"
    with pytest.raises(UsageError, match="unknown engine vlm"):
        replay(trace, None, 5, engine="vlm")
