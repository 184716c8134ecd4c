"""A grid of settings over one trace, and which of its points are not beaten."""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from kvsched.foundation.errors import UsageError
from kvsched.foundation.version import VERSION
from kvsched.serve.points import (
    Ask,
    Figures,
    Point,
    Records,
    Report,
    Value,
    check_point,
    run_points,
)
from kvsched.serve.served import Asking, StepTimeSummary, find_step_time
from kvsched.serve.summary import DEFINITIONS
from kvsched.serve.sweep_sentences import conclusions
from kvsched.trace.model import Trace
from kvsched.trace.summary import summarise as summarise_trace

SCHEMA_VERSION = 1
MOST_POINTS = 10_000
NOT_SWEPT = ("objective", "band", "step_time")
_FIELDS = {field.name: field for field in dataclasses.fields(Asking)}
_BOOLS = {"true": True, "on": True, "yes": True, "false": False, "off": False, "no": False}
_FRONT = (
    "points that finish no run, or are overloaded, are on no front; of the others those for which "
    "no other point has both at least the rate and at most the latency, and one of them better"
)


class SweepResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a sweep found. The same input gives the same bytes, however many cores it ran on."""

    schema_version: int
    kvsched: str
    trace: dict[str, Any]
    asked: dict[str, Value]
    """Options that all points share, as given; None is vLLM's default."""
    swept: dict[str, tuple[Value, ...]]
    step_time: StepTimeSummary | None
    """None where it is not of one kind."""
    points: tuple[Point, ...]
    """In the order of the grid: the last key changes first."""
    rate: Literal["goodput_s", "output_tokens_s"]
    """Which figure the fronts are of."""
    front_ttft: tuple[int, ...]
    """Points, from 0, that are not beaten in ``rate`` and the 99th percentile of TTFT."""
    front_latency: tuple[int, ...]
    sentences: tuple[str, ...]
    """Which values change nothing, and which point has the highest rate."""
    definitions: dict[str, str]


def field_of(key: str) -> str:
    """Return the field of `Asking` that an option's name means. Raises UsageError."""
    name = key.strip().removeprefix("--").replace("-", "_")
    name = "horizon_s" if name == "horizon" else name
    if name not in _FIELDS or name in NOT_SWEPT:
        known = ", ".join(each.replace("_", "-") for each in _FIELDS if each not in NOT_SWEPT)
        raise UsageError(f"--sweep {key}: no such setting (known: {known})")
    return name


def value_of(name: str, text: str) -> Value:
    """Turn an option's text into the value of a field. Raises UsageError."""
    kind = str(_FIELDS[name].type)
    words = text.strip()
    key = name.replace("_", "-")
    if words.lower() == "none" and kind.endswith("None"):
        return None
    try:
        if kind.startswith("bool"):
            return _BOOLS[words.lower()]
        if kind.startswith("int"):
            return int(words)
        if kind.startswith("float"):
            found = float(words)
            if math.isnan(found):
                raise ValueError
            return found
    except (ValueError, KeyError):
        wanted = {"b": "true or false", "i": "a whole number", "f": "a number"}[kind[0]]
        raise UsageError(f"--sweep {key}: {words!r} is not {wanted}") from None
    if not words:
        raise UsageError(f"--sweep {key}: an empty value")
    return words


def parse_sweep(texts: Sequence[str]) -> dict[str, tuple[Value, ...]]:
    """Turn ``key=a,b,c`` texts into the values of each field. Several keys may be in one text.

    Raises UsageError for an unknown key, a value of the wrong kind, and one that is given twice.
    """
    found: dict[str, tuple[Value, ...]] = {}
    for word in itertools.chain.from_iterable(text.split() for text in texts):
        key, equals, values = word.partition("=")
        if not equals:
            raise UsageError(f"--sweep {word}: write key=a,b,c")
        name = field_of(key)
        if name in found:
            raise UsageError(f"--sweep {key}: given twice")
        made = tuple(value_of(name, value) for value in values.split(","))
        if len(set(made)) < len(made):
            raise UsageError(f"--sweep {key}: a value is given twice")
        found[name] = made
    if not found:
        raise UsageError("--sweep names no setting: write key=a,b,c")
    if math.prod(len(values) for values in found.values()) > MOST_POINTS:
        raise UsageError(f"--sweep: more than {MOST_POINTS:,} points")
    return found


def shown(value: object) -> Value:
    """Return a setting as a result has it: without folders, and as JSON can hold it."""
    if isinstance(value, float) and math.isinf(value):
        return "inf"
    if isinstance(value, str):
        # A file keeps its name, and what follows it.
        return re.sub(r"^[^:]*[/\\](?=[^/\\]*\.(py|json)\b)", "", value)
    if value is None or isinstance(value, bool | int | float):
        return value
    name = getattr(value, "label", None) or getattr(value, "name", None)
    return str(name) if name else type(value).__name__


def asked_of(asking: Asking, without: Sequence[str] = ()) -> dict[str, Value]:
    """Return what is asked by option, as given."""
    left_out = (*NOT_SWEPT, *without)
    found = {name: shown(getattr(asking, name)) for name in _FIELDS if name not in left_out}
    objective = asking.objective
    found["slo_ttft_s"] = None if objective is None else objective.ttft_s
    found["slo_tpot_s"] = None if objective is None else objective.tpot_s
    return found


def step_time_of(askings: Sequence[Asking]) -> StepTimeSummary | None:
    """Return which step time all have; None where they differ or one has none."""
    found = []
    for asking in askings:
        try:
            step_time = find_step_time(asking)
        except UsageError:
            continue
        given = asking.step_time
        file = str(given).replace("\\", "/").rsplit("/", 1)[-1] if given is not None else None
        found.append(
            StepTimeSummary(
                kind=step_time.kind,
                assumptions=step_time.assumptions,
                file=None if file is None or given is step_time else file,
            )
        )
    return found[0] if found and all(each == found[0] for each in found) else None


def _asks(asking: Asking, swept: dict[str, tuple[Value, ...]]) -> list[Ask]:
    asks = []
    for values in itertools.product(*swept.values()):
        chosen = dict(zip(swept, values, strict=True))
        settings = {name: shown(value) for name, value in chosen.items()}
        changes: dict[str, Any] = chosen
        asks.append(Ask(settings, dataclasses.replace(asking, **changes)))
    return asks


def check_sweep(trace: Trace, asking: Asking, swept: dict[str, tuple[Value, ...]]) -> None:
    """Raise UsageError for a value that is refused in every point that has it.

    A combination that is refused alone, as more requests than tokens, is a point's fault.
    """
    faults: dict[tuple[str, Value], str] = {}
    fine: set[tuple[str, Value]] = set()
    for ask in _asks(asking, swept):
        pairs = set(ask.settings.items())
        try:
            check_point(ask.asking, trace)
            fine |= pairs
        except UsageError as fault:
            for pair in pairs:
                faults.setdefault(pair, str(fault))
    for (name, value), said in faults.items():
        if (name, value) not in fine:
            raise UsageError(f"--sweep {name.replace('_', '-')}={value}: {said}")


def front(points: Sequence[Point], rate: str, latency: str) -> tuple[int, ...]:
    """Return which points, from 0, no other beats in both figures, by rising latency. O(n²)."""
    known: list[tuple[int, float, float]] = []
    for at, point in enumerate(points):
        found = point.figures
        if found is None or found.overloaded:
            continue
        high, low = getattr(found, rate), getattr(found, latency)
        if high is not None and low is not None:
            known.append((at, high, low))
    best = [
        (low, at)
        for at, high, low in known
        if not any(
            other >= high and its <= low and (other > high or its < low) for _, other, its in known
        )
    ]
    return tuple(at for _, at in sorted(best))


def sweep(
    trace: Trace,
    asking: Asking,
    swept: dict[str, tuple[Value, ...]],
    *,
    records: Records | None = None,
    threads: int = 0,
    report: Report | None = None,
    compiled: bool | None = None,
) -> SweepResult:
    """Serve ``trace`` with every combination of the values of ``swept``, by fields of `Asking`.

    What is wrong with one combination alone is its point's fault; a value that no point can have is
    refused before anything runs. Cost as `run_points`. Raises UsageError, InputError.
    """
    check_sweep(trace, asking, swept)
    asks = _asks(asking, swept)
    points = run_points(
        trace, asks, records=records, threads=threads, report=report, compiled=compiled
    )
    goal = asking.objective is not None and asking.objective.asked
    rate: Literal["goodput_s", "output_tokens_s"] = "goodput_s" if goal else "output_tokens_s"
    return SweepResult(
        schema_version=SCHEMA_VERSION,
        kvsched=VERSION,
        trace=summarise_trace(trace),
        asked=asked_of(asking, tuple(swept)),
        swept={name: tuple(shown(value) for value in values) for name, values in swept.items()},
        step_time=step_time_of([ask.asking for ask in asks]),
        points=tuple(points),
        rate=rate,
        front_ttft=front(points, rate, "ttft_p99_s"),
        front_latency=front(points, rate, "latency_p99_s"),
        sentences=conclusions(points, rate),
        definitions={**DEFINITIONS, "front": _FRONT},
    )


def point_table(points: Sequence[Point]) -> dict[str, list[Any]]:
    """Return a row a point: settings, figures with the middle step time, the fault."""
    names = list(dict.fromkeys(name for point in points for name in point.settings))
    table: dict[str, list[Any]] = {"point": list(range(len(points)))}
    for name in names:
        values = [point.settings.get(name) for point in points]
        if len({type(value) for value in values if value is not None}) > 1:
            values = [None if value is None else str(value) for value in values]
        table[name] = values
    for name in Figures.__struct_fields__:
        column = f"found_{name}" if name in table else name
        table[column] = [
            None if point.figures is None else getattr(point.figures, name) for point in points
        ]
    table["fault"] = [point.fault for point in points]
    return table
