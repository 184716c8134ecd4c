"""What several commands share: options, opening a trace, finding a capacity, saying results."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvsched.foundation.errors import UsageError

if TYPE_CHECKING:
    from kvsched.catalog import Accelerator, Capacity, Model
    from kvsched.study.result import SampleSummary
    from kvsched.trace.generate import Workload
    from kvsched.trace.model import Trace

OUTPUTS = ("text", "json")
PRESET = "preset:"

TraceArgument = Annotated[
    str,
    typer.Argument(
        metavar="TRACE",
        help="A trace file, a folder of session files, or preset:NAME for a generated workload.",
        show_default=False,
    ),
]
Format = Annotated[
    list[str] | None,
    typer.Option(
        "--format",
        metavar="text|json|READER",
        help="json prints only JSON on stdout; a reader's name (mooncake, bailian, weka, …) "
        "overrides detection. May be given twice.",
        show_default=False,
    ),
]
TimeUnit = Annotated[
    str | None,
    typer.Option("--time-unit", metavar="s|ms|us|ns", help="Unit of the timestamps."),
]
BlockSize = Annotated[
    int | None,
    typer.Option("--block-size", help="Tokens in a block of the trace, where it does not say."),
]
SessionArrivals = Annotated[
    str,
    typer.Option(
        "--session-arrivals",
        metavar="zero|poisson:RATE",
        help="When sessions with clocks of their own begin: all at 0, or RATE a second.",
    ),
]
Seed = Annotated[int, typer.Option("--seed", help="Seed of whatever is drawn.")]
Subagents = Annotated[
    bool, typer.Option("--include-subagents", help="Take the nested requests of subagents too.")
]
Tokenizer = Annotated[
    str | None,
    typer.Option("--tokenizer", metavar="FILE", help="A tokenizer.json, for logs of messages."),
]
ChatTemplate = Annotated[
    str | None,
    typer.Option(
        "--chat-template",
        metavar="FILE",
        help="The model's chat template (Jinja, or a tokenizer_config.json); needs --tokenizer.",
    ),
]
BytesPerToken = Annotated[
    float | None,
    typer.Option(
        "--bytes-per-token", help="Count so many bytes as a token, for text without a tokenizer."
    ),
]
SkipBadRows = Annotated[
    bool, typer.Option("--skip-bad-rows", help="Leave bad rows out, and say how many.")
]
Columns = Annotated[
    str | None,
    typer.Option(
        "--columns",
        metavar="ROLE=COLUMN,…",
        help="Columns of a CSV or Parquet table: time, input, output, blocks, sizes, session, "
        "tenant, type, model, turn, priority, deadline, delay.",
    ),
]
CapacityBlocks = Annotated[
    int | None, typer.Option("--capacity-blocks", help="Capacity in blocks of the trace.")
]
CapacityTokens = Annotated[
    int | None, typer.Option("--capacity-tokens", help="Capacity in tokens, rounded down.")
]
CapacityGib = Annotated[
    float | None,
    typer.Option("--capacity-gib", help="Capacity in GiB over all GPUs; needs --model."),
]
ModelName = Annotated[
    str | None,
    typer.Option(
        "--model",
        help="A model of `kvsched models`, or the path of a config.json.",
    ),
]
GpuName = Annotated[
    str | None, typer.Option("--gpu", help="An accelerator of `kvsched gpus`; needs --model.")
]
TensorParallel = Annotated[
    int, typer.Option("--tensor-parallel-size", "-tp", help="GPUs that share each layer.")
]
Utilization = Annotated[
    float, typer.Option("--gpu-memory-utilization", help="Share of its memory an engine takes.")
]
KvCacheDtype = Annotated[
    str, typer.Option("--kv-cache-dtype", help="auto, bfloat16, float16, fp8, …")
]
WeightDtype = Annotated[
    str, typer.Option("--weight-dtype", help="auto (the model's own), bfloat16, fp8, …")
]
Allowance = Annotated[
    float,
    typer.Option("--allowance-gib", help="Taken off each GPU for activations and CUDA graphs."),
]
ReserveRunning = Annotated[
    str | None,
    typer.Option(
        "--reserve-running",
        metavar="TOKENS|REQUESTSxTOKENS",
        help="Taken off for what running requests hold, as in 64x2048.",
    ),
]


Sample = Annotated[
    str | None,
    typer.Option(
        "--sample",
        metavar="RATE|auto",
        help="Replay a sample of the trace's nodes, as 0.1 or 1/10; the results are estimates, "
        "with their expected error. auto: a rate that fits the budget.",
        show_default=False,
    ),
]
SampleBudget = Annotated[
    float,
    typer.Option(
        "--sample-budget", metavar="SECONDS", help="Nominal seconds of one core for --sample auto."
    ),
]


@dataclass(frozen=True)
class SampleOptions:
    """Whether to replay all nodes or a sample."""

    sample: Sample = None
    sample_budget: SampleBudget = 60.0


@dataclass(frozen=True)
class TraceOptions:
    """Which trace, and how to open it; and the output's format, which shares its option."""

    trace: TraceArgument
    format: Format = None
    time_unit: TimeUnit = None
    block_size: BlockSize = None
    session_arrivals: SessionArrivals = "zero"
    seed: Seed = 0
    include_subagents: Subagents = False
    tokenizer: Tokenizer = None
    chat_template: ChatTemplate = None
    bytes_per_token: BytesPerToken = None
    skip_bad_rows: SkipBadRows = False
    columns: Columns = None

    @property
    def as_json(self) -> bool:
        """Whether the output is JSON."""
        return split_format(self.format)[0] == "json"


@dataclass(frozen=True)
class EngineOptions:
    """Whose rules say what can be stored and hit."""

    engine: Annotated[
        str,
        typer.Option(
            "--engine",
            metavar="generic|vllm|sglang",
            help="Whose rules say what can be stored and hit, and whose policy is the default.",
        ),
    ] = "generic"
    cache_generated: Annotated[
        bool,
        typer.Option(
            "--cache-generated/--no-cache-generated",
            help="Whether the engine stores the blocks that decoding fills.",
        ),
    ] = True


@dataclass(frozen=True)
class CapacityOptions:
    """The capacity as the user gave it."""

    capacity_blocks: CapacityBlocks = None
    capacity_tokens: CapacityTokens = None
    capacity_gib: CapacityGib = None
    model: ModelName = None
    gpu: GpuName = None
    tensor_parallel_size: TensorParallel = 1
    gpu_memory_utilization: Utilization = 0.9
    kv_cache_dtype: KvCacheDtype = "auto"
    weight_dtype: WeightDtype = "auto"
    allowance_gib: Allowance = 2.0
    reserve_running: ReserveRunning = None


def keep_apart(trace: str, *outputs: str | None) -> None:
    """Raise UsageError where an output is the trace's own file, which is only ever read."""
    read = Path(trace)
    for output in outputs:
        if output is None or not Path(output).exists() or not read.exists():
            continue
        inside = read.is_dir() and Path(output).parent.samefile(read)
        if inside or Path(output).samefile(read):
            raise UsageError(f"{output}: is the trace that is read: name another file")


def split_format(values: list[str] | None) -> tuple[str, str | None]:
    """Return the output format and the reader's name that ``--format`` holds."""
    output, reader = "text", None
    for value in values or []:
        if value in OUTPUTS:
            output = value
        else:
            reader = value
    return output, reader


def open_trace(source: TraceOptions) -> Trace:
    """Read the trace, or generate it from its preset; say on stderr what was left out."""
    if source.trace.startswith(PRESET):
        from kvsched.trace.generate import generate

        return generate(_preset(source), source.seed)
    trace = _read(source)
    _say_notes(trace)
    return trace


def _say_notes(trace: Trace) -> None:
    for note in trace.origin.notes:
        typer.echo(f"note: {note}", err=True)


def _read(source: TraceOptions, rate: Callable[[int], int] | None = None) -> Trace:
    """Read the trace's file or folder; with ``rate``, the sample that is told by it."""
    from kvsched.cli.progress import working
    from kvsched.trace.load import load_trace
    from kvsched.trace.reading import Sampling

    with working(f"reading {source.trace}", f"sampling {source.trace}") as (reading, sampling):
        return load_trace(
            source.trace,
            split_format(source.format)[1],
            time_unit=source.time_unit,
            block_size=source.block_size,
            session_arrivals=source.session_arrivals,
            seed=source.seed,
            include_subagents=source.include_subagents,
            tokenizer=source.tokenizer,
            chat_template=source.chat_template,
            bytes_per_token=source.bytes_per_token,
            skip_bad_rows=source.skip_bad_rows,
            columns=source.columns,
            progress=reading,
            sampling=None if rate is None else Sampling(rate, source.seed, sampling),
        )


def _preset(source: TraceOptions) -> Workload:
    from kvsched.trace.generate import preset

    changes = {} if source.block_size is None else {"block_size": source.block_size}
    return preset(source.trace.removeprefix(PRESET), **changes)


def open_sampled(source: TraceOptions, asked: SampleOptions, replays: int) -> Trace:
    """Open the trace, and take the sample that was asked for; ``replays`` of it will follow."""
    if asked.sample is None:
        return open_trace(source)
    from kvsched.replay.sampling import one_in_for, parse_sample

    one_in = parse_sample(asked.sample)
    one_in_for(1, 1, asked.sample_budget)

    def rate(references: int) -> int:
        return one_in or one_in_for(references, replays, asked.sample_budget)

    if source.trace.startswith(PRESET):
        from kvsched.trace.generate import generate_sampled

        trace: Trace = generate_sampled(_preset(source), source.seed, rate)
    else:
        trace = _read(source, rate)
        _say_notes(trace)
    if trace.total_references and not trace.references:
        raise UsageError("the sample holds no block at all: take a larger share of the trace")
    if one_in is None:
        typer.echo(f"note: --sample auto took 1/{rate(trace.total_references)}", err=True)
    return trace


def refuse_sampled_engine(rules: EngineOptions, sampling: SampleOptions) -> None:
    """Raise UsageError where a sample, which has holes, is to be run under an engine's rules."""
    if sampling.sample is not None and rules.engine != "generic":
        raise UsageError(
            f"engine {rules.engine}: its rules need whole chains, and a sample has holes in them: "
            "leave out --sample"
        )


def find_hardware(options: CapacityOptions) -> tuple[Model | None, Accelerator | None]:
    """Look up the model and the accelerator that were named."""
    if options.model is None and options.gpu is None:
        return None, None
    from kvsched.catalog import find_accelerator, load_model

    if options.model is None:
        raise UsageError("--gpu needs --model: how much a block takes depends on the model")
    model = load_model(options.model)
    return model, None if options.gpu is None else find_accelerator(options.gpu)


def find_capacity(
    options: CapacityOptions, trace: Trace, model: Model | None, gpu: Accelerator | None
) -> Capacity | None:
    """Turn what the user gave into whole blocks of the trace; None if nothing was given."""
    import msgspec

    from kvsched import catalog

    given = [
        options.capacity_blocks is not None,
        options.capacity_tokens is not None,
        options.capacity_gib is not None,
    ]
    if sum(given) > 1:
        raise UsageError("give one of --capacity-blocks, --capacity-tokens and --capacity-gib")
    reserve = None
    if options.reserve_running is not None:
        reserve = catalog.parse_reserve(options.reserve_running)
        if options.capacity_blocks is not None or options.capacity_tokens is not None:
            raise UsageError("--reserve-running goes with --capacity-gib or --gpu")
    shape: dict[str, Any] = {
        "block_size": trace.unit_tokens,
        "kv_cache_dtype": options.kv_cache_dtype,
        "tensor_parallel_size": options.tensor_parallel_size,
    }
    if options.capacity_gib is not None:
        if model is None:
            raise UsageError("--capacity-gib needs --model: GiB are blocks of a model's KV cache")
        return catalog.capacity_from_gib(options.capacity_gib, model, reserve=reserve, **shape)
    if options.capacity_blocks is not None:
        if trace.unequal:
            raise UsageError(
                "this trace's blocks have sizes of their own: give --capacity-tokens, or "
                "--capacity-gib or --gpu with --model"
            )
        found = catalog.capacity_from_blocks(options.capacity_blocks, trace.block_size)
    elif options.capacity_tokens is not None:
        found = catalog.capacity_from_tokens(options.capacity_tokens, trace.unit_tokens)
        if trace.unequal:
            said = f"{found.tokens:,} tokens; blocks take as many as they have."
            found = msgspec.structs.replace(found, derivation=(said,))
    elif model is not None and gpu is not None:
        return catalog.capacity_from_gpu(
            gpu,
            model,
            gpu_memory_utilization=options.gpu_memory_utilization,
            weight_dtype=options.weight_dtype,
            allowance_gib=options.allowance_gib,
            reserve=reserve,
            **shape,
        )
    else:
        return None
    if model is None:
        return found
    size = catalog.bytes_per_block(model, **shape)
    return msgspec.structs.replace(found, bytes_per_block=size, ranks=options.tensor_parallel_size)


def sample_line(found: SampleSummary) -> str:
    """Say in one line what was sampled, and how far the hit ratios may be off."""
    errors = [each.expected_error for each in found.errors]
    off = f"hit ratios ± {100 * max(errors):.2f} points" if errors else ""
    return f"1/{found.one_in:,}, seed {found.seed}: {found.nodes:,} nodes; expected error: {off}"


def print_json(value: Any) -> None:
    """Print one JSON object on stdout, and nothing else."""
    import msgspec

    sys.stdout.write(msgspec.json.format(msgspec.json.encode(value)).decode() + "\n")
