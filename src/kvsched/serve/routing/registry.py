"""Routings by name. To add one: write its file, add its line to `_BUILT_IN`."""

from __future__ import annotations

from kvsched.foundation.by_name import ByName
from kvsched.foundation.errors import UsageError
from kvsched.serve.routing.base import Routing

ENTRY_POINTS = "kvsched.routings"
"""Group in which an installed package offers routings of its own."""

_BUILT_IN = {
    "round-robin": "kvsched.serve.routing.round_robin:RoundRobin",
    "least-loaded": "kvsched.serve.routing.least_loaded:LeastLoaded",
    "cache-aware": "kvsched.serve.routing.cache_aware:CacheAware",
    "prefix-aware": "kvsched.serve.routing.prefix_aware:PrefixAware",
}


def _check(reference: str, found: type[Routing]) -> None:
    if found.route is Routing.route:
        raise UsageError(f"routing {reference} has no route(self, request, engines)")


_ROUTINGS = ByName(
    kind="routing",
    base=Routing,
    shown_base="kvsched.serve.routing.base.Routing",
    built_in=_BUILT_IN,
    entry_points=ENTRY_POINTS,
    example="",
    check=_check,
)


def routing_names() -> list[str]:
    """Names of the routings that come with kvsched, and of those that installed packages offer."""
    return _ROUTINGS.names()


def make_routing(routing: str | Routing | type[Routing]) -> Routing:
    """Return a routing from an instance, a class, or NAME, module:Name or path.py:Name.

    Raises UsageError for another name, and for a class without a `route`.
    """
    if isinstance(routing, Routing):
        return routing
    if isinstance(routing, type) and issubclass(routing, Routing):
        _check(routing.__name__, routing)
        return routing()
    return _ROUTINGS.find(str(routing))()
