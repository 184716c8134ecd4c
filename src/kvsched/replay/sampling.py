"""How large a sample to take, and how far its estimates may be off."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from kvsched.foundation.errors import UsageError
from kvsched.policy.base import Policy
from kvsched.replay.curve import lru_curve
from kvsched.replay.run import replay
from kvsched.replay.sweep import on_all_cores
from kvsched.trace.sample import MOST_ONE_IN, SampledTrace

PARTS = 4
"""A sample is split into as many to see how far samples differ."""

REPLAY_NS = 100
"""Nominal cost of one reference in one replay. A constant, so that a budget gives the same sample
on every machine; measured figures are 2 to 100 ns."""

AUTO = "auto"
DEFAULT_BUDGET_S = 60.0


@dataclass(frozen=True)
class SamplingError:
    """How far one policy's hit ratios may be off, as shares of all references."""

    policy: str
    standard_error: float
    """Of the sample's estimate, from how far its parts differ."""
    drift: float
    """How far the estimate moved from the parts' rate to the sample's."""

    @property
    def expected(self) -> float:
        """Root of both squares: noise, and the bias that a lower rate brings."""
        return math.hypot(self.standard_error, self.drift)


def parse_sample(text: str) -> int | None:
    """Return N of a rate of 1 in N: ``0.1``, ``1/10`` or ``1``; None for ``auto``.

    Raises UsageError where that is no rate, or not one node in a whole number.
    """
    if text == AUTO:
        return None
    try:
        rate = Fraction(text)
    except (ValueError, ZeroDivisionError):
        raise UsageError(f"--sample must be a rate as 0.1 or 1/10, or auto, not {text!r}") from None
    if not 0 < rate <= 1:
        raise UsageError(f"--sample must be above 0 and at most 1, not {text}")
    one_in = round(1 / rate)
    if one_in > MOST_ONE_IN:
        raise UsageError(f"--sample must be at least 1/{MOST_ONE_IN}, not {text}")
    if abs(1 / rate - one_in) > one_in * Fraction(1, 10**6):
        low = math.floor(1 / rate)
        raise UsageError(
            f"--sample must be one node in a whole number, as 1/{low} or 1/{low + 1}, not {text}"
        )
    return one_in


def one_in_for(references: int, replays: int, budget_s: float) -> int:
    """Return N so that ``replays`` of a sample of 1 in N, and of its parts, fit in ``budget_s``.

    By the nominal `REPLAY_NS` on one core; 1 where all of it fits. Raises UsageError for a budget
    that is no positive number.
    """
    if not (math.isfinite(budget_s) and budget_s > 0):
        raise UsageError(f"--sample-budget must be above 0 seconds, not {budget_s:g}")
    whole_s = references * replays * REPLAY_NS / 1e9
    if whole_s <= budget_s:
        return 1
    # Its parts are samples too. Rounded last: a tiny budget's quotient is infinite.
    one_in = min(2 * whole_s / budget_s, MOST_ONE_IN / PARTS)
    return math.ceil(one_in)


def sampling_errors(
    trace: SampledTrace,
    policies: Iterable[Policy],
    capacities: Sequence[int],
    hit_blocks: Mapping[str, Sequence[int]],
    *,
    threads: int = 0,
) -> list[SamplingError]:
    """Return how far ``hit_blocks``, by policy at each capacity, may be off from the whole trace.

    The nodes drawn are split by hash into `PARTS`, and each part is replayed as a sample of its
    own, of 1 in ``one_in · PARTS``. Their standard deviation over √PARTS estimates the standard
    error of the whole sample; the distance of their mean to its estimate is the drift. Both are
    root mean squares over the capacities. What is the same at both rates is not seen: under
    ``fifo``, whose old nodes stay while a child does, a sample's sparser forest lets them go too
    early. Cost: about as much as the replays of the sample.
    """
    made = list(policies)
    if trace.settings.one_in == 1:
        return [SamplingError(policy.label, 0.0, 0.0) for policy in made]
    found = {policy.label: np.zeros((PARTS, len(capacities))) for policy in made}
    for number in range(PARTS):
        part = trace.part(number, PARTS)
        for label, at, hits in _hits(part, made, capacities, threads):
            found[label][number, at] = hits
    total = max(trace.total_references, 1)
    errors = []
    for policy in made:
        parts = found[policy.label] / total
        noise = parts.std(axis=0, ddof=1) / math.sqrt(PARTS)
        drift = np.array(hit_blocks[policy.label]) / total - parts.mean(axis=0)
        errors.append(SamplingError(policy.label, _rms(noise), _rms(drift)))
    return errors


def _rms(values: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> float:
    return math.sqrt(float(np.mean(values * values)))


def _hits(
    part: SampledTrace, policies: list[Policy], capacities: Sequence[int], threads: int
) -> Iterator[tuple[str, int, int]]:
    """Yield (policy, place of the capacity, hit blocks) of every replay of a part."""
    place = {blocks: at for at, blocks in enumerate(capacities)}
    swept = []
    for policy in policies:
        if policy.label == "lru" and not part.unequal:
            curve = lru_curve(part)
            for at, blocks in enumerate(capacities):
                yield policy.label, at, curve.at(blocks)[0]
        else:
            swept.append(policy)
    jobs = (functools.partial(replay, part, policy, blocks) for policy in swept for blocks in place)
    for result in on_all_cores(jobs, threads):
        yield result.policy.label, place[result.capacity_blocks], result.hit_blocks
