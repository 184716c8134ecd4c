"""SGLang's rules, decision by decision against recordings of its own classes.

`tools/parity/sglang_record.py` made the recordings by running SGLang.
"""

from __future__ import annotations

import functools
import gzip
import hashlib
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sglang_pages import pages_of

from kvsched.foundation.errors import UsageError
from kvsched.foundation.jit import bind
from kvsched.replay import sglang
from kvsched.replay.loop import Counts, Decisions
from kvsched.replay.sglang import Pages, sglang_replay
from kvsched.replay.sglang_tree import Tree
from kvsched.trace.load import load_trace

RECORDINGS = Path(__file__).parent / "recordings"
RANDOM = ["sglang_random_1", "sglang_random_16", "sglang_random_64"]
Case = dict[str, Any]


@functools.cache
def recording(name: str) -> list[Case]:
    text = gzip.decompress((RECORDINGS / f"{name}.jsonl.gz").read_bytes()).decode()
    return [json.loads(line) for line in text.splitlines()]


@functools.cache
def workload(name: str) -> tuple[Pages, list[int]]:
    header, requests = recording(name)[:2]
    return pages_of(requests["requests"], header["page_size"])


Result = tuple[list[int], list[int], list[list[int]]]


def run(
    pages: Pages,
    names: list[int],
    case: Case,
    compiled: bool | None = None,
    loop: Callable[..., int] | None = None,
) -> Result:
    """Replay; return tokens hit, refusals and the names of the pages that left, by request."""
    requests = len(pages.kept)
    counts = Counts(*(np.zeros(requests, np.int32) for _ in Counts._fields))
    log = Decisions(*(np.full(2 * len(pages.chains), -1, np.int32) for _ in Decisions._fields))
    held, refused = sglang_replay(
        pages,
        case["strategy"],
        case["capacity_pages"],
        counts,
        log,
        compiled,
        chunk_pages=case["chunk_pages"],
        loop=loop,
    )
    assert held == counts.stored.sum() - counts.evicted.sum() <= case["capacity_pages"]
    left = iter(log.victim.tolist())
    victims = [[names[next(left)] for _ in range(many)] for many in counts.evicted.tolist()]
    return (counts.hits * pages.page_size).tolist(), refused.tolist(), victims


def expected(case: Case) -> Result:
    return case["hit_tokens"], case["refused"], case["victims"]


CASES = [(name, number) for name in RANDOM for number in range(2, len(recording(name)))]


@pytest.mark.parametrize(("name", "number"), CASES)
def test_every_decision_is_sglangs(name: str, number: int) -> None:
    case = recording(name)[number]
    assert run(*workload(name), case) == expected(case)


@pytest.mark.parametrize("name", RANDOM)
def test_plain_python_decides_the_same(name: str) -> None:
    for case in recording(name)[2:]:
        assert run(*workload(name), case, compiled=False) == expected(case)


def test_the_recordings_reach_every_rule() -> None:
    for name in RANDOM:
        header, _, *cases = recording(name)
        assert header["engine"] == "sglang"
        assert {case["strategy"] for case in cases} == set(sglang.STRATEGIES)
        for case in cases:
            assert sum(case["refused"]) >= 2
            assert sum(map(bool, case["hit_tokens"])) >= 20
            assert sum(map(len, case["victims"])) > 1000


def _later(tree: Tree, node: int) -> int:
    return -int(tree.used[node])


BROKEN: dict[str, dict[str, Any]] = {
    "counts rise on a match": {"counted_on_insert": False},
    "a request counts a node each time": {"counted_once": False},
    "a split forgets count and priority": {"split_copies": False},
    "a split keeps the age": {"split_is_new": False},
    "a split's remainder is not touched": {"remainder_touched": False},
    "priority is not raised": {"priority_raised": False},
    "a prompt's priority is not raised": {"prompt_raised": False},
    "a victim leaves page by page": {"whole_nodes": False},
    "no spare page": {"spare_page": False},
    "ties the other way": {"tie": _later},
}


@pytest.mark.parametrize("fault", BROKEN)
def test_the_recordings_notice_a_broken_rule(fault: str) -> None:
    loop = bind(sglang.serve, BROKEN[fault], False)
    cases = [(name, case) for name in RANDOM for case in recording(name)[2:]]
    assert any(run(*workload(name), case, False, loop) != expected(case) for name, case in cases)


def test_the_recordings_notice_a_missing_cap() -> None:
    pages, names = workload("sglang_random_16")
    loose = pages._replace(limit=pages.input_tokens // pages.page_size)
    case = recording("sglang_random_16")[2]
    assert run(pages, names, case) == expected(case)
    assert run(loose, names, case) != expected(case)


def test_the_recordings_notice_prefills_in_chunks() -> None:
    for name in RANDOM:
        case = next(case for case in recording(name)[2:] if case["chunk_pages"])
        assert run(*workload(name), {**case, "chunk_pages": 0}) != expected(case)


def test_an_unknown_strategy_is_refused() -> None:
    pages, names = workload("sglang_random_16")
    case = {**recording("sglang_random_16")[2], "strategy": "clock"}
    with pytest.raises(UsageError, match="clock"):
        run(pages, names, case)


def digest(victims: list[int]) -> str:
    text = ",".join(map(str, victims))
    return hashlib.sha256(text.encode()).hexdigest()[:8] if victims else ""


def mooncake_requests(path: Path, count: int, page_size: int) -> list[Any]:
    """The trace through kvsched's reader, with the recording's names for unnamed pages."""
    trace = load_trace(path)
    unnamed = itertools.count(1 << 32)
    requests = []
    for at in range(count):
        prompt, output = int(trace.input_tokens[at]), int(trace.output_tokens[at])
        chain = trace.chains[trace.starts[at] : trace.starts[at + 1]][: prompt // page_size]
        path_ = trace.key[chain].tolist()
        kept = (prompt + max(output, 1) - 1) // page_size
        requests.append(
            [prompt, output, 0, path_ + [next(unnamed) for _ in range(kept - len(path_))]]
        )
    return requests


def test_every_decision_on_a_real_trace_is_sglangs(shared_traces: Path) -> None:
    header, *cases = recording("sglang_mooncake")
    requests = mooncake_requests(
        shared_traces / "mooncake/conversation_trace.jsonl", header["requests"], 512
    )
    pages, names = pages_of(requests, header["page_size"])
    for case in cases:
        hits, refused, victims = run(pages, names, case)
        assert hits == case["hit_tokens"]
        assert refused == case["refused"]
        assert [len(left) for left in victims] == case["victims"]
        assert [digest(left) for left in victims] == case["victim_digest"]
