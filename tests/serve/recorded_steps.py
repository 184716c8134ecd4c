"""Ours, driven step by step over the workloads that vLLM's Scheduler was recorded with."""

from __future__ import annotations

import functools
import gzip
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import serve_workload
from serve_workload import Step, Work

from kvsched.foundation.jit import bind, hot
from kvsched.kernel.linked import BEHIND
from kvsched.serve.asked import prepare
from kvsched.serve.cost import linear_cost
from kvsched.serve.loop import DONE, MORE, run_steps
from kvsched.serve.orders.registry import make_order
from kvsched.serve.settings import Settings
from kvsched.serve.state import (
    ADMITTED_NOW,
    PREEMPTED_NOW,
    RAN,
    STEPS,
    State,
    new_state,
)
from kvsched.trace.build import build_trace
from kvsched.trace.model import Labels, Origin, Trace

FOLDER = Path(__file__).with_name("recordings")
ONE_SECOND_A_STEP = linear_cost(1.0)


@functools.cache
def read(name: str) -> list[dict[str, Any]]:
    with gzip.open(FOLDER / name, "rt", encoding="utf-8") as stream:
        _, *rows = map(json.loads, stream)
    return rows


def trace_of(work: Work) -> Trace:
    requests = [each.request for each in work.asked]
    sessions = [-1 if each.session is None else each.session for each in requests]
    return build_trace(
        time_s=np.array([each.step for each in work.asked], np.float64),
        input_tokens=np.array([each.prompt for each in requests], np.int64),
        output_tokens=np.array([each.output for each in requests], np.int64),
        starts=np.concatenate([[0], np.cumsum([len(each.ids) for each in requests])]),
        keys=np.array([block for each in requests for block in each.ids], np.int64),
        block_size=work.settings.block_size,
        origin=Origin("recorded", "test", "s"),
        session=Labels(np.array(sessions, np.int32), tuple(map(str, range(1 + max(sessions))))),
        priority=np.array([each.priority for each in work.asked], np.int32),
    )


def settings_of(work: Work) -> Settings:
    told = work.settings
    return Settings(
        num_gpu_blocks=told.blocks,
        max_num_seqs=told.max_num_seqs,
        max_num_batched_tokens=told.max_num_batched_tokens,
        max_model_len=told.max_model_len,
        enable_chunked_prefill=told.enable_chunked_prefill,
        long_prefill_token_threshold=told.long_prefill_token_threshold,
        watermark=told.watermark,
        scheduler_reserve_full_isl=told.scheduler_reserve_full_isl,
        enable_prefix_caching=told.enable_prefix_caching,
    )


def one_second(coefficients: Any) -> float:
    return 1.0


@hot
def _in_order(links: Any, found: Any) -> int:
    ends = len(links) - 1
    block = links[ends, BEHIND]
    at = 0
    while block != ends:
        found[at] = block
        at += 1
        block = links[block, BEHIND]
    return at


class Ours:
    """Our engine over a workload; ``names`` and ``change`` break rules of it."""

    def __init__(
        self, work: Work, compiled: bool, names: dict[str, Any] | None = None, change: Any = None
    ) -> None:
        self.work = work
        settings = settings_of(work)
        trace = trace_of(work)
        asked = prepare(trace, settings)
        assert not asked.reason.any()
        order = make_order(work.settings.policy)
        self.rules = settings.rules(trace.block_size, closed_loop=False)
        told = asked.work
        capacity = work.settings.blocks
        if change is not None:
            told, self.rules, capacity = change(told, self.rules, capacity)
        arrival_s = trace.time_s - trace.time_s[0]
        self.first = work.asked[0].step
        self.state: State = new_state(
            told, arrival_s, len(trace), asked.held.trace.nodes, capacity, self.rules
        )
        self.own = order.prepare(trace)
        self.cost = ONE_SECOND_A_STEP.arrays()
        told_names = {**order.hooks(), "idle_seconds": one_second, **(names or {})}
        self.loop = bind(run_steps, told_names, compiled)

    def free(self) -> list[int]:
        links = self.state.pool.free
        found = np.empty(len(links), np.int32)
        return found[: _in_order(links, found)].tolist()

    def run(self, jumps: bool = False) -> Iterator[Step]:
        state = self.state
        while True:
            before = int(state.counts[STEPS])
            status = self.loop(state, self.rules, self.own, self.cost, 1, np.inf, jumps)
            if state.counts[STEPS] == before:
                assert status == DONE, f"the loop ended with {status}"
                return
            assert status in (MORE, DONE)
            yield self.last_step()

    def last_step(self) -> Step:
        state = self.state
        counts = state.counts
        ran = state.ran[: counts[RAN]].tolist()
        given = state.ran_tokens[: counts[RAN]].tolist()
        admitted = state.admitted[: counts[ADMITTED_NOW]].tolist()
        return Step(
            self.first + round(float(state.clock[0])) - 1,
            list(zip(ran, given, strict=True)),
            state.preempted[: counts[PREEMPTED_NOW]].tolist(),
            [(request, int(state.progress.hit[request])) for request in admitted],
            self.free(),
        )


def lines(work: Work, compiled: bool, most: int, **broken: Any) -> Iterator[str]:
    """Yield each step as text; a broken rule may make steps without end."""
    for step in itertools.islice(Ours(work, compiled, **broken).run(), most + 1):
        yield step.text()


def differs(row: dict[str, Any], work: Work, compiled: bool, **broken: Any) -> int | None:
    """Return where our steps first differ from a recording's, or None."""
    ours = serve_workload.digests(lines(work, compiled, row["steps"], **broken))
    return serve_workload.first_difference(ours, row["digests"])


@functools.cache
def work_of(name: str) -> Work:
    kind, _, seed = name.partition("-")
    assert kind == "random"
    return serve_workload.random_work(int(seed))
