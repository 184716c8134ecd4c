"""The tenant that was served least goes first: virtual token counters, with weights."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple, cast

import numpy as np

from kvsched.foundation.errors import UsageError
from kvsched.kernel.table import NONE
from kvsched.policy.parameters import Parameter
from kvsched.serve.orders.base import QueueOrder
from kvsched.serve.state import Int32s, Int64s, State
from kvsched.trace.model import Labels, Trace

UNIT = 100_000
"""What a token of cost 1 of a tenant of weight 1 adds: whole numbers add up in any order."""
WEIGHT = "weight."
LEAST_WEIGHT, MOST_WEIGHT = 0.01, 100.0


class Fair(NamedTuple):
    """What each of T tenants was served, and who of it waits. The last is of those without one."""

    tenant: Int32s
    """(R,) each request's."""
    counter: Int64s
    """(T,) what was served: tokens times `UNIT` times cost over weight."""
    prompt_price: Int64s
    """(T,) what a prompt's token adds."""
    generated_price: Int64s
    first: Int32s
    """(T,) who of it waits and is first, NONE for nobody."""
    last: Int32s
    ahead: Int32s
    """(R,) who waits before each of the same tenant."""
    behind: Int32s
    reached: Int64s
    """(R,) tokens from the start that were charged or hit: nothing is charged twice."""
    last_left: Int32s
    """(1,) the tenant that last had somebody admitted."""


def _lift(own: Any, tenant: int) -> None:
    """Let a tenant that comes back not ask for what it did not use while away. O(T)."""
    least = np.iinfo(np.int64).max
    for other in range(len(own.first)):
        if own.first[other] != NONE:
            least = min(least, int(own.counter[other]))
    if least == np.iinfo(np.int64).max:
        if own.last_left[0] == NONE:
            return
        least = int(own.counter[own.last_left[0]])
    own.counter[tenant] = max(int(own.counter[tenant]), least)


def on_queued(state: State, own: Any, request: int, now: float) -> None:
    """Put a request at its tenant's end, or at its head after a preemption. O(1), O(T) if alone."""
    tenant = own.tenant[request]
    resumes = state.progress.preemptions[request] > 0
    if own.first[tenant] == NONE:
        if not resumes:
            _lift(own, tenant)
        own.ahead[request] = NONE
        own.behind[request] = NONE
        own.first[tenant] = request
        own.last[tenant] = request
    elif resumes:
        own.ahead[request] = NONE
        own.behind[request] = own.first[tenant]
        own.ahead[own.first[tenant]] = request
        own.first[tenant] = request
    else:
        own.behind[request] = NONE
        own.ahead[request] = own.last[tenant]
        own.behind[own.last[tenant]] = request
        own.last[tenant] = request


def next_waiting(state: State, own: Any, now: float) -> int:
    """Return the first of the tenant that was served least, ties by arrival. O(T)."""
    best = NONE
    least = 0
    for tenant in range(len(own.first)):
        request = int(own.first[tenant])
        if request == NONE:
            continue
        counter = int(own.counter[tenant])
        earlier = counter == least and state.progress.tie[request] < state.progress.tie[best]
        if best == NONE or counter < least or earlier:
            best = request
            least = counter
    return best


def _unlink(own: Any, request: int) -> None:
    tenant = own.tenant[request]
    ahead, behind = own.ahead[request], own.behind[request]
    if ahead == NONE:
        own.first[tenant] = behind
    else:
        own.behind[ahead] = behind
    if behind == NONE:
        own.last[tenant] = ahead
    else:
        own.ahead[behind] = ahead
    own.last_left[0] = tenant


def on_left(state: State, own: Any, request: int, now: float) -> None:
    """Take a request out of its tenant's queue. O(1)."""
    _unlink(own, request)


def on_admitted(state: State, own: Any, request: int, now: float) -> None:
    """Take a request out of the queue, and charge what is left of its prompt. O(1)."""
    _unlink(own, request)
    tenant = own.tenant[request]
    reached = max(int(own.reached[request]), int(state.progress.computed[request]))
    prompt = max(int(state.work.prompt[request]) - reached, 0)
    own.counter[tenant] += prompt * own.prompt_price[tenant]
    own.reached[request] = max(reached, int(state.work.prompt[request]))


def on_ran(state: State, own: Any, request: int, tokens: int) -> None:
    """Charge what was generated, the first time that it is computed. O(1)."""
    reached = int(state.progress.computed[request]) + tokens
    fresh = reached - int(own.reached[request])
    if fresh > 0:
        tenant = own.tenant[request]
        own.counter[tenant] += fresh * own.generated_price[tenant]
        own.reached[request] = reached


class TenantFair(QueueOrder):
    """The tenant with the smallest counter of served tokens over its weight goes first.

    A tenant's counter grows by ``prompt_cost`` for each token of a prompt that its request has to
    compute, at the admission, and by ``generated_cost`` for each generated token that is computed
    (the last one of an answer is not); divided by its weight: ``tenant-fair:weight.NAME=2``, or
    ``TenantFair(weights={...})``; 1 for all others. Hits are free, and what a preemption made the
    engine compute again is not charged twice. A tenant with nobody in the queue whose request
    arrives is lifted to the least counter of those that have somebody there, or to that of the one
    who last left it, so that nobody saves up. Within a tenant: first come, first served, the
    preempted before all. Requests without a tenant are one tenant. The last admitted is preempted.

    The paper charges whole prompts, at 1 and 2 as here, and has no cache. What a counter is behind
    the greatest is its tenant's deficit. No tenant starves: while one waits, another has somebody
    admitted only as long as its counter is not the greater, so it gets the difference and one
    prompt more. Within a tenant nobody does, as it goes by arrival. O(T) an admission and an
    arrival, O(1) else: no key is asked again.
    """

    name = "tenant-fair"
    source = "Sheng et al., Fairness in Serving Large Language Models (VTC), OSDI 2024, Algorithm 2"
    parameters: ClassVar[dict[str, Parameter]] = {
        "prompt_cost": Parameter(1.0, "for a token of a prompt that is computed", most=100.0),
        "generated_cost": Parameter(2.0, "for a token that is generated", most=100.0),
    }
    needs = ("tenant",)
    picks = True
    watches = True
    on_queued = staticmethod(on_queued)
    on_admitted = staticmethod(on_admitted)
    on_left = staticmethod(on_left)
    on_ran = staticmethod(on_ran)
    next_waiting = staticmethod(next_waiting)

    def __init__(self, weights: Mapping[str, float] | None = None, **values: float | str) -> None:
        named = {key: value for key, value in values.items() if key.startswith(WEIGHT)}
        super().__init__(**{key: values[key] for key in values if key not in named})
        given = {**(weights or {}), **{key[len(WEIGHT) :]: each for key, each in named.items()}}
        for name, weight in given.items():
            if not isinstance(weight, int | float) or not math.isfinite(weight):
                raise UsageError(f"order tenant-fair: weight.{name} must be a number, not {weight}")
            if not LEAST_WEIGHT <= weight <= MOST_WEIGHT:
                raise UsageError(
                    f"order tenant-fair: weight.{name} must be from {LEAST_WEIGHT:g} to "
                    f"{MOST_WEIGHT:g}, not {weight:g}"
                )
        self.weights = {name: float(weight) for name, weight in given.items()}

    @property
    def label(self) -> str:
        """The name, with the parameters that are not default, and the weights that are not 1."""
        told = sorted((name, weight) for name, weight in self.weights.items() if weight != 1)
        return ":".join([super().label, *(f"{WEIGHT}{name}={value:.12g}" for name, value in told)])

    def prepare(self, trace: Trace) -> Fair:
        """Return counters at 0. O(R + T). Raises UsageError for a tenant that there is not."""
        self.check(trace)
        codes, names = cast(Labels, trace.tenant)
        unknown = sorted(set(self.weights) - set(names))
        if unknown:
            raise UsageError(f"order {self.label}: the trace has no tenant {unknown[0]!r}")
        tenants = len(names) + 1
        weights = np.array([*(self.weights.get(name, 1.0) for name in names), 1.0])

        def nobody(count: int) -> Int32s:
            return np.full(count, NONE, np.int32)

        def price(cost: float) -> Int64s:
            return np.rint(UNIT * cost / weights).astype(np.int64)

        return Fair(
            tenant=np.where(codes < 0, tenants - 1, codes).astype(np.int32),
            counter=np.zeros(tenants, np.int64),
            prompt_price=price(self.values["prompt_cost"]),
            generated_price=price(self.values["generated_cost"]),
            first=nobody(tenants),
            last=nobody(tenants),
            ahead=nobody(len(trace)),
            behind=nobody(len(trace)),
            reached=np.zeros(len(trace), np.int64),
            last_left=nobody(1),
        )
