"""`kvsched replay`: one policy at one capacity."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from kvsched.cli.options import (
    Allowance,
    BlockSize,
    CapacityBlocks,
    CapacityGib,
    CapacityOptions,
    CapacityTokens,
    Format,
    GpuName,
    KvCacheDtype,
    ModelName,
    ReserveRunning,
    Seed,
    SessionArrivals,
    SkipBadRows,
    Source,
    Subagents,
    TensorParallel,
    TimeUnit,
    TraceArgument,
    Utilization,
    WeightDtype,
    find_capacity,
    find_hardware,
    open_trace,
    print_json,
    split_format,
)
from kvsched.foundation.errors import UsageError

PolicyName = Annotated[
    str,
    typer.Option(
        "--policy",
        metavar="NAME[:PARAMETER=VALUE]|path.py:Name|module:Name",
        help="The eviction policy; `kvsched policies` lists them.",
    ),
]


def command(
    trace: TraceArgument,
    policy: PolicyName = "lru",
    capacity_blocks: CapacityBlocks = None,
    capacity_tokens: CapacityTokens = None,
    capacity_gib: CapacityGib = None,
    model: ModelName = None,
    gpu: GpuName = None,
    tensor_parallel_size: TensorParallel = 1,
    gpu_memory_utilization: Utilization = 0.9,
    kv_cache_dtype: KvCacheDtype = "auto",
    weight_dtype: WeightDtype = "auto",
    allowance_gib: Allowance = 2.0,
    reserve_running: ReserveRunning = None,
    per_request: Annotated[
        str | None,
        typer.Option("--per-request", help="Write a row a request to this .jsonl or .csv file."),
    ] = None,
    dump_decisions: Annotated[
        str | None,
        typer.Option(
            "--dump-decisions",
            help="Write who left, when and for whom to this .jsonl or .csv file.",
        ),
    ] = None,
    format: Format = None,
    time_unit: TimeUnit = None,
    block_size: BlockSize = None,
    session_arrivals: SessionArrivals = "zero",
    seed: Seed = 0,
    include_subagents: Subagents = False,
    skip_bad_rows: SkipBadRows = False,
) -> None:
    """Replay a trace, one request after another, and count what a policy hits."""
    from kvsched.cli.rows import check_rows_file, write_decisions, write_requests
    from kvsched.policy.registry import make
    from kvsched.replay.run import replay

    output, reader = split_format(format)
    for file in (per_request, dump_decisions):
        check_rows_file(file)
    if per_request is not None and per_request == dump_decisions:
        raise UsageError("--per-request and --dump-decisions need a file each")
    chosen = make(policy)
    asked = CapacityOptions(
        capacity_blocks,
        capacity_tokens,
        capacity_gib,
        model,
        gpu,
        tensor_parallel_size,
        gpu_memory_utilization,
        kv_cache_dtype,
        weight_dtype,
        allowance_gib,
        reserve_running,
    )
    found_model, found_gpu = find_hardware(asked)
    opened = open_trace(
        Source(
            trace,
            reader,
            time_unit,
            block_size,
            session_arrivals,
            seed,
            include_subagents,
            skip_bad_rows,
        )
    )
    capacity = find_capacity(asked, opened, found_model, found_gpu)
    if capacity is None:
        raise UsageError(
            "name a capacity: --capacity-blocks, --capacity-tokens, --capacity-gib with --model, "
            "or --gpu with --model"
        )
    result = replay(opened, chosen, capacity.blocks, decisions=dump_decisions is not None)
    if per_request is not None:
        write_requests(result, per_request)
    if dump_decisions is not None:
        write_decisions(result, dump_decisions)
    from kvsched.study.describe import replay_summary

    summary = replay_summary(result, capacity)
    if output == "json":
        print_json(summary)
    else:
        _print_text(summary)


def _print_text(summary: dict[str, Any]) -> None:
    def ratio(name: str) -> str:
        return "–" if summary[name] is None else f"{100 * summary[name]:.2f}%"

    gib = "" if summary["capacity_gib"] is None else f" ({summary['capacity_gib']:,.2f} GiB)"
    typer.echo(f"policy      {summary['policy']}")
    typer.echo(f"capacity    {summary['capacity_blocks']:,} blocks{gib}")
    for step in summary["capacity_derivation"]:
        typer.echo(f"            {step}")
    hits, total = summary["hit_blocks"], summary["total_blocks"]
    typer.echo(f"hit blocks  {hits:,} of {total:,} ({ratio('block_hit_ratio')})")
    hits, total = summary["hit_tokens"], summary["total_tokens"]
    typer.echo(f"hit tokens  {hits:,} of {total:,} ({ratio('token_hit_ratio')})")
    typer.echo(f"evictions   {summary['evictions']:,}")
    typer.echo("Sequential replay; a hit is the longest resident prefix; the partial tail counts.")
