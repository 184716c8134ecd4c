"""A parameter chosen by replaying what came before, as a cache that runs could choose it.

Until the first eviction no value matters. From there a window of requests is decided with the
first candidate, and recorded; at its end each candidate replays it, from an empty cache through
the same requests, and the one that hit the most tokens of the window decides from then on. What
comes after the window changes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from kvsched.policy.base import Policy, Tuned
from kvsched.replay.loop import Counts
from kvsched.trace.model import Trace

Run = Callable[[Policy, int], Counts]
"""Replays as many requests from the first under a policy."""


def tune(trace: Trace, policy: Policy, run: Run) -> Tuned | None:
    """Return the best candidate for the parameter of ``policy`` that is `auto`, and since when.

    The smallest place among candidates that hit equally many tokens. None where nothing leaves,
    or the trace ends with the window: the first candidate then decides all of it. Cost: one
    replay, and one of the window for each other candidate.
    """
    tunable = policy.tunable
    if tunable is None or not policy.auto:
        return None
    first = run(policy, len(trace))
    evicting = first.evicted.nonzero()[0]
    if not len(evicting):
        return None
    begin = int(evicting[0]) + 1
    end = begin + math.ceil(tunable.window * begin)
    if end >= len(trace):
        return None

    def hit_tokens(counts: Counts) -> int:
        return int(trace.prefix_tokens(counts.hits)[begin:end].sum())

    best, most = tunable.candidates[0], hit_tokens(first)
    for value in tunable.candidates[1:]:
        found = hit_tokens(run(policy.with_tuned(Tuned(value, 0)), end))
        if found > most:
            best, most = value, found
    return Tuned(best, end)
