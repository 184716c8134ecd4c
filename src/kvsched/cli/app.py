"""The application: its commands and what all of them share."""

from __future__ import annotations

import typer

from kvsched.cli import (
    bench,
    catalog,
    curve,
    lesson,
    policies,
    preflight,
    probe,
    records,
    replay,
    simulate,
    study,
    trace,
    warm,
)

app = typer.Typer(
    name="kvsched",
    help="Decide what a language model's KV cache keeps, what it drops, and what that is worth.",
    epilog="Start with: kvsched study preset:chat. Exit codes: 0 done, 1 failed, 2 wrong use or "
    "input.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(trace.app, name="trace")
app.add_typer(lesson.app, name="lesson")
app.add_typer(bench.app, name="bench")
app.add_typer(records.app, name="records")
app.command("replay")(replay.command)
app.command("curve")(curve.command)
app.command("study")(study.command)
app.command("run")(study.run)
app.command("simulate")(simulate.command)
app.command("policies")(policies.command)
app.command("warm")(warm.command)
app.command("preflight")(preflight.command)
app.command("probe")(probe.command)
app.command("models")(catalog.models)
app.command("gpus")(catalog.gpus)


def _version(wanted: bool) -> None:
    if wanted:
        from kvsched.foundation.version import VERSION

        typer.echo(f"kvsched {VERSION}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Print the version and stop."
    ),
) -> None:
    """Decide what a language model's KV cache keeps, what it drops, and what that is worth."""
