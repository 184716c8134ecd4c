"""Runs in libcachesim's own environment: one request after another, each asked whether it hit.

A command: file of int64 objects, policy, capacity, and where to write one byte a request.
The answer: the hits.
"""

from __future__ import annotations

import json
import sys
from array import array
from pathlib import Path
from typing import Any

import libcachesim as peer


def run(command: dict[str, Any]) -> dict[str, Any]:
    stream = array("q", Path(command["file"]).read_bytes())
    cache = getattr(peer, command["policy"])(cache_size=command["capacity"], hashpower=16)
    request = peer.Request()
    request.obj_size = 1
    found = bytearray()
    for at, item in enumerate(stream):
        request.obj_id = item
        request.clock_time = at
        found.append(cache.get(request))
    Path(command["answer"]).write_bytes(bytes(found))
    return {"hits": sum(found)}


for line in sys.stdin:
    print(json.dumps(run(json.loads(line))), flush=True)
