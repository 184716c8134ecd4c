"""Who arrives next, and whose end brings another: the part of the loop that knows of traffic.

What arrives by itself comes in an order known from the start. The next turn of a session is known
when the turn before has ended, and waits in a heap by (arrival, request).
"""

from __future__ import annotations

import numpy as np

from kvsched.kernel.table import NONE
from kvsched.serve.state import (
    DUE,
    ENDED,
    KNOWN_ARRIVALS,
    NEXT_ARRIVAL,
    REJECTED,
    TURNS,
    Rules,
    State,
)

TOLD = -1
"""In place of a tie: a rejected request whose end has been told."""


def _earlier(state: State, one: int, other: int) -> bool:
    at = state.progress.arrival_s
    return bool(at[one] < at[other] or (at[one] == at[other] and one < other))


def expect(state: State, request: int, at_s: float) -> None:
    """Let a request arrive at a time from now on. O(log due)."""
    due = state.arrivals.due
    state.progress.arrival_s[request] = at_s
    row = int(state.counts[DUE])
    state.counts[DUE] += 1
    while row > 0:
        above = (row - 1) >> 1
        if not _earlier(state, request, int(due[above])):
            break
        due[row] = due[above]
        row = above
    due[row] = request


def _pop(state: State) -> int:
    due = state.arrivals.due
    first = int(due[0])
    size = int(state.counts[DUE]) - 1
    state.counts[DUE] = size
    last = int(due[size])
    row = 0
    while True:
        below = 2 * row + 1
        if below >= size:
            break
        if below + 1 < size and _earlier(state, int(due[below + 1]), int(due[below])):
            below += 1
        if not _earlier(state, int(due[below]), last):
            break
        due[row] = due[below]
        row = below
    due[row] = last
    return first


def _of_themselves(state: State) -> int:
    """Return who arrives next of those that nobody's end brings, or NONE. O(1)."""
    at = state.counts[NEXT_ARRIVAL]
    if at < state.counts[KNOWN_ARRIVALS]:
        return int(state.arrivals.firsts[at])
    return NONE


def next_arrival_s(state: State) -> float:
    """Return when the next request arrives, infinity where none is known. O(1)."""
    found = float(np.inf)
    first = _of_themselves(state)
    if first != NONE:
        found = float(state.progress.arrival_s[first])
    if state.counts[DUE] > 0:
        found = min(found, float(state.progress.arrival_s[state.arrivals.due[0]]))
    return found


def take_arrival(state: State) -> int:
    """Return who arrives next, ties by number, and count it as arrived. O(log due)."""
    first = _of_themselves(state)
    if state.counts[DUE] > 0 and (
        first == NONE or _earlier(state, int(state.arrivals.due[0]), first)
    ):
        return _pop(state)
    state.counts[NEXT_ARRIVAL] += 1
    return first


def turn(state: State, rules: Rules, request: int, now: float) -> None:
    """A request has ended: its session's next turn comes after its think time. O(log due).

    After the last turn of a session another session begins, in a closed loop, and after one that is
    rejected as it comes the next, at the same moment. Where there are
    replicas it is only written down: who comes next is not this engine's to say.
    """
    counts = state.counts
    arrivals = state.arrivals
    counts[ENDED] += 1
    if len(arrivals.ended) > 0:
        arrivals.ended[counts[TURNS]] = request
        arrivals.ended_s[counts[TURNS]] = now
        counts[TURNS] += 1
        return
    while True:
        follower = int(arrivals.follows[request])
        if follower != NONE:
            expect(state, follower, now + float(arrivals.think_s[follower]))
            return
        if rules.closed_loop == 0 or counts[KNOWN_ARRIVALS] >= len(arrivals.firsts):
            return
        known = int(counts[KNOWN_ARRIVALS])
        last = float(state.progress.arrival_s[arrivals.firsts[known - 1]]) if known > 0 else 0.0
        request = int(arrivals.firsts[known])
        # 0 for the first turn of a session.
        at = now + float(arrivals.think_s[request])
        state.progress.arrival_s[request] = max(at, last + arrivals.apart_s)
        counts[KNOWN_ARRIVALS] += 1
        if state.progress.status[request] != REJECTED:
            return
        # It ends as it comes, before anybody else can: `TOLD` says that this was counted.
        state.progress.tie[request] = TOLD
        counts[ENDED] += 1


def turn_rejected(state: State, rules: Rules, until_s: float) -> None:
    """Bring who comes after requests that were rejected in the last step, or while it ran.

    Called when no step follows; who else arrived meanwhile is left as it is. O(log due) each.
    """
    while next_arrival_s(state) < until_s:
        request = take_arrival(state)
        told = state.progress.tie[request] == TOLD
        if state.progress.status[request] == REJECTED and not told:
            turn(state, rules, request, float(state.progress.arrival_s[request]))
