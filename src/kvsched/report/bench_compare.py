"""A comparison of measured runs to look at: in the terminal, and as one HTML file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from rich.console import Console, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from kvsched.evidence.bench.compare import BenchComparison, Side
from kvsched.evidence.bench.decide import Change
from kvsched.report.bench import milliseconds
from kvsched.report.console import print_lines
from kvsched.report.figures import BOUND, OTHERS, OWN, as_script, digits, layout, text
from kvsched.report.format import DASH, MINUS, count, name, share, short, visible, with_sign
from kvsched.report.html import page


def figure(value: float | None, unit: str) -> str:
    """Return a figure with its unit."""
    if value is None:
        return DASH
    if unit == "ms":
        return milliseconds(value)
    if unit == "share":
        return share(value)
    return f"{short(value)} {unit}"


def signed(value: float | None, unit: str) -> str:
    """Return a difference with its sign; shares in points."""
    return with_sign(value, unit, figure)


def sure(change: Change) -> str:
    """Say whether the difference can be told from chance."""
    if change.distinguishable is None:
        return "no interval"
    return "yes" if change.distinguishable else "contains 0"


def _interval(change: Change) -> str:
    if change.low is None or change.high is None:
        return DASH
    return f"{signed(change.low, change.unit)} to {signed(change.high, change.unit)}"


def verdict(passed: bool | None) -> str:
    """Say whether a condition has passed."""
    return "not measured" if passed is None else ("passed" if passed else "failed")


def side_line(side: Side) -> str:
    """Say what a side is."""
    runs = "1 run" if side.runs == 1 else f"{side.runs} runs"
    return f"{name(side.name)}: {runs} of {count(side.requests)} requests"


def print_bench_comparison(result: BenchComparison, console: Console) -> None:
    """Print what changed, the conditions, the decision and what a reader must know."""
    print_lines(_lines(result), console)


def _lines(result: BenchComparison) -> Iterator[RenderableType]:
    yield Text(f"A  {side_line(result.a)}")
    yield Text(f"B  {side_line(result.b)}")
    for each in result.differences:
        values = f"{_plain(each.a)} → {_plain(each.b)}"
        yield Text(f"   {visible(each.name)}: {visible(values)}", style="dim")
    table = Table(box=None, pad_edge=False)
    table.add_column("", no_wrap=True)
    low = f"{100 * float(result.bootstrap['confidence']):g}% interval"
    for heading in ("A", "B", "B − A", low):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for row in result.changes:
        if row.a is None and row.b is None:
            continue
        ends = DASH
        if row.low is not None and row.high is not None:
            ends = f"{_bare(row.low, row.unit, True)} … {_bare(row.high, row.unit, True)}"
        table.add_row(
            escape(_titled(row)),
            _bare(row.a, row.unit),
            _bare(row.b, row.unit),
            _bare(row.difference, row.unit, True),
            ends,
            "~" if row.distinguishable is False else "",
        )
    yield table
    if any(row.distinguishable is False for row in result.changes):
        yield "~ the interval contains 0: the difference is not distinguishable"
    yield f"overhead: {share(result.overhead.value)}"
    for condition in result.conditions:
        yield Text(f"  {verdict(condition.passed)}: {visible(condition.said)}")
    yield Text(visible(result.reason), style="bold")
    for warning in result.warnings:
        yield Text(f"Warning: {visible(warning)}", style="yellow")


def _titled(row: Change) -> str:
    """A figure's name with its unit, short."""
    if row.unit in ("share", "requests"):
        return row.name
    return f"{row.name}, {'/s' if row.unit.endswith('/s') else row.unit}"


def _bare(value: float | None, unit: str, sign: bool = False) -> str:
    """A figure without its unit, but for a share's %."""
    if value is None:
        return DASH
    mark = "" if not sign else ("+" if value >= 0 else MINUS)
    size = abs(value) if sign else value
    return mark + (f"{100 * size:.1f}%" if unit == "share" else f"{size:,.3g}")


def _relative(row: Change) -> str:
    if row.relative is None or row.unit == "share":
        return DASH
    sign = "+" if row.relative >= 0 else MINUS
    return f"{sign}{100 * abs(row.relative):.1f}%"


def _plain(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True, default=str)


def intervals(result: BenchComparison) -> dict[str, Any]:
    """Draw the relative change of each latency with its interval."""
    rows = [
        row for row in result.changes if row.unit == "ms" and row.relative is not None and row.a
    ]
    data = []
    for row in rows:
        assert row.a is not None  # noqa: S101  # chosen above
        ends = [None if end is None else digits(100 * end / row.a) for end in (row.low, row.high)]
        middle = digits(100 * (row.relative or 0.0))
        colour = OTHERS[5] if not row.distinguishable else (OWN if middle < 0 else BOUND)
        data.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "name": text(row.name),
                "x": [ends[0], middle, ends[1]],
                "y": [text(row.name)] * 3,
                "line": {"color": colour, "width": 2},
                "marker": {"size": [1, 9, 1], "color": colour},
                "hovertemplate": "%{x:.3g}%<extra></extra>",
                "connectgaps": True,
            }
        )
    return {
        "data": data,
        "layout": layout(
            height=90 + 28 * max(len(rows), 1),
            showlegend=False,
            margin={"l": 110, "r": 16, "t": 12, "b": 48},
            xaxis={"title": {"text": "change, % of A"}, "zeroline": True, "fixedrange": True},
            yaxis={"autorange": "reversed", "fixedrange": True},
        ),
    }


def render_bench_comparison(result: BenchComparison) -> str:
    """Return the page. The same comparison gives the same bytes; names are escaped."""
    drawn = {"figure-intervals": intervals(result)}
    filters = {
        "figure": figure,
        "signed": signed,
        "sure": sure,
        "interval": _interval,
        "relative": _relative,
        "verdict": verdict,
        "side": side_line,
        "plain": _plain,
    }
    return page(
        "bench_compare.html",
        filters,
        r=result,
        confidence=100 * float(result.bootstrap["confidence"]),
        rules={field: getattr(result.rules, field) for field in result.rules.__struct_fields__},
        figures={place: as_script(each) for place, each in drawn.items()},
    )
