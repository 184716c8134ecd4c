"""The loop: who arrives, one step, its time, who ends; and jumps over steps that only decode."""

from __future__ import annotations

from typing import Any

from kvsched.kernel.heap import SIZE, heap_peek, heap_push, heap_remove
from kvsched.kernel.table import NONE
from kvsched.serve.arrivals import TOLD, next_arrival_s, take_arrival, turn
from kvsched.serve.blocks import free_blocks
from kvsched.serve.cost import Cost
from kvsched.serve.hooks import (
    add_to_batch,
    before_admission,
    clear_batch,
    idle_seconds,
    is_paused,
    moved_seconds,
    moves,
    next_decision_s,
    on_arrival,
    on_left,
    on_queued,
    on_ran,
    over_limit,
    overdue,
    queue_key,
    step_seconds,
    watches,
)
from kvsched.serve.jump import jump, write_row
from kvsched.serve.schedule import (
    BAD_PLACE,
    can_admit,
    prefill_cap,
    schedule_running,
    schedule_waiting,
)
from kvsched.serve.state import (
    ADMITTED_NOW,
    ARRIVED,
    ASKED,
    CHUNKS,
    EMPTY_STEPS,
    ENDED,
    FAULT,
    FINISHED,
    LOGGED,
    PATIENCE,
    PREEMPTED_NOW,
    RAN,
    REFUSED,
    REJECTED,
    RUNNING,
    RUNNING_COUNT,
    STEPS,
    STOPS,
    TOKEN_STEP,
    TOKENS,
    TURNS,
    WAITING,
    Rules,
    State,
    waiting_count,
)

GOING = -1
"""A step can follow."""
DONE = 0
"""Every request has ended."""
MORE = 1
"""So many steps were made as were asked for."""
LOG_FULL = 2
"""The step log has no room for another row."""
HORIZON = 3
"""The next step would start at the horizon or later."""
STALLED = 4
"""Nothing runs, somebody waits, and nobody can be admitted: no later step would differ."""
MISPLACED = 5
"""An order named a place in the running list that does not exist."""
NO_VICTIM = 6
"""A policy named no evictable node where a block had to leave."""
LIVELOCK = 7
"""Requests preempt each other without end, and none gains a token: see `is_stuck`."""
MISQUEUED = 8
"""An order named a request that does not wait."""
TURNED = 9
"""A request has ended, and somebody else says who comes next."""


def _turn_away(state: State, rules: Rules, own: Any, request: int, now: float) -> None:
    """Reject a request that waits. O(log waiting)."""
    if watches:
        on_left(state, own, request, now)
    heap_remove(state.waiting, request)
    state.progress.status[request] = REJECTED
    state.counts[REFUSED] = 0
    turn(state, rules, request, now)


def _arrive(state: State, rules: Rules, own: Any, now: float) -> None:
    """Queue all whose time has come; who has waited for too long leaves. O(log waiting) each."""
    progress = state.progress
    counts = state.counts
    while True:
        if not next_arrival_s(state) <= now:
            late = overdue(state, now)
            if late == NONE:
                return
            _turn_away(state, rules, own, late, now)
            continue
        request = take_arrival(state)
        if progress.status[request] == REJECTED:
            if progress.tie[request] != TOLD:
                turn(state, rules, request, float(progress.arrival_s[request]))
            continue
        progress.status[request] = WAITING
        progress.tokens[request] = state.work.prompt[request]
        progress.tie[request] = counts[ARRIVED]
        counts[ARRIVED] += 1
        if watches:
            on_queued(state, own, request, now)
        key = queue_key(state, own, request, now)
        heap_push(state.waiting, request, key, progress.tie[request])
        on_arrival(state, request)
        counts[REFUSED] = 0


def _order_anew(state: State, own: Any, now: float) -> None:
    """Ask all keys again; ties stay as they are. O(W) keys, and O(W) for the heap."""
    if heap_peek(state.waiting) == NONE:
        return
    before_admission(state, own, now)
    count = int(state.waiting.counts[SIZE])
    # `preempted` is free before the step; the heap's own rows hold the rest of who waits.
    rows = state.waiting.entries
    for row in range(count):
        request = int(rows[row, 2])
        rows[row, 0] = queue_key(state, own, request, now)
    for row in range(count // 2 - 1, -1, -1):
        _sift(state, row, count)


def _sift(state: State, row: int, count: int) -> None:
    rows = state.waiting.entries
    key = rows[row, 0]
    tie = rows[row, 1]
    request = rows[row, 2]
    while True:
        below = 2 * row + 1
        if below >= count:
            break
        if below + 1 < count and (
            rows[below + 1, 0] < rows[below, 0]
            or (rows[below + 1, 0] == rows[below, 0] and rows[below + 1, 1] < rows[below, 1])
        ):
            below += 1
        if key < rows[below, 0] or (key == rows[below, 0] and tie < rows[below, 1]):
            break
        for column in range(3):
            rows[row, column] = rows[below, column]
        state.waiting.place[rows[row, 2]] = row
        row = below
    rows[row, 0] = key
    rows[row, 1] = tie
    rows[row, 2] = request
    state.waiting.place[request] = row


def _finish(state: State, rules: Rules, own: Any, end: float) -> None:
    """Count what the step computed; who has all tokens ends, in the running list's order."""
    progress = state.progress
    counts = state.counts
    kept = 0
    chunks = 0
    for at in range(counts[RUNNING_COUNT]):
        request = int(state.running[at])
        if watches and progress.given[request] > 0:
            on_ran(state, own, request, int(progress.given[request]))
        progress.computed[request] += progress.given[request]
        progress.given[request] = 0
        if progress.computed[request] == progress.tokens[request]:
            progress.tokens[request] += 1
            counts[TOKEN_STEP] = counts[STEPS]
            if progress.first_token_s[request] < 0:
                progress.first_token_s[request] = end
            if progress.tokens[request] == state.work.prompt[request] + state.work.output[request]:
                progress.finished_s[request] = end
                progress.status[request] = FINISHED
                free_blocks(state, request)
                turn(state, rules, request, end)
                counts[REFUSED] = 0
                continue
        left = progress.tokens[request] - progress.computed[request]
        if left > 1 or progress.first_token_s[request] < 0:
            chunks += 1
        state.running[kept] = request
        kept += 1
    counts[RUNNING_COUNT] = kept
    counts[CHUNKS] = chunks


def is_stuck(state: State) -> bool:
    """Return whether nobody has gained a token in more steps than can be without a livelock.

    Under an order of which no two are equal, and that time does not change, the first of the
    running is never preempted, and each step computes a token of it. It gains one before all its
    tokens are computed once more; or another comes before it, of which the same holds. So the
    bound is all tokens of those that have begun and not ended. It holds for vLLM's orders but
    for equal priorities that arrive at once. O(requests) when the bound is found anew, else O(1).
    """
    counts = state.counts
    progress = state.progress
    without = counts[STEPS] - counts[TOKEN_STEP]
    if without <= counts[PATIENCE]:
        return False
    tokens = 0
    for request in range(len(progress.status)):
        status = progress.status[request]
        if status == RUNNING or (status == WAITING and progress.preemptions[request] > 0):
            tokens += int(progress.tokens[request])
    counts[PATIENCE] = tokens
    return bool(without > tokens)


def _step(state: State, rules: Rules, own: Any, cost: Cost, now: float) -> int:
    """Make one step; return MORE, or what is wrong."""
    progress = state.progress
    counts = state.counts
    counts[PREEMPTED_NOW] = 0
    counts[ADMITTED_NOW] = 0
    cap = prefill_cap(state, rules)
    budget = schedule_running(state, rules, own, rules.max_num_batched_tokens, cap, now)
    if budget == BAD_PLACE:
        return MISPLACED
    if moves and can_admit(state, rules, budget):
        _order_anew(state, own, now)
    if schedule_waiting(state, rules, own, budget, cap, now) == BAD_PLACE:
        return MISQUEUED
    refused = over_limit(state, now)
    while refused != NONE:
        _turn_away(state, rules, own, refused, now)
        refused = over_limit(state, now)
    is_paused(state)
    tokens = 0
    ran = 0
    context = 0
    clear_batch(state.batch)
    for at in range(counts[RUNNING_COUNT]):
        request = int(state.running[at])
        given = int(progress.given[request])
        if given > 0:
            before = int(progress.computed[request])
            state.ran[ran] = request
            state.ran_tokens[ran] = given
            ran += 1
            tokens += given
            context += before + given
            add_to_batch(state.batch, given, before, cost.window, cost.decode_threshold)
    counts[RAN] = ran
    if ran == 0:
        if counts[PREEMPTED_NOW] == 0:
            return STALLED
        counts[EMPTY_STEPS] += 1
        seconds = idle_seconds(cost.coefficients)
    else:
        seconds = step_seconds(cost.coefficients, state.batch)
    seconds += moved_seconds(state)
    if len(state.log) > 0:
        write_row(state, now, seconds, tokens, ran, context, counts[PREEMPTED_NOW])
    counts[STEPS] += 1
    counts[TOKENS] += tokens
    state.clock[0] = now + seconds
    _finish(state, rules, own, float(state.clock[0]))
    return MORE


def _stopped(state: State, last: int) -> int:
    """Return why no step can follow, `GOING` where one can. O(1)."""
    counts = state.counts
    if counts[ENDED] == counts[ASKED]:
        return DONE
    if counts[STOPS] != 0 and counts[TURNS] > 0:
        return TURNED
    if counts[STEPS] >= last:
        return MORE
    if 0 < len(state.log) <= counts[LOGGED]:
        return LOG_FULL
    return GOING


def run_steps(
    state: State,
    rules: Rules,
    own: Any,
    cost: Cost,
    most_steps: int,
    horizon_s: float,
    jumps: bool,
) -> int:
    """Make up to ``most_steps`` steps, until all have ended or ``horizon_s``; say why it stopped.

    It can be called again and goes on. ``jumps`` passes steps that only decode together, with the
    same result. Cost of a step: O(running + blocks moved + requests admitted and their hits).
    """
    counts = state.counts
    last = counts[STEPS] + most_steps
    while True:
        stopped = _stopped(state, last)
        if stopped != GOING:
            return stopped
        if counts[RUNNING_COUNT] == 0 and waiting_count(state) == 0:
            # A request that was rejected may be all that is left.
            state.clock[0] = max(state.clock[0], min(next_arrival_s(state), horizon_s))
        now = float(state.clock[0])
        if now >= horizon_s:
            return HORIZON
        _arrive(state, rules, own, now)
        if counts[RUNNING_COUNT] == 0 and waiting_count(state) == 0:
            continue
        if counts[STOPS] != 0 and counts[TURNS] > 0:
            continue
        if jumps and counts[CHUNKS] == 0 and counts[RUNNING_COUNT] > 0:
            until = min(next_arrival_s(state), horizon_s, next_decision_s(state))
            passed = jump(state, rules, own, cost, int(last - counts[STEPS]), until)
            if counts[FAULT] != 0:
                return NO_VICTIM
            if passed > 0:
                continue
        status = _step(state, rules, own, cost, now)
        if counts[FAULT] != 0:
            return NO_VICTIM
        if status != MORE:
            return status
        if is_stuck(state):
            return LIVELOCK
