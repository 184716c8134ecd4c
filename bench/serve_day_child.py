"""Runs in a process of its own: a generated day of traffic, served whole and in part, in turns.

Arguments: REQUESTS PART ROUNDS. Prints what each took, and the process's peak memory.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from typing import Any

from kvsched.serve.result import Simulation
from kvsched.serve.served import Asking, find_settings, find_step_time, step_cost
from kvsched.serve.simulate import simulate
from kvsched.trace.generate import generate, preset
from kvsched.trace.model import Trace
from kvsched.trace.slice import slice_trace

SEED = 1
DAY_S = 86_400.0
ENGINE = Asking(model="llama-3.1-8b", gpu="h100")


def _said(trace: Trace, found: Simulation, seconds: list[float]) -> dict[str, Any]:
    return {
        "requests": len(trace),
        "references": trace.references,
        "finished": int(found.finished.sum()),
        "end_s": found.end_s,
        "steps": found.steps,
        "jumped": found.jumped_steps,
        "seconds": seconds,
    }


def main(requests: int, part: int, rounds: int) -> dict[str, Any]:
    """Generate, serve in turns, and say what it took."""
    whole = generate(preset("chat", requests=requests), SEED)
    # The middle: a generated workload begins with short conversations and few of them.
    begin = (requests - part) // 2
    traces = (slice_trace(whole, requests=(begin, begin + part)), whole)
    settings, _ = find_settings(ENGINE, whole.block_size)
    cost = step_cost(find_step_time(ENGINE))
    speedup = float(whole.time_s[-1] - whole.time_s[0]) / DAY_S
    simulate(slice_trace(whole, first=100), settings, cost=cost, speedup=speedup)
    seconds: list[list[float]] = [[], []]
    found: dict[int, Simulation] = {}
    for _ in range(rounds):
        for which, trace in enumerate(traces):
            began = time.perf_counter()
            found[which] = simulate(trace, settings, cost=cost, speedup=speedup)
            seconds[which].append(time.perf_counter() - began)
    return {
        "part": _said(traces[0], found[0], seconds[0]),
        "whole": _said(traces[1], found[1], seconds[1]),
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


if __name__ == "__main__":
    print(json.dumps(main(*map(int, sys.argv[1:]))))
