"""Who may wait, for how long, who is served without being stored, and when nobody is admitted.

The names are those of the live cache's gate (`kvsched.cache.settings`). Where that decides on a
request at once, an engine decides in the first step that starts after a request came: who is
admitted in it has not waited.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from kvsched.foundation.errors import UsageError
from kvsched.kernel.heap import KEY, Heap, empty_heap, heap_peek, heap_push, heap_remove
from kvsched.kernel.table import NONE
from kvsched.serve.asked import DEADLINE, NO_REASON, QUEUE_FULL, QUEUE_TOKENS, WAITED
from kvsched.serve.state import (
    ARRIVED,
    FREE_BLOCKS,
    NEVER_S,
    WAITING,
    Float64s,
    Int8s,
    Int32s,
    Int64s,
    State,
)
from kvsched.trace.model import Trace

DEGRADE = ("unstored",)
NO_LIMIT = 1 << 62
LATEST_S = 9e12
"""Moments from here on never come: in microseconds they are no 64-bit number."""

# Places in `Gate.limits`, whole numbers.
MAX_WAITING = 0
MAX_WAITING_TOKENS = 1

# Places in `Gate.marks`, in blocks.
PAUSE_ABOVE = 0
RESUME_BELOW = 1
DEGRADE_ABOVE = 2

# Places in `Gate.counts`.
LOOKED = 0
"""Requests, in the order in which they came, on which it is decided whether they may wait."""
WAIT = 1
"""Requests that may wait and have never been admitted."""
WAIT_TOKENS = 2
"""Prompt tokens of these."""
PAUSED = 3
"""1 while nobody is admitted."""
PAUSED_STEPS = 4
"""Steps in which somebody waited, and was not looked at for that."""
GATE_COUNTS = 5


@dataclass(frozen=True)
class AdmissionSettings:
    """Limits on who waits, and what happens under pressure. Raises UsageError for impossible ones.

    Pressure is the share of all blocks that running requests hold (vLLM's `kv_cache_usage_perc`).
    """

    max_waiting: int | None = None
    """Requests that wait for their first admission; one more is rejected."""
    max_waiting_tokens: int | None = None
    """Prompt tokens of these; a request that would pass it is rejected."""
    max_queue_s: float | None = None
    """Seconds that a request waits for its first admission; after that it is rejected."""
    deadlines: bool = False
    """Whether a request that waits is rejected once the trace's ``deadline_s`` has passed. It has
    the time from ``time_s`` on, from whenever it arrives; ``speedup`` does not shorten it."""
    degrade: str | None = None
    """"unstored": above ``degrade_above`` a request is served, and nothing of it is stored."""
    degrade_above: float | None = None
    """Share of used blocks."""
    pause_above: float | None = None
    """Share of used blocks above which nobody is admitted, the preempted neither ..."""
    resume_below: float | None = None
    """... until it is below this; None as ``pause_above``."""

    def __post_init__(self) -> None:
        for name in ("max_waiting", "max_waiting_tokens"):
            value = getattr(self, name)
            whole = isinstance(value, int) and not isinstance(value, bool)
            if value is not None and not (whole and 0 <= value <= NO_LIMIT):
                raise UsageError(f"{name} must be a whole number of at least 0, not {value!r}")
        if self.max_queue_s is not None and not (
            _is_number(self.max_queue_s) and 0 < self.max_queue_s < LATEST_S
        ):
            raise UsageError(f"max_queue_s must be a number above 0, not {self.max_queue_s!r}")
        for name in ("degrade_above", "pause_above", "resume_below"):
            value = getattr(self, name)
            if value is not None and not (_is_number(value) and 0.0 <= value <= 1.0):
                raise UsageError(f"{name} must be from 0 to 1, not {value!r}")
        if self.degrade is not None and self.degrade not in DEGRADE:
            raise UsageError(f"degrade must be {', '.join(DEGRADE)}, not {self.degrade!r}")
        if (self.degrade is None) != (self.degrade_above is None):
            raise UsageError("degrade and degrade_above go together")
        self._check_pause()

    def _check_pause(self) -> None:
        if self.pause_above is None:
            if self.resume_below is not None:
                raise UsageError("resume_below needs pause_above")
            return
        if not 0 < self._resume_below <= self.pause_above:
            raise UsageError(
                f"resume_below must be above 0 and at most pause_above ({self.pause_above:g}), "
                f"not {self._resume_below:g}: nobody would be admitted again"
            )

    @property
    def _resume_below(self) -> float:
        found = self.pause_above if self.resume_below is None else self.resume_below
        return math.inf if found is None else found

    def gate(self, trace: Trace, capacity: int) -> Gate:
        """Return the arrays of a run. O(R). Raises UsageError where the trace has no deadlines."""
        count = len(trace)
        patience = np.full(count, np.inf if self.max_queue_s is None else self.max_queue_s)
        why = np.full(count, WAITED, np.int8)
        if self.deadlines:
            if trace.deadline_s is None:
                raise UsageError("admission by deadlines needs a column of the trace: deadline_s")
            given = np.where(np.isnan(trace.deadline_s), np.inf, trace.deadline_s - trace.time_s)
            why[given <= patience] = DEADLINE
            patience = np.minimum(patience, given)
        limits = [self.max_waiting, self.max_waiting_tokens]
        marks = [
            math.inf if self.pause_above is None else self.pause_above,
            self._resume_below,
            math.inf if self.degrade_above is None else self.degrade_above,
        ]
        return Gate(
            limits=np.array([NO_LIMIT if each is None else each for each in limits], np.int64),
            marks=np.array(marks) * capacity,
            patience_s=patience,
            why=why,
            came=np.zeros(count, np.int32),
            due=empty_heap(count, count),
            waits=np.zeros(count, np.int8),
            unstored=np.zeros(count, np.int8),
            reason=np.full(count, NO_REASON, np.int8),
            rejected_s=np.full(count, NEVER_S),
            counts=np.zeros(GATE_COUNTS, np.int64),
        )

    def summary(self) -> dict[str, Any]:
        """Return every setting by its name."""
        return dataclasses.asdict(self)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


class Gate(NamedTuple):
    """What the loop knows of admission."""

    limits: Int64s
    """(2,) by the names above."""
    marks: Float64s
    """(3,) blocks, by the names above."""
    patience_s: Float64s
    """(R,) seconds after its arrival when a request that waits is rejected; inf for never."""
    why: Int8s
    """(R,) the reason that it is then given."""
    came: Int32s
    """(R,) requests in the order in which they came."""
    due: Heap
    """Requests that were never admitted, by the moment when they are rejected, in microseconds."""
    waits: Int8s
    """(R,) 1 while a request may wait and was never admitted."""
    unstored: Int8s
    """(R,) 1 for those of which nothing is stored."""
    reason: Int8s
    """(R,) why it was rejected; 0 where it was not."""
    rejected_s: Float64s
    """(R,) start of the step that rejected it, or `NEVER_S`."""
    counts: Int64s
    """(GATE_COUNTS,) single numbers, by the names above."""


def on_arrival(state: State, request: int) -> None:
    """Note a request that came, and until when it waits. O(log waiting)."""
    gate = state.gate
    gate.came[state.progress.tie[request]] = request
    until = float(state.progress.arrival_s[request]) + float(gate.patience_s[request])
    if until < LATEST_S:
        # Whole microseconds, rounded up: a heap's keys are whole numbers.
        heap_push(gate.due, request, int(np.ceil(until * 1e6)), state.progress.tie[request])


def _due_s(gate: Any) -> float:
    """Return after which moment the next of those that wait is rejected."""
    if heap_peek(gate.due) == NONE:
        return float(np.inf)
    return float(gate.due.entries[0, KEY] / 1e6)


def _leaves(state: State, request: int) -> None:
    """A request waits no more, or is not allowed to."""
    gate = state.gate
    if gate.due.place[request] != NONE:
        heap_remove(gate.due, request)
    if gate.waits[request] != 0:
        gate.waits[request] = 0
        gate.counts[WAIT] -= 1
        gate.counts[WAIT_TOKENS] -= state.work.prompt[request]


def _reject(state: State, request: int, reason: int, now: float) -> int:
    _leaves(state, request)
    state.gate.reason[request] = reason
    state.gate.rejected_s[request] = now
    return request


def overdue(state: State, now: float) -> int:
    """Return a request that has waited for longer than it may, NONE without. O(log waiting)."""
    gate = state.gate
    if not _due_s(gate) < now:
        return NONE
    request = heap_peek(gate.due)
    return _reject(state, request, int(gate.why[request]), now)


def over_limit(state: State, now: float) -> int:
    """Return one of those that came, were not admitted and may not wait, NONE without. O(came).

    In the order in which they came; it is asked until it returns NONE.
    """
    gate = state.gate
    counts = gate.counts
    while counts[LOOKED] < state.counts[ARRIVED]:
        request = int(gate.came[counts[LOOKED]])
        counts[LOOKED] += 1
        if state.progress.status[request] != WAITING or state.progress.scheduled_s[request] >= 0:
            continue
        prompt = int(state.work.prompt[request])
        if counts[WAIT] + 1 > gate.limits[MAX_WAITING]:
            return _reject(state, request, QUEUE_FULL, now)
        if counts[WAIT_TOKENS] + prompt > gate.limits[MAX_WAITING_TOKENS]:
            return _reject(state, request, QUEUE_TOKENS, now)
        gate.waits[request] = 1
        counts[WAIT] += 1
        counts[WAIT_TOKENS] += prompt
    return NONE


def next_decision_s(state: State) -> float:
    """Return from which moment on a step may reject somebody. O(1)."""
    if state.gate.counts[LOOKED] < state.counts[ARRIVED]:
        return NEVER_S
    return _due_s(state.gate)


def is_paused(state: State) -> bool:
    """Whether nobody is admitted: above one mark, until below the other. O(1)."""
    gate = state.gate
    used = int(state.capacity[0] - state.counts[FREE_BLOCKS])
    if used > gate.marks[PAUSE_ABOVE]:
        gate.counts[PAUSED] = 1
    elif used < gate.marks[RESUME_BELOW]:
        gate.counts[PAUSED] = 0
    return bool(gate.counts[PAUSED] != 0)


def count_paused(state: State, steps: int) -> None:
    """Count steps in which the head of the queue was not looked at, if it was for the pause."""
    if state.gate.counts[PAUSED] != 0:
        state.gate.counts[PAUSED_STEPS] += steps


def on_admit(state: State, request: int) -> None:
    """A request is about to get its first blocks: it waits no more, and may be degraded."""
    gate = state.gate
    if state.progress.scheduled_s[request] >= 0:
        return
    _leaves(state, request)
    if state.capacity[0] - state.counts[FREE_BLOCKS] > gate.marks[DEGRADE_ABOVE]:
        gate.unstored[request] = 1


def stored_blocks(state: State, request: int) -> int:
    """Return how many blocks of a request are stored when they are full."""
    return 0 if state.gate.unstored[request] != 0 else int(state.work.kept[request])


ADMISSION = {
    "on_arrival": on_arrival,
    "overdue": overdue,
    "over_limit": over_limit,
    "next_decision_s": next_decision_s,
    "is_paused": is_paused,
    "count_paused": count_paused,
    "on_admit": on_admit,
    "stored_blocks": stored_blocks,
}
"""What the loop is bound to where there are `AdmissionSettings`."""
