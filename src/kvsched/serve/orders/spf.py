"""Shortest prefill first: who has the fewest tokens of its prompt to compute goes first."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from kvsched.policy.parameters import Parameter
from kvsched.serve.orders.sorted_queue import (
    END,
    FIRST,
    SortedOrder,
    SortedQueue,
    look_up,
    new_sorted_queue,
    sort_by_rank,
)
from kvsched.serve.state import State
from kvsched.trace.model import Trace

BEHIND = 1 << 50
"""Added to the rank of those that wait for another to compute their prefix."""


def before_admission(state: State, own: Any, now: float) -> None:
    """Sort the queue by what is to be computed. O(W log W), and all hits of those that wait."""
    look_up(state, own)
    for at in range(own.counts[FIRST], own.counts[END]):
        request = own.queue[at]
        there = max(int(own.hits[request]), int(state.progress.computed[request]))
        left = max(int(state.progress.tokens[request]) - there, 1)
        own.rank[request] = left + (BEHIND if own.later[request] != 0 else 0)
        own.tie[request] = own.entry[request]
    sort_by_rank(own)


class ShortestPrefill(SortedOrder):
    """Requests by the tokens to compute before the next is generated, the fewest first.

    That is the prompt, after a preemption with what was generated, less what would be hit now. Of
    those with at most ``same_prefix`` tokens cached whose prompts begin with the same
    ``same_prefix`` tokens or more, all but the first in the queue go behind all others: they hit
    what it computes. Ties go by when each was queued, again after a preemption. The sort is made
    once before a step that can admit. SGLang calls it experimental, and also cuts a long prompt's
    chunks to let shorter ones in; here the engine's own rules say how a prompt is cut.

    One may starve: as long as shorter ones come in time, a long one goes behind them. A step that
    can admit costs O(W log W) and the hits of all W that wait.
    """

    name = "spf"
    source = "SGLang 0.5.23 SchedulePolicy, shortest-prefill-first"
    parameters: ClassVar[dict[str, Parameter]] = {
        "same_prefix": Parameter(
            32, "tokens: most that count as uncached, least that count as the same prefix"
        ),
    }
    before_admission = staticmethod(before_admission)

    def prepare(self, trace: Trace) -> SortedQueue:
        """Return an empty queue. O(R + N)."""
        longest = np.iinfo(np.int64).max
        return new_sorted_queue(trace, int(longest), int(self.values["same_prefix"]))
