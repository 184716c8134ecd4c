"""The engine's steps, found from when tokens came.

All requests that decode get a token in every step, and the tokens of a step come together. So the
token moments of the requests that run are columns of one table whose rows are steps: it is enough
to know the step of each request's first token.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median

import numpy as np

from kvsched.evidence.calibrate.observed import Observed, known
from kvsched.trace.model import Float64s

BURST = 0.15
"""Tokens of one request that come closer than this share of the usual gap were held up on the way:
their moments say nothing of the steps that made them."""

SURE = 4
"""Steps; in fewer, tokens that were held up may have come with those of the step after."""


@dataclass(slots=True)
class Step:
    """One step that brought tokens."""

    end_s: float
    """Median moment of its tokens."""
    decodes: list[tuple[int, int]] = field(default_factory=list)
    """(request, tokens before the one computed)."""
    joined: list[int] = field(default_factory=list)
    """Requests whose first token it brought, in the order in which they were sent."""
    regular: bool = True
    """Whether all requests that ran got exactly one token, in time."""


@dataclass(frozen=True)
class Aligned:
    """The steps of a run in order."""

    steps: list[Step]
    irregular: int
    """Steps in which a request that ran got no token, or more than one."""

    @property
    def most_together(self) -> int:
        """The most requests that got a token in each of `SURE` regular steps; 0 without so many."""
        sizes = [len(step.decodes) + len(step.joined) for step in self.steps if step.regular]
        return sorted(sizes)[-SURE] if len(sizes) >= SURE else 0

    @property
    def ends_s(self) -> Float64s:
        """(S,) end of each step."""
        return np.array([step.end_s for step in self.steps])


def align(run: Observed, until_s: float = np.inf) -> Aligned:
    """Return the steps that brought the run's tokens. O(tokens + R log R).

    How long a gap is usual is told by tokens that came before ``until_s``, so that nothing that is
    kept back has a say in it.

    A token belongs to a step if it came before the middle between this step's tokens and the next
    one's. A request that was preempted misses steps, and one whose first token was taken for one
    of an earlier or later step is put right at the next: such steps are not `regular`.
    """
    tokens = [run.token_s[low:high] for low, high in zip(run.starts, run.starts[1:], strict=False)]
    supposed_s = run.supposed_s
    supposed = [supposed_s[low:high] for low, high in zip(run.starts, run.starts[1:], strict=False)]
    first_s = run.first_s
    coming = np.argsort(first_s, kind="stable").tolist()
    usual_s = _usual_gap(run, until_s)
    prompts = run.trace.input_tokens.tolist()
    steps: list[Step] = []
    active: dict[int, int] = {}
    at = 0
    before = -np.inf
    while active or at < len(coming):
        centre = _centre(active, tokens)
        first = first_s[coming[at]] if at < len(coming) else np.inf
        if np.isnan(centre):
            centre = first if not active else min(first, _centre(active, supposed))
        lead = coming[at] if at < len(coming) else -1
        later = _after(active, supposed, lead, centre)
        burst = later - centre < BURST * usual_s
        limit = centre + BURST * usual_s
        if not np.isnan(later):
            limit = max((centre + later) / 2, limit)
        step = Step(0.0, regular=not burst)
        moments = []
        for request in list(active):
            mine = tokens[request]
            place = active[request]
            moment = mine[place]
            if moment > limit:
                step.regular = False
                continue
            while centre > before and place + 1 < len(mine) and mine[place + 1] <= before:
                # It was taken to be a step later than it is.
                place += 1
                step.regular = False
            step.decodes.append((request, prompts[request] + place - 1))
            if not np.isnan(moment):
                moments.append(float(moment))
            _advance(active, request, place + 1, len(mine))
        while at < len(coming) and first_s[coming[at]] <= limit:
            request = coming[at]
            step.joined.append(request)
            moments.append(float(first_s[request]))
            _advance(active, request, 1, len(tokens[request]))
            at += 1
        step.joined.sort()
        step.end_s = median(moments) if moments else float(centre)
        if steps and step.end_s - steps[-1].end_s < BURST * usual_s:
            step.regular = False
        steps.append(step)
        before = limit
    return Aligned(steps, sum(not step.regular for step in steps))


def _usual_gap(run: Observed, until_s: float) -> float:
    """Seconds between two tokens of one request in a short step: the first quartile."""
    gaps = np.diff(run.supposed_s)
    gaps[run.starts[1:-1] - 1] = np.nan
    gaps = known(gaps[run.token_s[1:] < until_s])
    return float(np.quantile(gaps, 0.25)) if len(gaps) else 0.0


def _advance(active: dict[int, int], request: int, place: int, tokens: int) -> None:
    if place < tokens:
        active[request] = place
    else:
        active.pop(request, None)


def _centre(active: dict[int, int], tokens: list[Float64s]) -> float:
    """Where the next token of those that run is, the median; NaN where none of them is known."""
    found = [float(tokens[request][place]) for request, place in active.items()]
    found = [moment for moment in found if not np.isnan(moment)]
    return median(found) if found else float("nan")


def _after(active: dict[int, int], tokens: list[Float64s], lead: int, centre: float) -> float:
    """Where the token after the next one is; of who comes first where nobody runs."""
    found = [
        float(tokens[request][place + 1])
        for request, place in active.items()
        if place + 1 < len(tokens[request])
    ]
    if not active and lead >= 0 and len(tokens[lead]) > 1:
        found.append(float(tokens[lead][1]))
    found = [moment for moment in found if moment > centre]
    return median(found) if found else float("nan")
