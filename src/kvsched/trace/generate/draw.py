"""Random amounts, ranks and arrivals from a numpy Generator."""

from __future__ import annotations

import math

import numpy as np

from kvsched.trace.generate.workload import Arrivals, Bursts, Day, Spread, Turns
from kvsched.trace.model import Float64s, Int64s


def amounts(spread: Spread, count: int, random: np.random.Generator) -> Float64s:
    """Draw ``count`` amounts, (count,). O(count)."""
    if spread.sigma == 0:
        return np.full(count, min(max(spread.median, spread.low), spread.high))
    drawn = random.standard_normal(count)
    drawn *= spread.sigma
    np.exp(drawn, out=drawn)
    drawn *= spread.median
    np.clip(drawn, spread.low, spread.high, out=drawn)
    return drawn


def tokens(spread: Spread, count: int, random: np.random.Generator, least: int) -> Int64s:
    """Draw ``count`` lengths in whole tokens, none below ``least``."""
    whole = np.rint(amounts(spread, count, random)).astype(np.int64)
    np.maximum(whole, least, out=whole)
    return whole


def ranks(count: int, exponent: float, draws: int, random: np.random.Generator) -> Int64s:
    """Draw ``draws`` Zipf ranks from 0 (most popular) to ``count - 1``. O(draws log count)."""
    if count == 1:
        return np.zeros(draws, np.int64)
    weights = np.cumsum(np.arange(1, count + 1, dtype=np.float64) ** -exponent)
    weights /= weights[-1]
    found = np.searchsorted(weights, random.random(draws), side="right")
    return np.minimum(found, count - 1).astype(np.int64)


def turns(law: Turns, sessions: int, random: np.random.Generator) -> Int64s:
    """Draw the number of requests of each session, (sessions,)."""
    if law.shape == "geometric":
        drawn = random.geometric(1 / law.mean, sessions).astype(np.int64)
    else:
        middle = math.log(law.mean) - law.sigma**2 / 2
        drawn = np.rint(np.exp(middle + law.sigma * random.standard_normal(sessions)))
        drawn = drawn.astype(np.int64)
    return np.clip(drawn, 1, law.most)


class Clock:
    """Turns level time into the workload's: sessions begin where level arrivals are mapped to.

    ``level[i]`` expected arrivals (at rate 1) have come by ``real[i]`` seconds.
    """

    def __init__(
        self, arrivals: Arrivals, begin_s: float, end_s: float, random: np.random.Generator
    ) -> None:
        if isinstance(arrivals, Bursts):
            self.real, self.level = _bursts(arrivals, begin_s, end_s, random)
        elif isinstance(arrivals, Day):
            self.real, self.level = _day(arrivals, begin_s, end_s)
        else:
            self.real = np.array([begin_s, end_s])
            self.level = self.real

    def starts(self, rate: float, random: np.random.Generator) -> Float64s:
        """Draw the ascending seconds at which sessions begin, ``rate`` a second on average."""
        first, last = float(self.level[0]), float(self.level[-1])
        count = int(random.poisson(rate * (last - first)))
        drawn = random.random(count)
        drawn.sort()
        drawn *= last - first
        drawn += first
        return np.interp(drawn, self.level, self.real)


def _bursts(
    law: Bursts, begin_s: float, end_s: float, random: np.random.Generator
) -> tuple[Float64s, Float64s]:
    """Alternating quiet and busy stretches from ``begin_s`` on, the first one quiet."""
    quiet_s = law.length_s * (1 - law.share) / law.share
    stretches = int((end_s - begin_s) / (quiet_s + law.length_s) * 1.5) + 16
    lengths = np.empty((stretches, 2))
    lengths[:, 0] = random.exponential(quiet_s, stretches)
    lengths[:, 1] = random.exponential(law.length_s, stretches)
    quiet_rate = 1 / (1 - law.share + law.share * law.ratio)
    rates = np.tile([quiet_rate, quiet_rate * law.ratio], stretches)
    real = begin_s + np.concatenate([[0.0], np.cumsum(lengths.ravel())])
    level = begin_s + np.concatenate([[0.0], np.cumsum(lengths.ravel() * rates)])
    cut = int(np.searchsorted(real, end_s))
    if cut == len(real):  # a rare run of short stretches; the rest is level
        return np.append(real, end_s), np.append(level, level[-1] + end_s - real[-1])
    return real[: cut + 1], level[: cut + 1]


def _day(law: Day, begin_s: float, end_s: float) -> tuple[Float64s, Float64s]:
    """Expected arrivals under 1 - amplitude cos(2 pi t / period), in 1000 steps a period."""
    steps = min(int((end_s - begin_s) / law.period_s * 1000) + 2, 10**6)
    real = np.linspace(begin_s, end_s, steps)
    turn = 2 * math.pi / law.period_s
    level = real - law.amplitude * np.sin(turn * real) / turn
    return real, np.maximum.accumulate(level)
