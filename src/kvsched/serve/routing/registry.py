"""Routings by name. To add one: write its file, add its line to `_BUILT_IN`."""

from __future__ import annotations

import importlib

from kvsched.foundation.errors import UsageError
from kvsched.serve.routing.base import Routing

_BUILT_IN = {
    "round-robin": "kvsched.serve.routing.round_robin:RoundRobin",
    "least-loaded": "kvsched.serve.routing.least_loaded:LeastLoaded",
    "cache-aware": "kvsched.serve.routing.cache_aware:CacheAware",
    "prefix-aware": "kvsched.serve.routing.prefix_aware:PrefixAware",
}


def routing_names() -> list[str]:
    """Names of the routings that come with kvsched."""
    return list(_BUILT_IN)


def make_routing(routing: str | Routing | type[Routing]) -> Routing:
    """Return the routing of a name, of a class, or as it is. Raises UsageError for another name."""
    if isinstance(routing, Routing):
        return routing
    if isinstance(routing, type) and issubclass(routing, Routing):
        return routing()
    if routing not in _BUILT_IN:
        raise UsageError(f"unknown routing {routing} (known: {', '.join(_BUILT_IN)})")
    module, name = _BUILT_IN[str(routing)].split(":")
    found: type[Routing] = getattr(importlib.import_module(module), name)
    return found()
