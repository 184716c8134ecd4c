"""What the loop asks an order, a cost, admission and swap: stubs bound to others.

Every hook runs compiled and plain alike: scalars that change live in arrays, nothing is
allocated, nothing raises. ``own`` is what the order's `prepare` returned.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kvsched.kernel.heap import heap_peek
from kvsched.kernel.table import NONE
from kvsched.serve.state import RUNNING_COUNT, Float64s, State

TOKENS = 0
SEQUENCES = 1
READ = 3
PAIRS = 4
"""Places in the sums of a step that the linear time needs."""

resumes_first = True
"""Whether a preempted request goes before all that have its key; else it goes by its arrival."""
moves = False
"""Whether keys change while requests wait: `queue_key` is then asked anew before each step that
can admit one."""
picks = False
"""Whether `next_waiting` says who is admitted next; keys then mean nothing."""
watches = False
"""Whether `on_queued`, `on_admitted`, `on_left` and `on_ran` are called."""


def on_queued(state: State, own: Any, request: int, now: float) -> None:
    """A request waits from now on: it has arrived, or was preempted."""


def on_admitted(state: State, own: Any, request: int, now: float) -> None:
    """A request that waited runs from now on: ``progress.computed`` is what it hit."""


def on_left(state: State, own: Any, request: int, now: float) -> None:
    """A request that waited is turned away, and never runs again."""


def on_ran(state: State, own: Any, request: int, tokens: int) -> None:
    """So many tokens of a request are computed after the ``progress.computed`` that it has.

    In one step or in several, which must make no difference; it may end with them.
    """


def before_admission(state: State, own: Any, now: float) -> None:
    """A step can admit somebody: called before its keys are asked, where ``moves``."""


def next_waiting(state: State, own: Any, now: float) -> int:
    """Return who is admitted next, NONE for nobody; asked again after each admission."""
    return heap_peek(state.waiting)


def queue_key(state: State, own: Any, request: int, now: float) -> int:
    """Return the key of a request that waits: the smallest goes first, ties by arrival."""
    return 0


def preempted_place(state: State, own: Any, request: int, now: float) -> int:
    """Return the place in ``state.running`` of whom to preempt so that ``request`` can go on."""
    return int(state.counts[RUNNING_COUNT] - 1)


def clear_batch(batch: Float64s) -> None:
    """Make ``batch`` (BATCH,) that of a step without requests."""
    for at in range(len(batch)):
        batch[at] = 0.0


def add_to_batch(
    batch: Float64s, tokens: int, context: int, window: int, decode_threshold: int
) -> None:
    """Add a request that computes ``tokens`` after ``context`` tokens. O(1).

    ``window`` is that of the model's sliding windows, 0 without, and ``decode_threshold`` the most
    tokens that attention computes the way of decodes.
    """
    batch[TOKENS] += tokens
    batch[SEQUENCES] += 1
    batch[READ] += context + tokens
    batch[PAIRS] += tokens * context + tokens * (tokens + 1) // 2


def grow_batch(batch: Float64s, below: int) -> None:
    """Turn a step of one token a request into the next of the same requests. O(1).

    ``below`` of them look at fewer tokens than the window, and at one more from now on.
    """
    batch[READ] += batch[SEQUENCES]
    batch[PAIRS] += batch[SEQUENCES]


def step_seconds(coefficients: Float64s, batch: Float64s) -> float:
    """Return the seconds of a step with the sums ``batch``: here linear in them."""
    return float(
        coefficients[0]
        + coefficients[1] * batch[TOKENS]
        + coefficients[2] * batch[READ]
        + coefficients[3] * batch[PAIRS]
    )


def idle_seconds(coefficients: Float64s) -> float:
    """Return the seconds of a step that computes nothing: no model runs."""
    return 0.0


def on_arrival(state: State, request: int) -> None:
    """A request came, and waits from now on. This and the next seven are `admission`'s."""


def overdue(state: State, now: float) -> int:
    """Return a request that has waited for too long, NONE without; asked until it returns that."""
    return NONE


def over_limit(state: State, now: float) -> int:
    """Return a request that may not wait, NONE without; asked until it returns that."""
    return NONE


def next_decision_s(state: State) -> float:
    """Return from which moment on one of the two before may name somebody."""
    return float(np.inf)


def is_paused(state: State) -> bool:
    """Whether nobody is admitted; asked before each admission, and at the end of each step's."""
    return False


def count_paused(state: State, steps: int) -> None:
    """The head of the queue was refused in so many steps, by a pause or for lack of memory."""


def on_admit(state: State, request: int) -> None:
    """A request is about to get its blocks."""


def stored_blocks(state: State, request: int) -> int:
    """Return how many blocks of a request are stored when they are full."""
    return int(state.work.kept[request])


def move_out(state: State, request: int) -> bool:
    """Whether what a preempted request has computed is kept. This and the next two are `swap`'s."""
    return False


def move_in(state: State, request: int, hits: int) -> None:
    """A request is about to get its blocks; so many of them it hits."""


def moved_seconds(state: State) -> float:
    """Return the seconds that a step takes for what it moves."""
    return 0.0
