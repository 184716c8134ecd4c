"""lpm and spf against recordings of SGLang's own SchedulePolicy, pass by pass."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from test_orders_can_fail import AsItIs, by_arrival, by_hits_only, no_hits

from kvsched.foundation.jit import bind
from kvsched.serve.orders import sorted_queue
from kvsched.serve.orders.registry import find_order
from kvsched.serve.orders.sorted_queue import END, FIRST, on_admitted, on_queued

RECORDING = Path(__file__).with_name("recordings") / "sglang-orders.jsonl.gz"
NAMES = {"lpm": "lpm", "shortest-prefill-first": "spf"}


HITS = {"hit_blocks": AsItIs(lambda state, request, size: state.matched[request] // size)}
"""What SGLang's cache had of each request in a pass, in place of a look at ours."""


def recorded() -> list[dict[str, Any]]:
    with gzip.open(RECORDING, "rt", encoding="utf-8") as stream:
        _, *rows = map(json.loads, stream)
    return rows


def state_of(row: dict[str, Any], size: int) -> tuple[Any, Any]:
    """Return what the order reads of a state, and of a trace: nodes are prefixes, by number."""
    nodes: dict[tuple[int, ...], int] = {}
    starts, chains = [0], []
    for blocks, _ in row["requests"]:
        for at in range(len(blocks)):
            chains.append(nodes.setdefault(tuple(blocks[: at + 1]), len(nodes)))
        starts.append(len(chains))
    prompt = np.array([length for _, length in row["requests"]])
    state = SimpleNamespace(
        work=SimpleNamespace(prompt=prompt, starts=np.array(starts), chains=np.array(chains)),
        progress=SimpleNamespace(tokens=prompt.copy(), computed=np.zeros(len(prompt), np.int64)),
        matched=np.zeros(len(prompt), np.int64),
    )

    class Requests(list):  # type: ignore[type-arg]
        block_size = size

    trace = Requests(row["requests"])
    trace.nodes = len(nodes)  # type: ignore[attr-defined]
    return state, trace


def first_difference(row: dict[str, Any], names: dict[str, Any] | None = None) -> int | None:
    """Return the first pass in which our queue is not SGLang's, None where there is none."""
    order = find_order(NAMES[row["policy"]])
    state, trace = state_of(row, 16)
    own = order().prepare(trace)
    sort = bind(order.before_admission, {**HITS, **(names or {})}, False)
    passes = 0
    for kind, *what in row["events"]:
        if kind == "queue":
            request, generated = what
            state.progress.tokens[request] = state.work.prompt[request] + generated
            on_queued(state, own, request, 0.0)
        elif kind == "admit":
            on_admitted(state, own, what[0], 0.0)
        else:
            queue, matched = what
            state.matched[sorted(queue)] = matched
            sort(state, own, 0.0)
            passes += 1
            if own.queue[own.counts[FIRST] : own.counts[END]].tolist() != queue:
                return passes
    return None


def test_no_difference_from_the_engine() -> None:
    rows = recorded()
    assert len(rows) == 10
    for row in rows:
        assert first_difference(row) is None


def test_the_recordings_hold_every_case() -> None:
    longest = 128
    for policy in NAMES:
        passes = [
            event for row in recorded() if row["policy"] == policy
            for event in row["events"] if event[0] == "pass"
        ]  # fmt: skip
        assert len(passes) >= 160
        assert sum(len(queue) > longest for _, queue, _ in passes) >= 20
        assert sum(longest > len(queue) > 10 for _, queue, _ in passes) >= 20
        assert sum(matched > 32 for _, _, every in passes for matched in every) >= 500
        assert sum(matched <= 32 for _, _, every in passes for matched in every) >= 500
    back = [event for row in recorded() for event in row["events"]]
    assert sum(event[0] == "queue" and event[2] > 0 for event in back) >= 20


BROKEN: dict[str, tuple[str, dict[str, Any]]] = {
    "lpm: duplicates are not held back": ("lpm", {"look_up": by_hits_only}),
    "lpm: hits do not count": ("lpm", {"look_up": no_hits}),
    "lpm: equals go by arrival": ("lpm", {"sort_by_rank": by_arrival}),
    "lpm: a long queue is sorted": ("lpm", {"is_sorted_now": lambda own: True}),
    "spf: duplicates are not held back": ("spf", {"look_up": by_hits_only}),
    "spf: hits are not subtracted": ("spf", {"look_up": no_hits}),
    "spf: the preempted keep their arrival": ("spf", {"sort_by_rank": by_arrival}),
}


@pytest.mark.parametrize("which", BROKEN)
def test_a_broken_rule_is_noticed(which: str) -> None:
    name, broken = BROKEN[which]
    names = {key: AsItIs(function) for key, function in broken.items()}
    if "look_up" in broken:
        found = bind(sorted_queue.look_up, HITS, False)

        def look_up(state: Any, own: Any) -> None:
            found(state, own)
            (own.later if broken["look_up"] is by_hits_only else own.hits)[:] = 0

        names = {"look_up": AsItIs(look_up)}
    rows = [row for row in recorded() if NAMES[row["policy"]] == name]
    assert any(first_difference(row, names) is not None for row in rows)
