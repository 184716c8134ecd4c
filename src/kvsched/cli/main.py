"""`kvsched`: the application and how it ends."""

from __future__ import annotations

import io
import os
import sys

import typer

from kvsched.cli import catalog, curve, policies, replay, study, trace
from kvsched.foundation.errors import KvschedError

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
app.command("replay")(replay.command)
app.command("curve")(curve.command)
app.command("study")(study.command)
app.command("policies")(policies.command)
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


def _fail(message: str, code: int) -> None:
    typer.echo(f"kvsched: {message}", err=True)
    sys.exit(code)


def main() -> None:
    """Run the command line. Errors go to stderr in one line; KVSCHED_DEBUG=1 shows where from."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal that knows only ASCII shows a question mark, and does not end the run.
            stream.reconfigure(errors="replace")
    try:
        app()
    except KvschedError as error:
        if os.environ.get("KVSCHED_DEBUG") == "1":
            raise
        _fail(str(error), error.exit_code)
    except KeyboardInterrupt:
        _fail("interrupted", 1)
    except BrokenPipeError:
        # The reader of our output has gone: nothing is left to say, nor anyone to say it to.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        _fail(f"the output cannot be written ({error.strerror})", 1)
    except MemoryError:
        _fail("not enough memory: slice the trace, or close other programs", 1)
    except Exception as error:  # the last resort before a traceback
        if os.environ.get("KVSCHED_DEBUG") == "1":
            raise
        kind = type(error).__name__
        _fail(f"internal error: {kind}: {error} (KVSCHED_DEBUG=1 shows the traceback)", 1)


if __name__ == "__main__":
    main()
