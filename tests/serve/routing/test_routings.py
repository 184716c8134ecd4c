"""Each routing by hand, over engines whose state is given."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from serving import COST, plain

from kvsched.foundation.errors import UsageError
from kvsched.serve.cost import linear_cost
from kvsched.serve.routing.base import Routing
from kvsched.serve.routing.registry import make_routing, routing_names
from kvsched.serve.routing.round_robin import RoundRobin
from kvsched.serve.settings import Settings
from kvsched.serve.simulate import simulate


@dataclass
class Given:
    """Engines as a test says they are."""

    outstanding: list[int]
    queues: list[int] = field(default_factory=list)
    used: list[float] = field(default_factory=list)
    hits: list[int] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.outstanding)

    def waiting(self, engine: int) -> int:
        return self.queues[engine] if self.queues else 0

    def kv_usage(self, engine: int) -> float:
        return self.used[engine] if self.used else 0.0

    def hit_tokens(self, engine: int, request: int) -> int:
        return self.hits[engine] if self.hits else 0


def begun(name: str, replicas: int) -> Routing:
    routing = make_routing(name)
    routing.prepare(plain([(10, 5)]), replicas)
    return routing


def test_round_robin() -> None:
    routing = begun("round-robin", 3)
    assert [routing.route(0, Given([9, 0, 0])) for _ in range(5)] == [0, 1, 2, 0, 1]


def test_least_loaded() -> None:
    routing = begun("least-loaded", 3)
    # Equal engines are taken in turn, for the scan begins one further each time.
    assert [routing.route(0, Given([1, 1, 1])) for _ in range(4)] == [0, 1, 2, 0]
    assert routing.route(0, Given([3, 2, 1])) == 2
    # 4 + 2 · 6 · (0.75 - 0.5) = 7 against 6; at 0.6 it is 5.2.
    assert routing.route(0, Given([4, 6, 9], [2, 0, 0], [0.75, 1.0, 0.0])) == 1
    assert routing.route(0, Given([4, 6, 9], [2, 0, 0], [0.6, 1.0, 0.0])) == 0
    assert routing.route(0, Given([4, 6, 9], [2, 0, 0], [0.1, 1.0, 0.0])) == 0


def test_cache_aware() -> None:
    routing = begun("cache-aware", 3)
    # The prompt has 160 tokens: more than 48 of them must hit.
    assert routing.route(0, Given([5, 2, 9], hits=[0, 0, 64])) == 2
    assert routing.route(0, Given([5, 2, 9], hits=[0, 0, 48])) == 1
    assert routing.route(0, Given([5, 2, 1], hits=[64, 64, 0])) == 1
    # Uneven by more than 64 and by more than half: the load alone counts.
    assert routing.route(0, Given([5, 2, 67], hits=[0, 0, 160])) == 1
    assert routing.route(0, Given([5, 2, 66], hits=[0, 0, 160])) == 2
    assert routing.route(0, Given([400, 300, 420], hits=[0, 0, 160])) == 2


def test_prefix_aware() -> None:
    routing = begun("prefix-aware", 2)
    # 3 · 0.5 of prefix against 2 of an empty queue; then against the same queue.
    assert routing.route(0, Given([9, 3], [4, 0], [0, 0], [80, 0])) == 1
    assert routing.route(0, Given([9, 3], [0, 0], [0, 0], [80, 0])) == 0
    # 3 · 0.5 against 2 · 0.9 and 2 · 0.7 of memory.
    assert routing.route(0, Given([9, 3], [0, 0], [0.9, 0], [80, 0])) == 1
    assert routing.route(0, Given([9, 3], [0, 0], [0.7, 0], [80, 0])) == 0
    # Of equals the fewest outstanding, then the first.
    assert routing.route(0, Given([9, 3])) == 1
    assert routing.route(0, Given([3, 3])) == 0


def test_prefixes_meet_where_they_are() -> None:
    # Two prompts of 10 blocks, sent over and over, one after another: each to its own engine.
    trace = plain([(10, 2), (10, 2)])
    order = [0, 1, 1, 0, 0, 1, 0, 1]
    repeated = type(trace)(
        time_s=trace.time_s[:1].repeat(8),
        input_tokens=trace.input_tokens[order],
        output_tokens=trace.output_tokens[order],
        starts=trace.starts[:1].repeat(9) + 10 * np.arange(9),
        chains=trace.chains.reshape(2, 10)[order].reshape(-1),
        parent=trace.parent,
        depth=trace.depth,
        tokens=trace.tokens,
        key=trace.key,
        block_size=16,
        origin=trace.origin,
    )
    told = Settings(num_gpu_blocks=100, max_num_seqs=8, max_num_batched_tokens=256)

    def hits(routing: str) -> int:
        found = simulate(
            repeated, told, cost=linear_cost(1.0), concurrency=1, data_parallel_size=2,
            routing=routing, compiled=False,
        )  # fmt: skip
        return int(found.hit_tokens.sum())

    # All but the last token's block of six that come again; round robin misses each twice.
    assert hits("cache-aware") == hits("prefix-aware") == 6 * 9 * 16
    assert hits("round-robin") == 4 * 9 * 16


def test_names() -> None:
    for name in routing_names():
        assert make_routing(name).name == name
        assert make_routing(name).source
    assert isinstance(make_routing(RoundRobin), RoundRobin)
    one = RoundRobin()
    assert make_routing(one) is one
    with pytest.raises(UsageError, match="unknown routing sticky"):
        make_routing("sticky")


def test_a_routing_of_ones_own_by_its_file(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(
        "from kvsched.serve.routing.base import Routing\n"
        "class Last(Routing):\n"
        "    name = 'last'\n"
        "    def route(self, request, engines):\n"
        "        return len(engines) - 1\n"
        "class Half(Last):\n"
        "    def route(self, request, engines):\n"
        "        return 0.5\n"
        "class None_(Routing):\n"
        "    name = 'none'\n"
    )
    told = Settings(num_gpu_blocks=100, max_num_seqs=8, max_num_batched_tokens=64)
    trace = plain([(1, 5)] * 4)
    more: dict[str, Any] = {"cost": COST, "data_parallel_size": 3, "compiled": False}
    found = simulate(trace, told, routing=f"{tmp_path}/own.py:Last", **more)
    assert found.replica is not None
    assert found.replica.tolist() == [2] * 4
    for name, said in (
        ("Half", "must name an engine by its number, not 0.5"),
        ("None_", "has no route"),
        ("Nobody", "own.py"),
    ):
        with pytest.raises(UsageError, match=said):
            simulate(trace, told, routing=f"{tmp_path}/own.py:{name}", **more)
