"""Policies with one thing wrong in their order: the oracle must tell each from the real one."""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

import numpy as np
import pytest
from contract import CHECKS, Run
from factory import About, make_trace, uneven
from mutants import edited

from kvsched.policy.registry import find, make
from kvsched.trace.model import Trace

CAPACITIES = (1, 2, 3, 4, 6, 9)


class Variant(NamedTuple):
    label: str
    """The policy that it pretends to be."""
    hook: str
    """The function that is wrong, and what in it."""
    before: str
    after: str
    uneven: bool = False
    """Whether it takes nodes of unequal sizes to tell."""


HEAD = "priority:head_tokens=32:head_priority=60:head_duration_s=61"
LOW_HEAD = "priority:head_tokens=48:head_priority=2:head_duration_s=1"
TTL = "ttl:lifetime_s=60:tool_lifetime_s=301"
TLRU = "tlru:next_prompt_tokens=9:threshold_tokens=40"
GDSF = "gdsf:attention_tokens=20"
PGDSF = "pgdsf:attention_tokens=7"

VARIANTS = {
    "mru that is lru": Variant("mru", "key", "-int(", "int("),
    "filo that is fifo": Variant("filo", "key", "-int(", "int("),
    "a priority that the last request sets": Variant(
        "priority", "_hold", "max(least, int(state.head[REQUEST]))", "int(state.head[REQUEST])"
    ),
    "a block that ends in the head is not of it": Variant(
        "priority:head_tokens=20",
        "_hold",
        "state.start[node] >= ",
        "state.start[node] + 16 > ",
    ),
    "an expiry that the heap is not told of": Variant(
        HEAD, "begin", "heap_push(state.heap, node, DEFAULT,", "heap_push(state.heap, node, 60,"
    ),
    "an expiry one moment late": Variant(HEAD, "begin", "<= now", "< now"),
    "a timer that a use does not start again": Variant(
        HEAD,
        "_hold",
        "if state.clock[DURATION] > 0.0:",
        "if state.clock[DURATION] > 0.0 and state.expires[node] == np.inf:",
    ),
    "a low head that is never raised to 35": Variant(
        LOW_HEAD, "begin", "state.priority[node] = DEFAULT", "state.priority[node] += 0"
    ),
    "a lifetime that a shorter one cuts": Variant(
        TTL, "on_hit", "if expires < state.expires[node]:", "if expires < -1.0:"
    ),
    "two lifetimes in one queue": Variant(TTL, "on_hit", "CLASSES + state.running[0]", "CLASSES"),
    "a death that the heap is not told of": Variant(
        TTL, "begin", "heap_push(state.heap, node, 0,", "heap_push(state.heap, node, 1,"
    ),
    "every request a tool's": Variant(TTL, "begin", "if len(state.tool) > 0 else 0", "* 0 + 1"),
    "a claim that is never given up": Variant(
        TLRU, "begin", "state.needed_by[node] -= 1", "state.needed_by[node] -= 0"
    ),
    "a node that only its last conversation needs": Variant(
        TLRU, "on_hit", "state.needed_by[node] += 1", "state.needed_by[node] = 1"
    ),
    "a claim given up that the heap is not told of": Variant(
        TLRU, "begin", "heap_push(state.heap, node, 0,", "heap_push(state.heap, node, 1,"
    ),
    "a block too many kept": Variant(
        TLRU, "on_hit", "] < state.running[KEPT", "] < 16 + state.running[KEPT"
    ),
    "the estimate left out": Variant(
        TLRU, "prepare", ' - self.values["next_prompt_tokens"]', " - 0"
    ),
    "ancestors of one size": Variant(
        TLRU, "on_insert", "int(state.running[BLOCK_SIZE])", "39", uneven=True
    ),
    "ancestors of one size, in a head": Variant(
        HEAD, "on_insert", "int(state.head[BLOCK_SIZE])", "39", uneven=True
    ),
    "ancestors of one size, in a cost": Variant(
        GDSF, "on_insert", "int(state.block_size[0])", "39", uneven=True
    ),
    "no ageing": Variant("gdsf", "on_evict", "int(state.value[node])", "0"),
    "a clock that goes back": Variant(
        GDSF,
        "on_evict",
        "max(int(state.inflation[0]), int(state.value[node]))",
        "int(state.value[node])",
    ),
    "a count from 0": Variant("gdsf", "on_insert", "state.uses[node] = 1", "state.uses[node] = 0"),
    "a cost that the place does not matter for": Variant(
        GDSF, "_value", "float(state.start[node])", "0.0"
    ),
    "no clock": Variant(PGDSF, "on_evict", "int(state.value[node])", "0"),
    "a frequency that an eviction ends": Variant(
        PGDSF,
        "on_insert",
        "state.computed[node] += 1",
        "state.computed[node] += 1; state.frequency[node] = 0",
    ),
    "the cost of the last miss only": Variant(
        PGDSF,
        "on_insert",
        "state.cost[node] += state.running[COST]",
        "state.cost[node] = state.running[COST] * (state.computed[node] + 1)",
    ),
    "cached tokens that are not counted": Variant(
        PGDSF, "on_hit", "state.running[CACHED] += table", "state.running[CACHED] += 0 * table"
    ),
}


def broken(variant: Variant) -> Any:
    """Return a class like the real one, with the source of one function replaced."""
    real: Any = find(variant.label.split(":")[0])
    module = sys.modules[real.__module__]
    helper = not hasattr(real, variant.hook)
    function = getattr(module, variant.hook) if helper else getattr(real, variant.hook)
    wrong = edited(function, module, variant.before, variant.after)
    if not helper:
        ours = wrong if variant.hook == "prepare" else staticmethod(wrong)
        return type("Broken", (real,), {variant.hook: ours})
    # A helper is called by hooks: they are made again where its name stands for the broken one.
    scope = {**vars(module), variant.hook: wrong}
    hooks = {}
    for name in ("on_hit", "on_insert"):
        hook = getattr(real, name)
        hooks[name] = staticmethod(type(hook)(hook.__code__, scope, name))
    return type("Broken", (real,), hooks)


def make_traces() -> list[Trace]:
    random = np.random.default_rng(7)
    made = []
    for _ in range(150):
        count = int(random.integers(5, 22))
        paths = [
            tuple(random.integers(0, 3, size=int(random.integers(1, 6))).tolist())
            for _ in range(count)
        ]
        gaps = random.choice([0, 1, 20, 60, 61, 240], size=count).tolist()
        tails = random.choice([0, 0, 5, -3], size=count).tolist()
        about = [
            About(*row)
            for row in zip(
                random.integers(-1, 3, size=count).tolist(),
                random.integers(-1, 3, size=count).tolist(),
                random.choice([0, 20, 35, 80], size=count).tolist(),
                strict=True,
            )
        ]
        made.append(make_trace(paths, gaps, tails, about))
    return made


TRACES = make_traces()


def agrees(policy: Any, label: str, trace: Trace, capacity: int) -> bool:
    run = Run(trace, policy, capacity)
    try:
        CHECKS["ran"](run, label)
        CHECKS["oracle"](run, label)
    except AssertionError:
        return False
    return True


@pytest.mark.parametrize("what", VARIANTS)
def test_the_oracle_tells_it_from_the_real_one(what: str) -> None:
    variant = VARIANTS[what]
    wrong = broken(variant)
    values = make(variant.label).values
    for at, made in enumerate(TRACES):
        trace = uneven(made, at) if variant.uneven else made
        for capacity in CAPACITIES:
            if not agrees(wrong(**values), variant.label, trace, capacity):
                assert agrees(make(variant.label), variant.label, trace, capacity)
                return
    pytest.fail(f"nobody noticed: {what}")
