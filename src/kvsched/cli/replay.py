"""`kvsched replay`: one policy at one capacity."""

from __future__ import annotations

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
    CapacityOptions,
    EngineOptions,
    SampleOptions,
    TraceOptions,
    print_json,
    sample_line,
)
from kvsched.foundation.errors import UsageError

if TYPE_CHECKING:
    from kvsched.catalog import Capacity
    from kvsched.replay.run import Replay
    from kvsched.trace.model import Trace

PolicyName = Annotated[
    str | None,
    typer.Option(
        "--policy",
        metavar="NAME[:PARAMETER=VALUE]|path.py:Name|module:Name",
        help="The eviction policy; `kvsched policies` lists them.",
        show_default="the engine's own; lru for generic",
    ),
]


@spread
def command(
    source: TraceOptions,
    asked: CapacityOptions,
    rules: EngineOptions,
    sampling: SampleOptions,
    policy: PolicyName = None,
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
    start: Annotated[
        str | None,
        typer.Option(
            "--start",
            metavar="FILE",
            help="Go on from a saved cache, under its policy and at its capacity unless named.",
        ),
    ] = None,
    start_gap_s: Annotated[
        float,
        typer.Option(
            "--start-gap", metavar="SECONDS", help="Seconds from the moment it was saved to time 0."
        ),
    ] = 0.0,
) -> None:
    """Replay a trace, one request after another, and count what a policy hits."""
    from kvsched.cli.rows import check_rows_file, decision_rows, request_rows, write_rows
    from kvsched.replay.engine import find_engine
    from kvsched.trace.check import require_blocks

    for file in (per_request, dump_decisions):
        check_rows_file(file)
    if per_request is not None and per_request == dump_decisions:
        raise UsageError("--per-request and --dump-decisions need a file each")
    if sampling.sample is not None and (per_request or dump_decisions):
        raise UsageError(
            "--sample says nothing of single requests: leave out --per-request and --dump-decisions"
        )
    keep_apart(source.trace, per_request, dump_decisions)
    refuse_sampled_engine(rules, sampling)
    if start is not None and (sampling.sample is not None or rules.engine != "generic"):
        raise UsageError("--start goes with no --sample and no --engine: a saved cache is whole")
    if start is not None and dump_decisions is not None:
        raise UsageError("--start keeps no decisions: leave out --dump-decisions")
    if start is None and start_gap_s:
        raise UsageError("--start-gap goes with --start")
    engine = find_engine(rules.engine)
    chosen = engine.policy(policy)
    found_model, found_gpu = find_hardware(asked)
    opened = open_sampled(source, sampling, 1)
    require_blocks(opened)
    capacity = find_capacity(asked, opened, found_model, found_gpu)
    if start is not None:
        result, capacity = _from_saved(opened, start, start_gap_s, policy, capacity)
    elif capacity is None:
        raise UsageError(
            "name a capacity: --capacity-blocks, --capacity-tokens, --capacity-gib with --model, "
            "or --gpu with --model"
        )
    else:
        result = engine(opened, cache_generated=rules.cache_generated).replay(
            chosen, capacity.blocks, decisions=dump_decisions is not None
        )
    files = []
    if per_request is not None:
        files.append((per_request, request_rows(result)))
    if dump_decisions is not None:
        files.append((dump_decisions, decision_rows(result)))
    write_rows(files)
    from kvsched.replay.sampling import sampling_errors
    from kvsched.study.describe import replay_summary
    from kvsched.study.describe import sample as sample_summary
    from kvsched.trace.sample import SampledTrace

    summary = replay_summary(result, capacity)
    if isinstance(opened, SampledTrace):
        found = sampling_errors(
            opened, [chosen], [capacity.blocks], {chosen.label: [result.hit_blocks]}
        )
        summary["sample"] = sample_summary(opened, found)
    if source.as_json:
        print_json(summary)
    else:
        _print_text(summary)


def _from_saved(
    trace: Trace, start: str, gap_s: float, policy: str | None, asked: Capacity | None
) -> tuple[Replay, Capacity]:
    """Replay from a saved cache, at its capacity."""
    from kvsched.catalog import capacity_from_blocks
    from kvsched.replay.start import replay_from

    result = replay_from(trace, start, policy, 0 if asked is None else asked.blocks, gap_s)
    return result, asked or capacity_from_blocks(result.capacity_blocks, trace.block_size)


def _start_line(start: dict[str, Any]) -> str:
    """Say in one line what a replay started from."""
    parts = [
        f"{start['file']}: {start['cached_blocks']:,} blocks, {start['known_blocks']:,} of them in "
        "the trace",
        *start["learnt_anew"],
    ]
    if start["rejected_requests"]:
        parts.append(f"{start['rejected_requests']:,} requests had no room")
    return "; ".join(parts)


def _print_text(summary: dict[str, Any]) -> None:
    def ratio(name: str) -> str:
        return "–" if summary[name] is None else f"{100 * summary[name]:.2f}%"

    gib = "" if summary["capacity_gib"] is None else f" ({summary['capacity_gib']:,.2f} GiB)"
    typer.echo(f"policy      {summary['policy']}")
    unit = "blocks" if summary["capacity_blocks"] is not None else "tokens"
    typer.echo(f"capacity    {summary[f'capacity_{unit}']:,} {unit}{gib}")
    for step in summary["capacity_derivation"]:
        typer.echo(f"            {step}")
    hits, total = summary["hit_blocks"], summary["total_blocks"]
    typer.echo(f"hit blocks  {hits:,} of {total:,} ({ratio('block_hit_ratio')})")
    hits, total = summary["hit_tokens"], summary["total_tokens"]
    typer.echo(f"hit tokens  {hits:,} of {total:,} ({ratio('token_hit_ratio')})")
    typer.echo(f"evictions   {summary['evictions']:,}")
    if summary.get("tuned"):
        tuned = ", ".join(f"{name} {value:g}" for name, value in summary["tuned"].items())
        typer.echo(f"tuned       {tuned.replace('since_request', 'since request')}")
    if "start" in summary:
        typer.echo(f"start       {_start_line(summary['start'])}")
    if "sample" in summary:
        typer.echo(f"sample      {sample_line(summary['sample'])}")
    if "engine" not in summary:
        typer.echo(
            "Sequential replay; a hit is the longest resident prefix; the partial tail counts."
        )
        return
    typer.echo(f"refused     {summary['refused'] or 'none'}")
    typer.echo("Sequential replay; a hit is the longest resident prefix that the rules allow.")
    for name in ("engine", "generated_tokens_cached", "duplicates"):
        if name in summary["definitions"]:
            typer.echo(f"{name.replace('_', ' ')}: {summary['definitions'][name]}")
