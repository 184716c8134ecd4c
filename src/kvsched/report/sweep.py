"""Many simulated runs to look at: a sweep with its fronts, a search for a rate."""

from __future__ import annotations

from typing import Any

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from kvsched.report.figures import BOUND, OTHERS, OWN, as_script, digits, layout
from kvsched.report.figures import text as plain
from kvsched.report.format import DASH, count, name, seconds, share, short, visible
from kvsched.report.html import page
from kvsched.report.terminal import ASCII
from kvsched.serve.find_rate import RateResult
from kvsched.serve.points import Figures, Point
from kvsched.serve.sweep import SweepResult

HEADINGS = ("TTFT p99", "TPOT p99", "latency p99", "hit")
RATES = {"goodput_s": "goodput/s", "output_tokens_s": "tokens/s"}
AXES = {"goodput_s": "requests/s that meet the objective", "output_tokens_s": "generated tokens/s"}
Row = tuple[str, list[str], str]
"""A point: its settings, its figures, what is to be said of it."""


def label(point: Point) -> str:
    """Return a point's settings as its options."""
    return " ".join(
        f"{key.replace('_', '-')}={_said(value)}" for key, value in point.settings.items()
    )


def _said(value: object) -> str:
    return DASH if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def values(point: Point) -> str:
    """Return a point's values alone, in the order of its options."""
    return " · ".join(_said(value) for value in point.settings.values())


def _cells(found: Figures) -> list[str]:
    return [
        seconds(found.ttft_p99_s),
        seconds(found.tpot_p99_s),
        seconds(found.latency_p99_s),
        share(found.hit_ratio),
    ]


def _lost(found: Figures) -> list[str]:
    said = []
    if found.overloaded:
        said.append("overload")
    for word, many in (("rejected", found.rejected), ("unfinished", found.unfinished)):
        if many:
            said.append(f"{count(many)} {word}")
    return said


def sweep_rows(result: SweepResult) -> list[Row]:
    """Return a row a point: its rate, its latencies, and on which front it is."""
    rows: list[Row] = []
    for at, point in enumerate(result.points):
        found = point.figures
        if found is None:
            rows.append((values(point), [DASH] * (len(HEADINGS) + 1), "refused"))
            continue
        fronts = [
            word
            for word, front in (("TTFT", result.front_ttft), ("latency", result.front_latency))
            if at in front
        ]
        said = _lost(found)
        if fronts:
            said.insert(0, f"front {', '.join(fronts)}")
        rows.append(
            (values(point), [short(getattr(found, result.rate)), *_cells(found)], _join(said))
        )
    return rows


def rate_rows(result: RateResult) -> list[Row]:
    """Return a row a rate that was tried: who meets the objective, and the latencies."""
    rows: list[Row] = []
    for tried in result.tried:
        found = tried.point.figures
        verdict = "holds" if tried.holds else "fails"
        if found is None:
            rows.append((f"{tried.value:g}", [DASH] * (len(HEADINGS) + 1), f"{verdict}: refused"))
            continue
        cells = [share(found.goodput_share), *_cells(found)]
        rows.append((f"{tried.value:g}", cells, _join([verdict, *_lost(found)])))
    return rows


def _join(said: list[str]) -> str:
    return "; ".join(said)


def faults(points: tuple[Point, ...]) -> list[str]:
    """Return one sentence for each point that could not run."""
    return [
        f"{name(label(point))} could not run: {visible(point.fault)}"
        for point in points
        if point.fault is not None
    ]


def _table(title: str, first: str, rate: str, rows: list[Row]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    table.add_column(first, overflow="fold")
    for heading in (rate, *HEADINGS):
        table.add_column(heading, justify="right", no_wrap=True)
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


def asked_line(result: SweepResult | RateResult) -> str:
    """Return the options that all points share, where they are not the defaults."""
    said = [
        name(f"{key.replace('_', '-')}={_said(value)}")
        for key, value in result.asked.items()
        if value is not None and value is not False and DEFAULTS.get(key, ...) != value
    ]
    return " ".join(said) or "vLLM's own settings"


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
    "speedup": 1.0,
    "burstiness": 1.0,
    "seed": 0,
}
"""Options that need not be said where they have these values."""


def _print(lines: list[RenderableType], console: Console) -> None:
    if (console.encoding or "utf-8").lower().startswith("utf"):
        for line in lines:
            console.print(line)
        return
    with console.capture() as captured:
        for line in lines:
            console.print(line)
    console.file.write(captured.get().translate(ASCII).encode("ascii", "replace").decode())


def print_sweep(result: SweepResult, console: Console) -> None:
    """Print what was asked, a row a point, and who is on a front."""
    rate = RATES[result.rate]
    lines = _head(result)
    lines += ["", _table(sweep_title(result), "settings", rate, sweep_rows(result)), ""]
    lines += [Text(said, style="yellow") for said in faults(result.points)]
    lines.append(Text(f"front: {result.definitions['front']}", style="dim"))
    _print(lines, console)


def sweep_title(result: SweepResult) -> str:
    """Return how many points there are, and of which options."""
    keys = " · ".join(key.replace("_", "-") for key in result.swept)
    return f"{count(len(result.points))} points: {keys}; the middle step time"


def print_rate(result: RateResult, console: Console) -> None:
    """Print what was asked, every rate that was tried, and what was found."""
    title = f"{count(len(result.tried))} tried, with the middle step time"
    first = "speedup" if result.by == "speedup" else "requests/s"
    lines = [*_head(result), "", _table(title, first, "meet it", rate_rows(result)), ""]
    lines += [Text(visible(said), style="bold") for said in result.sentences]
    _print(lines, console)


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
    return page(
        "sweep.html",
        {},
        r=result,
        kind="sweep",
        asked=asked_line(result),
        title=sweep_title(result),
        headings=("settings", RATES[result.rate], *HEADINGS, ""),
        rows=sweep_rows(result),
        sentences=[],
        faults=faults(result.points),
        figures={place: as_script(each) for place, each in sweep_figures(result).items()},
    )


def render_rate(result: RateResult) -> str:
    """Return the page of a search for a rate. The same result gives the same bytes."""
    figure = rate_figure(result)
    first = "speedup" if result.by == "speedup" else "requests a second"
    return page(
        "sweep.html",
        {},
        r=result,
        kind="search for a rate",
        asked=asked_line(result),
        title=f"{count(len(result.tried))} tried, with the middle step time",
        headings=(first, "meet it", *HEADINGS, ""),
        rows=rate_rows(result),
        sentences=result.sentences,
        faults=[],
        figures={"figure-rate": as_script(figure)} if figure["data"] else {},
    )
