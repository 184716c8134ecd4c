"""The course's decode order: phase, cached share and priority speak for a request, and waiting."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import numpy as np

from kvsched.policy.parameters import Parameter
from kvsched.serve.blocks import hit_blocks
from kvsched.serve.orders.base import QueueOrder
from kvsched.serve.state import RUNNING_COUNT, Float64s, State
from kvsched.trace.model import Trace

DECODE = 0
CACHED = 1
PRIORITY = 2
WAITED = 3


class Weights(NamedTuple):
    """What the hooks get."""

    weights: Float64s
    """(4,) of a decode, of the cached share, of a step of priority, of a second of waiting."""
    block_size: int


def score_millionths(state: State, own: Any, request: int, cached_tokens: int) -> int:
    """Return a score less what all have gained by waiting until now, in whole millionths. O(1).

    Everyone gains the same in a second, so the moment at which scores are compared cancels.
    """
    share = min(cached_tokens / state.work.prompt[request], 1.0)
    score = own.weights[CACHED] * share
    # The engine's priority is the trace's turned round.
    score -= own.weights[PRIORITY] * state.work.priority[request]
    score -= own.weights[WAITED] * state.progress.arrival_s[request]
    return int(np.floor(score * 1e6))


def queue_key(state: State, own: Any, request: int, now: float) -> int:
    """Return the score, turned round. O(hits)."""
    hits = hit_blocks(state, request, own.block_size)
    return -score_millionths(state, own, request, hits * own.block_size)


def preempted_place(state: State, own: Any, request: int, now: float) -> int:
    """Return the place of the lowest score, the last to arrive of equals. O(running).

    The cached share is that of the first admission, so that two cannot preempt each other in turn.
    """
    best = 0
    lowest = 0
    for at in range(state.counts[RUNNING_COUNT]):
        its = int(state.running[at])
        score = score_millionths(state, own, its, int(state.progress.first_hit[its]))
        if state.progress.computed[its] + 1 >= state.progress.tokens[its]:
            score += int(own.weights[DECODE] * 1e6)
        tie = state.progress.tie
        later = score == lowest and tie[its] > tie[state.running[best]]
        if at == 0 or score < lowest or later:
            best = at
            lowest = score
    return best


class DecodeOrder(QueueOrder):
    """Requests by 2 for a decode, cached share, priority, and 0.1 a second of waiting.

    score = decode · [it decodes] + cached · (hit tokens / prompt tokens, now, at most 1) + priority
    · priority + waited · (now - arrival), the highest first, ties by arrival. Whoever waits has a
    prompt to compute, again after a preemption, so the term of the phase is 0 in the queue; among
    the running the engine lets all go on, and the term keeps those that decode from being
    preempted before those that compute their prompt. The lowest score is preempted, and waits by
    its own score.

    Nobody starves: one that arrives later than another by more than (cached + priority · the
    greatest difference of priorities) / waited seconds never goes before it. With ``waited=0`` a
    stream of better requests keeps one waiting for ever. Hits change while requests wait: a step
    that can admit costs O(waiting and their hits).
    """

    name = "decode-order"
    source = "the course's decode order (lesson 36), with the chapter's weights"
    parameters: ClassVar[dict[str, Parameter]] = {
        "decode": Parameter(2.0, "for a request that decodes", most=1e3),
        "cached": Parameter(1.0, "for a prompt that is cached as a whole", most=1e3),
        "priority": Parameter(1.0, "for each step of priority", most=1e3),
        "waited": Parameter(0.1, "for each second of waiting", most=1e3),
    }
    resumes_first = False
    moves = True
    queue_key = staticmethod(queue_key)
    preempted_place = staticmethod(preempted_place)

    def prepare(self, trace: Trace) -> Weights:
        """Return the weights. O(1)."""
        weights = np.array([self.values[name] for name in self.parameters])
        return Weights(weights, trace.block_size)
