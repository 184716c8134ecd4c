"""The report's figures as plotly JSON: fixed ids, no colours of a theme, nothing random."""

from __future__ import annotations

import html
import json
import math
from itertools import pairwise
from typing import Any

from kvsched.report.format import gib, name, seconds
from kvsched.serve.distribution import PERCENTILES, Distribution
from kvsched.study.result import AnatomyRow, Curve, Histogram, StudyResult

OWN = "#0072B2"
"""The colour of the policy that the study is about. All are of Okabe and Ito's set, or grey."""
OTHERS = ("#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#8C6D31", "#7F7F7F")
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "x", "cross")
BOUND = "#D55E00"
DASHES = {"opt": "dot", "opt-fit": "dash"}

CLASS_COLOURS = {
    "hit": "#0072B2",
    "regret": "#D55E00",
    "capacity": "#E69F00",
    "compulsory": "#A3AFBC",
    "tail": "#66717E",
}
"""Colour for what a policy or memory could change, grey for what they cannot."""
GiB = 2**30


def text(value: str) -> str:
    """Return a name for plotly, which reads a little HTML and %{…} in what it shows."""
    return html.escape(name(value)).replace("%", "&#37;")


def as_script(figure: dict[str, Any]) -> str:
    """Return a figure as JSON that may stand inside a script element."""
    raw = json.dumps(figure, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return raw.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def layout(**more: Any) -> dict[str, Any]:
    """Return what the layouts of all figures share, with ``more``."""
    return {
        "margin": {"l": 56, "r": 16, "t": 12, "b": 48},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": "system-ui, sans-serif", "size": 13},
        "hovermode": "closest",
        # A finger that scrolls past must not zoom.
        "dragmode": False,
        "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
        **more,
    }


def digits(value: float) -> float:
    """Six significant digits: the smallest capacities must not become 0 on a log axis."""
    return float(f"{value:.6g}")


def shares_line(found: Distribution, label: str, unit: str, pen: dict[str, Any]) -> dict[str, Any]:
    """Draw a distribution as one line: its values over the share of them that is as small."""
    parts = [("min", 0), *((f"p{at}", at) for at in PERCENTILES), ("max", 100)]
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": label,
        "x": [digits(getattr(found, part)) for part, _ in parts],
        "y": [at for _, at in parts],
        "line": pen,
        "marker": {"size": 5},
        "hovertemplate": f"<b>{label}</b> %{{y}}% within %{{x:.4g}} {unit}<extra></extra>",
    }


def shares_figure(lines: list[dict[str, Any]], unit: str, of: str) -> dict[str, Any]:
    """Return the figure of such lines, on a logarithmic axis of ``unit``."""
    return {
        "data": lines,
        "layout": layout(
            height=300,
            xaxis={"type": "log", "title": {"text": unit}, "fixedrange": True},
            yaxis={"title": {"text": f"% of {of}"}, "range": [0, 101], "fixedrange": True},
        ),
    }


def _line(result: StudyResult, policy: str) -> dict[str, Any]:
    """The pen of a policy: its own colour and marker, the optima alike, the study's in front."""
    own = policy == result.policy
    if policy in DASHES:
        return {"color": BOUND, "width": 1.8, "dash": DASHES[policy], "symbol": "circle"}
    plain = [c.policy for c in result.curves if c.policy not in (*DASHES, result.policy)]
    at = 0 if own else plain.index(policy)
    return {
        "color": OWN if own else OTHERS[at % len(OTHERS)],
        "width": 3 if own else 1.6,
        "dash": "solid",
        "symbol": SYMBOLS[at % len(SYMBOLS)],
    }


def _curve(result: StudyResult, curve: Curve, unit: float) -> dict[str, Any]:
    prompt = max(result.trace.prompt_tokens, 1)
    size = result.capacity.bytes_per_block
    pen = _line(result, curve.policy)
    symbol = pen.pop("symbol")
    label = text(curve.policy)
    return {
        "type": "scatter",
        "mode": "lines" if curve.exact_everywhere else "lines+markers",
        "name": label,
        "x": [digits(blocks * unit) for blocks in curve.capacity_blocks],
        "y": [digits(hits / prompt) for hits in curve.hit_tokens],
        "customdata": [
            f"{blocks:,} {result.capacity.unit}"
            + ("" if size is None else f" · {gib(blocks * size / GiB)}")
            for blocks in curve.capacity_blocks
        ],
        "line": pen,
        "marker": {"size": 6, "symbol": symbol},
        "hovertemplate": f"<b>{label}</b> %{{y:.1%}} hit<br>%{{customdata}}<extra></extra>",
    }


def _here(result: StudyResult, unit: float) -> dict[str, Any]:
    """A ring where the study's policy is at the study's capacity."""
    own = next(row for row in result.policies if row.policy == result.policy)
    return {
        "type": "scatter",
        "mode": "markers",
        "name": "here",
        "x": [digits(result.capacity.blocks * unit)],
        "y": [digits(own.token_share or 0.0)],
        "marker": {"size": 12, "color": OWN, "line": {"width": 2, "color": "#ffffff"}},
        "showlegend": False,
        "hoverinfo": "skip",
    }


def _range(result: StudyResult) -> tuple[float, float]:
    """The capacities worth drawing, in blocks: from where anything hits to the last."""
    least = result.ceiling.hit_tokens / 100
    points = [
        (blocks, hits)
        for curve in result.curves
        for blocks, hits in zip(curve.capacity_blocks, curve.hit_tokens, strict=True)
    ]
    high = max(blocks for blocks, _ in points)
    low = min((blocks for blocks, hits in points if hits >= least), default=1)
    low, high = min(low, result.capacity.blocks), max(high, result.capacity.blocks)
    return low / 1.4, high * 1.2


def _marks(here: float, ceiling: float, low: float, high: float) -> dict[str, Any]:
    """The lines of the ceiling and of the user's capacity, with their names.

    Nothing is hit above the ceiling, so that both names find room there, at opposite sides.
    """
    line = {"width": 1.2, "color": "#888888"}
    right = math.log(here / low) > math.log(high / low) / 2
    near, far = ("right", "left") if right else ("left", "right")
    plain = {"showarrow": False, "font": {"size": 12}}
    return {
        "shapes": [
            {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": ceiling, "y1": ceiling}
            | {"line": {**line, "dash": "dash"}, "layer": "below"},
            {"type": "line", "yref": "paper", "y0": 0, "y1": 1, "x0": here, "x1": here}
            | {"line": {**line, "dash": "dot"}, "layer": "below"},
        ],
        "annotations": [
            {"xref": "paper", "x": 0 if right else 1, "xanchor": far, "y": digits(ceiling)}
            | {"yanchor": "bottom", "text": f"ceiling {ceiling:.1%}", **plain},
            # On a logarithmic axis an annotation's place is the exponent.
            {"x": digits(math.log10(here)), "xanchor": near, "xshift": -4 if right else 4}
            | {"yref": "paper", "y": 1, "yanchor": "top", "text": "your capacity", **plain},
        ],
    }


def curves(result: StudyResult, in_gib: bool = False) -> dict[str, Any]:
    """Hit share over capacity: every policy, the optima, the ceiling, the user's capacity."""
    unit = (result.capacity.bytes_per_block or 0) / GiB if in_gib else 1.0
    ceiling = result.ceiling.token_share or 0.0
    low, high = (blocks * unit for blocks in _range(result))
    # Last is in front: the study's policy.
    order = sorted(result.curves, key=lambda curve: curve.policy == result.policy)
    traces = [_curve(result, curve, unit) for curve in order]
    for trace, rank in zip(traces, (*range(2, len(traces) + 1), 1), strict=True):
        trace["legendrank"] = rank
    return {
        "data": [*traces, _here(result, unit)],
        "layout": layout(
            height=440,
            xaxis={
                "type": "log",
                "title": {"text": f"capacity, {'GiB' if in_gib else result.capacity.unit}"},
                "exponentformat": "SI",
                "range": [digits(math.log10(low)), digits(math.log10(high))],
                "fixedrange": True,
            },
            yaxis={
                "title": {"text": "share of prompt tokens hit"},
                "tickformat": ".0%",
                "range": [0, digits(max(ceiling, 0.01) * 1.12)],
                "fixedrange": True,
            },
            **_marks(result.capacity.blocks * unit, ceiling, low, high),
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
                "texttemplate": "%{x:.0%}" if len(rows) == 1 else "",
                "textposition": "inside",
                "insidetextanchor": "middle",
                "textangle": 0,
                "hovertemplate": f"%{{hovertext}}<br>{label}: %{{x:.1%}}"
                "<br>%{customdata}<extra></extra>",
            }
        )
    return {
        "data": traces,
        "layout": layout(
            barmode="stack",
            height=64 + 30 * len(rows),
            showlegend=False,
            margin={"l": 8, "r": 20, "t": 4, "b": 32},
            xaxis={"tickformat": ".0%", "range": [0, 1], "fixedrange": True},
            yaxis={
                "autorange": "reversed",
                "tickvals": list(range(len(rows))),
                "ticktext": labels,
                "automargin": True,
                "fixedrange": True,
            },
            bargap=0.25,
            uniformtext={"minsize": 10, "mode": "hide"},
        ),
    }


def bins(histogram: Histogram) -> list[str]:
    """Name the intervals of a histogram of seconds."""
    return [f"{seconds(low)}–{seconds(high)}" for low, high in pairwise(histogram.edges)]


def reuse(result: StudyResult) -> dict[str, Any]:
    """Reused block references by time since their last use."""
    histogram = result.reuse.blocks
    total = max(sum(histogram.counts), 1)
    labels = bins(histogram)
    return {
        "data": [
            {
                "type": "bar",
                "name": "reused blocks",
                "x": list(range(len(labels))),
                "y": [round(count / total, 6) for count in histogram.counts],
                "hovertext": labels,
                "customdata": [f"{count:,}" for count in histogram.counts],
                "marker": {"color": OWN},
                "hovertemplate": "%{hovertext} since the last use<br>%{y:.1%}: %{customdata} "
                "references<extra></extra>",
            }
        ],
        "layout": layout(
            height=300,
            showlegend=False,
            bargap=0.08,
            xaxis={
                "tickvals": list(range(len(labels))),
                "ticktext": labels,
                "tickangle": -40,
                "automargin": True,
                "fixedrange": True,
            },
            yaxis={
                "tickformat": ".0%",
                "title": {"text": "of reused references"},
                "fixedrange": True,
            },
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
