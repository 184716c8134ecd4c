"""Longest prefix match: who would hit most goes first."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from kvsched.policy.parameters import Parameter
from kvsched.serve.orders.sorted_queue import (
    END,
    FIRST,
    SortedOrder,
    SortedQueue,
    is_sorted_now,
    look_up,
    new_sorted_queue,
    sort_by_rank,
)
from kvsched.serve.state import State
from kvsched.trace.model import Trace

LAST = np.iinfo(np.int64).max
"""The rank of those that wait for another to compute their prefix."""


def before_admission(state: State, own: Any, now: float) -> None:
    """Sort the queue by hits, unless it is too long. O(W log W), and the hits of all W."""
    if not is_sorted_now(own):
        return
    look_up(state, own)
    for at in range(own.counts[FIRST], own.counts[END]):
        request = own.queue[at]
        own.rank[request] = LAST if own.later[request] != 0 else -own.hits[request]
    sort_by_rank(own)


class LongestPrefix(SortedOrder):
    """Requests by the tokens of their prefix that are cached now, the most first.

    Of those with at most ``same_prefix`` tokens cached whose prompts begin with the same
    ``same_prefix`` tokens or more, the first in the queue goes by its hits, and the others behind
    all: they hit what it computes. Equals stay as the sort before left them. With more than
    ``longest`` waiting nothing is sorted or looked up: who arrives goes to the end. The sort is
    made once before a step that can admit. A preempted request goes to the end. What would be hit
    is what the simulated engine would let it hit: full blocks, never the last token.

    One may starve: as long as others with longer cached prefixes come in time, one without goes
    behind them; only a queue longer than ``longest`` sets it free. A step that can admit costs
    O(W log W) and the hits of those that wait, W at most ``longest``; O(W) beyond.
    """

    name = "lpm"
    source = "SGLang 0.5.23 SchedulePolicy, lpm"
    parameters: ClassVar[dict[str, Parameter]] = {
        "longest": Parameter(128, "requests in the longest queue that is sorted"),
        "same_prefix": Parameter(
            32, "tokens: most that count as uncached, least that count as the same prefix"
        ),
    }
    before_admission = staticmethod(before_admission)

    def prepare(self, trace: Trace) -> SortedQueue:
        """Return an empty queue. O(R + N)."""
        longest, same = int(self.values["longest"]), int(self.values["same_prefix"])
        return new_sorted_queue(trace, longest, same)
