"""Runs in kvcache-simulator's own environment: its sweep over a trace that it has parsed.

A command: capacities, policies. The answer: seconds of `run_cpp_sweep`, and the hit and total
tokens of every point that it reports. The trace's path is this script's argument.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from kvcache_sim.cpp_backend import ensure_cpp_simulator, run_cpp_sweep
from kvcache_sim.trace import parse_trace_file

trace = parse_trace_file(sys.argv[1], block_size=512)
ensure_cpp_simulator()


def run(command: dict[str, Any]) -> dict[str, Any]:
    began = time.perf_counter()
    found = run_cpp_sweep(
        trace,
        capacities=command["capacities"],
        policies=command["policies"],
        warmup_requests=trace.request_count // 2,
    )
    seconds = time.perf_counter() - began
    points = [
        [policy, capacity, point.hitTokens, point.totalTokens]
        for (policy, capacity), point in found.results.items()
        if point.measurementMode == "fixed_window"
    ]
    return {"seconds": seconds, "points": points, "ceiling": found.ceiling.hitTokens}


for line in sys.stdin:
    print(json.dumps(run(json.loads(line))), flush=True)
