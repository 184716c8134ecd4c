"""The report's figures as plotly JSON: fixed ids, no colours of a theme, nothing random."""

from __future__ import annotations

import html
import json
import math
from typing import Any

from kvsched.report.format import name, seconds
from kvsched.study.result import AnatomyRow, StudyResult

PALETTE = ("#0072B2", "#E69F00", "#56B4E9", "#CC79A7", "#8C6D31", "#7F7F7F", "#009E73", "#D55E00")
"""Okabe and Ito's colours, told apart by colour-blind readers too."""

CLASS_COLOURS = {
    "hit": "#009E73",
    "regret": "#D55E00",
    "capacity": "#E69F00",
    "compulsory": "#56B4E9",
    "tail": "#999999",
}
DASHES = {"opt": "dot", "opt-fit": "dash"}
GiB = 2**30


def text(value: str) -> str:
    """Return a name for plotly, which reads a little HTML and %{…} in what it shows."""
    return html.escape(name(value)).replace("%", "&#37;")


def as_script(figure: dict[str, Any]) -> str:
    """Return a figure as JSON that may stand inside a script element."""
    raw = json.dumps(figure, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return raw.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _layout(**more: Any) -> dict[str, Any]:
    return {
        "margin": {"l": 56, "r": 16, "t": 16, "b": 48},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": "system-ui, sans-serif", "size": 13},
        "hovermode": "closest",
        "legend": {
            "orientation": "h",
            "y": 1.02,
            "yanchor": "bottom",
            "x": 0,
            "traceorder": "normal",
        },
        **more,
    }


def _interesting(result: StudyResult) -> tuple[float, float]:
    """Return the capacities between which something happens, the user's own among them."""
    lru = result.curves[0]
    start = 0.01 * result.ceiling.hit_tokens
    reached = zip(lru.capacity_blocks, lru.hit_tokens, strict=True)
    low = next((blocks for blocks, hits in reached if hits > start), 1)
    grid = [curve.capacity_blocks[0] for curve in result.curves if not curve.exact_everywhere]
    low = min([low, result.capacity.blocks, *grid])
    high = max(lru.capacity_blocks[-1], result.capacity.blocks)
    return low / 1.3, high * 1.1


def curves(result: StudyResult, in_gib: bool = False) -> dict[str, Any]:
    """Hit share over capacity: every policy, the optima, the ceiling, the user's capacity."""
    prompt = max(result.trace.prompt_tokens, 1)
    size = result.capacity.bytes_per_block
    unit = (size or 0) / GiB if in_gib else 1
    word = "GiB" if in_gib else "blocks"
    traces: list[dict[str, Any]] = []
    for at, curve in enumerate(result.curves):
        label = text(curve.policy)
        traces.append(
            {
                "type": "scatter",
                "mode": "lines" if curve.exact_everywhere else "lines+markers",
                "name": label,
                "x": [round(blocks * unit, 6) for blocks in curve.capacity_blocks],
                "y": [round(hits / prompt, 6) for hits in curve.hit_tokens],
                "line": {
                    "color": PALETTE[at % len(PALETTE)],
                    "width": 3 if curve.policy == result.policy else 1.8,
                    "dash": DASHES.get(curve.policy, "solid"),
                },
                "marker": {"size": 5},
                "hovertemplate": f"{label}<br>%{{x:,.4~g}} {word}<br>%{{y:.1%}} hit<extra></extra>",
            }
        )
    least, most = (edge * unit for edge in _interesting(result))
    ceiling = result.ceiling.token_share or 0.0
    here = result.capacity.blocks * unit
    line = {"width": 1.5, "color": "#888888"}
    shapes = [
        {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": ceiling, "y1": ceiling}
        | {"line": {**line, "dash": "dash"}},
        {"type": "line", "yref": "paper", "y0": 0, "y1": 1, "x0": here, "x1": here}
        | {"line": {**line, "dash": "dot"}},
    ]
    marks = [
        {"xref": "paper", "x": 0, "y": ceiling, "text": f"ceiling {ceiling:.1%}"}
        | {"xanchor": "left", "yanchor": "bottom", "showarrow": False},
        # On a logarithmic axis an annotation's place is the exponent.
        {"x": round(math.log10(here), 6), "yref": "paper", "y": 0.02, "text": "your capacity"}
        | {"xanchor": "left", "yanchor": "bottom", "showarrow": False},
    ]
    return {
        "data": traces,
        "layout": _layout(
            height=440,
            xaxis={
                "type": "log",
                "title": {"text": f"capacity, {word}"},
                "exponentformat": "SI",
                "range": [round(math.log10(least), 6), round(math.log10(most), 6)],
            },
            yaxis={
                "title": {"text": "share of prompt tokens hit"},
                "tickformat": ".0%",
                "rangemode": "tozero",
                "range": [0, round(max(ceiling, 0.01) * 1.12, 6)],
            },
            shapes=shapes,
            annotations=marks,
        ),
    }


def anatomy(rows: tuple[AnatomyRow, ...]) -> dict[str, Any]:
    """Stacked shares of the five classes, a bar a row, in the rows' order from the top."""
    labels = [text(row.label) for row in rows]
    traces = []
    for label, colour in CLASS_COLOURS.items():
        amounts = [getattr(row, label) for row in rows]
        traces.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": label,
                "y": list(range(len(rows))),
                "x": [
                    round(amount / row.tokens, 6) if row.tokens else 0
                    for amount, row in zip(amounts, rows, strict=True)
                ],
                "customdata": [f"{amount:,} tokens" for amount in amounts],
                "hovertext": labels,
                "marker": {"color": colour},
                "hovertemplate": f"%{{hovertext}}<br>{label}: %{{x:.1%}}"
                "<br>%{customdata}<extra></extra>",
            }
        )
    return {
        "data": traces,
        "layout": _layout(
            barmode="stack",
            height=110 + 30 * len(rows),
            xaxis={"tickformat": ".0%", "range": [0, 1], "fixedrange": True},
            yaxis={
                "autorange": "reversed",
                "tickvals": list(range(len(rows))),
                "ticktext": labels,
                "automargin": True,
                "fixedrange": True,
            },
            bargap=0.25,
        ),
    }


def reuse(result: StudyResult) -> dict[str, Any]:
    """Reused block references by time since their last use."""
    histogram = result.reuse.blocks
    total = max(sum(histogram.counts), 1)
    labels = [
        f"{seconds(low)}–{seconds(high)}"
        for low, high in zip(histogram.edges, histogram.edges[1:], strict=False)
    ]
    return {
        "data": [
            {
                "type": "bar",
                "name": "reused blocks",
                "x": labels,
                "y": [round(count / total, 6) for count in histogram.counts],
                "customdata": [f"{count:,}" for count in histogram.counts],
                "marker": {"color": PALETTE[0]},
                "hovertemplate": "%{x} since the last use<br>%{y:.1%}: %{customdata} "
                "references<extra></extra>",
            }
        ],
        "layout": _layout(
            height=300,
            showlegend=False,
            bargap=0.08,
            xaxis={"type": "category", "tickangle": -40, "automargin": True, "fixedrange": True},
            yaxis={"tickformat": ".0%", "title": {"text": "of reused references"}},
        ),
    }


def figures(result: StudyResult) -> dict[str, dict[str, Any]]:
    """Return every figure by the id of its place in the page."""
    found = {"figure-curves": curves(result)}
    if result.capacity.bytes_per_block:
        found["figure-curves-gib"] = curves(result, in_gib=True)
    found["figure-anatomy"] = anatomy((result.anatomy.overall,))
    for group, rows in result.anatomy.by.items():
        found[f"figure-anatomy-{group}"] = anatomy(rows)
    if any(result.reuse.blocks.counts):
        found["figure-reuse"] = reuse(result)
    return found
