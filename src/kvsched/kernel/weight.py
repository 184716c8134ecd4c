"""What a node takes of the capacity, for policies that compare sizes with it."""

from __future__ import annotations

from kvsched.kernel.hooks import weighted
from kvsched.kernel.table import Table


def taken(table: Table, node: int) -> int:
    """Return what ``node`` takes of the capacity: 1, or its room where the kernel is weighted.

    O(1); a constant where it is not.
    """
    return int(table.room[node]) if weighted else 1


def usual_nodes(table: Table, node: int, usual_room: int) -> float:
    """Return how many usual nodes ``node`` is: 1, or its room by a usual node's. O(1)."""
    return int(table.room[node]) / usual_room if weighted else 1.0
