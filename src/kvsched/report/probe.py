"""A block probe to look at: terminal tables, and one page."""

from __future__ import annotations

import statistics
from typing import Any

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from kvsched.evidence.probe.report import Accounts, ProbeReport
from kvsched.report.console import print_lines
from kvsched.report.figures import BOUND, OTHERS, OWN, as_script, digits, layout
from kvsched.report.format import DASH, count, name, visible
from kvsched.report.html import page

ACCOUNT_ROWS = (
    ("requested", "requested_bytes"),
    ("allocated", "allocated_bytes"),
    ("reserved", "reserved_bytes"),
    ("driver", "driver_bytes"),
    ("peak of allocated", "peak_allocated_bytes"),
    ("peak of reserved", "peak_reserved_bytes"),
    ("driver's peak", "peak_driver_bytes"),
)
Cells = list[str]


def size(value: int | float | None) -> str:
    """Return bytes in the binary unit that reads best, signed."""
    if value is None:
        return DASH
    for unit, letter in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if abs(value) >= unit:
            return f"{value / unit:,.2f} {letter}".replace("-", "−")
    return f"{value:,.0f} B".replace("-", "−")


def ms(value: float | None) -> str:
    """Return milliseconds with three digits."""
    return DASH if value is None else f"{digits3(value)} ms"


def digits3(value: float) -> str:
    """Return a number with three digits or more, without an exponent."""
    size = abs(value)
    shown = f"{value:,.0f}" if size >= 100 else f"{value:.3g}"
    if 0 < size < 1e-3:
        shown = f"{value:.6f}"
    return shown.replace("-", "−")


def _middle(report: ProbeReport, field: str) -> float | None:
    known = [value for run in report.runs if (value := getattr(run, field)) is not None]
    return float(statistics.median(known)) if known else None


def account_rows(report: ProbeReport) -> list[Cells]:
    """What, bytes in all, a block, over the theory; medians of the repeats."""
    blocks = report.config["block_count"]
    theory = report.config["total_bytes_theoretical"]
    rows = [["theory", size(theory), count(theory // blocks), DASH]]
    for title, field in ACCOUNT_ROWS:
        known = [v for run in report.runs if (v := getattr(run.accounts, field)) is not None]
        value = statistics.median(known) if known else None
        each = None if value is None else round(value / blocks)
        over = None if value is None else value / theory - 1
        rows.append([title, size(value), count(each), _signed(over)])
    return rows


def _signed(value: float | None) -> str:
    return DASH if value is None else f"{value:+.2%}".replace("-", "−")


def time_rows(report: ProbeReport) -> list[Cells]:
    """Times of allocation: median of the repeats, for all blocks and for one."""
    blocks = report.config["block_count"]
    rows = []
    for title, field in (
        ("allocation, empty cache", "allocation_ms"),
        ("of it, touching pages", "touch_ms"),
        ("allocation, warm cache", "warm_allocation_ms"),
        ("driver's own", "driver_ms"),
    ):
        value = _middle(report, field)
        each = DASH if value is None else f"{digits3(1e3 * value / blocks)} µs"
        rows.append([title, ms(value), each])
    if report.pooled is not None:
        rows.append(["one pooled tensor", ms(report.pooled.allocation_ms), DASH])
    return rows


def fragmentation_rows(report: ProbeReport) -> list[Cells]:
    """Pattern, larger block, how many fitted of how many, bytes of no use."""
    return [
        [
            each.pattern,
            f"{each.factor}×",
            f"{count(each.fits)} of {each.ideal:,}",
            size(each.stranded_bytes),
            size(each.returned_bytes),
        ]
        for each in report.fragmentation
    ]


def copy_rows(report: ProbeReport) -> list[Cells]:
    """Direction, memory, size, rate."""
    return [
        [copy.direction, copy.memory, size(copy.bytes), ms(copy.median_ms), digits3(copy.gb_s)]
        for copy in report.bandwidth
    ]


def varied_rows(report: ProbeReport) -> list[Cells]:
    """Setting, theory, what was allocated and held, times."""
    return [
        [
            f"{row.key}={row.value}",
            size(row.total_bytes_theoretical),
            size(row.accounts.allocated_bytes),
            _over(row.accounts, row.total_bytes_theoretical),
            ms(row.allocation_ms),
            ms(row.warm_allocation_ms),
        ]
        for row in report.varied
    ]


def _over(accounts: Accounts, theory: int) -> str:
    held = accounts.held_bytes
    return DASH if held is None else _signed(held / theory - 1)


def tables(report: ProbeReport) -> list[tuple[str, Cells, list[Cells]]]:
    """Every table: its title, headings and rows; those without rows left out."""
    found = [
        (
            "Memory above what was there",
            ["", "in all", "bytes a block", "over theory"],
            account_rows(report),
        ),
        ("Time", ["", "all blocks", "a block"], time_rows(report)),
        (
            "Half freed, larger blocks asked for",
            ["freed", "larger by", "fitted", "stranded", "gone back"],
            fragmentation_rows(report),
        ),
        ("Copies", ["direction", "host memory", "size", "time", "GB/s"], copy_rows(report)),
        (
            "One variable at a time",
            ["setting", "theory", "allocated", "held over theory", "allocation", "warm"],
            varied_rows(report),
        ),
    ]
    return [each for each in found if each[2]]


def sentences(report: ProbeReport) -> list[str]:
    """What was probed, how strong the evidence is, what fits, pooled against many."""
    config = report.config
    shape = " + ".join(
        " × ".join(str(each) for each in part)
        for part in (
            config["block_shape"]
            if config["block_shape"] and isinstance(config["block_shape"][0], list)
            else [config["block_shape"]]
        )
    )
    found = [
        f"{config['block_count']:,} blocks of {shape} {config['dtype']} "
        f"({config['bytes_per_block_theoretical']:,} bytes by {config['theory']}), "
        f"{config['repeats']} repeat{'s' if config['repeats'] != 1 else ''} on "
        f"{report.runtime['device']}",
        f"Evidence: {report.evidence_level}. {report.evidence}",
    ]
    if report.fit is not None:
        fit = report.fit
        found.append(
            f"Largest number of blocks within the share of {size(fit.share_bytes)}: "
            f"{fit.largest_blocks:,}, limited by the {fit.limited_by}"
        )
    if report.pooled is not None and report.pooled.saved_bytes is not None:
        found.append(
            f"As one pooled tensor the same blocks hold {size(report.pooled.saved_bytes)} less"
        )
    return found


def print_probe(report: ProbeReport, console: Console) -> None:
    """Print what was probed, the tables, what is missing and the decision."""
    first, *rest = sentences(report)
    lines: list[RenderableType] = [Text(visible(first), style="bold")]
    lines += [Text(visible(said)) for said in rest]
    for title, headings, rows in tables(report):
        lines += ["", _table(title, headings, rows)]
    lines.append("")
    lines += [Text(visible(said), style="dim") for said in report.notes]
    lines += [
        Text(f"{key}: not measured ({visible(why)})", style="dim")
        for key, why in report.missing.items()
    ]
    decision = report.decision
    lines.append(Text(f"{decision.decision}: {visible(decision.reason)}", style="bold"))
    print_lines(lines, console)


def _table(title: str, headings: Cells, rows: list[Cells]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    for at, heading in enumerate(headings):
        table.add_column(heading, justify="right" if at else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    return table


def memory_figure(report: ProbeReport) -> dict[str, Any]:
    """Bars of bytes a block by account, the theory as a line."""
    blocks = report.config["block_count"]
    bars = []
    for title, field in ACCOUNT_ROWS:
        known = [v for run in report.runs if (v := getattr(run.accounts, field)) is not None]
        if known:
            bars.append((title, statistics.median(known) / blocks))
    if report.pooled is not None and report.pooled.accounts.held_bytes is not None:
        bars.append(("one pooled tensor", report.pooled.accounts.held_bytes / blocks))
    theory = report.config["bytes_per_block_theoretical"]
    return {
        "data": [
            {
                "type": "bar",
                "x": [title for title, _ in bars],
                "y": [digits(value) for _, value in bars],
                "marker": {"color": OWN},
                "hovertemplate": "%{x}<br>%{y:,.0f} bytes a block<extra></extra>",
            }
        ],
        "layout": layout(
            height=320,
            showlegend=False,
            xaxis={"fixedrange": True},
            yaxis={"title": {"text": "bytes a block"}, "rangemode": "tozero", "fixedrange": True},
            shapes=[
                {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": theory, "y1": theory}
                | {"line": {"color": BOUND, "width": 2, "dash": "dash"}}
            ],
            annotations=[
                {"xref": "paper", "x": 1, "xanchor": "right", "y": theory, "yanchor": "bottom"}
                | {"text": "theory", "showarrow": False}
            ],
        ),
    }


def fragmentation_figure(report: ProbeReport) -> dict[str, Any]:
    """Share of the larger blocks that fitted into what was freed, by pattern."""
    factors = sorted({each.factor for each in report.fragmentation})
    data = []
    for factor, colour in zip(factors, (OWN, *OTHERS), strict=False):
        rows = [r for r in report.fragmentation if r.factor == factor and r.ideal]
        data.append(
            {
                "type": "bar",
                "name": f"blocks {factor}× as large",
                "x": [row.pattern for row in rows],
                "y": [None if row.fits is None else digits(row.fits / row.ideal) for row in rows],
                "marker": {"color": colour},
                "hovertemplate": "%{x}<br>%{y:.0%} fitted<extra></extra>",
            }
        )
    return {
        "data": data,
        "layout": layout(
            height=300,
            barmode="group",
            xaxis={"fixedrange": True},
            yaxis={
                "title": {"text": "larger blocks that fitted"},
                "tickformat": ".0%",
                "range": [0, 1.05],
                "fixedrange": True,
            },
        ),
    }


def bandwidth_figure(report: ProbeReport) -> dict[str, Any]:
    """Rate over size, a line a direction and kind of host memory."""
    kinds = list(dict.fromkeys((copy.direction, copy.memory) for copy in report.bandwidth))
    data = []
    for (direction, memory), colour in zip(kinds, (OWN, BOUND, *OTHERS), strict=False):
        rows = [c for c in report.bandwidth if (c.direction, c.memory) == (direction, memory)]
        data.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "name": f"{direction}, {memory}",
                "x": [digits(row.bytes / (1 << 20)) for row in rows],
                "y": [digits(row.gb_s) for row in rows],
                "line": {"color": colour, "width": 2},
                "hovertemplate": "%{x:.4g} MiB<br>%{y:.3g} GB/s<extra></extra>",
            }
        )
    return {
        "data": data,
        "layout": layout(
            height=320,
            xaxis={"type": "log", "title": {"text": "MiB"}, "fixedrange": True},
            yaxis={"title": {"text": "GB/s"}, "rangemode": "tozero", "fixedrange": True},
        ),
    }


def render_probe(report: ProbeReport) -> str:
    """Return the page. The same report gives the same bytes; names are escaped."""
    drawn = {"figure-memory": memory_figure(report)}
    if any(each.fits is not None for each in report.fragmentation):
        drawn["figure-fragmentation"] = fragmentation_figure(report)
    if report.bandwidth:
        drawn["figure-bandwidth"] = bandwidth_figure(report)
    return page(
        "probe.html",
        {},
        r=report,
        device=name(str(report.runtime["device"])),
        lines=sentences(report),
        tables=tables(report),
        config={key: str(value) for key, value in report.config.items()},
        figures={place: as_script(figure) for place, figure in drawn.items()},
    )
