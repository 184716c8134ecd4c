"""A question put to an engine, answered whole.

Settings come from a model and an accelerator; the answer is the run, its summary, and how far the
step time's band moves it:

    served = serve(trace, Asking(model="llama-3.1-8b", gpu="h100"))
    served.result.summary.ttft_s.p99
    served.simulation.ttft_s                    # (R,)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from kvsched import catalog
from kvsched.catalog import Accelerator, Model
from kvsched.foundation.errors import UsageError
from kvsched.foundation.version import VERSION
from kvsched.policy.base import Policy
from kvsched.serve import step_time as steps
from kvsched.serve.cost import StepCost
from kvsched.serve.fitted import read_fit
from kvsched.serve.orders.base import QueueOrder
from kvsched.serve.parts import config_of, find_admission, find_swap, find_traffic
from kvsched.serve.result import Simulation
from kvsched.serve.roofline import roofline
from kvsched.serve.routing.base import Routing
from kvsched.serve.sentences import sentences
from kvsched.serve.settings import Settings, device_defaults
from kvsched.serve.simulate import simulate as run
from kvsched.serve.step_time import Band, StepTime
from kvsched.serve.summary import DEFINITIONS, Objective, Summary, summarise
from kvsched.trace.model import Trace
from kvsched.trace.summary import summarise as summarise_trace

SCHEMA_VERSION = 1
FREE_LIST = "free-list"
"""vLLM's own order of eviction."""

Report = Callable[[str, int, int], None]
"""Told (what, done, all)."""


@dataclass(frozen=True, kw_only=True)
class Asking:
    """What is served by what, in vLLM's names; None is vLLM's own default of a server.

    ``model`` and ``gpu`` give the memory and the step time; with ``step_time`` and
    ``num_gpu_blocks_override`` neither is needed.
    """

    model: str | Model | None = None
    gpu: str | Accelerator | None = None
    tensor_parallel_size: int = 1
    gpu_memory_utilization: float = catalog.capacity.DEFAULT_UTILIZATION
    kv_cache_dtype: str = "auto"
    weight_dtype: str = "auto"
    allowance_gib: float = catalog.capacity.DEFAULT_ALLOWANCE_GIB
    num_gpu_blocks_override: int | None = None
    """vLLM's number: one of them is its null block, which no request gets."""
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    max_model_len: int | None = None
    """None is the model's own."""
    long_prefill_token_threshold: int = 0
    watermark: float = 0.0
    enable_chunked_prefill: bool = True
    enable_prefix_caching: bool = True
    cache_generated: bool = True
    scheduling_policy: str | QueueOrder | type[QueueOrder] = "fcfs"
    eviction_policy: str | Policy | type[Policy] | None = None
    data_parallel_size: int = 1
    """Engines, each with these settings."""
    routing: str | Routing | type[Routing] | None = None
    """Who says which engine a request goes to; None as vLLM does."""
    max_waiting: int | None = None
    """As the next seven, a field of `kvsched.serve.admission.AdmissionSettings`."""
    max_waiting_tokens: int | None = None
    max_queue_s: float | None = None
    deadlines: bool = False
    degrade: str | None = None
    degrade_above: float | None = None
    pause_above: float | None = None
    resume_below: float | None = None
    swap_space: float | None = None
    """GiB a GPU for blocks of preempted requests; with ``swap_bandwidth``."""
    swap_bandwidth: float | None = None
    """10^9 bytes a second of each GPU, one way at a time."""
    speedup: float = 1.0
    rate: float | None = None
    """As the next five, a field of `kvsched.serve.traffic.Traffic`."""
    burstiness: float = 1.0
    seed: int = 0
    concurrency: int | None = None
    sessions: bool = False
    think_s: float | None = None
    horizon_s: float | None = None
    step_time: str | Path | StepTime | None = None
    """A file of coefficients, or a step time; None is the roofline."""
    objective: Objective | None = None
    band: bool = True
    """Whether the run is made with the low and the high step time too."""


class StepTimeSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Which step time was used."""

    kind: str
    assumptions: tuple[str, ...]
    file: str | None
    """The file's name where the coefficients are from one."""


class ServeResult(msgspec.Struct, frozen=True, kw_only=True):
    """All that a run says, with what it was made from. The same input gives the same bytes."""

    schema_version: int
    kvsched: str
    trace: dict[str, Any]
    config: dict[str, Any]
    """Every setting by vLLM's name, as the engine had it."""
    derivation: tuple[str, ...]
    """How the number of blocks was found: one sentence a step."""
    step_time: StepTimeSummary
    summary: Summary
    """With the middle step time."""
    bands: dict[str, Summary]
    """The same with the band's low and high step time, without levels over time."""
    sentences: tuple[str, ...]
    definitions: dict[str, str]


@dataclass(frozen=True, eq=False)
class Served:
    """The result, and the simulation with the middle step time, request by request."""

    result: ServeResult
    simulation: Simulation


def step_cost(step_time: StepTime, band: Band = "mid") -> StepCost:
    """Return what the loop needs of one row of a step time's band."""
    return StepCost(
        step_time.coefficients(band),
        step_time.window,
        step_time.decode_threshold,
        hooks={
            "clear_batch": steps.clear,
            "add_to_batch": steps.add,
            "grow_batch": steps.grow_decodes,
            "step_seconds": steps.step_seconds,
        },
    )


def hardware(asking: Asking) -> tuple[Model | None, Accelerator | None]:
    """Look up the model and the accelerator. Raises UsageError where a name is unknown."""
    model, gpu = asking.model, asking.gpu
    return (
        catalog.load_model(model) if isinstance(model, str) else model,
        catalog.find_accelerator(gpu) if isinstance(gpu, str) else gpu,
    )


def find_step_time(asking: Asking) -> StepTime:
    """Return the step time that is asked for. Raises UsageError, or InputError for its file."""
    if isinstance(asking.step_time, StepTime):
        return asking.step_time
    if asking.step_time is not None:
        return read_fit(asking.step_time).step_time()
    model, gpu = hardware(asking)
    if model is None or gpu is None:
        raise UsageError(
            "how long a step takes is not known: name --model and --gpu, or --step-time"
        )
    return roofline(
        model,
        gpu,
        tensor_parallel_size=asking.tensor_parallel_size,
        kv_cache_dtype=asking.kv_cache_dtype,
        weight_dtype=asking.weight_dtype,
    )


def find_settings(asking: Asking, block_size: int) -> tuple[Settings, tuple[str, ...]]:
    """Return the engine's settings, and how its blocks were counted. Raises UsageError.

    Defaults as vLLM 0.32.0's `engine/arg_utils.py` has them for a server: by device; without
    chunked prefill no less than ``max_model_len`` a step; no more tokens than all requests could
    have; no more requests than tokens.
    """
    model, gpu = hardware(asking)
    blocks, said = _blocks(asking, model, gpu, block_size)
    memory, device = (0, "") if gpu is None else (gpu.memory_bytes, gpu.name)
    defaults = device_defaults(memory, device)
    longest = asking.max_model_len
    if longest is None and model is not None:
        longest = model.max_context
    seqs = defaults["max_num_seqs"] if asking.max_num_seqs is None else asking.max_num_seqs
    tokens = asking.max_num_batched_tokens
    if tokens is None:
        tokens = defaults["max_num_batched_tokens"]
        if longest is not None:
            if not asking.enable_chunked_prefill:
                tokens = max(tokens, longest)
            tokens = min(tokens, seqs * longest)
    if asking.max_num_seqs is None:
        seqs = min(seqs, tokens)
    if longest is not None:
        _check_length(asking, tokens, longest)
    settings = Settings(
        num_gpu_blocks=blocks,
        max_num_seqs=seqs,
        max_num_batched_tokens=tokens,
        max_model_len=longest,
        enable_chunked_prefill=asking.enable_chunked_prefill,
        long_prefill_token_threshold=asking.long_prefill_token_threshold,
        watermark=asking.watermark,
        enable_prefix_caching=asking.enable_prefix_caching,
        cache_generated=asking.cache_generated,
    )
    return settings, said


def _check_length(asking: Asking, tokens: int, longest: int) -> None:
    """Raise UsageError for what vLLM refuses beside so long a model."""
    if not asking.enable_chunked_prefill and tokens < longest:
        raise UsageError(
            f"without chunked prefill max_num_batched_tokens ({tokens:,}) must be at least "
            f"max_model_len ({longest:,})"
        )
    if asking.long_prefill_token_threshold > longest:
        raise UsageError(
            f"long_prefill_token_threshold ({asking.long_prefill_token_threshold:,}) must be at "
            f"most max_model_len ({longest:,})"
        )


def _blocks(
    asking: Asking, model: Model | None, gpu: Accelerator | None, block_size: int
) -> tuple[int, tuple[str, ...]]:
    override = asking.num_gpu_blocks_override
    if override is not None:
        if isinstance(override, bool) or not isinstance(override, int) or override < 2:
            raise UsageError(
                "num_gpu_blocks_override must be a whole number of at least 2, of which one is "
                f"vLLM's null block, not {override!r}"
            )
        said = f"{override:,} blocks as given, of which vLLM keeps one as its null block."
        return override - 1, (said,)
    if model is None or gpu is None:
        raise UsageError(
            "how many blocks there are is not known: name --model and --gpu, or "
            "--num-gpu-blocks-override"
        )
    if block_size < 1:
        raise UsageError("an engine has blocks of one size; the trace's are unequal")
    found = catalog.capacity_from_gpu(
        gpu,
        model,
        tensor_parallel_size=asking.tensor_parallel_size,
        gpu_memory_utilization=asking.gpu_memory_utilization,
        block_size=block_size,
        kv_cache_dtype=asking.kv_cache_dtype,
        weight_dtype=asking.weight_dtype,
        allowance_gib=asking.allowance_gib,
    )
    if found.blocks < 2:
        raise UsageError(f"there is room for {found.blocks} blocks, and one is vLLM's null block")
    return found.blocks - 1, (*found.derivation, "One of them is vLLM's null block.")


def serve(
    trace: Trace,
    asking: Asking,
    *,
    compiled: bool | None = None,
    report: Report | None = None,
    step_log: bool = True,
) -> Served:
    """Serve ``trace`` as ``asking`` says: with the middle step time, and with low and high.

    Without ``step_log`` no steps are kept, and the summary has no levels over time. Everything that
    can be refused is refused before the first run. Cost: three runs of
    `kvsched.serve.simulate.simulate`, one without the band. Raises UsageError, InputError for a
    file of coefficients, StalledError.
    """
    traffic = find_traffic(asking)
    admission = find_admission(asking)
    step_time = find_step_time(asking)
    settings, said = find_settings(asking, trace.block_size)
    model, gpu = hardware(asking)
    swap = find_swap(asking, model, trace.block_size)
    bands: list[Band] = ["mid", "low", "high"] if asking.band else ["mid"]
    found: dict[Band, Summary] = {}
    middle: Simulation | None = None
    for at, band in enumerate(bands):
        if report is not None:
            report("simulating", at, len(bands))
        simulation = run(
            trace,
            settings,
            cost=step_cost(step_time, band),
            order=asking.scheduling_policy,
            policy=asking.eviction_policy,
            admission=admission,
            swap=swap,
            speedup=traffic.speedup,
            rate=traffic.rate,
            burstiness=traffic.burstiness,
            seed=traffic.seed,
            concurrency=traffic.concurrency,
            sessions=traffic.sessions,
            think_s=traffic.think_s,
            data_parallel_size=asking.data_parallel_size,
            routing=asking.routing,
            horizon_s=asking.horizon_s,
            step_log=step_log and band == "mid",
            compiled=compiled,
            report=report,
        )
        middle = simulation if middle is None else middle
        found[band] = summarise(
            simulation, asking.objective, closed_loop=traffic.closed_loop or traffic.sessions
        )
    if middle is None:
        raise AssertionError("the middle of the band always runs")
    summary = found.pop("mid")
    outer = {str(band): each for band, each in found.items()}
    result = ServeResult(
        schema_version=SCHEMA_VERSION,
        kvsched=VERSION,
        trace=summarise_trace(trace),
        config=config_of(asking, middle, model, gpu),
        derivation=said,
        step_time=_step_time(asking, step_time),
        summary=summary,
        bands=outer,
        sentences=sentences(middle, summary, outer, traffic),
        definitions=DEFINITIONS,
    )
    return Served(result, middle)


def simulate(trace: Trace, **options: Any) -> Served:
    """Serve ``trace``; ``options`` are the fields of `Asking`, and ``compiled`` as in `serve`.

    ``kvsched.simulate(trace, model="llama-3.1-8b", gpu="h100", max_num_seqs=256)``. Raises
    UsageError, also for an option that does not exist.
    """
    compiled = options.pop("compiled", None)
    known = {field.name for field in dataclasses.fields(Asking)}
    unknown = sorted(set(options) - known)
    if unknown:
        raise UsageError(f"simulate has no option {', '.join(unknown)}")
    return serve(trace, Asking(**options), compiled=compiled)


def _step_time(asking: Asking, step_time: StepTime) -> StepTimeSummary:
    given = asking.step_time
    return StepTimeSummary(
        kind=step_time.kind,
        assumptions=step_time.assumptions,
        file=Path(given).name if isinstance(given, str | Path) else None,
    )
