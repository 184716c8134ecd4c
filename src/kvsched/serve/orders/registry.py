"""Orders by name. To add one: write its file, add its line to `_BUILT_IN`."""

from __future__ import annotations

import importlib

from kvsched.foundation.errors import UsageError
from kvsched.serve.orders.base import QueueOrder

_BUILT_IN = {
    "fcfs": "kvsched.serve.orders.fcfs:FCFS",
    "priority": "kvsched.serve.orders.priority:Priority",
}


def order_names() -> list[str]:
    """Names of the orders that come with kvsched."""
    return list(_BUILT_IN)


def make_order(order: str | QueueOrder | type[QueueOrder]) -> QueueOrder:
    """Return the order of a name, of a class, or as it is. Raises UsageError for another name."""
    if isinstance(order, QueueOrder):
        return order
    if isinstance(order, type) and issubclass(order, QueueOrder):
        return order()
    if order not in _BUILT_IN:
        raise UsageError(f"unknown order {order} (known: {', '.join(_BUILT_IN)})")
    module, name = _BUILT_IN[str(order)].split(":")
    found: type[QueueOrder] = getattr(importlib.import_module(module), name)
    return found()
