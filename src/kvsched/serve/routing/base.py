"""What a routing is: a name, and one hook that is asked for each request when it arrives.

To add one, copy `round_robin.py`, and add a line to `registry.py`; or name a class of your own.
"""

from __future__ import annotations

from typing import ClassVar, Protocol

from kvsched.trace.model import Trace


class Engines(Protocol):
    """What a routing can know of N engines, from 0, at the moment of an arrival."""

    outstanding: list[int]
    """Requests of each that were routed to it and have not ended: exact at that moment."""

    def __len__(self) -> int:
        """Return how many engines there are."""
        ...

    def waiting(self, engine: int) -> int:
        """Return how many of them wait, as of the last step that has started, and since."""
        ...

    def kv_usage(self, engine: int) -> float:
        """Return the share of its blocks that requests hold after the last step that has started.

        Cached blocks that nobody holds are free, as in vLLM's ``kv_cache_usage``.
        """
        ...

    def hit_tokens(self, engine: int, request: int) -> int:
        """Return how many prompt tokens a request would hit after that step. O(hits)."""
        ...


class Routing:
    """Base of all routings. A routing that keeps something is made anew for each simulation."""

    name: ClassVar[str] = ""
    source: ClassVar[str] = "user"
    """Engine and version that define it."""
    looks: ClassVar[bool] = True
    """Whether it asks about engines. Where it does not, and nobody's end brings an arrival, they
    need not wait for each other: the same result, sooner."""

    def prepare(self, trace: Trace, replicas: int) -> None:
        """Begin a simulation: forget all that was kept."""

    def route(self, request: int, engines: Engines) -> int:
        """Return the engine that gets a request, which arrives now."""
        raise NotImplementedError


def fewest(engines: Engines) -> int:
    """Return the engine with the fewest outstanding requests, the first of equals. O(engines)."""
    return engines.outstanding.index(min(engines.outstanding))
