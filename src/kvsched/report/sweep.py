"""Many simulated runs to look at: a sweep with its fronts, a search for a rate."""

from __future__ import annotations

from typing import Any

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from kvsched.report.console import print_lines
from kvsched.report.figures import BOUND, OTHERS, OWN, as_script, digits, layout
from kvsched.report.figures import text as plain
from kvsched.report.format import count, name, seconds, short, visible
from kvsched.report.html import page
from kvsched.report.points_table import (
    Row,
    asked_line,
    label,
    legend,
    options,
    rate_table,
    sweep_table,
)
from kvsched.serve.find_rate import RateResult
from kvsched.serve.points import Point
from kvsched.serve.sweep import SweepResult
from kvsched.serve.sweep_sentences import option_of

AXES = {"goodput_s": "requests/s that meet the objective", "output_tokens_s": "generated tokens/s"}


def faults(points: tuple[Point, ...]) -> list[str]:
    """Return one sentence for each point that could not run."""
    return [
        f"{name(label(point))} could not run: {visible(point.fault)}"
        for point in points
        if point.fault is not None
    ]


def _table(title: str, first: str, headings: list[str], rows: list[Row]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    table.add_column(first, overflow="fold")
    for heading in headings:
        # A word a line: figures are narrower than what they are called.
        table.add_column(heading.replace(" ", "\n"), justify="right", no_wrap=True)
    table.add_column("", overflow="fold")
    for setting, cells, said in rows:
        style = "bold" if said.startswith(("front", "holds")) else ""
        table.add_row(Text(name(setting)), *cells, said, style=style)
    return table


def _head(result: SweepResult | RateResult) -> list[RenderableType]:
    trace = result.trace
    return [
        Text(name(trace["source"]), style="bold"),
        f"{count(trace['requests'])} requests in {seconds(trace['duration_s'])}, "
        f"{short(trace['prompt_tokens'])} prompt tokens",
        Text(asked_line(result)),
    ]


def print_sweep(result: SweepResult, console: Console) -> None:
    """Print what was asked, a row a point, what comes of it, and who is on a front."""
    headings, rows = sweep_table(result)
    lines = _head(result)
    lines += ["", _table(sweep_title(result), "settings", headings, rows), ""]
    lines += [Text(said, style="yellow") for said in faults(result.points)]
    lines += [Text(visible(said), style="bold") for said in result.sentences]
    lines.append(Text(f"front: {result.definitions['front']}", style="dim"))
    lines += [Text(said, style="dim") for said in legend(rows)]
    print_lines(lines, console)


def sweep_title(result: SweepResult) -> str:
    """Return how many points there are, and of which options."""
    keys = " · ".join(option_of(key) for key in result.swept)
    return f"{count(len(result.points))} points: {keys}; the middle step time"


def print_rate(result: RateResult, console: Console) -> None:
    """Print what was asked, every rate that was tried, and what was found."""
    title = f"{count(len(result.tried))} tried, with the middle step time"
    headings, rows = rate_table(result)
    lines = [*_head(result), "", _table(title, _by(result), headings, rows), ""]
    lines += [Text(visible(said), style="bold") for said in result.sentences]
    lines += [Text(said, style="dim") for said in legend(rows)]
    print_lines(lines, console)


def _by(result: RateResult) -> str:
    return "speedup" if result.by == "speedup" else "rate"


def _markers(
    title: str, points: list[tuple[float, float, str]], colour: str, symbol: str, line: bool
) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines+markers" if line else "markers",
        "name": title,
        "x": [digits(x) for x, _, _ in points],
        "y": [digits(y) for _, y, _ in points],
        "hovertext": [plain(said) for _, _, said in points],
        "marker": {"size": 9 if line else 7, "color": colour, "symbol": symbol},
        "line": {"color": colour, "width": 2, "shape": "hv"},
        "hovertemplate": "%{hovertext}<br>%{x:.4g} s, %{y:.4g}<extra></extra>",
    }


def front_figure(result: SweepResult, latency: str) -> dict[str, Any]:
    """Draw every point's rate over a latency, its front joined."""
    front = result.front_ttft if latency == "ttft_p99_s" else result.front_latency
    on: list[tuple[float, float, str]] = []
    off: list[tuple[float, float, str]] = []
    over: list[tuple[float, float, str]] = []
    for at in (*front, *(at for at in range(len(result.points)) if at not in front)):
        point = result.points[at]
        found = point.figures
        if found is None:
            continue
        x, y = getattr(found, latency), getattr(found, result.rate)
        if x is None or y is None:
            continue
        kind = on if at in front else over if found.overloaded else off
        kind.append((x, y, label(point)))
    data = [
        _markers("beaten", off, OTHERS[5], "circle", line=False),
        _markers("overloaded", over, BOUND, "x", line=False),
        _markers("front", on, OWN, "circle", line=True),
    ]
    what = "TTFT" if latency == "ttft_p99_s" else "latency"
    return _axes([each for each in data if each["x"]], f"{what} p99, seconds", AXES[result.rate])


def rate_figure(result: RateResult) -> dict[str, Any]:
    """Draw the share of requests that meet the objective over the rates that were tried."""
    data = []
    for title, holds, colour, symbol in (
        ("holds", True, OWN, "circle"),
        ("fails", False, BOUND, "x"),
    ):
        points = [
            (each.value, 100 * each.point.figures.goodput_share, label(each.point))
            for each in result.tried
            if each.holds is holds
            and each.point.figures is not None
            and each.point.figures.goodput_share is not None
        ]
        made = _markers(title, points, colour, symbol, line=False)
        made["hovertemplate"] = "%{hovertext}<br>%{y:.4g}%<extra></extra>"
        data.append(made)
    axis = "speedup" if result.by == "speedup" else "requests a second"
    return _axes([each for each in data if each["x"]], axis, "% of requests that meet it")


def _axes(data: list[dict[str, Any]], across: str, up: str) -> dict[str, Any]:
    return {
        "data": data,
        "layout": layout(
            height=360,
            xaxis={"type": "log", "title": {"text": across}, "fixedrange": True},
            yaxis={"title": {"text": up}, "rangemode": "tozero", "fixedrange": True},
        ),
    }


def sweep_figures(result: SweepResult) -> dict[str, dict[str, Any]]:
    """Return the figures of a sweep by the id of their place."""
    return {
        place: figure
        for place, figure in (
            ("figure-ttft-front", front_figure(result, "ttft_p99_s")),
            ("figure-latency-front", front_figure(result, "latency_p99_s")),
        )
        if figure["data"]
    }


def render_sweep(result: SweepResult) -> str:
    """Return the page of a sweep. The same result gives the same bytes; names are escaped."""
    headings, rows = sweep_table(result)
    return page(
        "sweep.html",
        {},
        r=result,
        kind="sweep",
        asked=asked_line(result),
        options=options(result),
        title=sweep_title(result),
        headings=("settings", *headings, ""),
        rows=rows,
        legend=legend(rows),
        faults=faults(result.points),
        figures={place: as_script(each) for place, each in sweep_figures(result).items()},
    )


def render_rate(result: RateResult) -> str:
    """Return the page of a search for a rate. The same result gives the same bytes."""
    figure = rate_figure(result)
    headings, rows = rate_table(result)
    return page(
        "sweep.html",
        {},
        r=result,
        kind="search for a rate",
        asked=asked_line(result),
        options=options(result),
        title=f"{count(len(result.tried))} tried, with the middle step time",
        headings=(_by(result), *headings, ""),
        rows=rows,
        legend=legend(rows),
        faults=[],
        figures={"figure-rate": as_script(figure)} if figure["data"] else {},
    )
