"""`kvsched probe`: what KV blocks really take on this machine's memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from kvsched.cli.groups import spread
from kvsched.foundation.errors import UsageError

if TYPE_CHECKING:
    from kvsched.evidence.probe.report import ProbeReport
    from kvsched.evidence.probe.settings import ProbeSettings


@dataclass(frozen=True)
class BlockOptions:
    """The block, and how many."""

    model: Annotated[
        str | None,
        typer.Option("--model", help="A model of `kvsched models`, or the path of a config.json."),
    ] = None
    tensor_parallel_size: Annotated[
        int, typer.Option("--tensor-parallel-size", "-tp", help="GPUs that share each layer.")
    ] = 1
    block_tokens: Annotated[
        int, typer.Option("--block-tokens", "--block-size", help="Tokens in a block.")
    ] = 16
    kv_heads: Annotated[
        int | None, typer.Option("--kv-heads", help="KV heads of a layer, without --model.")
    ] = None
    head_dim: Annotated[
        int | None, typer.Option("--head-dim", help="Elements of a head, without --model.")
    ] = None
    layers: Annotated[
        int | None, typer.Option("--layers", help="Layers that keep every token, without --model.")
    ] = None
    dtype: Annotated[
        str, typer.Option("--dtype", metavar="float16|bfloat16|float8", help="Of an element.")
    ] = "bfloat16"
    blocks: Annotated[int, typer.Option("--blocks", help="Blocks that are live at once.")] = 64


@dataclass(frozen=True)
class MeasureOptions:
    """On which memory, how often, and what is accepted."""

    device: Annotated[
        str,
        typer.Option("--device", metavar="cuda|cpu", help="cpu: the same path on host memory."),
    ] = "cuda"
    device_index: Annotated[
        int, typer.Option("--device-index", help="Which CUDA device, from 0.")
    ] = 0
    repeats: Annotated[int, typer.Option("--repeats", help="Of every timed measurement.")] = 5
    memory_share: Annotated[
        float | None,
        typer.Option(
            "--memory-share",
            help="Most that the probe may take of the memory that is free.",
            show_default="0.5 of a GPU's, 0.1 of the host's",
        ),
    ] = None
    declared_bytes_per_block: Annotated[
        int | None,
        typer.Option(
            "--declared-bytes-per-block",
            help="Hold the measurement to this instead of the formula.",
        ),
    ] = None
    tolerance: Annotated[
        float,
        typer.Option("--tolerance", help="Most that a block may differ from the theory, a share."),
    ] = 0.05
    overhead_limit: Annotated[
        float,
        typer.Option(
            "--overhead-limit", help="Most that the allocator may hold beyond the theory, a share."
        ),
    ] = 0.25
    copy_mib: Annotated[
        str, typer.Option("--copy-mib", metavar="MIB,…", help="Sizes of copies, beside a block's.")
    ] = "1,16,64,256"
    vary: Annotated[
        list[str] | None,
        typer.Option(
            "--vary",
            metavar="KEY=VALUE,…",
            help="Also with one variable changed: block-tokens, kv-heads, head-dim, layers, dtype, "
            "blocks, tensor-parallel-size. May be given several times; each varies alone.",
            show_default=False,
        ),
    ] = None
    seed: Annotated[int, typer.Option("--seed", help="Seed of the random pattern.")] = 0


@dataclass(frozen=True)
class ResultOptions:
    """Where the report goes."""

    format: Annotated[
        str, typer.Option("--format", metavar="text|json", help="json prints only JSON on stdout.")
    ] = "text"
    output: Annotated[
        str | None, typer.Option("--output", "-o", metavar="FILE", help="Write the report as JSON.")
    ] = None
    html: Annotated[
        str | None, typer.Option("--html", metavar="FILE", help="Write the report as a page.")
    ] = None
    record: Annotated[bool, typer.Option("--record", help="Add it to the records.")] = False
    registry: Annotated[
        str | None,
        typer.Option("--registry", metavar="FILE", help="The file of records; implies --record."),
    ] = None
    name: Annotated[str, typer.Option("--name", help="The record's name.")] = ""


def _settings(block: BlockOptions, measure: MeasureOptions) -> ProbeSettings:
    from kvsched.evidence.probe.settings import ProbeSettings
    from kvsched.evidence.probe.shape import ShapeSettings

    shape = dict(vars(block))
    blocks = shape.pop("blocks")
    values = dict(vars(measure))
    values["vary"] = tuple(measure.vary or ())
    values["copy_bytes"] = _copy_sizes(values.pop("copy_mib"))
    return ProbeSettings(shape=ShapeSettings(**shape), blocks=blocks, **values)


def _copy_sizes(text: str) -> tuple[int, ...]:
    found = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdecimal() and 0 < len(part) < 8 for part in found):
        raise UsageError(f"--copy-mib is {text!r}, not whole MiB separated by commas")
    return tuple(int(part) << 20 for part in found)


@spread
def command(block: BlockOptions, measure: MeasureOptions, result: ResultOptions) -> None:
    """Allocate blocks of KV for real, and compare what they take with the formula.

    Theoretical bytes against allocated, reserved and driver-reported ones; allocation time apart
    from the driver's; fragmentation; one pooled tensor; how many blocks fit in a share of memory;
    copy bandwidth. Never takes more than --memory-share of what is free.
    """
    from kvsched.cli.outputs import check_apart, check_writable
    from kvsched.cli.progress import steps
    from kvsched.evidence.probe.run import run_probe

    if result.format not in ("text", "json"):
        raise UsageError(f"--format is {result.format!r}, not text or json")
    if result.registry == "":
        raise UsageError("--registry is empty")
    check_apart(result.output, result.html)
    check_writable("--output", result.output)
    check_writable("--html", result.html)
    _check_registry(result)
    with steps() as told:
        report = run_probe(_settings(block, measure), report=told)
    _write(report, result)
    _show(report, result)


def _check_registry(result: ResultOptions) -> None:
    """Refuse, before anything is measured, a registry that is none or that an output would hit."""
    from kvsched.cli.records import keep_apart
    from kvsched.evidence.registry import Registry

    with Registry(result.registry) as registry:
        for output in (result.output, result.html):
            if output is not None:
                keep_apart(registry.path, output)
        if result.record or result.registry is not None:
            registry.known()


def _write(report: ProbeReport, result: ResultOptions) -> None:
    import msgspec

    from kvsched.foundation.files import write_whole

    if result.output is not None:
        encoded = msgspec.json.format(msgspec.json.encode(report))
        write_whole(result.output, encoded + b"\n")
    if result.html is not None:
        from kvsched.report.probe import render_probe

        write_whole(result.html, render_probe(report).encode())


def _show(report: ProbeReport, result: ResultOptions) -> None:
    if result.format == "json":
        from kvsched.cli.options import print_json

        print_json(report)
    else:
        from rich.console import Console

        from kvsched.report.probe import print_probe

        print_probe(report, Console(highlight=False))
    if result.record or result.registry is not None:
        from kvsched.evidence.probe.record import record_of
        from kvsched.evidence.registry import Registry

        with Registry(result.registry) as registry:
            kept = registry.add(record_of(report, result.name))
        typer.echo(f"Record {kept.record_id} added.", err=result.format == "json")
