"""The fewest requests first, a queue in front of full memory counted more: vLLM's own."""

from __future__ import annotations

import math

from kvsched.serve.routing.base import Engines, Routing
from kvsched.trace.model import Trace

PENALTY = 6.0
"""Weight of a waiting request, times the use of KV memory beyond `FULL`."""
FULL = 0.5


class LeastLoaded(Routing):
    """The smallest outstanding + waiting · 6 · max(0, KV use - 0.5); ties from a start that moves.

    vLLM takes the larger of the requests in flight and of waiting and running ones as it last
    heard, every 100 ms; here both are known at once, and are the same number.
    """

    name = "least-loaded"
    source = "vLLM 0.32.0 v1 DPLBAsyncMPClient.get_core_engine_for_request, one client"

    def prepare(self, trace: Trace, replicas: int) -> None:
        """Begin with the first engine."""
        self._start = 0

    def route(self, request: int, engines: Engines) -> int:
        """Return the engine with the smallest load. O(engines)."""
        count = len(engines)
        found, least = 0, math.inf
        for turn in range(count):
            engine = (self._start + turn) % count
            load = float(engines.outstanding[engine])
            waiting = engines.waiting(engine) if load > 0 else 0
            if waiting:
                load += waiting * PENALTY * max(0.0, engines.kv_usage(engine) - FULL)
            if load < least:
                found, least = engine, load
        self._start = (self._start + 1) % count
        return found
