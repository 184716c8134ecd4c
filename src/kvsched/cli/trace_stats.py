"""`kvsched trace stats`: the figures of a trace, or of two side by side."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from kvsched.cli.groups import spread
from kvsched.cli.opening import open_trace
from kvsched.cli.options import TraceOptions, print_json

_SPREADS = {
    "input_tokens": "input tokens",
    "output_tokens": "output tokens",
    "chain_blocks": "blocks",
    "gap_s": "gap, s",
}
_COLUMNS = ("mean", "sd", "min", "p10", "p50", "p90", "p99", "max")


@spread
def stats(
    source: TraceOptions,
    compare: Annotated[
        str | None,
        typer.Option("--compare", metavar="TRACE", help="Another trace, to put beside it."),
    ] = None,
    window: Annotated[
        float | None,
        typer.Option(
            "--window", metavar="S", help="Width of the windows that rates are counted in."
        ),
    ] = None,
) -> None:
    """Say what a workload is like: lengths, arrivals, reuse, sharing, sessions."""
    opened = open_trace(source)
    if compare is None:
        from kvsched.trace.stats import trace_stats

        found = trace_stats(opened, window)
        if source.as_json:
            print_json(found)
        else:
            _show(found)
        return
    from kvsched.trace.compare import compare_traces

    both = compare_traces(opened, open_trace(dataclasses.replace(source, trace=compare)), window)
    if source.as_json:
        print_json(both)
    else:
        _show_both(both)


_SHOWN = (
    "mean",
    "p50",
    "p99",
    "max",
    "mean_per_s",
    "peak_over_mean",
    "burstiness",
    "block_share",
    "token_share",
)
"""Figures of a part that a terminal shows of two traces."""


def _number(value: float | int | None) -> str:
    if value is None:
        return "-"
    if isinstance(value, int) or value >= 1e6 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:,.4g}" if value < 1000 else f"{value:,.1f}"


def _share(value: float | None) -> str:
    if value is None:
        return "-"
    # What rounds to all is not all.
    return "> 99.9%" if 0.9995 <= value < 1 else f"{value:.1%}"


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    """Print columns as wide as their widest entry; the first to the left, others to the right."""
    widths = [max(len(row[at]) for row in (head, *rows)) for at in range(len(head))]
    for row in (head, *rows):
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        typer.echo("  ".join(cells).rstrip())
    typer.echo()


def _spread_row(label: str, values: dict[str, Any]) -> tuple[str, ...]:
    return (label, *(_number(values[column]) for column in _COLUMNS))


def _show(found: dict[str, Any]) -> None:
    typer.echo(
        f"{found['source']}: {found['requests']:,} requests in {_number(found['duration_s'])} s, "
        f"{found['blocks']:,} block references, {found['distinct_blocks']:,} distinct\n"
    )
    rows = [_spread_row(label, found[name]) for name, label in _SPREADS.items()]
    arrivals, sessions = found["arrivals"], found["sessions"]
    rows.append(_spread_row(f"requests/s, {arrivals['window_s']:g} s windows", arrivals["rate"]))
    if sessions is not None:
        rows.append(_spread_row("requests a session", sessions["requests_per_session"]))
        rows.append(_spread_row("gap in a session, s", sessions["session_gap_s"]))
    _table(("", *_COLUMNS), rows)
    _show_arrivals(arrivals)
    _show_reuse(found)
    for name in ("tenants", "types", "models"):
        if found[name] is not None:
            largest = ", ".join(
                f"{row['name']} {row['requests']:,}" for row in found[name]["largest"]
            )
            typer.echo(f"{name}: {found[name]['names']:,} ({largest})")


def _show_arrivals(arrivals: dict[str, Any]) -> None:
    typer.echo(
        f"arrivals: {_number(arrivals['mean_per_s'])} a second, peak "
        f"{_number(arrivals['peak_over_mean'])} times the mean, {arrivals['distinct_times']:,} "
        f"distinct times; burstiness {_number(arrivals['burstiness'])} (0: Poisson)"
    )
    if arrivals["dispersion"]:
        values = ", ".join(
            f"{_number(row['index'])} in {row['name']}" for row in arrivals["dispersion"]
        )
        typer.echo(f"variance over mean of the requests in a window (1: Poisson): {values}")
    typer.echo()


def _show_reuse(found: dict[str, Any]) -> None:
    reuse = found["reuse"]
    typer.echo(
        f"reuse: {_share(reuse['block_share'])} of the block references, "
        f"{_share(reuse['token_share'])} of the prompt tokens were seen before; "
        f"requests of which nothing was: {reuse['requests_without']:,}, "
        f"all blocks: {reuse['requests_wholly']:,}\n"
    )
    depth = [
        (row["name"], f"{row['references']:,}", f"{row['seen']:,}", _share(row["share"]))
        for row in reuse["by_depth"]
    ]
    if depth:
        _table(("in the chain", "references", "seen before", "share"), depth)
    shared = [
        (
            row["name"],
            f"{row['requests']:,}",
            f"{row['prefixes']:,}",
            _share(row["shared_share"]),
            _share(row["commonest_share"]),
        )
        for row in found["sharing"]
    ]
    if shared:
        _table(("prefix", "requests", "different", "shared", "commonest"), shared)


def _show_both(both: dict[str, Any]) -> None:
    a, b = both["a"], both["b"]
    typer.echo(f"a: {a['source']}\nb: {b['source']}\n")
    for name, found in both["distributions"].items():
        typer.echo(f"{_SPREADS[name]}: {'-' if found is None else found['reading']}")
    typer.echo()
    rows = [
        (
            row["figure"],
            *(_number(row[name]) for name in ("a", "b")),
            _signed(row["difference"]),
            _number(row["ratio"]),
        )
        for row in both["figures"]
        if "." not in row["figure"]
        or ("[" not in row["figure"] and row["figure"].rpartition(".")[2] in _SHOWN)
    ]
    _table(("", "a", "b", "b - a", "b / a"), rows)
    typer.echo("(--format json has every figure, with its definition)")


def _signed(value: float | int | None) -> str:
    if value is None:
        return "-"
    return f"-{_number(-value)}" if value < 0 else f"+{_number(value)}" if value else "0"
