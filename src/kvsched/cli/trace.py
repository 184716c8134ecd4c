"""`kvsched trace`: look at a trace, convert it, cut it, merge it, generate one."""

from __future__ import annotations

from typing import Annotated

import typer

from kvsched.cli import trace_edit, trace_stats
from kvsched.cli.groups import spread
from kvsched.cli.opening import keep_apart, open_trace
from kvsched.cli.options import Seed, TraceOptions, print_json
from kvsched.cli.trace_output import Output, Uncovered, find_writer, write
from kvsched.foundation.errors import UsageError

app = typer.Typer(
    help="Look at a trace, convert it, cut it, merge it with others, or generate one.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


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
def convert(source: TraceOptions, output: Output, uncovered: Uncovered = None) -> None:
    """Write a trace as raw columns, which open at once, or in a format of other tools."""
    writer = find_writer(output, uncovered)
    keep_apart(source.trace, output)
    write(open_trace(source), output, writer, source.as_json)


app.command("anonymize")(trace_edit.anonymize)
app.command("slice")(trace_edit.slice_)
app.command("merge")(trace_edit.merge)
app.command("stats")(trace_stats.stats)


@app.command("generate")
def generate(
    preset: Annotated[
        str | None, typer.Argument(metavar="PRESET", help="Name of a preset; none lists them.")
    ] = None,
    output: Annotated[
        str | None,
        typer.Option("--output", "-o", help="File to write, as `convert` does."),
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
    writer = find_writer(output)
    changes = {}
    for change in set_ or []:
        name, equals, value = change.partition("=")
        if not equals:
            raise UsageError(f"--set {change}: write NAME=VALUE")
        changes[name] = _number_or_text(value)
    write(make(find(preset, **changes), seed), output, writer)


def _number_or_text(text: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
