"""Runs in a process of its own: studies a sample of a large generated trace; prints its peaks.

Arguments: REQUESTS ONE_IN.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from typing import Any

from kvsched.study.run import study
from kvsched.trace.generate import generate_sampled, preset

SEED = 1


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main(requests: int, one_in: int) -> dict[str, Any]:
    began = time.perf_counter()
    trace = generate_sampled(preset("chat", requests=requests), SEED, lambda _: one_in)
    generated = time.perf_counter()
    peak = _peak()
    result = study(trace, trace.total_nodes // 20)
    if result.sample is None:
        raise RuntimeError("the study is of no sample")
    return {
        "requests": result.trace.requests,
        "references": result.trace.blocks,
        "nodes": result.trace.distinct_blocks,
        "sampled_references": trace.references,
        "sampled_nodes": trace.nodes,
        "generate_seconds": generated - began,
        "study_seconds": time.perf_counter() - generated,
        "generate_peak_bytes": peak,
        "peak_bytes": _peak(),
        "expected_error": max(each.expected_error for each in result.sample.errors),
    }


print(json.dumps(main(int(sys.argv[1]), int(sys.argv[2]))))
