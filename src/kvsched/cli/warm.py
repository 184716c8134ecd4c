"""`kvsched warm`: compile ahead."""

from __future__ import annotations

import time
from typing import Annotated

import typer


def command(
    policies: Annotated[
        str | None,
        typer.Option(
            "--policies",
            help="Built-in policies, separated by commas.",
            show_default="all of them",
        ),
    ] = None,
    jobs: Annotated[
        int, typer.Option("--jobs", min=0, help="Processes that compile; 0: one a core.")
    ] = 0,
    live: Annotated[
        bool,
        typer.Option("--live", help="Also what kvsched.KVCacheScheduler runs under the policies."),
    ] = False,
    simulating: Annotated[
        bool, typer.Option("--simulate", help="Also the loop of kvsched simulate.")
    ] = False,
) -> None:
    """Compile what replays, studies and readers use, so that the first run does not wait.

    Compiled code is kept in KVSCHED_CACHE_DIR, or in the user's cache folder, until kvsched, Numba
    or Python changes.
    """
    from kvsched.cli.progress import steps
    from kvsched.study.warm import warm

    names = None
    if policies is not None:
        names = [name.strip() for name in policies.split(",") if name.strip()]
    began = time.monotonic()
    with steps() as told:
        found = warm(names, jobs, told, live, simulating)
    seconds = time.monotonic() - began
    if found.compiled:
        typer.echo(f"{found.compiled} kernels compiled in {seconds:.0f} s.")
    else:
        typer.echo("Nothing to do: everything is compiled.")
