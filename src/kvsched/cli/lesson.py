"""`kvsched lesson`: the course's chapters."""

from __future__ import annotations

import typer

from kvsched.cli import play

app = typer.Typer(help="The course's chapters: exercises and a step-through.", no_args_is_help=True)
app.command("play")(play.command)


@app.callback()
def _lesson() -> None:
    """The course's chapters: exercises and a step-through."""
