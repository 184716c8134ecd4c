"""What the options ask for: the trace opened, the hardware and the capacity found."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from kvsched.cli.options import (
    PRESET,
    CapacityOptions,
    EngineOptions,
    SampleOptions,
    TraceOptions,
    split_format,
)
from kvsched.foundation.errors import UsageError

if TYPE_CHECKING:
    from kvsched.catalog import Accelerator, Capacity, Model
    from kvsched.trace.generate import Workload
    from kvsched.trace.model import Trace


def keep_apart(trace: str, *outputs: str | None) -> None:
    """Raise UsageError where an output is a file, or in a folder, that is read."""
    read = Path(trace)
    for output in outputs:
        if output is None or not Path(output).exists() or not read.exists():
            continue
        inside = read.is_dir() and Path(output).parent.samefile(read)
        if inside or Path(output).samefile(read):
            raise UsageError(f"{output}: is read here, and never written over: name another file")


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
