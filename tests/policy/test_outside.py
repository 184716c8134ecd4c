"""Policies against what others wrote, or against a simulation that shares nothing with ours.

- lru, fifo, mru: cachetools 5.3.3, on prompts of one block.
- filo, priority: the keys that SGLang's evict_policy.py documents, and TensorRT-LLM's queue a
  priority, on prompts of one block.
- gdsf, pgdsf: simulations in exact fractions from the papers' formulas, on prompts of one block.
- tlru: the paper's rule, conversation by conversation, with no nodes at all.
- ttl: nobody publishes an order; what it must equal in the limits.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import cachetools
import numpy as np
import pytest
from factory import BLOCK, PARTIAL, About, make_trace

from kvsched.replay.run import replay
from kvsched.trace.model import Trace

LENGTH = 400
SIZES = (1, 2, 4, 8, 16)
CAPACITIES = (1, 2, 5, 12)
PRIORITIES = (0, 20, 35, 80)


def flat(seed: int, sized: bool = False) -> tuple[list[int], Trace]:
    """Return keys, and a trace of prompts of one block; a key has one size and one priority."""
    random = np.random.default_rng(seed)
    keys = np.minimum(random.zipf(1.3, LENGTH), 30).tolist()
    tails = [SIZES[key % 5] % BLOCK * -1 if sized else 0 for key in keys]
    about = [About(priority=PRIORITIES[key % 4]) for key in keys]
    return keys, make_trace([(key,) for key in keys], [1] * LENGTH, tails, about)


def decided(trace: Trace, policy: str, capacity: int) -> tuple[list[bool], list[int]]:
    result = replay(trace, policy, capacity, decisions=True, compiled=False)
    assert result.decisions is not None
    left = trace.key[result.decisions.victim] % PARTIAL
    return (result.request_hits > 0).tolist(), left.tolist()


def simulate(
    keys: list[int], capacity: int, use: Callable[..., Any], leave: Callable[[dict[int, Any]], int]
) -> tuple[list[bool], list[int]]:
    """Run a cache of one-block prompts: ``use(record or None, at, key)`` returns the record."""
    held: dict[int, Any] = {}
    hits, left = [], []
    for at, key in enumerate(keys):
        hits.append(key in held)
        if key not in held and len(held) == capacity:
            left.append(leave(held))
            del held[left[-1]]
        held[key] = use(held.get(key), at, key)
    return hits, left


@pytest.mark.parametrize("capacity", CAPACITIES)
@pytest.mark.parametrize(("policy", "name"), [("lru", "LRU"), ("fifo", "FIFO"), ("mru", "MRU")])
def test_cachetools(policy: str, name: str, capacity: int) -> None:
    keys, trace = flat(capacity)
    left: list[int] = []

    class Told(getattr(cachetools, f"{name}Cache")):  # type: ignore[misc]
        def popitem(self) -> Any:
            found = super().popitem()
            left.append(found[0])
            return found

    cache, hits = Told(capacity), []
    for key in keys:
        hits.append(cache.get(key) is not None)
        if not hits[-1]:
            cache[key] = 1
            # To its MRU a key that was never looked up is the oldest; to SGLang it is the newest.
            cache.get(key)
    assert decided(trace, policy, capacity) == (hits, left)
    assert decided(trace, "lfu", capacity) != (hits, left) or capacity == 1


SGLANG: dict[str, Callable[[dict[str, int]], Any]] = {
    "filo": lambda node: -node["creation_time"],
    "mru": lambda node: -node["last_access_time"],
    "priority": lambda node: (node["priority"], node["last_access_time"]),
}


@pytest.mark.parametrize("capacity", CAPACITIES)
@pytest.mark.parametrize("policy", SGLANG)
def test_sglang(policy: str, capacity: int) -> None:
    keys, trace = flat(capacity + 50)

    def use(node: dict[str, int] | None, at: int, key: int) -> dict[str, int]:
        asked = PRIORITIES[key % 4]
        node = node or {"creation_time": at, "priority": asked}
        return {**node, "priority": max(node["priority"], asked), "last_access_time": at}

    def leave(held: dict[int, Any]) -> int:
        return min(held, key=lambda key: SGLANG[policy](held[key]))

    assert decided(trace, policy, capacity) == simulate(keys, capacity, use, leave)


@pytest.mark.parametrize("capacity", CAPACITIES)
def test_tensorrt_llm(capacity: int) -> None:
    """A queue for each priority from 0 to 100; a released block goes to the back of its own."""
    keys, trace = flat(capacity + 90)
    queues: list[list[int]] = [[] for _ in range(101)]

    def use(level: int | None, at: int, key: int) -> int:
        if level is not None:
            queues[level].remove(key)
        queues[PRIORITIES[key % 4]].append(key)
        return PRIORITIES[key % 4]

    def leave(held: dict[int, Any]) -> int:
        return next(queue for queue in queues if queue).pop(0)

    assert decided(trace, "priority", capacity) == simulate(keys, capacity, use, leave)


@pytest.mark.parametrize("capacity", CAPACITIES)
@pytest.mark.parametrize("policy", ["gdsf", "gdsf:attention_tokens=4", "pgdsf:attention_tokens=4"])
def test_greedy_dual(policy: str, capacity: int) -> None:
    keys, trace = flat(capacity + 20, sized=True)
    clock = Fraction(0)
    ever: dict[int, int] = {}

    def use(record: Any, at: int, key: int) -> Any:
        size = SIZES[key % 5]
        ever[key] = ever.get(key, 0) + 1
        uses = 1 if record is None else record[0] + 1
        each = 1 + Fraction(size, 2) / 4
        if policy == "gdsf":
            each = Fraction(1, size)
        elif policy.startswith("pgdsf"):
            uses, each = ever[key], 1 + Fraction(size, 2) / 4
        return uses, clock + uses * each, at

    def leave(held: dict[int, Any]) -> int:
        nonlocal clock
        value, _, key = heapq.nsmallest(1, [(r[1], r[2], key) for key, r in held.items()])[0]
        clock = value
        return key

    assert decided(trace, policy, capacity) == simulate(keys, capacity, use, leave)


def conversations(seed: int) -> tuple[list[tuple[int, int]], Trace]:
    """Return (conversation, blocks of its prompt) of each turn: it only ever grows."""
    random = np.random.default_rng(seed)
    length = [0] * 6
    turns = []
    for _ in range(80):
        chosen = int(random.integers(0, 6))
        length[chosen] += int(random.integers(1, 4))
        turns.append((chosen, length[chosen]))
    about = [About(session=chosen) for chosen, _ in turns]
    paths = [(chosen, *range(1, blocks)) for chosen, blocks in turns]
    return turns, make_trace(paths, [1] * 80, [0] * 80, about)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("estimate", "threshold"), [(16, 40), (30, 100), (0, 400), (500, 0)])
def test_the_paper_of_tlru(estimate: int, threshold: int, seed: int) -> None:
    """Conversations that share nothing: blocks beyond B first, then those of the oldest."""
    turns, trace = conversations(seed)
    answer, capacity = int(trace.output_tokens[0]), 25
    cached, keep, order = [0] * 6, [0] * 6, []
    hits = []
    for chosen, blocks in turns:
        hits.append(cached[chosen])
        others = [each for each in order if each != chosen]
        room = capacity - sum(cached)
        need = blocks - cached[chosen]
        for limit in (keep, [0] * 6):
            for each in others:
                go = min(max(cached[each] - limit[each], 0), max(need - room, 0))
                cached[each] -= go
                room += go
        cached[chosen] += min(need, room)
        tokens = max(0, blocks * BLOCK + answer + estimate - threshold)
        keep[chosen] = -(-tokens // BLOCK)
        order = [*others, chosen]
    label = f"tlru:next_prompt_tokens={estimate}:threshold_tokens={threshold}"
    assert replay(trace, label, capacity, compiled=False).request_hits.tolist() == hits


@pytest.mark.parametrize("capacity", [5, 9, 20])
def test_lifetimes_in_their_limits(capacity: int) -> None:
    """One lifetime for all is lru; none but a tool's, and that endless, is two priorities."""
    random = np.random.default_rng(capacity)
    paths = [tuple(random.integers(0, 3, size=4).tolist()) for _ in range(120)]
    tools = random.integers(0, 2, size=120).tolist()
    about = [About(type=tool, priority=tool) for tool in tools]
    trace = make_trace(paths, random.integers(0, 9, size=120).tolist(), [0] * 120, about)
    assert decided(trace, "ttl:lifetime_s=20", capacity) == decided(trace, "lru", capacity)
    # Two moments, so that a lifetime of 0 is over at the next request.
    later = make_trace(paths, [1] * 120, [0] * 120, about)
    two = decided(later, "priority", capacity)
    assert decided(later, "ttl:lifetime_s=0:tool_lifetime_s=1e9", capacity) == two
    assert two != decided(later, "lru", capacity)
