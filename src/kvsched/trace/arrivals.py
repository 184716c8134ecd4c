"""When sessions start that have no common clock."""

from __future__ import annotations

import math

import numpy as np

from kvsched.foundation.errors import UsageError
from kvsched.trace.model import Float64s


def parse_arrivals(text: str) -> float | None:
    """The rate of ``poisson:RATE`` in sessions a second, or None for ``zero``.

    Raises UsageError for anything else.
    """
    if text == "zero":
        return None
    name, _, rate = text.partition(":")
    try:
        value = float(rate)
    except ValueError:
        value = math.nan
    if name != "poisson" or not 1e-9 <= value <= 1e9:
        raise UsageError(
            f"session arrivals {text!r} are not known: use zero or poisson:RATE (sessions a second)"
        )
    return value


def session_starts(count: int, arrivals: str, seed: int) -> Float64s:
    """The start of each of ``count`` sessions in seconds, the first at 0.

    Gaps are drawn as -ln(1-u)/rate from NumPy's PCG64 and rounded to a microsecond, so that
    the last bit of a logarithm cannot change a result.
    """
    rate = parse_arrivals(arrivals)
    starts = np.zeros(count)
    if rate is None or count < 2:
        return starts
    draws = np.random.Generator(np.random.PCG64(seed)).random(count - 1)
    gaps = np.round(-np.log1p(-draws) / rate * 1e6)
    starts[1:] = np.cumsum(gaps) / 1e6
    return starts
