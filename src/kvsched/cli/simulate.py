"""`kvsched simulate`: when work runs on an engine, and what latency comes of it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvsched.cli.groups import spread
from kvsched.cli.opening import keep_apart, open_trace
from kvsched.cli.options import (
    Allowance,
    KvCacheDtype,
    ModelName,
    TensorParallel,
    TraceOptions,
    Utilization,
    WeightDtype,
    print_json,
)
from kvsched.foundation.errors import UsageError

if TYPE_CHECKING:
    from kvsched.serve.served import Asking, Served
    from kvsched.trace.model import Trace


@dataclasses.dataclass(frozen=True)
class EngineOptions:
    """The engine, in vLLM's names; what is not given is vLLM's own default of a server."""

    model: ModelName = None
    gpu: Annotated[str | None, typer.Option("--gpu", help="An accelerator of `kvsched gpus`.")] = (
        None
    )
    tensor_parallel_size: TensorParallel = 1
    gpu_memory_utilization: Utilization = 0.9
    kv_cache_dtype: KvCacheDtype = "auto"
    weight_dtype: WeightDtype = "auto"
    allowance_gib: Allowance = 2.0
    num_gpu_blocks_override: Annotated[
        int | None,
        typer.Option(
            "--num-gpu-blocks-override",
            help="Blocks, instead of what fits the memory; one is vLLM's null block.",
        ),
    ] = None
    max_num_seqs: Annotated[
        int | None,
        typer.Option(
            "--max-num-seqs", help="Requests that run at a time.", show_default="by device"
        ),
    ] = None
    max_num_batched_tokens: Annotated[
        int | None,
        typer.Option(
            "--max-num-batched-tokens",
            help="Tokens that a step computes.",
            show_default="by device",
        ),
    ] = None
    max_model_len: Annotated[
        int | None,
        typer.Option(
            "--max-model-len",
            help="Tokens of prompt and answer; a prompt of so many is rejected.",
            show_default="the model's own",
        ),
    ] = None
    long_prefill_token_threshold: Annotated[
        int,
        typer.Option(
            "--long-prefill-token-threshold",
            help="Tokens of one request in a step beside others; 0 for no limit.",
        ),
    ] = 0
    watermark: Annotated[
        float,
        typer.Option(
            "--watermark", help="Share of the blocks kept free when a request joins others."
        ),
    ] = 0.0
    enable_prefix_caching: Annotated[
        bool,
        typer.Option(
            "--enable-prefix-caching/--no-enable-prefix-caching",
            help="Whether what is cached can be hit.",
        ),
    ] = True
    enable_chunked_prefill: Annotated[
        bool,
        typer.Option(
            "--enable-chunked-prefill/--no-enable-chunked-prefill",
            help="Whether a prompt may be computed in parts.",
        ),
    ] = True
    cache_generated: Annotated[
        bool,
        typer.Option(
            "--cache-generated/--no-cache-generated",
            help="Whether the blocks that decoding fills are cached.",
        ),
    ] = True
    scheduling_policy: Annotated[
        str,
        typer.Option(
            "--scheduling-policy", metavar="ORDER", help="Who is admitted first: fcfs, priority, …"
        ),
    ] = "fcfs"
    eviction_policy: Annotated[
        str | None,
        typer.Option(
            "--eviction-policy",
            metavar="NAME[:PARAMETER=VALUE]|path.py:Name|module:Name",
            help="Which cached block leaves; `kvsched policies` lists them.",
            show_default="vLLM's own free list",
        ),
    ] = None
    step_time: Annotated[
        str | None,
        typer.Option(
            "--step-time",
            metavar="FILE",
            help="Coefficients fitted to measured steps (docs/step-time.md).",
            show_default="a roofline of the model on the GPU",
        ),
    ] = None


@dataclasses.dataclass(frozen=True)
class LoadOptions:
    """How requests arrive, and what they should see."""

    limit: Annotated[
        int | None, typer.Option("--limit", help="Take the first so many requests of the trace.")
    ] = None
    speedup: Annotated[
        float, typer.Option("--speedup", help="Requests arrive so many times as fast.")
    ] = 1.0
    concurrency: Annotated[
        int | None,
        typer.Option(
            "--concurrency",
            help="A closed loop: so many at a time, each when one before has ended.",
        ),
    ] = None
    horizon_s: Annotated[
        float | None,
        typer.Option("--horizon", metavar="SECONDS", help="End then; who has not is unfinished."),
    ] = None
    slo_ttft_ms: Annotated[
        float | None, typer.Option("--slo-ttft-ms", help="The objective: TTFT of at most so much.")
    ] = None
    slo_tpot_ms: Annotated[
        float | None, typer.Option("--slo-tpot-ms", help="The objective: TPOT of at most so much.")
    ] = None
    band: Annotated[
        bool,
        typer.Option(
            "--band/--no-band",
            help="Run with the low and the high step time too, not the middle alone.",
        ),
    ] = True


@dataclasses.dataclass(frozen=True)
class OutputOptions:
    """What is written."""

    output_dir: Annotated[
        str | None,
        typer.Option(
            "--output-dir",
            "-o",
            help="Folder for result.json, summary.json (aiperf's shape), trace.json (for "
            "Perfetto), report.html and the tables.",
        ),
    ] = None
    export: Annotated[
        str,
        typer.Option(
            "--export",
            metavar="jsonl|parquet|jsonl,parquet",
            help="Form of the tables in the folder.",
        ),
    ] = "jsonl"
    step_log: Annotated[
        bool, typer.Option("--step-log", help="Write a table of the steps too.")
    ] = False

    @property
    def exports(self) -> list[str]:
        """Forms of the tables, each once."""
        named = (name.strip() for name in self.export.split(","))
        return list(dict.fromkeys(name for name in named if name))


def asking_of(engine: EngineOptions, load: LoadOptions) -> Asking:
    """Return what the options ask. Raises UsageError for an objective that cannot be."""
    from kvsched.serve.served import Asking
    from kvsched.serve.summary import Objective

    def seconds(limit_ms: float | None) -> float | None:
        return None if limit_ms is None else limit_ms / 1e3

    values: dict[str, Any] = {**vars(engine), **vars(load)}
    objective = Objective(
        ttft_s=seconds(values.pop("slo_ttft_ms")), tpot_s=seconds(values.pop("slo_tpot_ms"))
    )
    values.pop("limit")
    return Asking(**values, objective=objective)


@spread
def command(
    source: TraceOptions, engine: EngineOptions, load: LoadOptions, output: OutputOptions
) -> None:
    """Serve a trace with a simulated engine: TTFT, TPOT, throughput, and who did not finish.

    Steps are scheduled as vLLM 0.32.0 does. How long each takes is a roofline of the model on the
    GPU, or fitted to measured steps.
    """
    from kvsched.cli.progress import steps
    from kvsched.serve.files import prepare_folder
    from kvsched.serve.served import serve

    asking = asking_of(engine, load)
    names = _check(source, asking, output)
    trace = _open(source, load.limit)
    folder = None if output.output_dir is None else Path(output.output_dir)
    fresh = folder is not None and not folder.exists()
    if folder is not None:
        prepare_folder(folder, names)
    try:
        with steps() as told:
            served = serve(trace, asking, report=told)
            if folder is not None:
                told("report", 0, 1)
                _write(served, folder, asking, output)
    except BaseException:
        # Nothing was written, interrupted or not: then nothing is left.
        if folder is not None and fresh:
            _remove_empty(folder)
        raise
    _show(served, source, folder)


def _check(source: TraceOptions, asking: Asking, output: OutputOptions) -> list[str]:
    """Refuse what can be refused before the trace is read; return the files to write."""
    from kvsched.policy.registry import make
    from kvsched.serve.files import file_names
    from kvsched.serve.orders.registry import make_order
    from kvsched.serve.served import FREE_LIST, find_step_time

    find_step_time(asking)
    if asking.num_gpu_blocks_override is None and (asking.model is None or asking.gpu is None):
        raise UsageError(
            "how many blocks there are is not known: name --model and --gpu, or "
            "--num-gpu-blocks-override"
        )
    make_order(asking.scheduling_policy)
    if asking.eviction_policy not in (None, FREE_LIST):
        make(asking.eviction_policy)
    if output.output_dir is None:
        if output.step_log or output.export != "jsonl":
            raise UsageError("--step-log and --export need --output-dir: there is no folder")
        return []
    if not output.exports:
        raise UsageError("--export names no form: jsonl or parquet")
    names = file_names(output.exports, output.step_log)
    files = [str(Path(output.output_dir) / name) for name in names]
    for read in (source.trace, asking.step_time, asking.model):
        if isinstance(read, str):
            keep_apart(read, *files)
    return names


def _open(source: TraceOptions, limit: int | None) -> Trace:
    trace = open_trace(source)
    if limit is None:
        return trace
    from kvsched.trace.slice import slice_trace

    return slice_trace(trace, first=limit)


def _write(served: Served, folder: Path, asking: Asking, output: OutputOptions) -> None:
    from kvsched.report.simulation import render_simulation
    from kvsched.serve.files import write_served

    write_served(
        served,
        folder,
        render_simulation(served.result),
        objective=asking.objective,
        exports=output.exports,
        step_log=output.step_log,
    )


def _remove_empty(folder: Path) -> None:
    import contextlib

    with contextlib.suppress(OSError):
        folder.rmdir()


def _show(served: Served, source: TraceOptions, folder: Path | None) -> None:
    if source.as_json:
        print_json(served.result)
        return
    from rich.console import Console

    from kvsched.report.simulation import print_simulation

    print_simulation(served.result, Console(highlight=False))
    if folder is not None:
        typer.echo(f"Report: {folder / 'report.html'}    Numbers: {folder / 'result.json'}")
