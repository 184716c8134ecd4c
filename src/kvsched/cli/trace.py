"""`kvsched trace`: look at a trace, convert it, generate one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from kvsched.cli.groups import spread
from kvsched.cli.options import Seed, TraceOptions, open_trace, print_json
from kvsched.foundation.errors import UsageError

if TYPE_CHECKING:
    from kvsched.trace.model import Trace

app = typer.Typer(
    help="Look at a trace, convert it to raw columns, or generate one.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
Output = Annotated[
    str,
    typer.Option(
        "--output", "-o", help="File to write: raw columns, .kvtrace[.gz|.zst], or .parquet."
    ),
]


@app.command("info")
@spread
def info(source: TraceOptions) -> None:
    """Say what a trace holds: requests, blocks, tokens, time, and what reading it decided."""
    opened = open_trace(source)
    from kvsched.trace.summary import summarise

    summary = summarise(opened)
    if source.as_json:
        print_json(summary)
        return
    for name, value in summary.items():
        if value is None or value in ((), {}) or name in ("notes", "settings"):
            continue
        shown = f"{value:,}" if isinstance(value, int) else value
        shown = f"{value:,.3f}" if isinstance(value, float) else shown
        label = {"blocks": "block references"}.get(name, name.replace("_", " "))
        typer.echo(f"{label:22s} {shown}")
    if opened.origin.settings:
        typer.echo("(--format json shows the settings that shaped it)")


@app.command("convert")
@spread
def convert(source: TraceOptions, output: Output) -> None:
    """Write a trace as raw columns, which open at once, or as a Parquet table."""
    _check_name(output)
    opened = open_trace(source)
    _write(opened, output)


@app.command("generate")
def generate(
    preset: Annotated[
        str | None, typer.Argument(metavar="PRESET", help="Name of a preset; none lists them.")
    ] = None,
    output: Annotated[
        str | None,
        typer.Option("--output", "-o", help="File to write: raw columns, .kvtrace[.gz|.zst]."),
    ] = None,
    seed: Seed = 0,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="NAME=VALUE", help="Change a setting, as in requests=50000, rate=8."
        ),
    ] = None,
) -> None:
    """Generate a seeded workload from a preset and write it as raw columns."""
    from kvsched.trace.generate import PRESETS
    from kvsched.trace.generate import generate as make
    from kvsched.trace.generate import preset as find

    if preset is None:
        for name, described in PRESETS.items():
            typer.echo(f"{name}\n    {described}\n")
        return
    if output is None:
        raise UsageError("name the file to write with --output FILE.kvtrace")
    _check_name(output)
    changes = {}
    for change in set_ or []:
        name, equals, value = change.partition("=")
        if not equals:
            raise UsageError(f"--set {change}: write NAME=VALUE")
        changes[name] = _number_or_text(value)
    _write(make(find(preset, **changes), seed), output)


def _number_or_text(text: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _check_name(output: str) -> None:
    if output.endswith(".parquet"):
        from kvsched.trace.parquet import load_polars

        load_polars()
    elif not output.endswith((".kvtrace", ".kvtrace.gz", ".kvtrace.zst")):
        raise UsageError(f"{output}: name it .kvtrace, .kvtrace.gz, .kvtrace.zst or .parquet")


def _write(opened: Trace, output: str) -> None:
    from pathlib import Path

    from kvsched.trace.columns import write_columns

    if output.endswith(".parquet"):
        from kvsched.trace.parquet_out import write_parquet

        for note in write_parquet(opened, Path(output)):
            typer.echo(f"note: {note}", err=True)
    else:
        write_columns(opened, Path(output))
    typer.echo(
        f"{output}: {len(opened):,} requests, {opened.references:,} block references, "
        f"digest {opened.digest[:16]}"
    )
