"""The timed simulation beside AISimulate, each in a warm process."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

from inputs import conversation_path
from kvsched.serve.served import Asking, Served, find_settings, find_step_time, serve, step_cost
from kvsched.serve.simulate import simulate
from kvsched.trace.load import load_trace
from measure import Section, Side, alternate, at_least
from peers import Peer, pins

AISIMULATE = "aisimulate"
BAR = 3.0
GOAL = 10.0
ROUNDS = 5
BLOCKS = 11_275
FEW = 200
"""Blocks that the longest prompts do not fit in."""

SIDES = """\
Both serve the whole Mooncake conversation trace with Llama 3.1 8B on one H100 SXM, {blocks:,}
blocks of 512 tokens, at most 1,024 sequences and 8,192 tokens a step, in a process that has done
it before. End to end is from the file's name to the totals; simulating is our `simulate` alone,
and what AISimulate {version} itself says (`wall_time_ms`; how much of the reading is in it is not
known). The step times differ: ours is the roofline, the middle of its band alone, its own are
operators measured on the device."""


def run() -> Section:
    """Measure."""
    path = conversation_path()
    asking = Asking(
        model="llama-3.1-8b",
        gpu="h100",
        num_gpu_blocks_override=BLOCKS + 1,
        max_num_seqs=1024,
        max_num_batched_tokens=8192,
        band=False,
    )
    found: list[Served] = []
    answers: list[dict[str, Any]] = []

    def ours() -> float:
        began = time.perf_counter()
        found.append(serve(load_trace(path), asking))
        return time.perf_counter() - began

    trace = load_trace(path)
    settings, _ = find_settings(asking, trace.block_size)
    cost = step_cost(find_step_time(asking))

    def ours_simulating() -> float:
        began = time.perf_counter()
        simulate(trace, settings, cost=cost)
        return time.perf_counter() - began

    with Peer(AISIMULATE, "peer_aisimulate.py") as peer:

        def theirs() -> float:
            answers.append(peer.ask(path=str(path), blocks=BLOCKS))
            return float(answers[-1]["seconds"])

        mine, alone, its = alternate(ours, ours_simulating, theirs, rounds=ROUNDS)
        tight = peer.ask(path=str(path), blocks=FEW)
    counted = Side(tuple(float(each["simulating"]) for each in answers[1:]))
    section = Section(
        "The timed simulation beside AISimulate",
        SIDES.format(blocks=BLOCKS, version=pins()[AISIMULATE]),
    )
    section.rows.append(at_least("end to end", mine, its, BAR))
    section.rows.append(at_least("simulating", alone, counted, GOAL))
    section.notes.append(_said(found[-1], answers[-1]))
    few = dataclasses.replace(asking, num_gpu_blocks_override=FEW + 1)
    section.notes.append(_left_out(serve(trace, few), tight))
    return section


def _said(served: Served, answer: dict[str, Any]) -> str:
    summary = served.result.summary
    ttft = summary.ttft_s
    return (
        f"Finished: kvsched {summary.finished:,} of {len(served.simulation.trace):,} requests in "
        f"{summary.duration_s:,.0f} s, {summary.hit_ratio:.1%} of the prompt tokens hit, half have "
        f"their first token in {ttft.p50:,.0f} s; AISimulate {answer['finished']:,} of "
        f"{answer['requests']:,} in {answer['duration_s']:,.0f} s, {answer['hit_ratio']:.1%} hit, "
        f"{answer['ttft_p50_s']:,.0f} s."
    )


def _left_out(served: Served, answer: dict[str, Any]) -> str:
    summary = served.result.summary
    why = "; ".join(summary.rejected_because)
    return (
        f"With {FEW:,} blocks AISimulate finishes {answer['finished']:,} of "
        f"{answer['requests']:,} requests, and does not say why; kvsched finishes "
        f"{summary.finished:,} and rejects {summary.rejected:,} ({why})."
    )
