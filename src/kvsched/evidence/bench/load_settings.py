"""How a workload is sent."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from kvsched.foundation.errors import UsageError

MOST_WORKERS = 256
INTERRUPTED = "the run was interrupted"
"""What a request that an interruption cancelled says."""


@dataclass(frozen=True, kw_only=True)
class LoadSettings:
    """The load plan. Raises UsageError for what cannot be.

    Open loop (no ``concurrency``): each request is sent when it is due, whatever became of those
    before it. Closed loop: so many clients, each sends the next request of the workload's order
    when its last one has ended; with sessions a client sees a session to its end.
    """

    concurrency: int | None = None
    ttft_timeout_s: float = 120.0
    """From the sending to the first token."""
    timeout_s: float = 600.0
    """From the sending to the end. Each sending after a 429 has its own."""
    retries: int = 3
    """Further sendings of a request that is answered with 429."""
    longest_retry_wait_s: float = 30.0
    """A Retry-After of more ends the request as rate_limited; without one the waits double from
    `FIRST_RETRY_S` up to this."""
    workers: int = 1
    """Processes that send. Sessions stay together."""
    stop_after_refusals: int | None = 100
    """Refused connections in a row (of one worker) after which the rest is not sent, and counted
    as refused; None for never."""
    low_priority_first: bool = True
    """Whether the engine runs small priorities first, as vLLM does: the workload's, of which the
    largest is the most important, are then sent negated."""
    extra_body: dict[str, Any] = field(default_factory=dict)
    """Merged into each request's JSON; None takes a field out."""

    def __post_init__(self) -> None:
        whole = isinstance(self.workers, int) and isinstance(self.retries, int)
        if not whole or not 1 <= self.workers <= MOST_WORKERS or self.retries < 0:
            raise UsageError(f"workers must be 1 to {MOST_WORKERS}, retries at least 0")
        if self.concurrency is not None and self.concurrency < 1:
            raise UsageError(f"concurrency must be at least 1, not {self.concurrency}")
        if self.stop_after_refusals is not None and self.stop_after_refusals < 1:
            raise UsageError(f"refusals must be at least 1, not {self.stop_after_refusals}")
        for name in ("ttft_timeout_s", "timeout_s", "longest_retry_wait_s"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise UsageError(f"{name} must be above 0 s, not {value}")


FIRST_RETRY_S = 0.5
"""Wait before the second sending where a 429 does not say how long."""
