"""`kvsched study` and `kvsched run`: from a trace, or an experiment's file, to a decision."""

from __future__ import annotations

import contextlib
import dataclasses
import shlex
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvsched.cli.groups import spread
from kvsched.cli.opening import (
    find_capacity,
    find_hardware,
    keep_apart,
    open_sampled,
    refuse_sampled_engine,
)
from kvsched.cli.options import (
    PRESET,
    CapacityOptions,
    EngineOptions,
    Format,
    Sample,
    SampleBudget,
    SampleOptions,
    TraceOptions,
    print_json,
    split_format,
)
from kvsched.foundation.errors import InputError, KvschedError, UsageError

if TYPE_CHECKING:
    from kvsched.catalog import Capacity
    from kvsched.study.compare import Comparison
    from kvsched.study.experiment import Experiment
    from kvsched.study.result import StudyResult
    from kvsched.study.run import Options
    from kvsched.trace.model import Trace


@dataclasses.dataclass(frozen=True)
class StudyOptions(EngineOptions):
    """What to ask of the trace."""

    policy: Annotated[
        str | None,
        typer.Option(
            "--policy",
            help="Your engine's policy: its misses are explained.",
            show_default="the engine's own; lru for generic",
        ),
    ] = None
    policies: Annotated[
        str | None,
        typer.Option(
            "--policies",
            help="Compared beside the optima, separated by commas.",
            show_default="lru,fifo,lfu,slru,chapter,decay",
        ),
    ] = None
    points: Annotated[
        int, typer.Option("--points", min=2, max=1000, help="Capacities on the curves' grid.")
    ] = 12
    batch: Annotated[
        int, typer.Option("--batch", min=1, help="Requests that decode together, for the worth.")
    ] = 64
    efficiency: Annotated[
        float, typer.Option("--efficiency", help="Share of the GPU's rate that prefill reaches.")
    ] = 1.0
    simulate: Annotated[
        bool,
        typer.Option(
            "--simulate/--no-simulate",
            help="Serve each policy in a timed simulation too; needs --model and --gpu.",
        ),
    ] = False
    sample: Sample = None
    sample_budget: SampleBudget = 60.0
    against: Annotated[
        str | None,
        typer.Option(
            "--against",
            metavar="TRACE|RESULT",
            help="Compare with the study of another trace, or with an earlier study's result.json "
            "or folder.",
        ),
    ] = None
    output_dir: Annotated[
        str, typer.Option("--output-dir", "-o", help="Folder for report.html and result.json.")
    ] = "kvsched-study"

    def names(self) -> tuple[str, ...] | None:
        """The policies to compare, or None for the built-in choice."""
        if self.policies is None:
            return None
        return tuple(name.strip() for name in self.policies.split(",") if name.strip())


@spread
def command(source: TraceOptions, asked: CapacityOptions, how: StudyOptions) -> None:
    """Study a trace: what could be reused, what you get of it, why not more, what more is worth.

    Prints tables, and writes report.html and result.json. TRACE may be the result of an earlier
    study where --against names what to compare it with.

    Interrupted, and run again, it goes on from where it was.
    """
    _interruptible(source, asked, how, ())


def run(
    experiment: Annotated[
        str | None,
        typer.Argument(
            metavar="EXPERIMENT", help="A .yaml, .json or .toml file.", show_default=False
        ),
    ] = None,
    output_dir: Annotated[
        str | None,
        typer.Option("--output-dir", "-o", help="Folder for the results, instead of the file's."),
    ] = None,
    format: Format = None,
    fields: Annotated[
        bool, typer.Option("--fields", help="List the fields of an experiment, and stop.")
    ] = False,
    schema: Annotated[
        bool, typer.Option("--schema", help="Print the JSON Schema of an experiment, and stop.")
    ] = False,
) -> None:
    """Run the study that an experiment's file describes.

    The file has the names of `kvsched study`'s options: trace, model, gpu, policies, against, …
    Paths in it are relative to its folder.
    """
    from kvsched.study.experiment import experiment_fields, experiment_schema, read_experiment

    if fields:
        typer.echo(experiment_fields())
        return
    if schema:
        print_json(experiment_schema())
        return
    if experiment is None:
        raise UsageError("name the experiment's file, or ask for --fields or --schema")
    described = read_experiment(Path(experiment))
    source, asked, how = options_of(described)
    if output_dir is not None:
        how = dataclasses.replace(how, output_dir=output_dir)
    output, reader = split_format(format)
    readers = [reader] if reader is not None else source.format or []
    source = dataclasses.replace(source, format=[output, *readers])
    _interruptible(source, asked, how, (experiment,))


def options_of(described: Experiment) -> tuple[TraceOptions, CapacityOptions, StudyOptions]:
    """Return the command line's options that say the same as an experiment."""
    values: dict[str, Any] = {
        name: getattr(described, name) for name in described.__struct_fields__
    }
    values["format"] = None if described.format is None else [described.format]
    if described.policies is not None:
        values["policies"] = ",".join(described.policies)

    def group(kind: Any) -> Any:
        return kind(**{field.name: values[field.name] for field in dataclasses.fields(kind)})

    return group(TraceOptions), group(CapacityOptions), group(StudyOptions)


def experiment_of(source: TraceOptions, asked: CapacityOptions, how: StudyOptions) -> Experiment:
    """Return the experiment that says the same as the command line."""
    from kvsched.study.experiment import Experiment

    values = {**vars(source), **vars(asked), **vars(how), "policies": how.names()}
    values["format"] = split_format(source.format)[1]
    return Experiment(**values)


def _again(files: Iterable[str | None]) -> str:
    """Return the command as typed, without folders in front of the program or of ``files``.

    ``--output-dir`` and where the files lay do not decide the result, so they are not in it.
    """
    names = {file: Path(file).name for file in files if file and not file.startswith(PRESET)}
    words = ["kvsched"]
    skip = False
    for word in sys.argv[1:]:
        option, equals, value = word.partition("=")
        if skip:
            skip = False
        elif word in ("-o", "--output-dir"):
            skip = True
        elif word.startswith("--output-dir=") or (word.startswith("-o") and word[1:2] != "-"):
            continue
        elif equals and option.startswith("--") and value in names:
            words.append(f"{option}={names[value]}")
        else:
            words.append(names.get(word, word))
    return shlex.join(words).encode("utf-8", "replace").decode()


def _interruptible(
    source: TraceOptions, asked: CapacityOptions, how: StudyOptions, files: Sequence[str]
) -> None:
    try:
        _run(source, asked, how, files)
    except KeyboardInterrupt:
        typer.echo("kvsched: interrupted; the same command goes on from here", err=True)
        sys.exit(1)


def _options(
    source: TraceOptions, asked: CapacityOptions, how: StudyOptions, files: Sequence[str]
) -> Options:
    from kvsched.study.run import Options

    named = (*files, source.trace, how.against, source.tokenizer, source.chat_template, asked.model)
    return Options(
        policies=how.names(),
        policy=how.policy,
        engine=how.engine,
        cache_generated=how.cache_generated,
        points=how.points,
        batch=how.batch,
        efficiency=how.efficiency,
        simulate=how.simulate,
        kv_cache_dtype=asked.kv_cache_dtype,
        weight_dtype=asked.weight_dtype,
        command=_again(named),
        experiment=experiment_of(source, asked, how).embedded(),
    )


def _run(
    source: TraceOptions, asked: CapacityOptions, how: StudyOptions, files: Sequence[str]
) -> None:
    """Study what is to be studied, compare what is to be compared, print it."""
    from kvsched.study.files import AGAINST, is_result, read_result
    from kvsched.study.run import asked_policies

    options = _options(source, asked, how, files)
    asked_policies(options)
    folder = Path(how.output_dir)
    _keep_read_files(
        folder, (*files, source.tokenizer, source.chat_template, asked.model), how, source
    )
    sampling = SampleOptions(how.sample, how.sample_budget)
    refuse_sampled_engine(EngineOptions(how.engine), sampling)
    against = how.against or PRESET
    if not against.startswith(PRESET) and not Path(against).exists():
        # Known before the first study has taken its time.
        raise InputError(against, "no such file")
    if not source.trace.startswith(PRESET) and is_result(Path(source.trace)):
        if how.against is None:
            raise UsageError(
                f"{source.trace} is a study's result: --against says with what to compare it"
            )
        first = read_result(Path(source.trace))
    else:
        first = _study(source, asked, sampling, options, folder)
    if how.against is None:
        _show(first, source, folder)
        return
    if not how.against.startswith(PRESET) and is_result(Path(how.against)):
        second = read_result(Path(how.against))
    else:
        other = dataclasses.replace(source, trace=how.against)
        tokens = first.capacity.tokens
        second = _study(other, asked, sampling, options, folder / AGAINST, tokens)
    _compare(first, second, source, folder)


def _keep_read_files(
    folder: Path, files: Iterable[str | None], how: StudyOptions, source: TraceOptions
) -> None:
    """Raise UsageError where a file that is read would be written over by a result."""
    from kvsched.study.files import AGAINST, COMPARISON_NAMES, NAMES, is_result

    studied = [
        (trace, place)
        for trace, place in ((source.trace, folder), (how.against, folder / AGAINST))
        if trace and (trace.startswith(PRESET) or not is_result(Path(trace)))
    ]
    outputs = [str(folder / name) for name in COMPARISON_NAMES if how.against]
    outputs += [str(place / name) for _, place in studied for name in NAMES]
    for read in (*files, source.trace, how.against):
        if read and Path(read).is_file():
            keep_apart(read, *outputs)
    for trace, place in studied:
        if Path(trace).is_dir() and place.exists() and place.samefile(trace):
            raise UsageError(f"{place}: is the folder of the trace: name another --output-dir")


def _capacity(
    asked: CapacityOptions, trace: Trace, tokens: int | None
) -> tuple[Any, Any, Capacity | None]:
    """Find the model, the accelerator and the capacity; ``tokens`` where none was asked for."""
    from kvsched.catalog import capacity_from_tokens

    model, gpu = find_hardware(asked)
    found = find_capacity(asked, trace, model, gpu)
    if found is None and tokens is not None:
        found = capacity_from_tokens(tokens, trace.unit_tokens)
    return model, gpu, found


def _study(
    source: TraceOptions,
    asked: CapacityOptions,
    sampling: SampleOptions,
    options: Options,
    folder: Path,
    tokens: int | None = None,
) -> StudyResult:
    """Study one trace and write its files. ``tokens`` is the capacity where none was asked for."""
    from kvsched.cli.progress import steps
    from kvsched.report.html import render_html
    from kvsched.study.files import PARTIAL, prepare_folder, write_study
    from kvsched.study.run import asked_policies, study
    from kvsched.trace.check import require_blocks

    replays = len(asked_policies(options)) * options.points
    find_hardware(asked)
    trace = open_sampled(source, sampling, replays)
    require_blocks(trace)
    model, gpu, capacity = _capacity(asked, trace, tokens)
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
    return result


def _show(result: StudyResult, source: TraceOptions, folder: Path) -> None:
    if source.as_json:
        print_json(result)
        return
    from rich.console import Console

    from kvsched.report.terminal import print_study

    print_study(result, Console(highlight=False))
    typer.echo(f"Report: {folder / 'report.html'}    Numbers: {folder / 'result.json'}")


def _compare(first: StudyResult, second: StudyResult, source: TraceOptions, folder: Path) -> None:
    """Write the comparison and print it."""
    from kvsched.report.comparison import print_comparison, render_comparison
    from kvsched.study.compare import compare
    from kvsched.study.files import prepare_folder, write_comparison

    result: Comparison = compare(first, second)
    prepare_folder(folder)
    write_comparison(result, folder, render_comparison(result))
    if source.as_json:
        print_json(result)
        return
    from rich.console import Console

    print_comparison(result, Console(highlight=False))
    page, numbers = folder / "comparison.html", folder / "comparison.json"
    typer.echo(f"Report: {page}    Numbers: {numbers}")
