"""`kvsched study`: from a trace to a decision."""

from __future__ import annotations

import contextlib
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvsched.cli.groups import spread
from kvsched.cli.options import (
    CapacityOptions,
    EngineOptions,
    TraceOptions,
    find_capacity,
    find_hardware,
    open_trace,
    print_json,
)
from kvsched.foundation.errors import KvschedError

if TYPE_CHECKING:
    from kvsched.study.run import Options


@spread
def command(
    source: TraceOptions,
    asked: CapacityOptions,
    rules: EngineOptions,
    policy: Annotated[
        str | None,
        typer.Option(
            "--policy",
            help="Your engine's policy: its misses are explained.",
            show_default="the engine's own; lru for generic",
        ),
    ] = None,
    policies: Annotated[
        str,
        typer.Option("--policies", help="Compared beside the optima, separated by commas."),
    ] = "lru,fifo,lfu,slru,chapter,decay",
    points: Annotated[
        int, typer.Option("--points", min=2, max=1000, help="Capacities on the curves' grid.")
    ] = 12,
    output_dir: Annotated[
        str, typer.Option("--output-dir", "-o", help="Folder for report.html and result.json.")
    ] = "kvsched-study",
    batch: Annotated[
        int, typer.Option("--batch", min=1, help="Requests that decode together, for the worth.")
    ] = 64,
    efficiency: Annotated[
        float, typer.Option("--efficiency", help="Share of the GPU's rate that prefill reaches.")
    ] = 1.0,
) -> None:
    """Study a trace: what could be reused, what you get of it, why not more, what more is worth.

    Prints tables, and writes report.html and result.json.

    Interrupted, and run again, it goes on from where it was.
    """
    from kvsched.study.run import Options

    options = Options(
        policies=tuple(name.strip() for name in policies.split(",") if name.strip()),
        policy=policy,
        engine=rules.engine,
        cache_generated=rules.cache_generated,
        points=points,
        batch=batch,
        efficiency=efficiency,
        kv_cache_dtype=asked.kv_cache_dtype,
        weight_dtype=asked.weight_dtype,
        command=_again(),
    )
    try:
        _study(source, asked, options, Path(output_dir))
    except KeyboardInterrupt:
        typer.echo("kvsched: interrupted; the same command goes on from here", err=True)
        sys.exit(1)


def _again() -> str:
    """Return the command as typed, without folders in front of the program or the trace.

    ``--output-dir`` and where the files lay do not decide the result, so they are not in it.
    """
    words = ["kvsched"]
    skip = False
    for word in sys.argv[1:]:
        if skip:
            skip = False
        elif word in ("-o", "--output-dir"):
            skip = True
        elif not word.startswith("--output-dir="):
            words.append(word)
    return shlex.join(words).encode("utf-8", "replace").decode()


def _study(source: TraceOptions, asked: CapacityOptions, options: Options, folder: Path) -> None:
    from kvsched.cli.progress import steps
    from kvsched.report.html import render_html
    from kvsched.study.files import PARTIAL, prepare_folder, write_study
    from kvsched.study.run import asked_policies, study

    asked_policies(options)
    model, gpu = find_hardware(asked)
    trace = open_trace(source)
    capacity = find_capacity(asked, trace, model, gpu)
    fresh = not folder.exists()
    prepare_folder(folder)
    partial = folder / PARTIAL
    try:
        with steps() as told:
            result = study(
                trace,
                capacity,
                model=model,
                gpu=gpu,
                options=options,
                partial=partial,
                report=told,
            )
            told("report", 0, 1)
            write_study(result, folder, render_html(result))
            partial.unlink(missing_ok=True)
    except KvschedError:
        if fresh:
            # Nothing was written, so nothing is left; a folder that holds points stays.
            with contextlib.suppress(OSError):
                folder.rmdir()
        raise
    if source.as_json:
        print_json(result)
        return
    from rich.console import Console

    from kvsched.report.terminal import print_study

    print_study(result, Console(highlight=False))
    typer.echo(f"Report: {folder / 'report.html'}    Numbers: {folder / 'result.json'}")
