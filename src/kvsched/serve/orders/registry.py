"""Orders by name. To add one: write its file, add its line to `_BUILT_IN`."""

from __future__ import annotations

from kvsched.foundation.by_name import ByName
from kvsched.policy.needs import check_needs
from kvsched.policy.parameters import check_parameters
from kvsched.serve.orders.base import QueueOrder

ENTRY_POINTS = "kvsched.orders"
"""Group in which an installed package offers orders of its own."""

_BUILT_IN = {
    "fcfs": "kvsched.serve.orders.fcfs:FCFS",
    "priority": "kvsched.serve.orders.priority:Priority",
    "lpm": "kvsched.serve.orders.lpm:LongestPrefix",
    "spf": "kvsched.serve.orders.spf:ShortestPrefill",
    "edf": "kvsched.serve.orders.edf:EarliestDeadline",
    "tenant-fair": "kvsched.serve.orders.tenant_fair:TenantFair",
    "decode-order": "kvsched.serve.orders.decode_order:DecodeOrder",
}


def _check(reference: str, found: type[QueueOrder]) -> None:
    check_parameters("order", reference, found.parameters)
    check_needs("order", reference, found.needs)


_ORDERS = ByName(
    kind="order",
    base=QueueOrder,
    shown_base="kvsched.serve.orders.base.QueueOrder",
    built_in=_BUILT_IN,
    entry_points=ENTRY_POINTS,
    example="edf:ttft_s=2",
    check=_check,
)


def order_names() -> list[str]:
    """Names of the orders that come with kvsched, and of those that installed packages offer."""
    return _ORDERS.names()


def find_order(reference: str) -> type[QueueOrder]:
    """Return the class that ``reference`` names: NAME, module:Name or path.py:Name.

    Raises UsageError, with what would do, if there is none.
    """
    return _ORDERS.find(reference)


def make_order(order: str | QueueOrder | type[QueueOrder]) -> QueueOrder:
    """Return an order from an instance, a class, or ``REFERENCE[:PARAMETER=VALUE…]``.

    Raises UsageError for an unknown name, parameter or value.
    """
    return _ORDERS.make(order)
