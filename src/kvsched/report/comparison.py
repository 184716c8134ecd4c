"""A comparison to look at: tables for a terminal, and one self-contained HTML file."""

from __future__ import annotations

import math
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from kvsched.report.figures import (
    BOUND,
    DASHES,
    OTHERS,
    OWN,
    as_script,
    digits,
    layout,
    text,
)
from kvsched.report.format import DASH, count, name, share, short, visible, with_sign
from kvsched.report.html import page
from kvsched.study.compare import Change, Comparison


def titled(row: Change) -> str:
    """Return a figure's name with its unit; a share shows its own sign."""
    plain = row.unit == "share" or row.unit in row.name
    return name(row.name) if plain else f"{name(row.name)}, {row.unit}"


def figure(value: float | None, unit: str) -> str:
    """Return a figure without its unit, but for a share."""
    if value is None:
        return DASH
    if unit == "share":
        return share(value)
    if float(value).is_integer() and abs(value) < 1e6:
        return count(int(value))
    return short(value)


def signed(value: float | None, unit: str) -> str:
    """Return a difference with its sign; shares in points."""
    return with_sign(value, unit, figure)


def verdict(beyond: bool | None) -> str:
    """Say whether a difference is beyond the traces' own variation."""
    return DASH if beyond is None else ("yes" if beyond else "no")


def curves(result: Comparison) -> dict[str, Any]:
    """Both studies' curves over capacity in tokens: A dashed, B solid."""
    traces = []
    shown = {result.a.policy, result.b.policy, "opt-fit"}
    plain = [curve.policy for curve in result.curves if curve.policy not in DASHES]
    for curve in result.curves:
        bound = curve.policy in DASHES
        at = 0 if bound else plain.index(curve.policy)
        colour = BOUND if bound else (OWN, *OTHERS)[at % (len(OTHERS) + 1)]
        for side, values in (("A", curve.a), ("B", curve.b)):
            label = f"{text(curve.policy)}, {side}"
            traces.append(
                {
                    "type": "scatter",
                    "mode": "lines",
                    "name": label,
                    "x": list(curve.capacity_tokens),
                    "y": [digits(value) for value in values],
                    "line": {
                        "color": colour,
                        "width": 1.4 if bound else 2,
                        "dash": "dash" if side == "A" else "solid",
                    },
                    "visible": True if curve.policy in shown else "legendonly",
                    "hovertemplate": f"<b>{label}</b> %{{y:.1%}} hit<br>%{{x:,}} tokens"
                    "<extra></extra>",
                }
            )
    tokens = [each for curve in result.curves for each in curve.capacity_tokens] or [1, 10]
    low, high = math.log10(min(tokens)), math.log10(max(tokens))
    return {
        "data": traces,
        "layout": layout(
            height=420,
            xaxis={
                "type": "log",
                "title": {"text": "capacity, tokens"},
                "exponentformat": "SI",
                "range": [digits(low), digits(high)],
                "fixedrange": True,
            },
            yaxis={
                "title": {"text": "share of prompt tokens hit"},
                "tickformat": ".0%",
                "rangemode": "tozero",
                "fixedrange": True,
            },
        ),
    }


def render_comparison(result: Comparison) -> str:
    """Return the page. The same comparison gives the same bytes; names are escaped."""
    filters = {"figure": figure, "signed": signed, "verdict": verdict, "titled": titled}
    return page(
        "comparison.html",
        filters,
        r=result,
        figures={"figure-curves": as_script(curves(result))},
    )


def _table(title: str, first: str, rows: tuple[Change, ...]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    table.add_column(first)
    for heading in ("A", "B", "B − A", "95% of draws", "beyond"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        interval = DASH
        if row.low is not None:
            interval = f"{signed(row.low, row.unit)} … {signed(row.high, row.unit)}"
        style = "bold" if row.beyond_variation else None
        table.add_row(
            escape(titled(row)),
            figure(row.a, row.unit),
            figure(row.b, row.unit),
            signed(row.difference, row.unit),
            interval,
            verdict(row.beyond_variation),
            style=style,
        )
    return table


def print_comparison(result: Comparison, console: Console) -> None:
    """Print what changed: the workloads, the classes, the policies, and three sentences."""
    a, b = result.a, result.b
    for letter, side in (("A", a), ("B", b)):
        console.print(
            f"{letter}  [bold]{escape(name(side.source))}[/bold]  {count(side.requests)} requests, "
            f"{escape(name(side.policy))} at {count(side.capacity_tokens)} tokens"
        )
    console.print()
    for title, first, rows in (
        ("Workload", "figure", result.workload),
        ("Where the prompt tokens went", "class", result.anatomy),
        ("Share of prompt tokens hit", "policy", result.policies),
    ):
        console.print(_table(title, first, rows))
        console.print()
    console.print(
        "[dim]draws: B − A when each trace's windows of time are drawn anew; beyond the traces' "
        "own variation where the middle 95% of them leaves out 0[/dim]\n"
    )
    for sentence in result.sentences:
        console.print(Text(visible(sentence), style="bold"))
    for warning in result.warnings:
        console.print(Text(f"Warning: {visible(warning)}", style="yellow"))
