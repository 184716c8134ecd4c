"""`kvsched simulate` with `--sweep` or `--find-rate`: many runs, kept as they end."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from kvsched.cli.opening import keep_apart
from kvsched.cli.options import TraceOptions, print_json
from kvsched.cli.simulate_options import COMPILING_TAKES, OutputOptions, SearchOptions
from kvsched.foundation.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvsched.serve.find_rate import RateResult
    from kvsched.serve.points import Records
    from kvsched.serve.served import Asking
    from kvsched.serve.sweep import SweepResult
    from kvsched.trace.model import Trace

RECORDS = "points.jsonl"


def check(search: SearchOptions, output: OutputOptions, asking: Asking) -> None:
    """Refuse what can be refused before the trace is read."""
    from kvsched.serve.sweep import parse_sweep

    if search.sweep and search.find_rate:
        raise UsageError("give --sweep or --find-rate, not both")
    if output.step_log:
        raise UsageError("--step-log goes with one run, not with --sweep or --find-rate")
    if search.sweep:
        parse_sweep(search.sweep)
    elif asking.objective is None or not asking.objective.asked:
        raise UsageError("--find-rate needs an objective: --slo-ttft-ms, --slo-tpot-ms or both")


def names(search: SearchOptions, output: OutputOptions) -> list[str]:
    """Return the files that are written. Raises UsageError for an unknown export."""
    from kvsched.serve.files import file_names

    file_names(output.exports, step_log=False)
    kind = "sweep" if search.sweep else "rate"
    return [f"{kind}.json", f"{kind}.html", *(f"{kind}.{form}" for form in output.exports)]


def run(
    source: TraceOptions,
    asking: Asking,
    search: SearchOptions,
    output: OutputOptions,
    opened: Callable[[], Trace],
) -> None:
    """Run them all; what has ended is kept in the folder, and the same command goes on there."""
    from kvsched.serve.files import prepare_folder
    from kvsched.serve.points import Records

    check(search, output, asking)
    folder = None if output.output_dir is None else Path(output.output_dir)
    records = None
    if folder is None:
        if output.export != "jsonl":
            raise UsageError("--export needs --output-dir: there is no folder")
    else:
        written = [*names(search, output), RECORDS]
        for read in (source.trace, asking.step_time, asking.model):
            if isinstance(read, str):
                keep_apart(read, *(str(folder / name) for name in written))
    trace = opened()
    fresh = folder is not None and not folder.exists()
    if folder is not None:
        prepare_folder(folder, written)
        records = Records(folder / RECORDS)
        for note in records.notes:
            typer.echo(f"note: {note}", err=True)
    try:
        _run(trace, source, asking, search, output, folder, records)
    except KeyboardInterrupt:
        if records is None:
            raise
        typer.echo("kvsched: interrupted; the same command goes on from here", err=True)
        sys.exit(1)
    finally:
        if folder is not None and fresh and not any(folder.iterdir()):
            folder.rmdir()


def _run(
    trace: Trace,
    source: TraceOptions,
    asking: Asking,
    search: SearchOptions,
    output: OutputOptions,
    folder: Path | None,
    records: Records | None,
) -> None:
    from kvsched.cli.progress import steps
    from kvsched.serve.find_rate import RateResult, find_rate
    from kvsched.serve.sweep import parse_sweep, sweep

    result: SweepResult | RateResult
    with steps(COMPILING_TAKES) as told:
        if search.sweep:
            swept = parse_sweep(search.sweep)
            result = sweep(trace, asking, swept, records=records, report=told)
        else:
            result = find_rate(trace, asking, share=search.slo_share, records=records, report=told)
        if folder is not None:
            told("report", 0, 1)
            _write(result, folder, output)
    if records is not None and records.reused:
        count = len(result.tried if isinstance(result, RateResult) else result.points)
        typer.echo(f"note: {records.reused} of {count} points were there already", err=True)
    _show(result, source, folder)


def _write(result: SweepResult | RateResult, folder: Path, output: OutputOptions) -> None:
    from kvsched.report.sweep import render_rate, render_sweep
    from kvsched.serve.files import write_points
    from kvsched.serve.find_rate import RateResult
    from kvsched.serve.sweep import point_table

    if isinstance(result, RateResult):
        table = point_table([tried.point for tried in result.tried])
        table["holds"] = [tried.holds for tried in result.tried]
        write_points(result, table, folder, "rate", render_rate(result), output.exports)
    else:
        table = point_table(result.points)
        write_points(result, table, folder, "sweep", render_sweep(result), output.exports)


def _show(result: SweepResult | RateResult, source: TraceOptions, folder: Path | None) -> None:
    if source.as_json:
        print_json(result)
        return
    from rich.console import Console

    from kvsched.report.sweep import print_rate, print_sweep
    from kvsched.serve.find_rate import RateResult

    console = Console(highlight=False)
    if isinstance(result, RateResult):
        print_rate(result, console)
    else:
        print_sweep(result, console)
    kind = "rate" if isinstance(result, RateResult) else "sweep"
    if folder is not None:
        typer.echo(f"Report: {folder / f'{kind}.html'}    Numbers: {folder / f'{kind}.json'}")
