"""Runs in libcachesim's own environment: its C loop over its own reader of a binary file.

A command: file, references, policy, capacity, hashpower (null: the package's default).
The answer: seconds of `process_trace` alone, and the hits. The reader is opened and the cache
made before the clock starts; the file is in the page cache after the first command.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import libcachesim as peer


def run(command: dict[str, Any]) -> dict[str, Any]:
    reader = peer.TraceReader(
        command["file"],
        peer.TraceType.ORACLE_GENERAL_TRACE,
        peer.ReaderInitParam(ignore_obj_size=True),
    )
    options = {} if command["hashpower"] is None else {"hashpower": command["hashpower"]}
    cache = getattr(peer, command["policy"])(cache_size=command["capacity"], **options)
    began = time.perf_counter()
    miss_ratio, _ = cache.process_trace(reader)
    seconds = time.perf_counter() - began
    return {"seconds": seconds, "hits": round((1 - miss_ratio) * command["references"])}


for line in sys.stdin:
    print(json.dumps(run(json.loads(line))), flush=True)
