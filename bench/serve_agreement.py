"""The timed simulation against the sequential replay: the same hits, under every policy."""

from __future__ import annotations

import dataclasses

import numpy as np

from inputs import conversation, shared, weka
from kvsched.policy.registry import built_in, find
from kvsched.replay.run import replay
from kvsched.serve.cost import StepCost
from kvsched.serve.settings import Settings
from kvsched.serve.simulate import simulate
from kvsched.trace.load import load_trace
from kvsched.trace.model import Labels, Trace
from measure import Row, Section

BLOCKS = (2_000, 11_275)
INSTANT = StepCost(np.zeros(4))
"""Steps take no time, and one request runs at a time: each ends before the next begins."""

SIDES = """\
Every policy that can run live, and vLLM's own free list, on whole traces with {blocks} blocks: how
many requests hit another number of tokens in the timed simulation, whose steps take no time here
and in which one request runs at a time, than in the sequential replay under vLLM's rules. Requests
that can never fit are rejected by the one and refused by the other: the same ones. Under *broken*
the simulation has lru and the replay mru: what the comparison says then."""


def policies() -> list[str | None]:
    """Return what is compared; None is vLLM's own free list."""
    return [None, *(name for name in built_in() if not find(name).looks_ahead)]


def with_columns(trace: Trace) -> Trace:
    """Return a trace with made-up priorities, and sessions of 50 in turn if it has none."""
    number = np.arange(len(trace), dtype=np.int32)
    names = tuple(map(str, range(50)))
    return dataclasses.replace(
        trace,
        priority=number % 3,
        session=trace.session or Labels(number % len(names), names),
    )


def different(trace: Trace, policy: str | None, blocks: int, replayed: str | None = None) -> int:
    """Return how many requests hit another number of tokens, or are refused by one alone."""
    told = Settings(num_gpu_blocks=blocks, max_num_seqs=1, max_num_batched_tokens=8192)
    timed = simulate(trace, told, cost=INSTANT, policy=policy)
    plain = replay(trace, replayed or policy, blocks, engine="vllm")
    other = timed.hit_tokens != plain.request_hit_tokens
    return int((other | (timed.rejected != plain.request_refused)).sum())


def run() -> Section:
    """Compare."""
    section = Section(
        "The timed simulation and the replay",
        SIDES.format(blocks=" and ".join(f"{each:,}" for each in BLOCKS)),
    )
    synthetic = load_trace(shared("mooncake", "synthetic_trace.jsonl"))
    traces = {"conversation": conversation(), "synthetic": synthetic, "Weka": weka()}
    for name, trace in traces.items():
        found = [
            different(with_columns(trace), each, blocks) for each in policies() for blocks in BLOCKS
        ]
        compared = f"{len(found)} runs of {len(trace):,} requests"
        broken = different(trace, "lru", BLOCKS[0], replayed="mru")
        section.rows.append(
            Row(
                f"{name}, {compared}: requests that differ (broken: {broken:,})",
                f"{sum(found):,}", "", "", "0", sum(found) == 0 and broken > 0,
            )
        )  # fmt: skip
    return section
