"""A simulated run to look at: in the terminal, and as one HTML file that needs nothing else."""

from __future__ import annotations

from typing import Any

from rich.console import Console, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from kvsched.report.console import print_lines
from kvsched.report.figures import (
    BOUND,
    OTHERS,
    OWN,
    as_script,
    digits,
    layout,
    shares_figure,
    shares_line,
)
from kvsched.report.format import DASH, count, latencies, name, seconds, share, short, visible
from kvsched.report.html import page
from kvsched.report.simulation_settings import settings_line, step_time_line
from kvsched.serve.distribution import Distribution
from kvsched.serve.served import ServeResult
from kvsched.serve.summary import Summary
from kvsched.serve.timeline import Level, Timeline

PARTS = ("mean", "p50", "p90", "p95", "p99", "max")
LATENCIES = (
    ("TTFT", "ttft_s"),
    ("TPOT", "tpot_s"),
    ("latency", "latency_s"),
    ("queue wait", "queue_wait_s"),
)
SPARKS = "▁▂▃▄▅▆▇█"
SPARKS_ASCII = str.maketrans(SPARKS, "_.-:=+*#")
CELLS = 48


def latency_rows(summary: Summary) -> list[tuple[str, list[str]]]:
    """Return a row a latency: its name, and its parts as text."""
    rows = []
    for title, field in LATENCIES:
        found: Distribution | None = getattr(summary, field)
        parts = [None if found is None else getattr(found, part) for part in PARTS]
        rows.append((title, latencies(parts)))
    return rows


def band_rows(result: ServeResult) -> list[tuple[str, list[str]]]:
    """Return a row a figure: its name, and how it is at the low, middle and high step time."""
    if not result.bands:
        return []
    runs = [result.bands.get("low"), result.summary, result.bands.get("high")]

    def row(title: str, read: Any) -> tuple[str, list[str]]:
        return title, [DASH if run is None else read(run) for run in runs]

    def parts(title: str, field: str, which: str) -> tuple[str, list[str]]:
        known = [None if run is None else getattr(run, field) for run in runs]
        found = [None if each is None else getattr(each, which) for each in known]
        return f"{title} {which}", latencies(found)

    rows = [
        parts(title, field, which) for title, field in LATENCIES[:3] for which in ("p50", "p99")
    ]
    rows.append(row("requests/s", lambda run: _rate(run, "requests_s")))
    if result.summary.goodput is not None:
        rows.append(
            row("goodput", lambda run: DASH if run.goodput is None else share(run.goodput.share))
        )
    rows.append(row("overloaded", lambda run: _verdict(run.overload.overloaded)))
    return rows


def _verdict(overloaded: bool | None) -> str:
    return DASH if overloaded is None else ("yes" if overloaded else "no")


def _rate(summary: Summary, field: str) -> str:
    return DASH if summary.throughput is None else short(getattr(summary.throughput, field))


def total_rows(summary: Summary) -> list[tuple[str, str]]:
    """Return the totals: a name and a text each."""
    levels = summary.timeline
    rows = [
        ("requests finished", f"{_rate(summary, 'requests_s')} /s"),
        ("prompt tokens", f"{_rate(summary, 'input_tokens_s')} /s"),
        ("generated tokens", f"{_rate(summary, 'output_tokens_s')} /s"),
        ("utilisation", DASH if levels is None else share(min(levels.busy, 1.0))),
        (
            "hit ratio",
            f"{share(summary.hit_ratio)}, {short(summary.hit_tokens)} of "
            f"{short(summary.prompt_tokens)} prompt tokens",
        ),
        (
            "preemptions",
            f"{count(summary.preemptions)}, of {count(summary.preempted_requests)} requests",
        ),
        ("steps", f"{count(summary.steps)}, {short(summary.computed_tokens)} tokens computed"),
        *_pressure_rows(summary),
    ]
    good = summary.goodput
    if good is not None:
        limits = [
            f"{title} ≤ {seconds(limit)}"
            for title, limit in (("TTFT", good.ttft_s), ("TPOT", good.tpot_s))
            if limit is not None
        ]
        text = f"{short(good.requests_s)} /s, {share(good.share)} of all ({', '.join(limits)})"
        rows.append(("goodput", text))
    return rows + _fairness_rows(summary)


def _pressure_rows(summary: Summary) -> list[tuple[str, str]]:
    """Rejections, what admission did else, the second tier, engines: where there are any."""
    rows = [(f"rejected: {why}", count(many)) for why, many in summary.rejected_because.items()]
    if summary.recomputed_tokens:
        rows.append(("computed again", f"{short(summary.recomputed_tokens)} tokens"))
    if summary.degraded:
        rows.append(("served unstored", f"{count(summary.degraded)} requests"))
    if summary.paused_steps:
        rows.append(("steps in a pause", count(summary.paused_steps)))
    moved = summary.swap
    if moved is not None:
        text = (
            f"{count(moved.preemptions)} preemptions, {count(moved.refused)} did not fit; "
            f"{count(moved.out_blocks)} blocks out, {count(moved.back_blocks)} back, at most "
            f"{count(moved.most_blocks)}, in {seconds(moved.seconds)}"
        )
        rows.append(("swap", text))
    for at, engine in enumerate(summary.engines):
        text = (
            f"{count(engine.requests)} requests, hit ratio {share(engine.hit_ratio)}, "
            f"utilisation {share(engine.busy)}, KV use {share(engine.kv_use)}"
        )
        rows.append((f"engine {at}", text))
    return rows


def _fairness_rows(summary: Summary) -> list[tuple[str, str]]:
    fair = summary.fairness

    def number(value: float | None) -> str:
        return DASH if value is None else f"{value:.3f}"

    rows = [("fairness of waits", f"{number(fair.requests)} over requests")]
    if fair.tenants is not None:
        rows[0] = (
            rows[0][0],
            f"{rows[0][1]}, {number(fair.tenant_waits)} over {count(fair.tenants)} tenants",
        )
        rows.append(("fairness of rates", f"{number(fair.tenant_rates)} (Jain) over tenants"))
    return rows


def _levels(levels: Timeline) -> list[tuple[str, Level, Any]]:
    return [
        ("KV use", levels.kv_use, share),
        ("batch", levels.running, lambda value: f"{value:,.1f}"),
        ("queue", levels.waiting, lambda value: f"{value:,.1f}"),
    ]


def level_rows(levels: Timeline | None) -> list[tuple[str, str, str, str]]:
    """Return a row a level: its name, mean, peak, and its means over time as a line of bars."""
    if levels is None:
        return []
    return [
        (title, text(level.mean), text(level.peak), _spark(level))
        for title, level, text in _levels(levels)
    ]


def _spark(level: Level) -> str:
    step = max(len(level.means) // CELLS, 1)
    groups = [level.means[at : at + step] for at in range(0, len(level.means), step)]
    values = [sum(group) / len(group) for group in groups]
    top = max(values) or 1.0
    return "".join(SPARKS[min(int(8 * value / top), 7)] for value in values)


def _table(title: str, *headings: str) -> Table:
    """A table; without headings, of names and texts."""
    style: dict[str, Any] = {"title_justify": "left", "title_style": "bold"}
    table = Table(title=title, box=None, pad_edge=False, show_header=bool(headings), **style)
    if not headings:
        return table
    table.add_column(headings[0])
    for heading in headings[1:]:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def _lines(result: ServeResult) -> list[RenderableType]:
    summary, trace = result.summary, result.trace
    lines: list[RenderableType] = [
        Text(name(trace["source"]), style="bold"),
        f"{count(trace['requests'])} requests in {seconds(trace['duration_s'])}, "
        f"{short(trace['prompt_tokens'])} prompt tokens",
        Text(settings_line(result)),
        Text(step_time_line(result)),
        *(Text(f"  {visible(step)}", style="dim") for step in result.derivation),
        "",
    ]
    latencies = _table("Latency", "", *PARTS)
    for title, cells in latency_rows(summary):
        latencies.add_row(title, *cells)
    lines += [latencies, ""]
    bands = band_rows(result)
    if bands:
        table = _table("With the step time's band", "", "low", "middle", "high")
        for title, cells in bands:
            table.add_row(title, *cells)
        lines += [table, ""]
    totals = _table("In total")
    for title, text in total_rows(summary):
        totals.add_row(title, Text(text))
    lines += [totals, ""]
    if summary.timeline is not None:
        table = _table("Over time", "", "mean", "peak")
        table.add_column(f"0 to {seconds(summary.duration_s)}", no_wrap=True)
        for row in level_rows(summary.timeline):
            table.add_row(*row)
        lines += [table, ""]
    for sentence in result.sentences:
        over = sentence.startswith("OVERLOADED")
        lines.append(Text(visible(sentence), style="bold red" if over else "bold"))
    lines.append("")
    for term, meaning in result.definitions.items():
        lines.append(f"[dim]{escape(term)}: {escape(meaning)}[/dim]")
    return lines


def print_simulation(result: ServeResult, console: Console) -> None:
    """Print what was asked, latencies, the band, totals, levels over time, words, definitions.

    Where the console's encoding is no Unicode, signs become ASCII and other letters "?".
    """
    print_lines(_lines(result), console, SPARKS_ASCII)


def _area(title: str, level: Level, edges: list[float], colour: str, percent: bool) -> list[Any]:
    scale = 100.0 if percent else 1.0
    unit = "%" if percent else ""
    lines = []
    for label, values, width, dash in (
        (f"{title}, mean", level.means, 1.8, "solid"),
        (f"{title}, peak", level.peaks, 1.0, "dot"),
    ):
        lines.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": label,
                "x": edges,
                "y": [digits(scale * value) for value in values],
                "line": {"color": colour, "width": width, "dash": dash, "shape": "hv"},
                "hovertemplate": f"<b>{label}</b> %{{y:.4g}}{unit}<br>%{{x:.4g}} s<extra></extra>",
            }
        )
    return lines


def over_time(levels: Timeline, which: str) -> dict[str, Any]:
    """Draw one level, of `kv_use`, `running` and `waiting`: mean and peak of each interval."""
    title, colour, axis = {
        "kv_use": ("KV use", OWN, "% of all blocks"),
        "running": ("batch", OTHERS[1], "requests that run"),
        "waiting": ("queue", BOUND, "requests that wait"),
    }[which]
    edges = [digits(edge) for edge in levels.edges_s[:-1]]
    data = _area(title, getattr(levels, which), edges, colour, which == "kv_use")
    return {
        "data": data,
        "layout": layout(
            height=230,
            xaxis={"title": {"text": "seconds"}, "fixedrange": True},
            yaxis={"title": {"text": axis}, "rangemode": "tozero", "fixedrange": True},
        ),
    }


def shares(result: ServeResult, field: str) -> dict[str, Any]:
    """Draw a latency's distribution: seconds over the share of requests, with its band."""
    runs = [("middle", result.summary, OWN, "solid")]
    runs += [
        (band, run, OTHERS[5], "dash" if band == "low" else "dot")
        for band, run in result.bands.items()
    ]
    data = []
    for label, run, colour, dash in runs:
        found: Distribution | None = getattr(run, field)
        if found is None:
            continue
        pen = {"color": colour, "width": 2.4 if dash == "solid" else 1.2, "dash": dash}
        data.append(shares_line(found, label, "s", pen))
    return shares_figure(data, "seconds", "requests")


def figures(result: ServeResult) -> dict[str, dict[str, Any]]:
    """Return every figure by the id of its place in the page."""
    found = {}
    if result.summary.ttft_s is not None:
        found["figure-ttft"] = shares(result, "ttft_s")
    if result.summary.tpot_s is not None:
        found["figure-tpot"] = shares(result, "tpot_s")
    levels = result.summary.timeline
    if levels is not None:
        for place, which in (("kv", "kv_use"), ("batch", "running"), ("queue", "waiting")):
            found[f"figure-{place}"] = over_time(levels, which)
    return found


def render_simulation(result: ServeResult) -> str:
    """Return the page. The same result gives the same bytes; names are escaped."""
    drawn = figures(result)
    return page(
        "simulation.html",
        {},
        r=result,
        settings=settings_line(result),
        step_time=step_time_line(result),
        parts=PARTS,
        latencies=latency_rows(result.summary),
        bands=band_rows(result),
        totals=total_rows(result.summary),
        levels=level_rows(result.summary.timeline),
        figures={place: as_script(figure) for place, figure in drawn.items()},
    )
