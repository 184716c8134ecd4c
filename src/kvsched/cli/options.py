"""What several commands share: their options, and how results are said."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from kvsched.study.result import SampleSummary

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
        "tenant, type, model, turn, priority, scope, deadline, delay; input and output are needed.",
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


def split_format(values: list[str] | None) -> tuple[str, str | None]:
    """Return the output format and the reader's name that ``--format`` holds."""
    output, reader = "text", None
    for value in values or []:
        if value in OUTPUTS:
            output = value
        else:
            reader = value
    return output, reader


def sample_line(found: SampleSummary) -> str:
    """Say in one line what was sampled, and how far the hit ratios may be off."""
    errors = [each.expected_error for each in found.errors]
    off = f"hit ratios ± {100 * max(errors):.2f} points" if errors else ""
    return f"1/{found.one_in:,}, seed {found.seed}: {found.nodes:,} nodes; expected error: {off}"


def print_json(value: Any) -> None:
    """Print one JSON object on stdout, and nothing else."""
    import msgspec

    sys.stdout.write(msgspec.json.format(msgspec.json.encode(value)).decode() + "\n")
