"""`kvsched simulate`: when work runs on an engine, and what latency comes of it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from kvsched.cli.groups import spread
from kvsched.cli.opening import keep_apart, open_trace
from kvsched.cli.options import TraceOptions, print_json
from kvsched.cli.simulate_options import (
    COMPILING_TAKES,
    AdmissionOptions,
    EngineOptions,
    LoadOptions,
    OutputOptions,
    SearchOptions,
)
from kvsched.foundation.errors import UsageError

if TYPE_CHECKING:
    from kvsched.serve.served import Asking, Served
    from kvsched.trace.model import Trace


def asking_of(
    engine: EngineOptions, load: LoadOptions, admission: AdmissionOptions, seed: int = 0
) -> Asking:
    """Return what the options ask. Raises UsageError for an objective that cannot be."""
    from kvsched.serve.served import Asking
    from kvsched.serve.summary import Objective

    def seconds(limit_ms: float | None) -> float | None:
        return None if limit_ms is None else limit_ms / 1e3

    values: dict[str, Any] = {**vars(engine), **vars(load), **vars(admission)}
    objective = Objective(
        ttft_s=seconds(values.pop("slo_ttft_ms")), tpot_s=seconds(values.pop("slo_tpot_ms"))
    )
    values.pop("limit")
    values["band"] = load.band is not False
    return Asking(**values, seed=seed, objective=objective)


@spread
def command(
    source: TraceOptions,
    engine: EngineOptions,
    admission: AdmissionOptions,
    load: LoadOptions,
    search: SearchOptions,
    output: OutputOptions,
) -> None:
    """Serve a trace with a simulated engine: TTFT, TPOT, throughput, and who did not finish.

    Steps are scheduled as vLLM 0.32.0 does. How long each takes is a roofline of the model on the
    GPU, or fitted to measured steps.
    """
    from kvsched.cli.progress import steps
    from kvsched.serve.files import prepare_folder
    from kvsched.serve.served import serve

    asking = asking_of(engine, load, admission, source.seed)
    if search.asked:
        from kvsched.cli import simulate_many

        few = dataclasses.replace(asking, band=bool(load.band))
        simulate_many.run(source, few, search, output, lambda: _open(source, load.limit))
        return
    names = _check(source, asking, output)
    trace = _open(source, load.limit)
    if output.output_dir == "":
        raise UsageError("--output-dir is empty")
    folder = None if output.output_dir is None else Path(output.output_dir)
    fresh = folder is not None and not folder.exists()
    if folder is not None:
        prepare_folder(folder, names)
    try:
        with steps(COMPILING_TAKES) as told:
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
    from kvsched.serve.parts import find_admission, find_traffic
    from kvsched.serve.routing.registry import make_routing
    from kvsched.serve.served import FREE_LIST, find_step_time

    find_step_time(asking)
    if asking.num_gpu_blocks_override is None and (asking.model is None or asking.gpu is None):
        raise UsageError(
            "how many blocks there are is not known: name --model and --gpu, or "
            "--num-gpu-blocks-override"
        )
    find_traffic(asking)
    find_admission(asking)
    make_order(asking.scheduling_policy)
    if asking.routing is not None:
        make_routing(asking.routing)
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
