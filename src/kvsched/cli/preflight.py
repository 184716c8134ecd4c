"""`kvsched preflight`: whether this machine can measure what is to be measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from kvsched.cli.groups import spread
from kvsched.foundation.errors import UsageError

if TYPE_CHECKING:
    from kvsched.evidence.preflight.report import Preflight


@dataclass(frozen=True)
class Requirements:
    """What must be there."""

    gpu: Annotated[bool, typer.Option("--gpu", help="A GPU that torch can use is required.")] = (
        False
    )
    native_bf16: Annotated[
        bool, typer.Option("--native-bf16", help="Native bfloat16 is required: emulated is not.")
    ] = False
    min_gpu_memory_gb: Annotated[
        float | None,
        typer.Option("--min-gpu-memory-gb", help="One device must have so many GB (10^9 bytes)."),
    ] = None
    packages: Annotated[
        list[str] | None,
        typer.Option(
            "--packages",
            metavar="NAME,…",
            help="Distributions that are required, as torch>=2.5,numpy. May be given twice.",
            show_default=False,
        ),
    ] = None
    optional_packages: Annotated[
        list[str] | None,
        typer.Option(
            "--optional-packages",
            metavar="NAME,…",
            help="Distributions whose absence is a warning.",
            show_default=False,
        ),
    ] = None
    engine_url: Annotated[
        str | None,
        typer.Option("--engine-url", help="An engine that must answer, as http://localhost:8000."),
    ] = None
    engine_timeout_s: Annotated[
        float, typer.Option("--engine-timeout-s", help="Seconds that it may take.")
    ] = 5.0
    min_disk_gb: Annotated[
        float, typer.Option("--min-disk-gb", help="Less free space is a warning.")
    ] = 1.0


@spread
def command(
    required: Requirements,
    output: Annotated[
        str | None, typer.Option("--output", "-o", metavar="FILE", help="Write it as JSON.")
    ] = None,
    format: Annotated[
        str, typer.Option("--format", metavar="text|json", help="json prints only JSON on stdout.")
    ] = "text",
) -> None:
    """Check Python, CUDA, devices, packages, disk and an engine: status, reason, next action.

    Exit code 2 when something is blocked, else 0.
    """
    from kvsched.evidence.preflight.run import run_preflight
    from kvsched.evidence.preflight.settings import PreflightSettings, split_packages

    if format not in ("text", "json"):
        raise UsageError(f"--format is {format!r}, not text or json")
    values = dict(vars(required))
    for key in ("packages", "optional_packages"):
        values[key] = split_packages(values[key] or ())
    found = run_preflight(PreflightSettings(**values, output=output))
    if output is not None:
        _write(found, output)
    if format == "json":
        from kvsched.cli.options import print_json

        print_json(found)
    else:
        from rich.console import Console

        from kvsched.report.preflight import print_preflight

        print_preflight(found, Console(highlight=False))
    if found.status == "blocked":
        raise typer.Exit(2)


def _write(found: Preflight, output: str) -> None:
    """Write the file, unless a check has said that it cannot be written."""
    import msgspec

    from kvsched.foundation.files import write_whole

    named = "disk (output)"
    if any(check.name == named and check.status == "blocked" for check in found.checks):
        return
    write_whole(output, msgspec.json.format(msgspec.json.encode(found)) + b"\n")
