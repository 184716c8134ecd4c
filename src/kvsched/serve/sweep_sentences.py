"""What a sweep comes to, in words: values that change nothing, and the highest rate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvsched.serve.points import Point, Value

RATES = {
    "goodput_s": "requests a second that meet the objective",
    "output_tokens_s": "generated tokens a second",
}


def option_of(field: str) -> str:
    """Return the option of `kvsched simulate` that sets a field of `Asking`, without dashes."""
    return "horizon" if field == "horizon_s" else field.replace("_", "-")


def value_text(value: Value) -> str:
    """Return a value as the option takes it."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:.10g}" if isinstance(value, float) else str(value)


def settings_text(settings: dict[str, Value]) -> str:
    """Return settings as options: ``max-num-seqs=64 speedup=2``."""
    return " ".join(f"{option_of(key)}={value_text(value)}" for key, value in settings.items())


def same_values(points: Sequence[Point], key: str) -> list[list[Value]]:
    """Return groups of two values or more of ``key`` with the same figures in every combination.

    Values that no point could run with are in none. O(points · values).
    """
    values: dict[Value, dict[tuple[tuple[str, Value], ...], Point]] = {}
    for point in points:
        others = tuple((name, each) for name, each in point.settings.items() if name != key)
        values.setdefault(point.settings[key], {})[others] = point
    groups: list[list[Value]] = []
    for value, made in values.items():
        if all(point.figures is None for point in made.values()):
            continue
        for group in groups:
            if _alike(made, values[group[0]]):
                group.append(value)
                break
        else:
            groups.append([value])
    return [group for group in groups if len(group) > 1]


def _alike(one: dict[Any, Point], other: dict[Any, Point]) -> bool:
    return one.keys() == other.keys() and all(
        each.figures == other[key].figures and each.bands == other[key].bands
        for key, each in one.items()
    )


def _joined(values: Sequence[Value]) -> str:
    said = [value_text(value) for value in values]
    return f"{', '.join(said[:-1])} and {said[-1]}"


def conclusions(points: Sequence[Point], rate: str) -> tuple[str, ...]:
    """Return one sentence for each key with values that change nothing, and one of the best."""
    said = []
    keys = points[0].settings if points else {}
    for key in keys:
        count = len({point.settings[key] for point in points})
        for group in same_values(points, key):
            if len(group) == count:
                said.append(f"{option_of(key)} changes nothing: {_joined(group)} give the same.")
            else:
                said.append(f"{option_of(key)}: {_joined(group)} give the same.")
    return (*said, *_best(points, rate))


def _best(points: Sequence[Point], rate: str) -> list[str]:
    ran = [point for point in points if point.figures is not None]
    if not ran:
        return ["No point could run."]
    fine = [point for point in ran if point.figures and not point.figures.overloaded]
    if not fine:
        return ["Every point is overloaded: their latencies say how long the trace is."]
    rates = [getattr(point.figures, rate) or 0.0 for point in fine]
    highest = max(rates)
    what = RATES[rate]
    if not highest > 0:
        return [f"No point that is not overloaded has any {what}."]
    first, *more = [point for point, each in zip(fine, rates, strict=True) if each == highest]
    figures = first.figures
    part = ""
    if rate == "goodput_s" and figures is not None and figures.goodput_share is not None:
        part = f", {100 * figures.goodput_share:.1f}% of all"
    also = f" ({len(more)} more have as many)" if more else ""
    without = "" if len(fine) == len(ran) else ", of those that are not overloaded"
    shown = f"{highest:,.0f}" if highest >= 1000 else f"{highest:.3g}"
    told = "" if figures is None or figures.overloaded is not None else "; overload cannot be told"
    return [
        f"Most {what}{without}: {settings_text(first.settings)} with {shown}{part}{also}{told}."
    ]
