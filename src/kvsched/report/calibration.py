"""Prediction against measurement: in the terminal, and as one HTML file that needs nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from kvsched.evidence.calibrate.result import Calibrated, Calibration, Error, Pair, RunCalibration
from kvsched.report.console import print_lines
from kvsched.report.figures import OTHERS, OWN, SYMBOLS, as_script, digits, layout, text
from kvsched.report.format import MINUS, count, latencies, name, seconds, share, visible
from kvsched.report.html import page

COLOURS = (OWN, *OTHERS)
LATENCIES = (("TTFT", "ttft"), ("TPOT", "tpot"))
MOST_POINTS = 400
"""Points that a run draws in one figure."""
HEADINGS = (
    "measured p50", "predicted p50", "error", "band",
    "measured p90", "predicted p90", "error", "band", "error of a request",
)  # fmt: skip


def signed(value: float) -> str:
    """Return a relative error with its sign."""
    return f"{100 * value:+.1f}%".replace("-", MINUS)


def error_rows(result: Calibration) -> list[tuple[str, list[str]]]:
    """Return a row a run and latency: its name, and its cells in the order of `HEADINGS`."""
    rows = []
    for run in result.runs:
        for title, field in LATENCIES:
            error: Error | None = getattr(run, field)
            if error is not None:
                rows.append((f"{name(run.name)}, {title}", _cells(error)))
    return rows


def _cells(error: Error) -> list[str]:
    told, found = error.measured, error.predicted
    half = latencies([told.p50, found.p50, *error.band_p50])
    most = latencies([told.p90, found.p90, *error.band_p90])
    return [
        half[0], half[1], signed(error.error_p50), f"{half[2]} to {half[3]}",
        most[0], most[1], signed(error.error_p90), f"{most[2]} to {most[3]}",
        share(error.request_error_p50),
    ]  # fmt: skip


def run_rows(result: Calibration) -> list[tuple[str, list[str]]]:
    """Return a row a run: its name, and what of it was used, and its cached tokens."""
    return [(name(run.name), _run_cells(run)) for run in result.runs]


RUN_HEADINGS = (
    "arrivals", "for the fit", "kept back", "steps seen", "left out", "drift", "request overhead",
    "cached tokens differ", "preemptions",
)  # fmt: skip


def _run_cells(run: RunCalibration) -> list[str]:
    cached = run.cached
    return [
        run.arrivals,
        count(run.fit_requests),
        count(run.judged_requests),
        count(run.steps_seen),
        count(run.steps_left_out),
        "unknown" if run.drift is None else signed(run.drift - 1),
        seconds(run.request_overhead_s),
        f"{count(cached.different)} of {count(cached.compared)}",
        count(run.preemptions),
    ]


def coefficient_rows(result: Calibration) -> list[tuple[str, str]]:
    """Return the coefficients that are not 0: name and value."""
    found = result.fit.coefficients
    rows = []
    for field in found.__struct_fields__:
        value = getattr(found, field)
        if value:
            rows.append((field, f"{value:.4g}" + (" s" if field.endswith("_s") else " tokens")))
    left = result.fit.residuals
    rows.append(("steps within", f"{share(left.error_p50)} (half), {share(left.error_p90)} (90%)"))
    if left.explained is not None:
        rows.append(("explained", share(left.explained)))
    return rows


def difference_rows(result: Calibration) -> list[tuple[str, list[str]]]:
    """Return a row for each request named whose cached tokens differ."""
    return [
        (name(run.name), [count(each.index), count(each.measured), count(each.predicted)])
        for run in result.runs
        for each in run.cached.first
    ]


def note_lines(result: Calibration) -> list[str]:
    """Return what is to be said of the runs: one sentence each."""
    lines = []
    for run in result.runs:
        lines.append(f"{name(run.name)}, cached tokens: {visible(run.cached.note)}")
        lines += [f"{name(run.name)}: {visible(note)}" for note in run.notes]
    return lines


def _table(title: str, headings: Sequence[str]) -> Table:
    table = Table(title=title, box=None, pad_edge=False, title_justify="left", title_style="bold")
    table.add_column("")
    for heading in headings:
        table.add_column(heading, justify="right")
    return table


def _lines(result: Calibration) -> list[RenderableType]:
    lines: list[RenderableType] = []
    for sentence in result.sentences:
        lines.append(Text(visible(sentence), style="bold"))
    lines.append("")
    table = _table("Requests kept back", ("measured", "predicted", "error p50", "error p90"))
    for run in result.runs:
        for title, field in LATENCIES:
            error: Error | None = getattr(run, field)
            if error is not None:
                cells = latencies([error.measured.p50, error.predicted.p50])
                errors = (signed(error.error_p50), signed(error.error_p90))
                table.add_row(Text(f"{name(run.name)}, {title}"), *cells, *errors)
    lines += [table, ""]
    shown = ("for the fit", "kept back", "drift", "request overhead", "cached tokens differ")
    table = _table("Runs", shown)
    for run in result.runs:
        told = dict(zip(RUN_HEADINGS, _run_cells(run), strict=True))
        table.add_row(Text(name(run.name)), *(told[heading] for heading in shown))
    lines += [table, ""]
    table = _table("Step time", ("",))
    for title, value in coefficient_rows(result):
        table.add_row(title, Text(value))
    lines += [table, ""]
    lines += [Text(line, style="dim") for line in note_lines(result)]
    for term, meaning in result.definitions.items():
        lines.append(f"[dim]{escape(term)}: {escape(meaning)}[/dim]")
    return lines


def print_calibration(result: Calibration, console: Console) -> None:
    """Print the sentences, errors, what was used of each run, coefficients, definitions.

    Where the console's encoding is no Unicode, signs become ASCII and other letters "?".
    """
    print_lines(_lines(result), console)


def _values(pairs: Sequence[Pair], field: str, run: str) -> list[tuple[float, float, int]]:
    """Measured, predicted and index of a run's requests that have both."""
    found = []
    for pair in pairs:
        measured = getattr(pair, f"measured_{field}_s")
        predicted = getattr(pair, f"predicted_{field}_s")
        if pair.run == run and measured is not None and predicted is not None:
            found.append((measured, predicted, pair.index))
    return found


def _thinned(values: list[Any]) -> list[Any]:
    """Every so many of them, the first and the last included, so that a figure stays small."""
    if len(values) <= MOST_POINTS:
        return values
    last = len(values) - 1
    return [values[round(at * last / (MOST_POINTS - 1))] for at in range(MOST_POINTS)]


def distributions(calibrated: Calibrated, field: str) -> dict[str, Any]:
    """Draw how many requests had a latency of at most so much: measured and predicted."""
    data = []
    for at, run in enumerate(calibrated.result.runs):
        values = _values(calibrated.pairs, field, run.name)
        for place, (kind, dash) in enumerate((("measured", "solid"), ("predicted", "dash"))):
            ordered = sorted(value[place] for value in values)
            steps = [((rank + 1) / len(ordered), value) for rank, value in enumerate(ordered)]
            kept = _thinned(steps)
            label = f"{text(run.name)}, {kind}"
            data.append(
                {
                    "type": "scatter",
                    "mode": "lines",
                    "name": label,
                    "x": [digits(value) for _, value in kept],
                    "y": [digits(100 * part) for part, _ in kept],
                    "line": {"color": COLOURS[at % len(COLOURS)], "width": 2, "dash": dash},
                    "hovertemplate": f"<b>{label}</b> %{{y:.3g}}% within %{{x:.4g}} s"
                    "<extra></extra>",
                }
            )
    return {
        "data": data,
        "layout": layout(
            height=320 + 14 * len(data),
            xaxis={"type": "log", "title": {"text": "seconds"}, "fixedrange": True},
            yaxis={"title": {"text": "% of requests"}, "range": [0, 101], "fixedrange": True},
        ),
    }


def scatter(calibrated: Calibrated, field: str) -> dict[str, Any]:
    """Draw predicted over measured, a point a request, with the line where they are equal."""
    data: list[dict[str, Any]] = []
    ends: list[float] = []
    for at, run in enumerate(calibrated.result.runs):
        values = _thinned(_values(calibrated.pairs, field, run.name))
        ends += [value for pair in values for value in pair[:2] if value > 0]
        label = text(run.name)
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": label,
                "x": [digits(value[0]) for value in values],
                "y": [digits(value[1]) for value in values],
                "customdata": [value[2] for value in values],
                "marker": {
                    "color": COLOURS[at % len(COLOURS)],
                    "symbol": SYMBOLS[at % len(SYMBOLS)],
                    "size": 6,
                    "opacity": 0.7,
                },
                "hovertemplate": f"<b>{label}</b>, request %{{customdata}}<br>measured %{{x:.4g}} s"
                "<br>predicted %{y:.4g} s<extra></extra>",
            }
        )
    reach = [min(ends, default=1.0), max(ends, default=1.0)]
    goal = calibrated.result.goal
    for label, factor, dash in (
        ("equal", 1.0, "solid"),
        (f"{goal:.0%} too long", 1 + goal, "dot"),
        (f"{goal:.0%} too short", 1 - goal, "dot"),
    ):
        data.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": label,
                "x": [digits(end) for end in reach],
                "y": [digits(factor * end) for end in reach],
                "line": {"color": "#888888", "width": 1.2, "dash": dash},
                "showlegend": factor == 1.0,
                "hoverinfo": "skip",
            }
        )
    axis = {"type": "log", "fixedrange": True}
    return {
        "data": data,
        "layout": layout(
            height=420,
            xaxis={**axis, "title": {"text": "measured, seconds"}},
            yaxis={**axis, "title": {"text": "predicted, seconds"}},
        ),
    }


def figures(calibrated: Calibrated) -> dict[str, dict[str, Any]]:
    """Return every figure by the id of its place in the page."""
    found = {}
    for _, field in LATENCIES:
        if any(getattr(run, field) is not None for run in calibrated.result.runs):
            found[f"figure-{field}"] = distributions(calibrated, field)
            found[f"figure-{field}-requests"] = scatter(calibrated, field)
    return found


def render_calibration(calibrated: Calibrated) -> str:
    """Return the page. The same result gives the same bytes; names are escaped."""
    drawn = figures(calibrated)
    result = calibrated.result
    return page(
        "calibration.html",
        {},
        r=result,
        headings=HEADINGS,
        errors=error_rows(result),
        run_headings=RUN_HEADINGS,
        runs=run_rows(result),
        coefficients=coefficient_rows(result),
        differences=difference_rows(result),
        notes=note_lines(result),
        step_time=result.fit.step_time().assumptions,
        figures={place: as_script(figure) for place, figure in drawn.items()},
    )
