"""The integers of an independent implementation, on real traces, through the readers."""

from __future__ import annotations

import functools
import itertools
import json
from pathlib import Path

import pytest

from kvsched.replay.curve import lru_curve
from kvsched.replay.run import replay
from kvsched.trace.load import load_trace
from kvsched.trace.model import Trace

NAMES = ["mooncake/conversation_trace.jsonl", "mooncake/synthetic_trace.jsonl", "weka"]


@functools.cache
def read(path: Path) -> Trace:
    return load_trace(path)


@pytest.mark.parametrize("name", NAMES)
def test_the_integers_hold(name: str, shared_traces: Path, shared_acceptance: Path) -> None:
    lines = (shared_acceptance / "replay.jsonl").read_text().splitlines()
    cases = [case for case in map(json.loads, lines) if case.pop("trace") == name]
    assert len(cases) >= 5
    trace = read(shared_traces / name)
    for case in cases:
        assert replay(trace, case["policy"], case["capacity_blocks"]).summary() == case


@pytest.mark.parametrize("name", NAMES)
def test_the_curve_is_lru_at_every_capacity(name: str, shared_traces: Path) -> None:
    trace = read(shared_traces / name)
    curve = lru_curve(trace)
    for capacity in (1, 3, 40, 500, 1000, 5859, 22550, trace.nodes):
        result = replay(trace, "lru", capacity)
        assert result.hit_blocks == curve.hit_blocks[capacity]
        assert result.hit_tokens == curve.hit_tokens[capacity]
        assert result.evictions == curve.evictions(capacity)


@pytest.mark.parametrize("where", ["README.md", "examples/my_lru.py"])
def test_an_lru_of_a_users_own_gives_the_same_integers(
    where: str, shared_traces: Path, tmp_path: Path
) -> None:
    code = (Path(__file__).parents[2] / where).read_text(encoding="utf-8")
    if where == "README.md":
        code = code.split("# my_lru.py\n")[1].split("```")[0]
    assert len(code.splitlines()) < 25
    (tmp_path / "my_lru.py").write_text(code)
    for name, capacity in itertools.product(NAMES[:2], (1, 1000, 5859, 22550)):
        trace = read(shared_traces / name)
        own = replay(trace, f"{tmp_path / 'my_lru.py'}:MyLRU", capacity).summary()
        assert own.pop("policy") == "my-lru"
        built_in = replay(trace, "lru", capacity).summary()
        assert built_in.pop("policy") == "lru"
        assert own == built_in
