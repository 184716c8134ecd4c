"""The sequential replay again, slow and plain, from its definition alone.

Nothing of kvsched runs here. A policy is a function from what is remembered of a node to a sort
key; the smallest key among the candidates leaves.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache

Chain = tuple[int, ...]
NEVER = math.inf


@dataclass
class Memory:
    """What is remembered of a resident node."""

    inserted: tuple[int, int]
    touched: tuple[int, int]
    uses: int = 1
    times: list[float] = field(default_factory=list)


@dataclass
class Step:
    hits: int
    stored: int
    evicted: list[int]


@dataclass
class Workload:
    """Chains of nodes in time order over a forest."""

    chains: list[Chain]
    parent: list[int]
    tokens: list[int]
    time_s: list[float]

    def next_use(self, node: int, after: int) -> float:
        for request in range(after + 1, len(self.chains)):
            if node in self.chains[request]:
                return request
        return NEVER


Key = Callable[[Workload, int, int, Memory, int], tuple[float, ...]]


def _lru(w: Workload, node: int, now: int, m: Memory, capacity: int) -> tuple[float, ...]:
    return m.touched


def _fifo(w: Workload, node: int, now: int, m: Memory, capacity: int) -> tuple[float, ...]:
    return m.inserted


def _lfu(w: Workload, node: int, now: int, m: Memory, capacity: int) -> tuple[float, ...]:
    return (m.uses, *m.touched)


def _slru(w: Workload, node: int, now: int, m: Memory, capacity: int) -> tuple[float, ...]:
    return (m.uses >= 2, *m.touched)


def _chapter(w: Workload, node: int, now: int, m: Memory, capacity: int) -> tuple[float, ...]:
    return (m.uses + 0.5 - 0.25 * w.tokens[node] / capacity, *m.touched)


def _decay(w: Workload, node: int, now: int, m: Memory, capacity: int) -> tuple[float, ...]:
    # In steps of 2^-20, as the policy documents: scores that close are ties.
    score = math.log2(sum(2.0 ** (t / 600.0) for t in m.times))
    return (round(score * 2**20), *m.touched)


def _opt(w: Workload, node: int, now: int, m: Memory, capacity: int) -> tuple[float, ...]:
    return (-w.next_use(node, now), *m.touched)


KEYS: dict[str, Key] = {
    "lru": _lru,
    "fifo": _fifo,
    "lfu": _lfu,
    "slru": _slru,
    "chapter": _chapter,
    "decay": _decay,
    "opt-fit": _opt,
    "opt": _opt,
}


def replay(
    work: Workload, policy: str, capacity: int, block_size: int, weighted: bool = False
) -> list[Step]:
    """Replay one request after another; return what each did.

    Where ``weighted``, a node takes its tokens of the capacity, and ``block_size`` is 1.
    """
    key = KEYS[policy]
    size = work.tokens if weighted else [1] * len(work.tokens)
    held: dict[int, Memory] = {}
    steps = []
    for now, chain in enumerate(work.chains):
        hits = 0
        while hits < len(chain) and chain[hits] in held:
            hits += 1
        for depth, node in enumerate(chain[:hits]):
            held[node].touched = (now, -depth)
            held[node].uses += 1
            held[node].times.append(work.time_s[now])
        evicted: list[int] = []
        at = hits
        while at < len(chain):
            need = size[chain[at]]
            fits = need <= capacity
            while fits and sum(size[node] for node in held) + need > capacity:
                inner = {work.parent[node] for node in held}
                candidates = [n for n in held if n not in inner and n not in chain]
                victim = min(
                    candidates,
                    key=lambda n: key(work, n, now, held[n], capacity * block_size),
                    default=None,
                )
                if victim is None or (
                    policy == "opt" and work.next_use(victim, now) <= work.next_use(chain[at], now)
                ):
                    fits = False
                    break
                del held[victim]
                evicted.append(victim)
            if not fits:
                break
            place = (now, -at)
            held[chain[at]] = Memory(place, place, times=[work.time_s[now]])
            at += 1
        steps.append(Step(hits, at - hits, evicted))
    return steps


def most_hits(work: Workload, capacity: int, bypass: bool) -> int:
    """Return the most hit blocks of any decisions at all, by trying them all."""
    chains = work.chains

    @cache
    def best(now: int, held: frozenset[int]) -> int:
        if now == len(chains):
            return 0
        chain = chains[now]
        hits = 0
        while hits < len(chain) and chain[hits] in held:
            hits += 1
        return hits + max(best(now + 1, end) for end in ends(chain, hits, held))

    def ends(chain: Chain, at: int, held: frozenset[int]) -> set[frozenset[int]]:
        if at == len(chain):
            return {held}
        found: set[frozenset[int]] = {held} if bypass else set()
        if len(held) < capacity:
            return found | ends(chain, at + 1, held | {chain[at]})
        inner = {work.parent[node] for node in held}
        candidates = [n for n in held if n not in inner and n not in chain]
        if not candidates:
            return {held}
        for victim in candidates:
            found |= ends(chain, at + 1, held - {victim} | {chain[at]})
        return found

    return best(0, frozenset())
