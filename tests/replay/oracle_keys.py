"""Keys of more policies for the plain replay of `oracle`, each from its definition.

Nothing of kvsched runs here. What a policy remembers is worked out again for every comparison from
the whole past. A label with parameters is a name of its own.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from oracle import Key, Memory, World

STEPS = 2**24
"""Values of greedy-dual policies that are this close are ties, as the policies document."""


def _mru(world: World, node: int, m: Memory) -> tuple[float, ...]:
    return tuple(-part for part in m.touched)


def _filo(world: World, node: int, m: Memory) -> tuple[float, ...]:
    return tuple(-part for part in m.inserted)


def _start(world: World, node: int) -> int:
    """Tokens of a prompt before ``node``: full blocks, or where those are of one token, its own."""
    above = world.work.parent[node]
    if above < 0:
        return 0
    return _start(world, above) + max(world.block_size, world.work.tokens[above])


def _priority(head_tokens: int = 0, head_priority: int = 100, lasts: float = math.inf) -> Key:
    def key(world: World, node: int, m: Memory) -> tuple[float, ...]:
        if _start(world, node) >= head_tokens:
            return (max(world.work.priority[each] for each in m.requests), *m.touched)
        released = world.work.time_s[m.requests[-1]]
        return (35 if released + lasts <= world.time else head_priority, *m.touched)

    return key


def _ttl(lasts: float, after_tool: float) -> Key:
    def key(world: World, node: int, m: Memory) -> tuple[float, ...]:
        lives = any(
            world.work.time_s[each] + (after_tool if world.work.type[each] == 1 else lasts)
            > world.time
            for each in m.requests
        )
        return (lives, *m.touched)

    return key


def _tlru(estimate: int, threshold: int) -> Key:
    def key(world: World, node: int, m: Memory) -> tuple[float, ...]:
        work = world.work
        # The last request of each conversation; one without a session is one by itself.
        last = {
            (session, each if session < 0 else 0): each
            for each, session in enumerate(work.session[: world.now + 1])
        }
        for each in last.values():
            history = work.input_tokens[each] + work.output_tokens[each]
            keeps = max(0, history + estimate - threshold)
            if node in world.held_by(each) and _start(world, node) < keeps:
                return (1, *m.touched)
        return (0, *m.touched)

    return key


def _gdsf(context: int = 0) -> Key:
    def key(world: World, node: int, m: Memory) -> tuple[float, ...]:
        size = world.work.tokens[node]
        cost = 1.0
        if context:
            cost = size * (1 + (_start(world, node) + size / 2) / context)
        return (m.clock + math.floor(m.uses * cost / size * STEPS + 0.5), *m.touched)

    return key


def _pgdsf(context: int) -> Key:
    def key(world: World, node: int, m: Memory) -> tuple[float, ...]:
        work = world.work
        uses, costs = 0, []
        for each in range(world.now + 1):
            if node in world.held_by(each):
                uses += 1
                hits = work.chains[each][: world.hits[each]]
                if node not in hits:
                    cached = sum(work.tokens[hit] for hit in hits)
                    new = work.input_tokens[each] - cached
                    costs.append(math.floor((1 + (cached + new / 2) / context) * STEPS + 0.5))
        return (m.clock + uses * (sum(costs) // len(costs)), *m.touched)

    return key


KEYS: dict[str, Key] = {
    "mru": _mru,
    "filo": _filo,
    "priority": _priority(),
    "priority:head_tokens=20": _priority(20),
    "priority:head_tokens=32:head_priority=60:head_duration_s=61": _priority(32, 60, 61),
    "priority:head_tokens=48:head_priority=2:head_duration_s=1": _priority(48, 2, 1),
    "ttl": _ttl(300, 300),
    "ttl:lifetime_s=60:tool_lifetime_s=301": _ttl(60, 301),
    "ttl:lifetime_s=61:tool_lifetime_s=1": _ttl(61, 1),
    "tlru": _tlru(200, 2048),
    "tlru:next_prompt_tokens=9:threshold_tokens=40": _tlru(9, 40),
    "tlru:next_prompt_tokens=0:threshold_tokens=70": _tlru(0, 70),
    "gdsf": _gdsf(),
    "gdsf:attention_tokens=20": _gdsf(20),
    "pgdsf": _pgdsf(30_000),
    "pgdsf:attention_tokens=7": _pgdsf(7),
}
