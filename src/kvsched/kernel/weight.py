"""What a node takes of the capacity, for policies that compare sizes with it."""

from __future__ import annotations

from kvsched.kernel.hooks import weighted
from kvsched.kernel.table import Table


def taken(table: Table, node: int) -> int:
    """Return what ``node`` takes of the capacity: 1, or its room where the kernel is weighted.

    O(1); a constant where it is not.
    """
    return int(table.room[node]) if weighted else 1


def usual_nodes(room: int, usual_room: int) -> float:
    """Return how many nodes of ``usual_room`` make ``room``; 1 each where it is not weighted."""
    return room / usual_room if weighted else float(room)
