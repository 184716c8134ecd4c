"""What an engine is asked before it runs: every request's work, and who is rejected, and why."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvsched.foundation.errors import UsageError
from kvsched.replay.generated import Held, computed_tokens, held_blocks
from kvsched.serve.settings import Settings
from kvsched.serve.state import Work
from kvsched.trace.model import Trace

NO_REASON = 0
EMPTY_PROMPT = 1
PROMPT_TOO_LONG = 2
NEVER_FITS = 3
NOT_IN_ONE_STEP = 4
QUEUE_FULL = 5
QUEUE_TOKENS = 6
WAITED = 7
DEADLINE = 8

REASONS = {
    NO_REASON: "",
    EMPTY_PROMPT: "its prompt is empty",
    PROMPT_TOO_LONG: "its prompt reaches max_model_len",
    NEVER_FITS: "it needs more blocks than there are",
    NOT_IN_ONE_STEP: "without chunked prefill it needs more than max_num_batched_tokens",
    QUEUE_FULL: "the queue is full: max_waiting requests wait",
    QUEUE_TOKENS: "the queue is full: with it more than max_waiting_tokens tokens wait",
    WAITED: "it has waited for longer than max_queue_s",
    DEADLINE: "its deadline has passed",
}
"""Why a request is rejected."""


@dataclass(frozen=True)
class Asked:
    """What the engine is asked, before it runs: every request's work, and who is rejected."""

    trace: Trace
    """With the answers cut to ``max_model_len``, and no answer empty."""
    work: Work
    held: Held
    """Nodes of all that requests hold, and what is stored of each."""
    reason: NDArray[np.int8]
    """(R,) why each is rejected before the run, 0 where it is not."""


def prepare(trace: Trace, settings: Settings) -> Asked:
    """Return what ``trace`` asks of an engine. O(B). Raises UsageError for unequal blocks."""
    if trace.unequal:
        raise UsageError("an engine has blocks of one size; the trace's are unequal")
    if len(trace) == 0:
        raise UsageError("the trace has no request to simulate")
    output = np.maximum(trace.output_tokens, 1)
    reason = np.zeros(len(trace), np.int8)
    reason[trace.input_tokens < 1] = EMPTY_PROMPT
    if settings.max_model_len is not None:
        too_long = trace.input_tokens >= settings.max_model_len
        reason[too_long] = PROMPT_TOO_LONG
        left = np.maximum(settings.max_model_len - trace.input_tokens, 1)
        output = np.minimum(output, left)
    cut = dataclasses.replace(trace, output_tokens=output)
    held = held_blocks(
        cut, cache_generated=settings.cache_generated, name_generated=settings.name_generated
    )
    needed = held.trace.chain_blocks
    reason[(reason == NO_REASON) & (needed > settings.num_gpu_blocks)] = NEVER_FITS
    if not settings.enable_chunked_prefill:
        most = computed_tokens(cut) > settings.max_num_batched_tokens
        reason[(reason == NO_REASON) & most] = NOT_IN_ONE_STEP
    count = len(trace)
    priority = np.zeros(count, np.int64)
    if trace.priority is not None:
        priority -= trace.priority
    cached = settings.enable_prefix_caching
    nothing = np.zeros(count, np.int64)
    work = Work(
        prompt=cut.input_tokens.astype(np.int64),
        output=output.astype(np.int64),
        priority=priority,
        starts=held.trace.starts,
        chains=held.trace.chains,
        limit=held.limit if cached else nothing,
        kept=held.kept if cached else nothing,
    )
    return Asked(cut, work, held, reason)
