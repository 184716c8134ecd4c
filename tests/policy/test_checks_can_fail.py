"""Deliberately broken policies and loops: the suite's own checks must catch each of them."""

from __future__ import annotations

import inspect
import sys
import textwrap
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from contract import Run, check_against_oracle, check_history, check_optimal
from factory import make_trace

from kvsched.kernel import heap as heap_module
from kvsched.kernel.heap import heap_peek
from kvsched.policy.fifo import FIFO
from kvsched.policy.lru import LRU
from kvsched.policy.opt import Opt
from kvsched.policy.opt_fit import OptFit
from kvsched.replay import loop as loop_module
from kvsched.trace.model import Trace


def edited(function: Callable[..., Any], module: Any, before: str, after: str) -> Any:
    """Return ``function`` with one piece of its source replaced: a mutant of the real code."""
    source = textwrap.dedent(inspect.getsource(function))
    assert source.count(before) == 1, f"{before!r} is in the source {source.count(before)} times"
    scope = dict(vars(module))
    exec(source.replace(before, after), scope)  # noqa: S102  # our own source, edited above
    return scope[function.__name__]


def make_traces() -> list[Trace]:
    random = np.random.default_rng(11)
    made = []
    for _ in range(60):
        count = int(random.integers(4, 12))
        paths = [
            tuple(random.integers(0, 2, size=int(random.integers(0, 5))).tolist())
            for _ in range(count)
        ]
        made.append(make_trace(paths, [1] * count, [0] * count))
    return made


TRACES = make_traces()


def caught(check: Callable[[Trace, int], None]) -> bool:
    """Whether the check fails on any of the traces at any capacity."""
    for trace in TRACES:
        for capacity in (1, 2, 3, 4):
            try:
                check(trace, capacity)
            except (AssertionError, IndexError, StopIteration):
                return True
    return False


def suite(policy: type[Any], name: str, loop: Any = loop_module.replay_loop, room: int = 0) -> Any:
    """Return the suite's checks of one variant, as `caught` takes them."""

    def check(trace: Trace, capacity: int) -> None:
        run = Run(trace, policy(), capacity, loop, room)
        check_history(run)
        check_against_oracle(run, name)
        if name in ("opt", "opt-fit") and len(trace) < 8:
            check_optimal(run, bypass=name == "opt")

    return check


class RandomVictim(FIFO):
    """Any evictable node, by a fixed scramble."""

    key = staticmethod(lambda table, state, node: (node * 7919 + 13) % 101)


class HeadsFirst(LRU):
    """The cursor never moves, so a request's deeper nodes stand before its shallower ones."""

    on_insert = staticmethod(
        edited(
            LRU.on_insert,
            sys.modules["kvsched.policy.lru"],
            "link_behind(state.links, state.cursor[0], node)",
            "link_behind(state.links, len(state.links) - 1, node)",
        )
    )


class HitNotTouched(LRU):
    """A hit leaves the list as it is."""

    on_hit = staticmethod(lambda table, state, node, rank: None)


class NeverDeclines(Opt):
    """opt that stores everything."""

    victim = staticmethod(lambda table, state, incoming, rank: heap_peek(state.heap))


class NearestFirst(OptFit):
    """Belady the wrong way round."""

    key = staticmethod(lambda table, state, node: int(state.next_use[node]))


class WrongSift(FIFO):
    """A heap that compares with the left child only."""

    victim = staticmethod(
        lambda table, state, incoming, rank: (
            int(state.heap.entries[max(state.heap.counts[0] - 1, 0), 2])
            if heap_peek(state.heap) >= 0
            else -1
        )
    )


def mutant(before: str, after: str) -> Any:
    return edited(loop_module.replay_loop, loop_module, before, after)


UNPROTECTED = mutant(
    "        if track_leaves and pinned != NONE and children[pinned] == 0:\n"
    "            leave(table, state, pinned)\n",
    "",
)
PAST_A_HOLE = mutant(
    "        counts.hits[request] = at - low\n",
    "        counts.hits[request] = int((resident[chains[low:high]] != 0).sum())\n",
)
FORGETS_THE_PARENT = mutant(
    "if children[orphan] == 0 and orphan != pinned:", "if children[orphan] == 0 and False:"
)
COUNTS_A_REFUSAL = mutant(
    "                if leaving == NONE:\n                    break\n",
    "                if leaving == NONE:\n                    evicted += 1\n"
    "                    break\n",
)

VARIANTS = {
    "victim at random": suite(RandomVictim, "fifo"),
    "chain not protected": suite(FIFO, "fifo", UNPROTECTED),
    "heads before tails": suite(HeadsFirst, "lru"),
    "a hit not touched": suite(HitNotTouched, "lru"),
    # Leaves-only eviction makes no holes, so the flat order that does comes with it.
    "hits counted past a hole": suite(HeadsFirst, "lru", PAST_A_HOLE),
    "capacity off by one": suite(LRU, "lru", room=1),
    "opt that forgets to decline": suite(NeverDeclines, "opt"),
    "optimum the wrong way round": suite(NearestFirst, "opt-fit"),
    "heap whose root is not the smallest": suite(WrongSift, "fifo"),
    "a parent that never becomes a candidate": suite(FIFO, "fifo", FORGETS_THE_PARENT),
    "a refusal counted as an eviction": suite(LRU, "lru", COUNTS_A_REFUSAL),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_suite_catches(variant: str) -> None:
    assert caught(VARIANTS[variant]), f"nothing caught: {variant}"


@pytest.mark.parametrize(
    ("policy", "name"), [(LRU, "lru"), (FIFO, "fifo"), (Opt, "opt"), (OptFit, "opt-fit")]
)
def test_the_real_ones_pass_the_same_checks(policy: type[Any], name: str) -> None:
    assert not caught(suite(policy, name))


def test_a_broken_heap_is_caught() -> None:
    """The heap's own check, run on a heap that sifts down past one child only."""
    from heap_check import check_heap

    check_heap(heap_module, seed=3)
    scope = dict(vars(heap_module))
    source = inspect.getsource(heap_module).replace("below + 1 < size", "below + 1 < 0")
    exec(compile(source, "broken_heap", "exec"), scope)  # noqa: S102  # our own source, edited
    broken = type("Broken", (), {name: staticmethod(f) for name, f in scope.items() if callable(f)})
    with pytest.raises(AssertionError):
        check_heap(broken, seed=3)
