"""The sequential replay again, slow and plain, from its definition alone.

Nothing of kvsched runs here. A policy is a function from what is remembered of a node to a sort
key; the smallest key among the candidates leaves.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache

import oracle_keys

Chain = tuple[int, ...]
NEVER = math.inf


@dataclass
class Memory:
    """What is remembered of a resident node."""

    inserted: tuple[int, int]
    touched: tuple[int, int]
    uses: int = 1
    times: list[float] = field(default_factory=list)
    requests: list[int] = field(default_factory=list)
    """Those that used it since it was stored."""
    clock: float = 0.0
    """The world's at the last use."""


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
    input_tokens: list[int]
    output_tokens: list[int]
    session: list[int]
    type: list[int]
    turn: list[int]
    priority: list[int]
    """The last six by request; of names, their numbers, -1 for none."""

    def next_use(self, node: int, after: int) -> float:
        for request in range(after + 1, len(self.chains)):
            if node in self.chains[request]:
                return request
        return NEVER


@dataclass
class World:
    """What a key may look at beside a node's memory."""

    work: Workload
    capacity_tokens: int
    block_size: int
    now: int = 0
    """The running request."""
    clock: float = 0.0
    """The largest key that left."""
    hits: list[int] = field(default_factory=list)
    """By request, the running one included."""
    reached: list[int] = field(default_factory=list)
    """Blocks of each chain that were resident at its request's end."""

    @property
    def time(self) -> float:
        return self.work.time_s[self.now]

    def held_by(self, request: int) -> Chain:
        """Nodes that a request hit or stored; all of the running one's, which never leave."""
        chain = self.work.chains[request]
        return chain if request == self.now else chain[: self.reached[request]]


Key = Callable[[World, int, Memory], tuple[float, ...]]


def _lru(world: World, node: int, m: Memory) -> tuple[float, ...]:
    return m.touched


def _fifo(world: World, node: int, m: Memory) -> tuple[float, ...]:
    return m.inserted


def _lfu(world: World, node: int, m: Memory) -> tuple[float, ...]:
    return (m.uses, *m.touched)


def _slru(world: World, node: int, m: Memory) -> tuple[float, ...]:
    return (m.uses >= 2, *m.touched)


def _chapter(world: World, node: int, m: Memory) -> tuple[float, ...]:
    return (m.uses + 0.5 - 0.25 * world.work.tokens[node] / world.capacity_tokens, *m.touched)


def _decay(world: World, node: int, m: Memory) -> tuple[float, ...]:
    # In steps of 2^-20, as the policy documents: scores that close are ties.
    score = math.log2(sum(2.0 ** (t / 600.0) for t in m.times))
    return (round(score * 2**20), *m.touched)


def _opt(world: World, node: int, m: Memory) -> tuple[float, ...]:
    return (-world.work.next_use(node, world.now), *m.touched)


KEYS: dict[str, Key] = {
    "lru": _lru,
    "fifo": _fifo,
    "lfu": _lfu,
    "slru": _slru,
    "chapter": _chapter,
    "decay": _decay,
    "opt-fit": _opt,
    "opt": _opt,
    **oracle_keys.KEYS,
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
    world = World(work, capacity * block_size, block_size)
    for now, chain in enumerate(work.chains):
        hits = 0
        while hits < len(chain) and chain[hits] in held:
            hits += 1
        for depth, node in enumerate(chain[:hits]):
            held[node].touched = (now, -depth)
            held[node].uses += 1
            held[node].times.append(work.time_s[now])
            held[node].requests.append(now)
            held[node].clock = world.clock
        world.now = now
        world.hits.append(hits)
        evicted: list[int] = []
        at = hits
        while at < len(chain):
            need = size[chain[at]]
            fits = need <= capacity
            while fits and sum(size[node] for node in held) + need > capacity:
                inner = {work.parent[node] for node in held}
                candidates = [n for n in held if n not in inner and n not in chain]
                victim = min(candidates, key=lambda n: key(world, n, held[n]), default=None)
                if victim is None or (
                    policy == "opt" and work.next_use(victim, now) <= work.next_use(chain[at], now)
                ):
                    fits = False
                    break
                world.clock = max(world.clock, key(world, victim, held[victim])[0])
                del held[victim]
                evicted.append(victim)
            if not fits:
                break
            place = (now, -at)
            held[chain[at]] = Memory(
                place, place, times=[work.time_s[now]], requests=[now], clock=world.clock
            )
            at += 1
        world.reached.append(at)
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
