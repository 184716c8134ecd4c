"""One step of vLLM v1's scheduler: running requests first, then waiting ones.

Facts are from vLLM 0.32.0 (`v1/core/sched/scheduler.py`, without asynchronous scheduling), and
are held to recordings of its own class by the tests.
"""

from __future__ import annotations

from typing import Any

from kvsched.kernel.heap import heap_push, heap_remove
from kvsched.kernel.table import NONE
from kvsched.serve.blocks import (
    blocks_of,
    extend,
    free_blocks,
    hit_blocks,
    hold_hits,
    lacks_room,
)
from kvsched.serve.hooks import (
    count_paused,
    is_paused,
    move_in,
    move_out,
    next_waiting,
    on_admit,
    on_admitted,
    on_queued,
    preempted_place,
    queue_key,
    resumes_first,
    watches,
)
from kvsched.serve.state import (
    ADMITTED_NOW,
    FIRST_TIE,
    FREE_BLOCKS,
    PREEMPTED_NOW,
    PREEMPTIONS,
    RECOMPUTED,
    REFUSED,
    RUNNING,
    RUNNING_COUNT,
    WAITING,
    Rules,
    State,
    waiting_count,
)

waits_after_preemption = True
"""A step that preempted somebody admits nobody."""
withdraws = True
"""Tokens given to a request that is preempted in the same step go back to the budget."""
alone_is_not_capped = True
"""`long_prefill_token_threshold` does not hold for a request that is alone."""
BAD_PLACE = -1
"""An order named a place in the running list that does not exist, or one that does not wait."""


def prefill_cap(state: State, rules: Rules) -> int:
    """Return the most tokens of one request in this step, 0 for no cap. O(1)."""
    alone = state.counts[RUNNING_COUNT] + waiting_count(state) <= 1
    if alone and alone_is_not_capped:
        return 0
    return rules.long_prefill_token_threshold


def _remove(state: State, place: int) -> None:
    last = int(state.counts[RUNNING_COUNT]) - 1
    for at in range(place, last):
        state.running[at] = state.running[at + 1]
    state.counts[RUNNING_COUNT] = last


def _preempt(state: State, own: Any, request: int, now: float) -> None:
    """Take all from a request; it waits again, and keeps what it has generated."""
    progress = state.progress
    computed = int(progress.computed[request])
    again = min(computed, int(progress.reached[request])) - int(progress.hit[request])
    state.counts[RECOMPUTED] += max(again, 0)
    progress.reached[request] = max(computed, int(progress.reached[request]))
    if not move_out(state, request):
        progress.computed[request] = 0
    free_blocks(state, request)
    progress.preemptions[request] += 1
    progress.status[request] = WAITING
    state.counts[PREEMPTIONS] += 1
    tie = progress.tie[request]
    if resumes_first:
        state.counts[FIRST_TIE] -= 1
        tie = state.counts[FIRST_TIE]
    if watches:
        on_queued(state, own, request, now)
    heap_push(state.waiting, request, queue_key(state, own, request, now), tie)
    state.preempted[state.counts[PREEMPTED_NOW]] = request
    state.counts[PREEMPTED_NOW] += 1


def schedule_running(
    state: State, rules: Rules, own: Any, budget: int, cap: int, now: float
) -> int:
    """Give every running request its tokens, in order; return what is left of the budget.

    One that finds no block preempts others, or itself; then nobody behind it gets anything.
    `BAD_PLACE` where an order named no running request. O(running + blocks taken and freed).
    """
    progress = state.progress
    counts = state.counts
    size = rules.block_size
    at = 0
    while at < counts[RUNNING_COUNT] and budget > 0:
        request = int(state.running[at])
        tokens = int(progress.tokens[request] - progress.computed[request])
        if 0 < cap < tokens:
            tokens = cap
        tokens = min(tokens, budget)
        reach = int(progress.computed[request]) + tokens
        need = 0
        # A division costs more than all else that a decode needs.
        if reach > int(progress.blocks[request]) * size:
            need = blocks_of(reach, size) - int(progress.blocks[request])
        itself = False
        while need > counts[FREE_BLOCKS]:
            place = int(preempted_place(state, own, request, now))
            if place < 0 or place >= counts[RUNNING_COUNT]:
                return BAD_PLACE
            loser = int(state.running[place])
            _remove(state, place)
            if place < at:
                at -= 1
            if withdraws:
                budget += int(progress.given[loser])
            progress.given[loser] = 0
            _preempt(state, own, loser, now)
            if loser == request:
                itself = True
                break
        if itself:
            break
        extend(state, request, reach, size)
        progress.given[request] = tokens
        budget -= tokens
        at += 1
    return budget


def _admit(
    state: State,
    rules: Rules,
    own: Any,
    request: int,
    hits: int,
    computed: int,
    tokens: int,
    now: float,
) -> None:
    progress = state.progress
    counts = state.counts
    size = rules.block_size
    heap_remove(state.waiting, request)
    on_admit(state, request)
    move_in(state, request, hits)
    hold_hits(state, request, hits)
    extend(state, request, computed + tokens, size)
    progress.computed[request] = computed
    progress.given[request] = tokens
    progress.hit[request] = computed
    if progress.scheduled_s[request] < 0:
        progress.scheduled_s[request] = now
        progress.first_hit[request] = computed
    progress.status[request] = RUNNING
    state.running[counts[RUNNING_COUNT]] = request
    counts[RUNNING_COUNT] += 1
    state.admitted[counts[ADMITTED_NOW]] = request
    counts[ADMITTED_NOW] += 1
    if watches:
        on_admitted(state, own, request, now)


def can_admit(state: State, rules: Rules, budget: int) -> bool:
    """Whether a step with so much of its budget left looks at who waits. O(1)."""
    if state.counts[PREEMPTED_NOW] > 0 and waits_after_preemption:
        return False
    return bool(budget > 0 and state.counts[RUNNING_COUNT] < rules.max_num_seqs)


def schedule_waiting(
    state: State, rules: Rules, own: Any, budget: int, cap: int, now: float
) -> int:
    """Admit waiting requests until one does not fit; return what is left of the budget.

    Nobody is admitted in a step that preempted, or while admission pauses. `BAD_PLACE` where an
    order named one that does not wait. O(requests admitted, their hits and new blocks).
    """
    progress = state.progress
    counts = state.counts
    size = rules.block_size
    counts[REFUSED] = 0
    if counts[PREEMPTED_NOW] > 0 and waits_after_preemption:
        return budget
    while budget > 0 and counts[RUNNING_COUNT] < rules.max_num_seqs:
        request = int(next_waiting(state, own, now))
        if request == NONE:
            break
        if request < 0 or request >= len(progress.status) or progress.status[request] != WAITING:
            return BAD_PLACE
        if is_paused(state):
            counts[REFUSED] = 1
            count_paused(state, 1)
            break
        hits = hit_blocks(state, request, size)
        # One that waits has computed nothing, unless that was moved to a second tier.
        computed = max(hits * size, int(progress.computed[request]))
        tokens = int(progress.tokens[request]) - computed
        if 0 < cap < tokens:
            tokens = cap
        if tokens > budget:
            if rules.chunked == 0:
                break
            tokens = budget
        reach = computed + tokens
        if rules.reserve_full != 0:
            reach = int(progress.tokens[request])
        if lacks_room(state, rules, request, hits, reach):
            counts[REFUSED] = 1
            break
        _admit(state, rules, own, request, hits, computed, tokens, now)
        budget -= tokens
    return budget
