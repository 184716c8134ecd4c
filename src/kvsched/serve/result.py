"""What a simulation found: what each request saw, and totals."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvsched.policy.base import Policy
from kvsched.serve.admission import PAUSED_STEPS, AdmissionSettings, Gate
from kvsched.serve.asked import NO_REASON, REASONS
from kvsched.serve.orders.base import QueueOrder
from kvsched.serve.routing.base import Routing
from kvsched.serve.settings import Settings
from kvsched.serve.state import (
    EMPTY_STEPS,
    EVICTIONS,
    FINISHED,
    JUMPED,
    NEVER_S,
    PREEMPTIONS,
    REJECTED,
    STEPS,
    TOKENS,
    Float64s,
    Int32s,
    Int64s,
)
from kvsched.serve.swap import BACK, OUT, PEAK, REFUSALS, SWAPS, SwapSettings, Tier
from kvsched.trace.model import Trace


@dataclass(frozen=True, eq=False, repr=False)
class Simulation:
    """What a simulated engine did. Moments are seconds on the trace's clock, NaN where none.

    R requests in the trace's order; every one is finished, rejected (`reason` says why) or
    unfinished.
    """

    trace: Trace
    """With answers cut to ``max_model_len`` and at least 1 token, as they were simulated."""
    settings: Settings
    order: QueueOrder
    policy: Policy | None
    """Who decided what left; None for vLLM's own free list."""
    status: NDArray[np.int8]
    """(R,) `kvsched.serve.state`'s EXPECTED, WAITING, RUNNING, FINISHED or REJECTED."""
    reason: NDArray[np.int8]
    """(R,) why it was rejected, a key of `REASONS`."""
    arrival_s: Float64s
    scheduled_s: Float64s
    """(R,) start of the first step that it was in."""
    first_token_s: Float64s
    finished_s: Float64s
    hit_tokens: Int64s
    """(R,) prompt tokens hit when it was first admitted."""
    generated_tokens: Int64s
    preemptions: NDArray[np.int32]
    counts: Int64s
    """(COUNTS,) totals, by the names in `kvsched.serve.state`."""
    end_s: float
    """When the last step ended."""
    horizon_s: float | None
    step_log: Float64s | None
    """(steps, LOG_COLUMNS) one row a step, where it was asked for; of all replicas by start."""
    routing: Routing | None = None
    """Who said which replica a request goes to; None with one engine."""
    replicas: int = 1
    """Engines that served."""
    replica: Int32s | None = None
    """(R,) the engine of each request, from 0, -1 where it had not arrived; None with one."""
    step_replica: Int32s | None = None
    """(steps,) the engine of each row of the step log; None with one."""
    admission: AdmissionSettings | None = None
    swap: SwapSettings | None = None
    recomputed_tokens: int = 0
    """Tokens of those computed that their request had computed before it was preempted."""
    gate: Gate | None = None
    """What admission knew at the end, where there were limits."""
    tier: Tier | None = None
    """What the second tier had seen at the end, where there was one."""

    @property
    def finished(self) -> NDArray[np.bool_]:
        """(R,) whether each has finished."""
        found: NDArray[np.bool_] = self.status == FINISHED
        return found

    @property
    def rejected(self) -> NDArray[np.bool_]:
        """(R,) whether each was rejected."""
        found: NDArray[np.bool_] = self.status == REJECTED
        return found

    @property
    def unfinished(self) -> NDArray[np.bool_]:
        """(R,) whether each was neither finished nor rejected at the horizon."""
        return ~self.finished & ~self.rejected

    @property
    def degraded(self) -> NDArray[np.bool_]:
        """(R,) whether each was served without being stored."""
        if self.gate is None:
            return np.zeros(len(self.status), np.bool_)
        found: NDArray[np.bool_] = self.gate.unstored != 0
        return found

    @property
    def rejected_s(self) -> Float64s:
        """(R,) start of the step that rejected it; NaN where none, and for those that never fit."""
        if self.gate is None:
            return np.full(len(self.status), np.nan)
        return np.where(self.gate.rejected_s == NEVER_S, np.nan, self.gate.rejected_s)

    @property
    def queued_s(self) -> Float64s:
        """(R,) seconds from arrival to the first step, NaN where none."""
        waited: Float64s = self.scheduled_s - self.arrival_s
        return waited

    @property
    def ttft_s(self) -> Float64s:
        """(R,) seconds from arrival to the first token, NaN where none."""
        waited: Float64s = self.first_token_s - self.arrival_s
        return waited

    @property
    def latency_s(self) -> Float64s:
        """(R,) seconds from arrival to the last token, NaN where none."""
        waited: Float64s = self.finished_s - self.arrival_s
        return waited

    @functools.cached_property
    def tpot_s(self) -> Float64s:
        """(R,) mean seconds between two tokens of an answer, NaN where it has fewer than two."""
        between = self.trace.output_tokens - 1
        found = np.full(len(between), np.nan)
        np.divide(self.finished_s - self.first_token_s, between, out=found, where=between > 0)
        return found

    @property
    def steps(self) -> int:
        """Steps that were made."""
        return int(self.counts[STEPS])

    @property
    def jumped_steps(self) -> int:
        """Steps of these that were passed in jumps."""
        return int(self.counts[JUMPED])

    def summary(self) -> dict[str, Any]:
        """Return the totals: requests by outcome, and why; steps, tokens, preemptions, moves."""
        gate = None if self.gate is None else self.gate.counts
        tier = None if self.tier is None else self.tier.counts
        moved = 0 if tier is None else int(tier[OUT] + tier[BACK])
        rejected = {
            REASONS[code]: int((self.reason[self.rejected] == code).sum())
            for code in REASONS
            if code != NO_REASON and (self.reason[self.rejected] == code).any()
        }
        return {
            "requests": len(self.status),
            "finished": int(self.finished.sum()),
            "rejected": int(self.rejected.sum()),
            "rejected_because": rejected,
            "unfinished": int(self.unfinished.sum()),
            "steps": self.steps,
            "empty_steps": int(self.counts[EMPTY_STEPS]),
            "computed_tokens": int(self.counts[TOKENS]),
            "generated_tokens": int(self.generated_tokens.sum()),
            "hit_tokens": int(self.hit_tokens.sum()),
            "recomputed_tokens": self.recomputed_tokens,
            "preemptions": int(self.counts[PREEMPTIONS]),
            "degraded": int(self.degraded.sum()),
            "paused_steps": 0 if gate is None else int(gate[PAUSED_STEPS]),
            "swaps": 0 if tier is None else int(tier[SWAPS]),
            "swaps_refused": 0 if tier is None else int(tier[REFUSALS]),
            "swapped_out_blocks": 0 if tier is None else int(tier[OUT]),
            "swapped_in_blocks": 0 if tier is None else int(tier[BACK]),
            "most_swapped_blocks": 0 if tier is None else int(tier[PEAK]),
            "swap_s": 0.0 if self.swap is None else moved * self.swap.block_s,
            "evictions": int(self.counts[EVICTIONS]),
            "end_s": self.end_s,
        }

    def __repr__(self) -> str:
        found = self.summary()
        return (
            f"<Simulation {self.order.label}: {found['finished']:,} of {found['requests']:,} "
            f"requests finished in {self.steps:,} steps, {self.end_s:,.1f} s>"
        )
