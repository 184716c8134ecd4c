"""How equal the waits were, and the rates at which tenants were served."""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from kvsched.serve.result import Simulation
from kvsched.serve.state import Float64s


class Fairness(msgspec.Struct, frozen=True, kw_only=True):
    """1 is equal. None where there is nothing to compare."""

    requests: float | None
    """`course_fairness` of the queue waits of all requests that ran."""
    tenants: int | None
    """Tenants of whom a request ran; None where the trace names none."""
    tenant_waits: float | None
    """`course_fairness` of the tenants' mean queue waits."""
    tenant_rates: float | None
    """`jain` of the tenants' rates: prompt and generated tokens of their finished requests over
    the seconds that all their requests were in the system, to the run's end where unfinished."""


def course_fairness(waits_s: NDArray[np.float64]) -> float | None:
    """Return max(0, 1 − (longest − shortest) / max(mean, 1 s)); None for nobody.

    Source: the course's lesson 36, decode order.
    """
    if not len(waits_s):
        return None
    spread = float(waits_s.max() - waits_s.min())
    return max(0.0, 1.0 - spread / max(float(waits_s.mean()), 1.0))


def jain(values: NDArray[np.float64]) -> float | None:
    """Return (Σx)² / (n·Σx²), from 1/n where one has all to 1 where all are equal.

    None for nobody, or where all are 0. Source: Jain, Chiu and Hawe, 1984.
    """
    squares = float((values * values).sum())
    if not squares > 0:
        return None
    return float(values.sum()) ** 2 / (len(values) * squares)


def fairness(found: Simulation) -> Fairness:
    """Return how equally a simulation served requests, and tenants where the trace names them.

    O(R).
    """
    ran = ~np.isnan(found.queued_s)
    waits = found.queued_s[ran]
    tenant = found.trace.tenant
    if tenant is None or not (tenant.codes[ran] >= 0).any():
        return Fairness(
            requests=course_fairness(waits), tenants=None, tenant_waits=None, tenant_rates=None
        )
    named = ran & (tenant.codes >= 0)
    codes, names = tenant.codes[named], len(tenant.names)
    count = np.bincount(codes, minlength=names)
    some = count > 0
    mean = np.bincount(codes, found.queued_s[named], names)[some] / count[some]
    return Fairness(
        requests=course_fairness(waits),
        tenants=int(some.sum()),
        tenant_waits=course_fairness(mean),
        tenant_rates=jain(_rates(found)),
    )


def _rates(found: Simulation) -> Float64s:
    """Tokens a second of every tenant that had a request in the system."""
    tenant = found.trace.tenant
    if tenant is None:
        return np.zeros(0)
    inside = ~found.rejected & ~np.isnan(found.arrival_s) & (tenant.codes >= 0)
    done = inside & found.finished
    ends = np.where(found.finished, found.finished_s, found.end_s)
    names = len(tenant.names)
    served = found.trace.input_tokens + found.generated_tokens
    tokens = np.bincount(tenant.codes[done], served[done].astype(np.float64), names)
    spent = np.maximum(ends - found.arrival_s, 0.0)
    seconds = np.bincount(tenant.codes[inside], spent[inside], names)
    some = seconds > 0
    rates: Float64s = tokens[some] / seconds[some]
    return rates
