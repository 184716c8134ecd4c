"""What the loop asks an order of requests and a step's time: stubs that are bound to others.

Every hook runs compiled and plain alike: scalars that change live in arrays, nothing is
allocated, nothing raises. ``own`` is what the order's `prepare` returned.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvsched.serve.state import RUNNING_COUNT, State

resumes_first = True
"""Whether a preempted request goes before all that have its key; else it goes by its arrival."""
moves = False
"""Whether keys change while requests wait: `queue_key` is then asked anew before each step that
can admit one."""


def queue_key(state: State, own: Any, request: int, now: float) -> int:
    """Return the key of a request that waits: the smallest goes first, ties by arrival."""
    return 0


def preempted_place(state: State, own: Any, request: int, now: float) -> int:
    """Return the place in ``state.running`` of whom to preempt so that ``request`` can go on."""
    return int(state.counts[RUNNING_COUNT] - 1)


def step_seconds(
    cost: NDArray[np.float64], tokens: int, sequences: int, context: int, pairs: int
) -> float:
    """Return the seconds that a step takes.

    ``tokens`` are computed for ``sequences`` requests, ``context`` tokens of keys and values are
    read, and ``pairs`` of a query and a key are multiplied: for a request with c tokens before
    and n new ones c + n of context, and n·c + n(n+1)/2 pairs.
    """
    return float(cost[0] + cost[1] * tokens + cost[2] * context + cost[3] * pairs)
