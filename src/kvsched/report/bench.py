"""A measured run to look at: in the terminal, and as one HTML file that needs nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from kvsched.evidence.bench.measured import BenchResult, RequestOutcome
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
from kvsched.report.format import DASH, count, name, seconds, share, short, visible
from kvsched.report.html import page
from kvsched.serve.distribution import Distribution

PARTS = ("mean", "p50", "p90", "p95", "p99", "max")
LATENCIES = (
    ("TTFT", "ttft_ms", "ttft"),
    ("TPOT", "tpot_ms", "tpot"),
    ("ITL", "itl_ms", "itl"),
    ("latency", "latency_ms", "latency"),
    ("lag", "lag_ms", ""),
)
MOST_LINES = 2_000
"""Requests drawn in the timeline; of more, evenly many are left out."""
GAUGES = (
    ("running", "requests running", OTHERS[1]),
    ("waiting", "requests waiting", BOUND),
    ("kv_use", "share of KV in use", OWN),
)


def milliseconds(value: float | None) -> str:
    """Return a time that is given in ms."""
    if value is None:
        return DASH
    return f"{value:,.3g} ms" if value < 1000 else seconds(value / 1e3)


def latency_rows(result: BenchResult) -> list[tuple[str, list[str]]]:
    """Return a row a latency: its name, its parts and its 99.9th percentile as text."""
    rows = []
    for title, field, rare in LATENCIES:
        found: Distribution | None = getattr(result, field)
        parts = [None if found is None else getattr(found, part) for part in PARTS]
        parts.append(result.p999_ms.get(rare))
        rows.append((title, [milliseconds(part) for part in parts]))
    return rows


def total_rows(result: BenchResult) -> list[tuple[str, str]]:
    """Return the totals: a name and a text each; what was not measured is a dash and why."""

    def rate(value: float | None, unit: str) -> str:
        return DASH if value is None else f"{short(value)} {unit}"

    hits = result.hit_rate
    rows = [
        ("requests", f"{count(result.completed)} of {count(result.requests)} ended well"),
        *((f"failed: {kind}", count(many)) for kind, many in result.errors.items()),
        ("duration", seconds(result.duration_s)),
        ("request throughput", rate(result.request_throughput, "/s")),
        ("prompt tokens", rate(result.input_token_throughput, "/s")),
        ("output tokens", rate(result.output_token_throughput, "/s")),
        ("hit rate by usage", _hits(hits.usage, hits.usage_hit_tokens)),
        ("hit rate by the engine's counters", _hits(hits.counters, hits.counter_hit_tokens)),
        ("both agree", DASH if hits.agree is None else ("yes" if hits.agree else "no")),
        ("fairness of first tokens", DASH if result.fairness is None else f"{result.fairness:.3f}"),
    ]
    if result.good_requests is not None:
        good = f"{rate(result.goodput, '/s')}, {count(result.good_requests)} requests"
        rows.append(("goodput", good))
    for field, title, _ in GAUGES:
        found = result.gauges.get(field)
        text = DASH
        if found is not None:
            shown = share if field == "kv_use" else (lambda value: f"{value:,.3g}")
            samples = "1 sample" if found.count == 1 else f"{count(found.count)} samples"
            text = f"mean {shown(found.mean)}, at most {shown(found.max)} ({samples})"
        rows.append((title, text))
    return rows


def _hits(value: float | None, tokens: int | None) -> str:
    known = DASH if tokens is None else f"{count(tokens)} tokens"
    return f"{share(value)} ({known})"


def engine_line(result: BenchResult) -> str:
    """Say which engine it was."""
    facts = result.engine
    words = [str(facts.get("kind") or "an engine"), str(facts.get("version") or "")]
    words.append(f"model {facts.get('model')}")
    if facts.get("block_size") is not None:
        words.append(f"blocks of {facts['block_size']} tokens")
    if facts.get("blocks") is not None:
        words.append(f"{count(facts['blocks'])} of them")
    return ", ".join(name(word) for word in words if word)


def load_line(result: BenchResult) -> str:
    """Say what was sent."""
    told, config = result.workload, result.config
    how = "at the workload's times"
    if config.get("max_concurrency") is not None:
        how = f"{config['max_concurrency']} at a time"
    elif config.get("request_rate") == "inf":
        how = "all at once"
    elif config.get("request_rate") is not None:
        how = f"{config['request_rate']:g} a second"
    return (
        f"{name(str(told.get('source', 'requests')))}: {count(result.requests)} requests {how}, "
        f"{short(told.get('prompt_tokens'))} prompt tokens, {short(told.get('output_tokens'))} to "
        "generate"
    )


def print_bench(result: BenchResult, console: Console, title: str = "") -> None:
    """Print what was measured: engine, load, latencies, totals, warnings."""
    print_lines(_lines(result, title), console)


def _lines(result: BenchResult, title: str) -> Iterator[RenderableType]:
    yield Text(visible(title or result.name or result.task), style="bold")
    yield Text(engine_line(result))
    yield Text(load_line(result))
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    for heading in (*PARTS, "p99.9"):
        table.add_column(heading, justify="right", no_wrap=True)
    for label, cells in latency_rows(result):
        table.add_row(label, *cells)
    yield table
    totals = Table(box=None, pad_edge=False, show_header=False)
    for label, text in total_rows(result):
        totals.add_row(label, Text(visible(text)))
    yield totals
    for warning in result.warnings:
        yield Text(f"Warning: {visible(warning)}", style="yellow")


def shares(result: BenchResult, fields: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """Draw distributions: ms over the share of values."""
    colours = (OWN, *OTHERS)
    data = []
    for at, (title, field) in enumerate(fields):
        found: Distribution | None = getattr(result, field)
        if found is None:
            continue
        pen = {"color": colours[at % len(colours)], "width": 2}
        data.append(shares_line(found, title, "ms", pen))
    return shares_figure(data, "ms", "values")


def timeline(outcomes: Sequence[RequestOutcome]) -> dict[str, Any]:
    """Draw each request: when it was sent, had its first token, and ended."""
    step = -(-len(outcomes) // MOST_LINES) or 1
    shown = outcomes[::step]
    waits: dict[str, list[Any]] = {"x": [], "y": []}
    answers: dict[str, list[Any]] = {"x": [], "y": []}
    broken: dict[str, list[Any]] = {"x": [], "y": [], "text": []}
    for one in shown:
        if one.sent_s is not None and one.first_token_s is not None:
            waits["x"] += [digits(one.sent_s), digits(one.first_token_s), None]
            waits["y"] += [one.index, one.index, None]
        if one.first_token_s is not None and one.finished_s is not None:
            answers["x"] += [digits(one.first_token_s), digits(one.finished_s), None]
            answers["y"] += [one.index, one.index, None]
        if one.error is not None:
            moments = (one.finished_s, one.first_token_s, one.sent_s, one.due_s)
            broken["x"].append(digits(next(each for each in moments if each is not None)))
            broken["y"].append(one.index)
            broken["text"].append(one.error)
    width = 3 if len(shown) < 200 else 1
    data: list[dict[str, Any]] = [
        {"name": "to the first token", **waits, "line": {"color": OTHERS[0], "width": width}},
        {"name": "answer", **answers, "line": {"color": OWN, "width": width}},
    ]
    data = [{"type": "scatter", "mode": "lines", "hoverinfo": "x+y", **each} for each in data]
    if broken["x"]:
        marker = {"color": BOUND, "symbol": "x", "size": 7}
        data.append(
            {"type": "scatter", "mode": "markers", "name": "failed", "marker": marker, **broken}
        )
    return {
        "data": data,
        "layout": layout(
            height=420,
            xaxis={"title": {"text": "seconds"}, "rangemode": "tozero", "fixedrange": True},
            yaxis={"title": {"text": "request"}, "autorange": "reversed", "fixedrange": True},
        ),
    }


def gauge(samples: Mapping[str, Sequence[Any]], which: str) -> dict[str, Any]:
    """Draw a gauge over time."""
    title, colour = next((title, colour) for field, title, colour in GAUGES if field == which)
    known = [
        (at, value)
        for at, value in zip(samples["at_s"], samples[which], strict=True)
        if value is not None
    ]
    return {
        "data": [
            {
                "type": "scatter",
                "mode": "lines",
                "name": title,
                "x": [digits(at) for at, _ in known],
                "y": [digits(value) for _, value in known],
                "line": {"color": colour, "width": 1.8, "shape": "hv"},
                "hovertemplate": "%{y:.4g}<br>%{x:.4g} s<extra></extra>",
            }
        ],
        "layout": layout(
            height=200,
            showlegend=False,
            xaxis={"title": {"text": "seconds from the first sample"}, "fixedrange": True},
            yaxis={"title": {"text": title}, "rangemode": "tozero", "fixedrange": True},
        ),
    }


def figures(
    result: BenchResult,
    outcomes: Sequence[RequestOutcome],
    samples: Mapping[str, Sequence[Any]],
) -> dict[str, dict[str, Any]]:
    """Return every figure by the id of its place in the page."""
    found = {}
    if result.ttft_ms is not None:
        found["figure-ttft"] = shares(result, [("TTFT", "ttft_ms"), ("latency", "latency_ms")])
    if result.itl_ms is not None:
        found["figure-itl"] = shares(result, [("ITL", "itl_ms"), ("TPOT", "tpot_ms")])
    if outcomes:
        found["figure-timeline"] = timeline(outcomes)
    for which, _, _ in GAUGES:
        if any(value is not None for value in samples.get(which, [])):
            found[f"figure-{which.replace('_', '-')}"] = gauge(samples, which)
    return found


def render_bench(
    result: BenchResult,
    outcomes: Sequence[RequestOutcome],
    samples: Mapping[str, Sequence[Any]],
) -> str:
    """Return the page. The same result gives the same bytes; names are escaped.

    ``samples``: gauges by name with ``at_s``, seconds from the first; empty where none were taken.
    """
    drawn = figures(result, outcomes, samples)
    return page(
        "bench.html",
        {},
        r=result,
        engine=engine_line(result),
        load=load_line(result),
        parts=(*PARTS, "p99.9"),
        latencies=latency_rows(result),
        totals=total_rows(result),
        drawn_requests=len(outcomes[:: -(-len(outcomes) // MOST_LINES) or 1]),
        gauges=[
            (f"figure-{field.replace('_', '-')}", title)
            for field, title, _ in GAUGES
            if f"figure-{field.replace('_', '-')}" in drawn
        ],
        figures={place: as_script(figure) for place, figure in drawn.items()},
    )
