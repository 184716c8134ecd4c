"""What latency the policies' hits come to: a timed simulation of each at the study's capacity."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from kvsched.catalog import Accelerator, Capacity, Model
from kvsched.foundation.errors import UsageError
from kvsched.policy.base import Policy
from kvsched.study.result import ServedPolicies, ServedRow
from kvsched.trace.model import Trace
from kvsched.trace.sample import SampledTrace

if TYPE_CHECKING:
    from kvsched.study.run import Options

ENGINES = ("generic", "vllm")
"""Whose rules the timed simulation, vLLM's, is comparable with."""


def check_served(
    trace: Trace, options: Options, model: Model | None, gpu: Accelerator | None
) -> None:
    """Raise UsageError where a timed simulation is asked for and cannot be."""
    if not options.simulate:
        return
    if model is None or gpu is None:
        raise UsageError("simulate needs a model and a GPU: how long a step takes rests on them")
    if options.engine not in ENGINES:
        raise UsageError(f"simulate is of vLLM's scheduler: not with engine {options.engine}")
    if isinstance(trace, SampledTrace):
        raise UsageError("simulate needs the whole trace, and a sample has holes: leave one out")
    if trace.unequal:
        raise UsageError("simulate needs blocks of one size, and this trace's are unequal")


def served_policies(
    trace: Trace,
    policies: Iterable[Policy],
    capacity: Capacity,
    model: Model | None,
    gpu: Accelerator | None,
    options: Options,
    told: Callable[[str, int, int], None],
) -> ServedPolicies | None:
    """Serve ``trace`` with every policy that needs no future; None where nobody asked.

    The engine has the capacity's blocks and vLLM's own settings, the requests arrive at the
    trace's times, a step takes the middle of the roofline's band. Cost: a simulation a policy, on
    all cores. Raises UsageError as `check_served`.
    """
    check_served(trace, options, model, gpu)
    if not options.simulate:
        return None
    # Loaded where it is asked for: a study without it begins sooner.
    from kvsched.serve.engine import COMPILING
    from kvsched.serve.points import Ask, run_points
    from kvsched.serve.served import Asking, find_settings

    made = [policy for policy in policies if not policy.looks_ahead]
    shared: dict[str, Any] = {
        "model": model,
        "gpu": gpu,
        "tensor_parallel_size": capacity.ranks,
        "kv_cache_dtype": options.kv_cache_dtype,
        "weight_dtype": options.weight_dtype,
        # One more is vLLM's null block.
        "num_gpu_blocks_override": capacity.blocks + 1,
        "cache_generated": options.cache_generated,
        "band": False,
    }
    asks = [
        Ask({"eviction_policy": policy.label}, Asking(**shared, eviction_policy=policy))
        for policy in made
    ]
    points = run_points(
        trace,
        asks,
        threads=options.threads,
        report=lambda what, done, total: told(
            what if what == COMPILING else "serving", done, total
        ),
    )
    settings, _ = find_settings(Asking(**shared), trace.block_size)
    rows = []
    for policy, point in zip(made, points, strict=True):
        found = point.figures
        rows.append(
            ServedRow(
                policy=policy.label,
                hit_ratio=None if found is None else found.hit_ratio,
                ttft_p50_s=None if found is None else found.ttft_p50_s,
                ttft_p99_s=None if found is None else found.ttft_p99_s,
                tpot_p99_s=None if found is None else found.tpot_p99_s,
                requests_s=None if found is None else found.requests_s,
                output_tokens_s=None if found is None else found.output_tokens_s,
                preemptions=None if found is None else found.preemptions,
                unfinished=None if found is None else found.requests - found.finished,
                overloaded=None if found is None else found.overloaded,
                fault=point.fault,
            )
        )
    return ServedPolicies(
        max_num_seqs=settings.max_num_seqs,
        max_num_batched_tokens=settings.max_num_batched_tokens,
        step_time="a roofline over the catalogue, the middle of its band",
        rows=tuple(rows),
    )
