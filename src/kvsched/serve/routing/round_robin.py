"""One after another."""

from __future__ import annotations

from kvsched.serve.routing.base import Engines, Routing
from kvsched.trace.model import Trace


class RoundRobin(Routing):
    """The k-th request to arrive, from 0, goes to engine k mod N."""

    name = "round-robin"
    source = "common"
    looks = False

    def prepare(self, trace: Trace, replicas: int) -> None:
        """Begin with the first engine."""
        self._next = 0

    def route(self, request: int, engines: Engines) -> int:
        """Return the next engine."""
        found = self._next
        self._next = (found + 1) % len(engines)
        return found
