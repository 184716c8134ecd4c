"""Steps that only decode, passed together: the same blocks, the same times, to the last bit."""

from __future__ import annotations

from typing import Any

import numpy as np

from kvsched.serve.blocks import extend
from kvsched.serve.cost import Cost
from kvsched.serve.hooks import (
    add_to_batch,
    clear_batch,
    count_paused,
    grow_batch,
    is_paused,
    moves,
    next_decision_s,
    on_ran,
    picks,
    step_seconds,
    watches,
)
from kvsched.serve.state import (
    ADMITTED_NOW,
    CHUNKS,
    DUE,
    FREE_BLOCKS,
    JUMPED,
    LOG_CONTEXT,
    LOG_FREE,
    LOG_PREEMPTED,
    LOG_RUNNING,
    LOG_SECONDS,
    LOG_SEQUENCES,
    LOG_START_S,
    LOG_TOKENS,
    LOG_WAITING,
    LOGGED,
    PREEMPTED_NOW,
    RAN,
    REFUSED,
    RUNNING_COUNT,
    STEPS,
    TOKEN_STEP,
    TOKENS,
    Rules,
    State,
    waiting_count,
)

LEAST = 4
"""Steps that a jump must be able to pass: fewer are made one by one for less."""


def write_row(
    state: State,
    start_s: float,
    seconds: float,
    tokens: int,
    sequences: int,
    context: int,
    preempted: int,
) -> None:
    """Write one step into the log, before its requests end. O(1)."""
    counts = state.counts
    row = state.log[counts[LOGGED]]
    row[LOG_START_S] = start_s
    row[LOG_SECONDS] = seconds
    row[LOG_TOKENS] = tokens
    row[LOG_SEQUENCES] = sequences
    row[LOG_CONTEXT] = context
    row[LOG_RUNNING] = counts[RUNNING_COUNT]
    row[LOG_WAITING] = waiting_count(state)
    row[LOG_FREE] = counts[FREE_BLOCKS]
    row[LOG_PREEMPTED] = preempted
    counts[LOGGED] += 1


def _sort_by_phase(state: State, size: int) -> None:
    """Sort the running by the first step that needs a block, ties in order. O(running + size)."""
    progress = state.progress
    phase = state.phase
    count = int(state.counts[RUNNING_COUNT])
    for at in range(size + 2):
        phase[at] = 0
    for at in range(count):
        wait = (size - progress.computed[state.running[at]] % size) % size
        phase[wait + 2] += 1
    for at in range(1, size + 2):
        phase[at] += phase[at - 1]
    for at in range(count):
        request = state.running[at]
        wait = (size - progress.computed[request] % size) % size
        state.by_phase[phase[wait + 1]] = at
        phase[wait + 1] += 1


def _steps_at_most(state: State) -> int:
    """Return the steps in which nobody ends. O(running)."""
    least = np.iinfo(np.int64).max
    for at in range(state.counts[RUNNING_COUNT]):
        request = state.running[at]
        ends = state.work.prompt[request] + state.work.output[request]
        least = min(least, int(ends - state.progress.tokens[request] - 1))
    return int(least)


def _below(state: State, window: int, passed: int) -> int:
    """Return how many look at one token more than in the step before. O(running) with a window."""
    if window == 0:
        return 0
    found = 0
    for at in range(state.counts[RUNNING_COUNT]):
        if state.progress.computed[state.running[at]] + passed < window:
            found += 1
    return found


def _move_blocks(state: State, turn: int, after: int, passed: int, size: int) -> None:
    """Let those take a block that need one in this step, and those fill one that need one next.

    In the running list's order, as both kinds come in it. O(blocks).
    """
    phase = state.phase
    one = phase[turn]
    other = phase[after]
    while one < phase[turn + 1] or other < phase[after + 1]:
        last = len(state.running)
        place = state.by_phase[one] if one < phase[turn + 1] else last
        second = state.by_phase[other] if other < phase[after + 1] else last
        if place <= second:
            one += 1
        if second <= place:
            place = second
            other += 1
        request = int(state.running[place])
        extend(state, request, int(state.progress.computed[request]) + passed + 1, size)


def jump(state: State, rules: Rules, own: Any, cost: Cost, most_steps: int, until_s: float) -> int:
    """Pass steps in which every running request decodes one token; return how many.

    Stops before a step in which somebody ends, arrives (``until_s``), lacks a block, or could be
    admitted: while the head of the queue waits for memory, nothing may change that memory. Where
    it waits for a seat, nothing can help it. O(running + block size + steps + blocks).
    """
    counts = state.counts
    progress = state.progress
    size = rules.block_size
    running = int(counts[RUNNING_COUNT])
    still = False
    if waiting_count(state) > 0 and running < rules.max_num_seqs:
        if counts[REFUSED] == 0 or moves or picks:
            return 0
        still = True
    most = min(most_steps, _steps_at_most(state))
    if len(state.log) > 0:
        most = min(most, int(len(state.log) - counts[LOGGED]))
    if most < LEAST or running > rules.max_num_batched_tokens:
        return 0
    _sort_by_phase(state, size)
    context = 0
    clear_batch(state.batch)
    for at in range(running):
        before = int(progress.computed[state.running[at]])
        context += before + 1
        add_to_batch(state.batch, 1, before, cost.window, cost.decode_threshold)
    phase = state.phase
    now = float(state.clock[0])
    passed = 0
    while passed < most and now < until_s:
        # Who needs a block in this step, and whose block is full after it: the latter need one
        # in the next.
        turn = passed % size
        after = (passed + 1) % size
        takes = int(phase[turn + 1] - phase[turn])
        fills = int(phase[after + 1] - phase[after])
        if takes > counts[FREE_BLOCKS] or (still and takes + fills > 0):
            break
        if takes + fills > 0:
            state.clock[0] = now
            _move_blocks(state, turn, after, passed, size)
        is_paused(state)
        if passed > 0:
            grow_batch(state.batch, _below(state, cost.window, passed))
        seconds = step_seconds(cost.coefficients, state.batch)
        if len(state.log) > 0:
            write_row(state, now, seconds, running, running, context, 0)
        now = now + seconds
        context += running
        passed += 1
    if passed == 0:
        return 0
    state.clock[0] = now
    if still:
        count_paused(state, passed)
    counts[STEPS] += passed
    counts[TOKEN_STEP] = counts[STEPS]
    counts[JUMPED] += passed
    counts[TOKENS] += passed * running
    counts[PREEMPTED_NOW] = 0
    counts[ADMITTED_NOW] = 0
    counts[RAN] = running
    for at in range(running):
        request = state.running[at]
        state.ran[at] = request
        state.ran_tokens[at] = 1
        if watches:
            on_ran(state, own, int(request), passed)
        progress.computed[request] += passed
        progress.tokens[request] += passed
    return passed


def clear_until_s(state: State, rules: Rules, cost: Cost, until_s: float) -> float:
    """Return a time before which no step starts in which a request can end, if nobody arrives.

    That is known while all decode, nobody waits and blocks are plenty: the times are a jump's, to
    the last bit. Otherwise it is when the next step starts. O(running + steps before ``until_s``).
    """
    counts = state.counts
    now = float(state.clock[0])
    running = int(counts[RUNNING_COUNT])
    if running == 0 or running > rules.max_num_batched_tokens or counts[CHUNKS] != 0:
        return now
    if waiting_count(state) > 0 or counts[DUE] > 0:
        return now
    # In so many steps nobody takes more blocks than its share of those that are free.
    enough = int(counts[FREE_BLOCKS]) // running * rules.block_size
    most = min(_steps_at_most(state), enough)
    # Nobody is turned away before that.
    until_s = min(until_s, max(now, next_decision_s(state)))
    clear_batch(state.batch)
    for at in range(running):
        before = int(state.progress.computed[state.running[at]])
        add_to_batch(state.batch, 1, before, cost.window, cost.decode_threshold)
    passed = 0
    while passed < most and now < until_s:
        if passed > 0:
            grow_batch(state.batch, _below(state, cost.window, passed))
        now = now + step_seconds(cost.coefficients, state.batch)
        passed += 1
    return now
