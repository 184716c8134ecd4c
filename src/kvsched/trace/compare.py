"""Two workloads side by side: every figure of both, and how far their distributions differ."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvsched.trace.model import Trace
from kvsched.trace.stats import trace_stats

DEFINITIONS = {
    "difference": "b's figure minus a's",
    "ratio": "b's figure over a's; none where a's is 0",
    "distance": "Kolmogorov-Smirnov: the largest difference between the shares of a's and b's "
    "entries that do not exceed a value; 0 for the same distribution, 1 for no overlap",
    "at": "the value at which the shares differ most",
    "chance": "the distance that two samples of these sizes, drawn independently from one "
    "distribution, exceed in 1 of 100 cases (large samples); requests of a session are not "
    "independent, so a distance somewhat above it says little",
    "reading": "by the distance: no more than chance; else up to 0.1 slight, up to 0.25 clear, "
    "above that strong",
}
_ONE_PERCENT = math.sqrt(-math.log(0.01 / 2) / 2)
_NO_FIGURES = ("source", "format", "digest", "definitions")


def compare_traces(a: Trace, b: Trace, window_s: float | None = None) -> dict[str, Any]:
    """Return the statistics of both, each figure with difference and ratio, and distances.

    ``figures`` holds a row for each number of `trace_stats` that either has; ``distributions``
    compares input tokens, output tokens, and gaps between requests by the two-sample
    Kolmogorov-Smirnov distance (Smirnov, 1939). Both use the same ``window_s``; a's own usual one
    if None. O(N + R log R). Raises UsageError as `trace_stats`.
    """
    first = trace_stats(a, window_s)
    second = trace_stats(b, window_s or first["arrivals"]["window_s"])
    return {
        "a": first,
        "b": second,
        "figures": _figures(first, second),
        "distributions": {
            "input_tokens": distance(a.input_tokens, b.input_tokens),
            "output_tokens": distance(a.output_tokens, b.output_tokens),
            "gap_s": distance(np.diff(a.time_s), np.diff(b.time_s)),
        },
        "definitions": DEFINITIONS,
    }


def distance(a: NDArray[Any], b: NDArray[Any]) -> dict[str, Any] | None:
    """The Kolmogorov-Smirnov distance of two samples (K,) and (L,), in numbers and words.

    None where one of them is empty. O((K + L) log (K + L)).
    """
    if not len(a) or not len(b):
        return None
    values = np.union1d(a, b)
    below_a, below_b = (
        np.searchsorted(np.sort(sample), values, side="right") / len(sample) for sample in (a, b)
    )
    place = int(np.argmax(np.abs(below_a - below_b)))
    share_a, share_b = float(below_a[place]), float(below_b[place])
    found = abs(share_a - share_b)
    chance = min(1.0, _ONE_PERCENT * math.sqrt((len(a) + len(b)) / (len(a) * len(b))))
    at = values[place].item()
    return {
        "distance": found,
        "chance": chance,
        "beyond_chance": found > chance,
        "at": at,
        "share_a": share_a,
        "share_b": share_b,
        "reading": _reading(found, chance, at, share_a, share_b),
    }


def _reading(found: float, chance: float, at: float, share_a: float, share_b: float) -> str:
    if found <= chance:
        return f"no difference beyond chance (distance {found:.3f}, chance {chance:.3f})"
    strength = "slightly" if found <= 0.1 else "clearly" if found <= 0.25 else "strongly"
    return (
        f"they differ {strength}: {share_a:.1%} of a's are at most {at:,.6g}, {share_b:.1%} of b's "
        f"(distance {found:.3f}, chance {chance:.3f})"
    )


def _flat(value: Any, name: str) -> Iterator[tuple[str, float | int | None]]:
    """Every number in nested values, named by its path; rows of a list by their own name."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key not in _NO_FIGURES and key != "name":
                yield from _flat(inner, f"{name}.{key}" if name else key)
    elif isinstance(value, list):
        for row in value:
            yield from _flat(row, f"{name}[{row['name']}]")
    elif value is None or isinstance(value, int | float):
        yield name, value


def _figures(a: dict[str, Any], b: dict[str, Any]) -> list[dict[str, Any]]:
    first, second = dict(_flat(a, "")), dict(_flat(b, ""))
    rows = []
    for name in dict.fromkeys([*first, *second]):
        one, other = first.get(name), second.get(name)
        both = one is not None and other is not None
        if one is None and other is None:
            continue
        rows.append(
            {
                "figure": name,
                "a": one,
                "b": other,
                "difference": other - one if both else None,  # type: ignore[operator]
                "ratio": other / one if both and one else None,  # type: ignore[operator]
            }
        )
    return rows
