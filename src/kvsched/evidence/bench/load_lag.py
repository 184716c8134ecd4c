"""Whether the load generator kept up with its own plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kvsched.evidence.bench.measured import RequestOutcome

MOST_LAG_MS = 10.0
LEAST_GAP_MS = 1.0
"""Gaps between requests below this are not asked to be kept: an event loop's clock ticks so."""


@dataclass(frozen=True)
class LagFacts:
    """Milliseconds from when requests were due to when their bytes were handed over."""

    p50_ms: float
    p99_ms: float
    max_ms: float
    warning: str | None
    """A sentence where the generator fell behind: results then show less load than was planned."""


def lag_facts(outcomes: Sequence[RequestOutcome]) -> LagFacts | None:
    """Return how far requests were sent behind their plan; None where none was sent. O(R log R).

    Only those sent once count: the others wait for the engine. The generator fell behind where the
    99th percentile is above `MOST_LAG_MS`, or above the mean gap between requests (and above
    `LEAST_GAP_MS`): then their order in time is no more the plan's.
    """
    sent = [each for each in outcomes if each.sent_s is not None and each.attempts == 1]
    if not sent:
        return None
    due_s = np.array([each.due_s for each in sent])
    lag_ms = (np.array([each.sent_s for each in sent], np.float64) - due_s) * 1e3
    p50_ms, p99_ms = (float(value) for value in np.percentile(lag_ms, (50, 99)))
    gap_ms = float(due_s.max() - due_s.min()) * 1e3 / max(len(sent) - 1, 1)
    warning = None
    if p99_ms > MOST_LAG_MS:
        warning = (
            f"the load generator fell behind: 1 in 100 requests was sent more than {p99_ms:.1f} ms "
            f"late (bar: {MOST_LAG_MS:g} ms); use more workers"
        )
    elif p99_ms > max(gap_ms, LEAST_GAP_MS):
        warning = (
            f"the load generator fell behind: 1 in 100 requests was sent more than {p99_ms:.1f} ms "
            f"late, and requests are {gap_ms:.2f} ms apart; use more workers"
        )
    return LagFacts(p50_ms, p99_ms, float(lag_ms.max()), warning)
