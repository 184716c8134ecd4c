"""The table of many runs: a row a point, in 80 columns, and what its marks mean."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvsched.report.format import DASH, count, in_unit, name, share, short
from kvsched.serve.find_rate import RateResult
from kvsched.serve.points import Figures, Point
from kvsched.serve.sweep import SweepResult
from kvsched.serve.sweep_sentences import option_of, settings_text, value_text

BUSY = 0.99
"""Utilisation from which a point that may be overloaded is marked on a front."""
UNKNOWN = "overload?"
LEGEND = {
    UNKNOWN: "whether the queue grows without end cannot be told; such a run alone says why",
    "front?": f"and so it may be on no front: the engine is busy {BUSY:.0%} of the time or more",
}
RATES = {"goodput_s": "goodput/s", "output_tokens_s": "tokens/s"}
LATENCIES = (("TTFT", ("p50", "p99")), ("TPOT", ("p99",)), ("latency", ("p99",)))
Row = tuple[str, list[str], str]
"""A point: its settings, its figures, what is to be said of it."""
DEFAULTS: dict[str, Any] = {
    "tensor_parallel_size": 1,
    "gpu_memory_utilization": 0.9,
    "kv_cache_dtype": "auto",
    "weight_dtype": "auto",
    "allowance_gib": 2.0,
    "long_prefill_token_threshold": 0,
    "watermark": 0.0,
    "enable_chunked_prefill": True,
    "enable_prefix_caching": True,
    "cache_generated": True,
    "scheduling_policy": "fcfs",
    "data_parallel_size": 1,
    "deadlines": False,
    "sessions": False,
    "speedup": 1.0,
    "burstiness": 1.0,
    "seed": 0,
}
"""Options that need not be said where they have these values."""


def label(point: Point) -> str:
    """Return a point's settings as its options."""
    return settings_text(point.settings)


def values(point: Point) -> str:
    """Return a point's values alone, in the order of its options."""
    return " · ".join(DASH if v is None else value_text(v) for v in point.settings.values())


def options(result: SweepResult | RateResult) -> dict[str, str]:
    """Return the options that all points share, by their own names and in their own units."""
    found = {}
    for key, value in result.asked.items():
        if value is None:
            continue
        if key in ("slo_ttft_s", "slo_tpot_s") and isinstance(value, int | float):
            found[f"{option_of(key).removesuffix('-s')}-ms"] = f"{1e3 * value:.10g}"
        else:
            found[option_of(key)] = value_text(value)
    return found


def asked_line(result: SweepResult | RateResult) -> str:
    """Return the options that all points share, where they are not the defaults."""
    usual = {option_of(key): value_text(value) for key, value in DEFAULTS.items()}
    said = [
        name(f"{key}={value}")
        for key, value in options(result).items()
        if usual.get(key, ...) != value
    ]
    return " ".join(said) or "vLLM's own settings"


def headings_and_cells(
    points: Sequence[Point], rate: str, first: str = ""
) -> tuple[list[str], list[list[str]]]:
    """Return the headings of the figures, and a row of cells a point, each latency in one unit.

    ``rate`` is a field of `Figures`; a share is said as ``first``.
    """
    found = [point.figures for point in points]

    def column(read: Any) -> list[str]:
        return [DASH if each is None else read(each) for each in found]

    as_share = rate == "goodput_share"
    headings = [first or RATES[rate]]
    columns = [column(lambda each: (share if as_share else short)(getattr(each, rate)))]
    headings.append("req/s")
    columns.append(column(lambda each: short(each.requests_s)))
    for title, parts in LATENCIES:
        fields = [f"{title.lower()}_{part}_s" for part in parts]
        texts, unit = in_unit([getattr(each, field, None) for field in fields for each in found])
        for at, part in enumerate(parts):
            headings.append(f"{title} {part} {unit}")
            columns.append(texts[at * len(found) : (at + 1) * len(found)])
    headings += ["hit", "busy"]
    columns.append(column(lambda each: share(each.hit_ratio, 0)))
    columns.append(column(lambda each: share(each.utilisation, 0)))
    return headings, [list(row) for row in zip(*columns, strict=True)]


def _lost(found: Figures) -> list[str]:
    said = []
    if found.overloaded is None:
        said.append(UNKNOWN)
    elif found.overloaded:
        said.append("overload")
    for word, many in (("rejected", found.rejected), ("unfinished", found.unfinished)):
        if many:
            said.append(f"{count(many)} {word}")
    return said


def _front(found: Figures, fronts: list[str]) -> list[str]:
    """Say on which fronts a point is, with a mark where it may be overloaded."""
    if not fronts:
        return []
    busy = found.overloaded is None and (found.utilisation or 0.0) >= BUSY
    word = "front?" if busy else "front"
    return [word if len(fronts) > 1 else f"{word} {fronts[0]}"]


def sweep_table(result: SweepResult) -> tuple[list[str], list[Row]]:
    """Return the headings, and a row a point: its figures, and on which front it is."""
    headings, cells = headings_and_cells(result.points, result.rate)
    rows: list[Row] = []
    for at, (point, row) in enumerate(zip(result.points, cells, strict=True)):
        found = point.figures
        if found is None:
            rows.append((values(point), row, "refused"))
            continue
        fronts = [
            word
            for word, front in (("TTFT", result.front_ttft), ("latency", result.front_latency))
            if at in front
        ]
        rows.append((values(point), row, "; ".join([*_front(found, fronts), *_lost(found)])))
    return headings, rows


def rate_table(result: RateResult) -> tuple[list[str], list[Row]]:
    """Return the headings, and a row a rate that was tried: who meets the objective."""
    tried = result.tried
    headings, cells = headings_and_cells([each.point for each in tried], "goodput_share", "meet it")
    rows: list[Row] = []
    for each, row in zip(tried, cells, strict=True):
        found = each.point.figures
        verdict = "holds" if each.holds else "fails"
        said = f"{verdict}: refused" if found is None else "; ".join([verdict, *_lost(found)])
        rows.append((f"{each.value:g}", row, said))
    return headings, rows


def legend(rows: Sequence[Row]) -> list[str]:
    """Say what those marks mean that a table has."""
    return [
        f"{mark}: {meaning}"
        for mark, meaning in LEGEND.items()
        if any(mark in said for _, _, said in rows)
    ]
