"""`kvsched bench`: what settings do on a real engine, measured."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvsched.cli.bench_options import (
    EngineArguments,
    EngineChoice,
    LoadChoice,
    PromptChoice,
    ResultChoice,
    RuleChoice,
    SharedPrefixes,
)
from kvsched.cli.bench_settings import Setting, settings_of, slug
from kvsched.cli.groups import spread
from kvsched.cli.options import Format, TraceOptions, print_json, split_format
from kvsched.foundation.errors import UsageError

if TYPE_CHECKING:
    from kvsched.cli.bench_run import Kept
    from kvsched.evidence.bench.compare import BenchComparison
    from kvsched.trace.model import Trace

app = typer.Typer(
    help="Measure an OpenAI-compatible engine: prefix caching, scheduler settings, a trace.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@dataclasses.dataclass(frozen=True)
class Bench:
    """Everything a command was asked."""

    task: str
    engine: EngineChoice
    load: LoadChoice
    prompts: PromptChoice
    output: ResultChoice
    seed: int
    speedup: float
    usual: int | None
    """Concurrency where nothing says how requests arrive."""
    settings: tuple[Setting, ...]


def _as_json(format: list[str] | None) -> bool:
    output, reader = split_format(format)
    if reader is not None:
        raise UsageError(f"--format {reader}: text or json")
    return output == "json"


@app.command("prefix-cache")
@spread
def prefix_cache(
    engine: EngineChoice,
    source: SharedPrefixes,
    prompts: PromptChoice,
    load: LoadChoice,
    output: ResultChoice,
    rules: RuleChoice,
    format: Format = None,
    engine_options: EngineArguments = None,
) -> None:
    """Measure prefix caching off against on, and decide.

    With --launch the engine is started for each side and repeat, in turn. With --engine-url it is
    measured as it is: measure again with the other setting, and `kvsched bench compare` both.
    """
    from kvsched.cli.bench_run import check_engine, rules_of, shared_trace
    from kvsched.engine.kinds.registry import find_kind

    as_json = _as_json(format)
    check_engine(engine, engine_options)
    rules_of(rules, source.seed)
    settings = [Setting("", ())]
    if engine.launch is not None:
        kind, given = find_kind(engine.launch), engine_options or []
        settings = [
            Setting("off", tuple(kind.caching(given, on=False))),
            Setting("on", tuple(kind.caching(given, on=True))),
        ]
    usual = None if source.trace else 1
    asked = Bench(
        "prefix-cache", engine, load, prompts, output, source.seed, source.speedup, usual,
        tuple(settings),
    )  # fmt: skip
    _measure_and_tell(asked, shared_trace(source), rules, as_json)


@app.command("scheduler")
@spread
def scheduler(
    engine: EngineChoice,
    source: SharedPrefixes,
    prompts: PromptChoice,
    load: LoadChoice,
    output: ResultChoice,
    rules: RuleChoice,
    vary: Annotated[
        list[str] | None,
        typer.Option(
            "--vary",
            metavar="OPTION=A,B",
            help="Run every value of an engine's option, as max-num-seqs=16,64; of several options "
            "every combination. The first is the baseline. May be given again.",
            show_default=False,
        ),
    ] = None,
    baseline: Annotated[
        str | None, typer.Option("--baseline", metavar="OPTIONS", help="Of the engine, in quotes.")
    ] = None,
    candidate: Annotated[
        list[str] | None,
        typer.Option("--candidate", metavar="OPTIONS", help="The same; may be given again."),
    ] = None,
    format: Format = None,
    engine_options: EngineArguments = None,
) -> None:
    """Measure settings of the engine's scheduler, each against the first, and decide.

    With --engine-url the engine is measured as it is: measure again with other settings, and
    `kvsched bench compare` both.
    """
    from kvsched.cli.bench_run import check_engine, rules_of, shared_trace

    as_json = _as_json(format)
    check_engine(engine, engine_options)
    rules_of(rules, source.seed)
    settings = settings_of(engine, engine_options or [], vary, baseline, candidate)
    usual = None if source.trace else 4
    asked = Bench(
        "scheduler", engine, load, prompts, output, source.seed, source.speedup, usual, settings
    )
    _measure_and_tell(asked, shared_trace(source), rules, as_json)


@app.command("replay")
@spread
def replay(
    source: TraceOptions,
    engine: EngineChoice,
    prompts: PromptChoice,
    load: LoadChoice,
    output: ResultChoice,
    speedup: Annotated[
        float, typer.Option("--speedup", help="Divides the trace's times and think times.")
    ] = 1.0,
    engine_options: EngineArguments = None,
) -> None:
    """Send a trace's requests to an engine, at its own times, a rate, or so many at a time.

    Prompts are token ids drawn from a seed: two of them share exactly the prefix that they share
    in the trace.
    """
    from kvsched.cli.bench_run import check_engine
    from kvsched.cli.opening import open_trace

    check_engine(engine, engine_options)
    setting = Setting("", tuple(engine_options or []))
    asked = Bench("replay", engine, load, prompts, output, source.seed, speedup, None, (setting,))
    _measure_and_tell(asked, open_trace(source), RuleChoice(), source.as_json)


@app.command("compare")
@spread
def compare(
    a: Annotated[str, typer.Argument(metavar="A", help="A run's folder, or a folder of runs.")],
    b: Annotated[str, typer.Argument(metavar="B", help="The same, of the other setting.")],
    rules: RuleChoice,
    task: Annotated[
        str | None,
        typer.Option("--task", help="Whose rules: prefix-cache or scheduler.", show_default="B's"),
    ] = None,
    output: Annotated[
        str | None, typer.Option("--output", "-o", metavar="FILE", help="A .json or .html file.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Of the bootstrap.")] = 0,
    format: Format = None,
) -> None:
    """Compare measured runs of one workload: what changed, how surely, and what follows."""
    from kvsched.cli.bench_run import compared
    from kvsched.evidence.bench.files import NAMES, read_runs

    as_json = _as_json(format)
    if output is not None and (
        Path(output).suffix not in (".json", ".html") or Path(output).name in NAMES
    ):
        raise UsageError(f"--output {output}: name it .json or .html, and not as a run's file")
    names = Path(a).resolve().name, Path(b).resolve().name
    found = compared(read_runs(a), read_runs(b), rules, seed, names, task)
    if output is not None:
        _write_comparison(found, Path(output))
    if as_json:
        print_json(found)
        return
    _print_comparisons([found], [None])


def _write_comparison(found: BenchComparison, path: Path) -> None:
    import msgspec

    from kvsched.foundation.files import write_whole

    if path.suffix == ".html":
        from kvsched.report.bench_compare import render_bench_comparison

        write_whole(path, render_bench_comparison(found).encode("utf-8", "replace"))
        return
    write_whole(path, msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n")


def _folder(asked: Bench, setting: Setting, many: int | None, repeat: int) -> Path | None:
    """Where a run goes: output / setting / concurrency / repeat, each where there are several."""
    if asked.output.output_dir is None:
        return None
    parts = [Path(asked.output.output_dir)]
    if len(asked.settings) > 1:
        parts.append(Path(slug(setting.name)))
    if many is not None:
        parts.append(Path(f"concurrency-{many}"))
    if asked.output.repeats > 1:
        parts.append(Path(f"run-{repeat + 1}"))
    return Path(*parts)


def _measure_and_tell(asked: Bench, trace: Trace, rules: RuleChoice, as_json: bool) -> None:
    from kvsched.cli.bench_run import (
        check_errors,
        check_registry,
        compare_and_keep,
        concurrencies,
        record_all,
    )
    from kvsched.cli.endings import ends_as_interruptions
    from kvsched.evidence.bench.files import check_no_run, prepare_run

    if asked.output.output_dir == "":
        raise UsageError("--output-dir is empty")
    check_registry(asked.output)
    many = concurrencies(asked.load, asked.usual)
    shown: list[int | None] = list(many) if len(many) > 1 else [None]
    every = itertools.product(asked.settings, shown, range(asked.output.repeats))
    folders = [folder for each in every if (folder := _folder(asked, *each)) is not None]
    if asked.output.output_dir is not None:
        check_no_run(Path(asked.output.output_dir))
    for folder in folders:
        prepare_run(folder)
    try:
        with ends_as_interruptions():
            kept = _measure(asked, trace, many)
    except BaseException:
        _remove_empty(folders, asked.output.output_dir)
        raise
    runs = [each.run for each in kept.values()]
    comparisons: list[BenchComparison] = []
    pages: list[Path | None] = []
    base = None if asked.output.output_dir is None else Path(asked.output.output_dir)
    first, *others = asked.settings
    for number, other in itertools.product(many, others):
        sides = [
            [kept[setting.name, number, repeat].run for repeat in range(asked.output.repeats)]
            for setting in (first, other)
        ]
        stem = "comparison" if len(others) == 1 else f"comparison-{slug(other.name)}"
        stem += f"-concurrency-{number}" if len(many) > 1 else ""
        load = f", concurrency {number}" if len(many) > 1 else ""
        names = (f"{first.name}{load}", f"{other.name}{load}")
        try:
            found = compare_and_keep(sides[0], sides[1], rules, base, stem, asked.seed, names)
        except UsageError as error:
            # The runs are there, and worth more than an error.
            typer.echo(f"no comparison of {' and '.join(names)}: {error}", err=True)
        else:
            comparisons.append(found)
            pages.append(None if base is None else base / f"{stem}.html")
    if as_json:
        results = [run.result for run in runs]
        print_json({"runs": results, "comparisons": comparisons})
    else:
        _print(list(kept.values()))
        _print_comparisons(comparisons, pages)
        if asked.engine.launch is None and asked.task != "replay":
            typer.echo(
                "Measure again with the other setting, then: kvsched bench compare A B "
                "(folders of --output-dir)"
            )
    record_all(runs, comparisons, asked.output)
    check_errors(runs, asked.output.max_error_share)


def _remove_empty(folders: Sequence[Path], base: str | None) -> None:
    """Remove the folders that nothing was written to, and those that held them alone."""
    for folder in folders:
        for each in (folder, *folder.parents):
            with contextlib.suppress(OSError):
                each.rmdir()
            if base is None or each == Path(base):
                break


def _measure(
    asked: Bench, trace: Trace, many: Sequence[int | None]
) -> dict[tuple[str, int | None, int], Kept]:
    """Measure every setting, concurrency and repeat; an engine is started for each repeat."""
    from kvsched.cli.bench_run import (
        keep,
        plan_of,
        stop_where_interrupted,
        the_engine,
        traffic_of,
        workload_from,
    )
    from kvsched.cli.progress import steps
    from kvsched.evidence.bench.run import measure

    workloads = {}
    for number in many:
        traffic = traffic_of(asked.load, number, asked.seed, asked.speedup)
        workloads[number] = workload_from(
            trace, asked.prompts, traffic, asked.seed, asked.engine.model
        )
    plans = {
        number: plan_of(
            asked.task, asked.load, number, asked.output, asked.seed, {"speedup": asked.speedup}
        )
        for number in many
    }
    kept: dict[tuple[str, int | None, int], Kept] = {}
    before: dict[str, int] = {}
    for repeat, setting in itertools.product(range(asked.output.repeats), asked.settings):
        shown = many[0] if len(many) > 1 else None
        first = _folder(asked, setting, shown, repeat)
        log = None if first is None else first / "engine.log"
        with steps() as told, the_engine(asked.engine, setting.arguments, log, told) as engine:
            if asked.engine.launch is not None:
                before[setting.name] = 0
            for number in many:
                folder = _folder(asked, setting, number if len(many) > 1 else None, repeat)
                words = [setting.name, f"concurrency {number}" if len(many) > 1 else ""]
                words.append(f"run {repeat + 1}" if asked.output.repeats > 1 else "")
                label = ", ".join(filter(None, words)) or asked.task
                measured = measure(
                    workloads[number],
                    engine,
                    dataclasses.replace(plans[number], name=asked.output.name or label),
                    lambda step, done, total, label=label: told(  # type: ignore[misc]
                        f"{label}: {step}", done, total
                    ),
                    repeat=before.get(setting.name, 0),
                )
                before[setting.name] = before.get(setting.name, 0) + 1
                found = keep(measured, folder, label)
                stop_where_interrupted(found)
                kept[setting.name, number, repeat] = found
    return kept


def _print(kept: Sequence[Kept]) -> None:
    from rich.console import Console

    from kvsched.report.bench import print_bench

    console = Console(highlight=False)
    for each in kept:
        print_bench(each.run.result, console, each.run.name)
        if each.folder is not None:
            typer.echo(f"Report: {each.folder / 'report.html'}")
        typer.echo("")


def _print_comparisons(
    comparisons: Sequence[BenchComparison], pages: Sequence[Path | None]
) -> None:
    from rich.console import Console

    from kvsched.report.bench_compare import print_bench_comparison

    for found, page in zip(comparisons, pages, strict=True):
        print_bench_comparison(found, Console(highlight=False))
        if page is not None:
            typer.echo(f"Comparison: {page}")
        typer.echo("")
