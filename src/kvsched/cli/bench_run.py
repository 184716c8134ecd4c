"""What the commands of `kvsched bench` share: the workload, the engine, the files, the words."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import math
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from kvsched.cli.bench_options import (
    EngineChoice,
    LoadChoice,
    PromptChoice,
    ResultChoice,
    RuleChoice,
    SharedPrefixes,
)
from kvsched.cli.opening import open_trace
from kvsched.cli.options import TraceOptions
from kvsched.foundation.errors import UsageError

if TYPE_CHECKING:
    from kvsched.evidence.bench.compare import BenchComparison, Run
    from kvsched.evidence.bench.live import LiveEngine
    from kvsched.evidence.bench.run import Measured, RunPlan
    from kvsched.evidence.bench.workload import BenchWorkload
    from kvsched.trace.model import Trace

Told = Callable[[str, int, int], None]
LONGEST_S = 86_400
"""Of waits that a user can ask for."""
OURS = ("prompt", "model", "max_tokens", "stream", "n", "best_of")
"""Fields of a request that are the workload: its digest would say what was not sent."""


def check_engine(engine: EngineChoice, arguments: Sequence[str] | None) -> None:
    """Raise UsageError where it is not clear which engine is meant, or a library is missing."""
    from kvsched.engine.kinds.registry import find_kind
    from kvsched.engine.metrics_text import load_parser

    if (engine.engine_url is None) == (engine.launch is None):
        raise UsageError("give --engine-url of an engine that runs, or --launch vllm|sglang")
    if engine.launch is None:
        if arguments:
            raise UsageError("what stands after -- is for an engine that is started: --launch")
    else:
        find_kind(engine.launch)
        if engine.model is None:
            raise UsageError("--launch needs --model: what the engine is started with")
        if arguments and not arguments[0].startswith("-"):
            raise UsageError(f"{arguments[0]}: options of the engine stand after --")
        if engine.port is not None and not 0 < engine.port < 1 << 16:
            raise UsageError(f"--port {engine.port}: from 1 to 65535")
    if not 0 < engine.ready_timeout_s <= LONGEST_S:
        raise UsageError(
            f"--ready-timeout {engine.ready_timeout_s}: above 0, at most {LONGEST_S:,} s"
        )
    load_parser()


def environment_of(engine: EngineChoice) -> dict[str, str]:
    """Return the variables for the engine. Raises UsageError for what is none."""
    found = {}
    for text in engine.env or []:
        name, mark, value = text.partition("=")
        if not mark or not name:
            raise UsageError(f"--env {text}: write NAME=VALUE")
        found[name] = value
    return found


def traffic_of(load: LoadChoice, concurrency: int | None, seed: int, speedup: float) -> Any:
    """Return how requests arrive. Raises UsageError."""
    from kvsched.serve.traffic import Traffic

    return Traffic(
        speedup=speedup,
        rate=load.request_rate,
        burstiness=load.burstiness,
        seed=seed,
        concurrency=concurrency,
        sessions=load.sessions,
        think_s=load.think_s,
    )


def concurrencies(load: LoadChoice, usual: int | None) -> list[int | None]:
    """Return the values of --max-concurrency; the usual one where nothing says how to arrive."""
    if load.max_concurrency is None:
        return [None if load.request_rate is not None else usual]
    try:
        found = [int(part) for part in load.max_concurrency.split(",")]
    except ValueError:
        found = []
    if not found or min(found) < 1 or len(set(found)) < len(found):
        raise UsageError(f"--max-concurrency {load.max_concurrency}: whole numbers, as 1,4,16")
    return list(found)


def shared_trace(source: SharedPrefixes) -> Trace:
    """Return the trace, or the synthetic workload's."""
    if source.trace is not None:
        return open_trace(TraceOptions(trace=source.trace, seed=source.seed))
    from kvsched.evidence.bench.prompts import shared_prefix_trace

    if source.speedup != 1.0:
        raise UsageError("--speedup divides the times of a trace: give --trace")
    return shared_prefix_trace(
        source.groups,
        source.requests_per_group,
        source.prefix_tokens,
        source.suffix_tokens,
        source.output_tokens,
        source.seed,
    )


def workload_from(
    trace: Trace, prompts: PromptChoice, traffic: Any, seed: int, model: str | None
) -> BenchWorkload:
    """Return what is sent; notes go to stderr."""
    from kvsched.evidence.bench.prompts import PromptSettings, parse_scale, workload_of

    if prompts.prompt_tokenizer is not None and prompts.vocab_size is not None:
        raise UsageError("--prompt-tokenizer has a vocabulary of its own: leave out --vocab-size")
    words = None
    if prompts.prompt_tokenizer is not None:
        from kvsched.evidence.bench.words import load_words

        words = load_words(prompts.prompt_tokenizer)
    settings = PromptSettings(
        words=words,
        limit=prompts.limit,
        scale=parse_scale(prompts.scale),
        output_scale=parse_scale(prompts.output_scale),
        max_prompt_tokens=prompts.max_prompt_tokens,
        max_output_tokens=prompts.max_output_tokens,
        max_model_len=prompts.max_model_len,
        vocab_size=_vocabulary(model) if prompts.vocab_size is None else prompts.vocab_size,
        seed=seed,
    )
    found = workload_of(trace, settings, traffic)
    for note in found.notes:
        if note not in trace.origin.notes:
            typer.echo(f"note: {note}", err=True)
    return found


def _vocabulary(model: str | None) -> int | None:
    """The vocabulary of a model that is a folder with a config.json."""
    if model is None:
        return None
    try:
        told = json.loads((Path(model) / "config.json").read_bytes())
    except (OSError, ValueError):
        return None
    text = told.get("text_config", told) if isinstance(told, dict) else {}
    size = text.get("vocab_size") if isinstance(text, dict) else None
    return size if isinstance(size, int) and size > 0 else None


def plan_of(
    task: Any,
    load: LoadChoice,
    concurrency: int | None,
    output: ResultChoice,
    seed: int,
    config: dict[str, Any],
) -> RunPlan:
    """Return how each run is measured. Raises UsageError."""
    from kvsched.evidence.bench.load_settings import LoadSettings
    from kvsched.evidence.bench.run import RunPlan
    from kvsched.evidence.bench.summary import BenchObjective

    if output.repeats < 1 or load.warmup < 0:
        raise UsageError("--repeats at least 1, --warmup at least 0")
    if not 0 <= output.max_error_share <= 1:
        raise UsageError(f"--max-error-share {output.max_error_share}: from 0 to 1")
    try:
        extra = json.loads(load.extra_body) if load.extra_body else {}
    except ValueError as error:
        raise UsageError(f"--extra-body: no JSON ({error})") from error
    if not isinstance(extra, dict):
        raise UsageError("--extra-body: an object")
    if ours := [name for name in OURS if name in extra]:
        raise UsageError(f"--extra-body: {ours[0]} is of the workload, and not to be changed")
    if not 0 <= output.sample_interval_s <= LONGEST_S:
        raise UsageError(f"--sample-interval {output.sample_interval_s}: from 0 to {LONGEST_S:,} s")
    return RunPlan(
        task=task,
        load=LoadSettings(
            concurrency=concurrency,
            ttft_timeout_s=load.ttft_timeout_s,
            timeout_s=load.timeout_s,
            retries=load.retries,
            workers=load.workers,
            extra_body=extra,
        ),
        name=output.name,
        warmup=load.warmup,
        seed=seed,
        objective=BenchObjective(output.slo_ttft_ms, output.slo_tpot_ms),
        sample_interval_s=output.sample_interval_s,
        block_size=output.bench_block_size,
        config={
            # JSON has no infinity.
            "request_rate": "inf" if load.request_rate == math.inf else load.request_rate,
            "burstiness": load.burstiness,
            "sessions": load.sessions,
            "think_time_s": load.think_s,
            **config,
        },
        environment=_environment(),
    )


@functools.cache
def _environment() -> dict[str, Any]:
    """The machine where kvsched runs; devices as the driver has them, for torch takes seconds."""
    from kvsched.evidence.environment import describe_environment, driver_devices

    found = describe_environment(("numpy", "msgspec", "prometheus-client", "uvloop"))
    devices, why = driver_devices()
    unknown: dict[str, str] = found["unknown"]
    if devices:
        found["devices"], found["driver"] = devices, devices[0]["driver"]
        del unknown["devices"], unknown["driver"]
    else:
        unknown["devices"] = unknown["driver"] = why
    return found


@contextlib.contextmanager
def the_engine(
    engine: EngineChoice, arguments: Sequence[str], log: Path | None, told: Told
) -> Iterator[LiveEngine]:
    """Yield the engine: found where it runs, or started and stopped afterwards."""
    from kvsched.engine.kinds.registry import find_kind
    from kvsched.engine.launch import LaunchSettings
    from kvsched.evidence.bench.live import connect, started

    key = os.environ.get(engine.api_key_env)
    if engine.engine_url is not None:
        yield connect(engine.engine_url, engine.served_model_name or engine.model, key)
        return
    assert engine.launch is not None  # noqa: S101  # checked before
    assert engine.model is not None  # noqa: S101
    settings = LaunchSettings(
        kind=find_kind(engine.launch),
        model=engine.model,
        arguments=tuple(arguments),
        python=engine.python or sys.executable,
        port=engine.port,
        environment=environment_of(engine),
        ready_timeout_s=engine.ready_timeout_s,
    )
    whole = max(1, int(engine.ready_timeout_s))
    with contextlib.ExitStack() as stack:
        if log is None:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="kvsched-"))
            log = Path(folder) / "engine.log"

        def waiting(seconds: float) -> None:
            told("the engine starts", min(int(seconds), whole - 1), whole)

        found = stack.enter_context(started(settings, engine.served_model_name, log, waiting, key))
        told("the engine starts", whole, whole)
        yield found


@dataclass(frozen=True)
class Kept:
    """A run that was measured and written."""

    run: Run
    folder: Path | None


def keep(measured: Measured, folder: Path | None, name: str) -> Kept:
    """Write a run where a folder was asked for."""
    from kvsched.evidence.bench.compare import Run

    if folder is not None:
        from kvsched.evidence.bench.files import write_run
        from kvsched.report.bench import render_bench

        html = render_bench(measured.result, measured.outcomes, measured.samples)
        write_run(
            folder, measured.result, measured.outcomes, measured.trace, measured.samples, html
        )
    return Kept(Run(name, measured.result, measured.outcomes), folder)


def stop_where_interrupted(kept: Kept) -> None:
    """Raise KeyboardInterrupt where the run was cut short, once what it had is written."""
    if "cancelled" in kept.run.result.errors:
        raise KeyboardInterrupt


def compare_and_keep(
    a: Sequence[Run],
    b: Sequence[Run],
    rules: RuleChoice,
    folder: Path | None,
    stem: str,
    seed: int,
    names: tuple[str, str],
) -> BenchComparison:
    """Compare two settings, and write the comparison."""
    found = compared(a, b, rules, seed, names)
    if folder is not None:
        from kvsched.evidence.bench.files import write_comparison
        from kvsched.report.bench_compare import render_bench_comparison

        write_comparison(folder, stem, found, render_bench_comparison(found))
    return found


def compared(
    a: Sequence[Run],
    b: Sequence[Run],
    rules: RuleChoice,
    seed: int,
    names: tuple[str, str],
    task: str | None = None,
) -> BenchComparison:
    """Compare two settings under the rules of the options."""
    from kvsched.evidence.bench.bootstrap import BootstrapSettings
    from kvsched.evidence.bench.compare import compare_runs

    rules_used, asked = rules_of(rules, seed)
    assert isinstance(asked, BootstrapSettings)  # noqa: S101  # one type for both places
    return compare_runs(a, b, rules=rules_used, bootstrap=asked, task=task, names=names)


def rules_of(rules: RuleChoice, seed: int) -> tuple[Any, Any]:
    """Return the thresholds and how intervals are drawn. Raises UsageError."""
    from kvsched.evidence.bench.bootstrap import BootstrapSettings
    from kvsched.evidence.bench.decide import Rules

    values = dataclasses.asdict(rules)
    draws, confidence = values.pop("draws"), values.pop("confidence")
    return Rules(**values), BootstrapSettings(draws, confidence, seed)


def check_errors(runs: Sequence[Run], share: float) -> None:
    """Exit with 1 where more requests failed than are allowed; results are written by then."""
    for run in runs:
        failed = run.result.requests - run.result.completed
        if failed > share * run.result.requests:
            typer.echo(
                f"kvsched: {run.name}: {failed:,} of {run.result.requests:,} requests failed "
                f"({', '.join(f'{kind} {many}' for kind, many in run.result.errors.items())})",
                err=True,
            )
            raise typer.Exit(1)


def check_registry(output: ResultChoice) -> None:
    """Raise UsageError where nothing can be recorded, before anything is measured."""
    if output.registry is not None and not output.record:
        raise UsageError("--registry needs --record")
    if not output.record:
        return
    from kvsched.evidence.registry import Registry

    with Registry(output.registry) as registry:
        registry.prepare()


def record_all(
    runs: Sequence[Run], comparisons: Sequence[BenchComparison], output: ResultChoice
) -> None:
    """Add runs and comparisons to the registry, where that was asked for."""
    if not output.record:
        return
    from kvsched.evidence.bench.recording import record_of_comparison, record_of_run
    from kvsched.evidence.registry import Registry

    environment = runs[0].result.environment if runs else {}
    records = [record_of_run(run.result, output.max_error_share) for run in runs]
    records += [record_of_comparison(found, environment) for found in comparisons]
    with Registry(output.registry) as registry:
        for record in map(registry.add, records):
            typer.echo(f"record {record.record_id}: {record.task}, {record.decision}", err=True)
