"""`kvsched calibrate`: whether the timed simulation says what was measured."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvsched.cli.groups import spread
from kvsched.cli.options import print_json
from kvsched.cli.simulate_options import COMPILING_TAKES
from kvsched.foundation.errors import UsageError

if TYPE_CHECKING:
    from kvsched.evidence.calibrate.observed import Observed
    from kvsched.evidence.calibrate.reading import EngineSaid
    from kvsched.evidence.calibrate.result import Calibrated


@dataclasses.dataclass(frozen=True)
class EngineChoice:
    """What the runs do not say of their engine."""

    num_gpu_blocks_override: Annotated[
        int | None,
        typer.Option(
            "--num-gpu-blocks-override",
            help="Blocks of the engine; one is vLLM's null block.",
            show_default="as the run says",
        ),
    ] = None
    max_num_seqs: Annotated[
        int | None,
        typer.Option(
            "--max-num-seqs",
            help="Requests that run at a time.",
            show_default="as it was launched",
        ),
    ] = None
    max_num_batched_tokens: Annotated[
        int | None,
        typer.Option(
            "--max-num-batched-tokens", help="Tokens of a step.", show_default="as it was launched"
        ),
    ] = None
    long_prefill_token_threshold: Annotated[
        int | None,
        typer.Option(
            "--long-prefill-token-threshold",
            help="Tokens of one request in a step beside others.",
            show_default="as it was launched",
        ),
    ] = None


@dataclasses.dataclass(frozen=True)
class OutputChoice:
    """What becomes of it."""

    fit_share: Annotated[
        float,
        typer.Option(
            "--fit-share", help="Of each run's requests, the first ones, for the fit; rest judged."
        ),
    ] = 0.5
    output_dir: Annotated[
        str | None,
        typer.Option("--output-dir", "-o", help="Folder for result, step time and report."),
    ] = None
    name: Annotated[str, typer.Option("--name", help="What you call it.")] = ""
    record: Annotated[
        bool, typer.Option("--record", help="Add the result to the registry of records.")
    ] = False
    registry: Annotated[
        str | None,
        typer.Option("--registry", metavar="PATH", help="The registry.", show_default="yours"),
    ] = None
    format: Annotated[
        str, typer.Option("--format", metavar="text|json", help="json prints only JSON on stdout.")
    ] = "text"


@spread
def command(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN [RUN…]", help="Folders of `kvsched bench`, or a folder of such."
        ),
    ],
    engine: EngineChoice,
    output: OutputChoice,
) -> None:
    """Fit step times to part of measured runs, predict the rest, and say how far off that is.

    RUN is a folder that `kvsched bench` wrote, of one run or of several. These are fitted together
    and judged apart: give runs at several concurrencies. A goal that is missed is reported; the
    exit code is 0.
    """
    from kvsched.cli.progress import steps
    from kvsched.evidence.bench.files import RESULT
    from kvsched.evidence.calibrate.files import NAMES
    from kvsched.evidence.calibrate.reading import EngineSaid
    from kvsched.evidence.calibrate.run import calibrate
    from kvsched.serve.files import prepare_folder

    if output.format not in ("text", "json"):
        raise UsageError(f"--format {output.format}: must be text or json")
    if output.output_dir == "":
        raise UsageError("--output-dir is empty")
    if output.registry is not None and not output.record:
        raise UsageError("--registry is where --record adds to: give both")
    folder = None if output.output_dir is None else Path(output.output_dir)
    if folder is not None and (folder / RESULT).exists():
        raise UsageError(f"{folder}: holds a run, which is never written over")
    observed = _read(runs, EngineSaid(**vars(engine)))
    with steps(COMPILING_TAKES) as told:
        found = calibrate(observed, fit_share=output.fit_share, name=output.name, report=told)
        if folder is not None:
            told("report", 0, 1)
            prepare_folder(folder, NAMES)
            _write(found, folder)
    record_id = _record(found, output.registry) if output.record else None
    _show(found, folder, record_id, output.format == "json")


def _read(paths: list[str], said: EngineSaid) -> list[Observed]:
    from kvsched.evidence.calibrate.reading import folders_of, read_observed, told_apart

    return told_apart([read_observed(folder, said) for folder in folders_of(paths)])


def _write(found: Calibrated, folder: Path) -> None:
    from kvsched.evidence.calibrate.files import write_calibration
    from kvsched.report.calibration import render_calibration

    write_calibration(folder, found, render_calibration(found))


def _record(found: Calibrated, path: str | None) -> str:
    from kvsched.evidence.calibrate.files import record_fields
    from kvsched.evidence.record_new import new_record
    from kvsched.evidence.registry import Registry

    with Registry(path) as registry:
        return registry.add(new_record(**record_fields(found.result))).record_id


def _show(found: Calibrated, folder: Path | None, record_id: str | None, as_json: bool) -> None:
    if as_json:
        print_json(found.result)
        return
    from rich.console import Console

    from kvsched.report.calibration import print_calibration

    print_calibration(found.result, Console(highlight=False))
    if folder is not None:
        typer.echo(f"Report: {folder / 'report.html'}    Step time: {folder / 'step-time.json'}")
    if record_id is not None:
        typer.echo(f"Record: {record_id}")
