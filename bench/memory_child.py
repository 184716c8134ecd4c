"""Runs in a process of its own: generates a large trace, or replays one; prints its peak memory.

Arguments: generate PATH REFERENCES | replay PATH POLICY | both POLICY REFERENCES.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path
from typing import Any

from kvsched.replay.run import replay
from kvsched.trace.columns import write_columns
from kvsched.trace.generate import generate, preset
from kvsched.trace.load import load_trace
from kvsched.trace.model import Trace

SEED = 1


def _generated(references: int) -> Trace:
    """A trace of at least that many references; a small one says how many requests it takes."""
    probe = generate(preset("chat", requests=400_000), SEED)
    requests = round(len(probe) * references / probe.references * 1.02)
    return generate(preset("chat", requests=requests), SEED)


def _replayed(trace: Trace, policy: str) -> dict[str, Any]:
    result = replay(trace, policy, trace.nodes // 20)
    return {"policy": policy, "hit_blocks": result.hit_blocks}


def main(what: str, first: str, second: str) -> dict[str, Any]:
    began = time.perf_counter()
    found: dict[str, Any] = {}
    if what == "generate":
        trace = _generated(int(second))
        write_columns(trace, Path(first))
    elif what == "replay":
        trace = load_trace(first)
        found = _replayed(trace, second)
    else:
        trace = _generated(int(second))
        found = _replayed(trace, first)
    return {
        **found,
        "references": trace.references,
        "nodes": trace.nodes,
        "seconds": time.perf_counter() - began,
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


print(json.dumps(main(*sys.argv[1:])))
