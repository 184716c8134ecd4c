"""The parts of a run that an `Asking` names: how requests arrive, admission, a second tier."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from kvsched import catalog
from kvsched.catalog import Accelerator, Model
from kvsched.foundation.errors import UsageError
from kvsched.serve.admission import AdmissionSettings
from kvsched.serve.result import Simulation
from kvsched.serve.summary import Objective
from kvsched.serve.swap import SwapSettings
from kvsched.serve.traffic import Traffic

if TYPE_CHECKING:
    from kvsched.serve.served import Asking

GIB = 2**30
LIMITS = (
    "max_waiting",
    "max_waiting_tokens",
    "max_queue_s",
    "deadlines",
    "degrade",
    "degrade_above",
    "pause_above",
    "resume_below",
)
"""Fields of an `Asking` that are those of `AdmissionSettings`."""


def find_traffic(asking: Asking) -> Traffic:
    """Return how requests arrive. Raises UsageError for what does not go together."""
    if asking.concurrency is not None and asking.speedup != 1 and not asking.sessions:
        raise UsageError("speedup and concurrency exclude each other: a closed loop has no rate")
    return Traffic(
        asking.speedup,
        asking.rate,
        asking.burstiness,
        asking.seed,
        asking.concurrency,
        asking.sessions,
        asking.think_s,
    )


def find_admission(asking: Asking) -> AdmissionSettings | None:
    """Return the limits, None where there are none. Raises UsageError for impossible ones."""
    found = AdmissionSettings(**{name: getattr(asking, name) for name in LIMITS})
    return None if found == AdmissionSettings() else found


def find_swap(asking: Asking, model: Model | None, block_size: int) -> SwapSettings | None:
    """Return the second tier, None where there is none. Raises UsageError.

    ``swap_space`` is GiB a GPU, as vLLM's old option of that name: a block takes there what it
    takes of one GPU, and each GPU has ``swap_bandwidth`` (10^9 bytes a second) to itself.
    """
    space, rate = asking.swap_space, asking.swap_bandwidth
    if space is None and rate is None:
        return None
    if space is None or rate is None:
        raise UsageError("swap_space (GiB) and swap_bandwidth (GB/s) go together")
    if not (math.isfinite(space) and space >= 0):
        raise UsageError(f"swap_space must be at least 0 GiB, not {space:g}")
    if not rate > 0:
        raise UsageError(f"swap_bandwidth must be above 0 GB/s, not {rate:g}")
    if model is None:
        raise UsageError("swap_space needs a model: how many bytes a block has depends on it")
    size = catalog.bytes_per_block(
        model, block_size, asking.kv_cache_dtype, asking.tensor_parallel_size
    )
    return SwapSettings(int(space * GIB) // size, size, rate * 1e9)


def config_of(
    asking: Asking, found: Simulation, model: Model | None, gpu: Accelerator | None
) -> dict[str, Any]:
    """Return every setting of a run by its option's name, as the engine had it."""
    objective = asking.objective or Objective()
    traffic = find_traffic(asking)
    timed = traffic.rate is None and traffic.concurrency is None
    routing = None if found.routing is None else found.routing.name
    return {
        "model": None if model is None else model.name,
        "gpu": None if gpu is None else gpu.name,
        "tensor_parallel_size": asking.tensor_parallel_size,
        "gpu_memory_utilization": asking.gpu_memory_utilization,
        "kv_cache_dtype": asking.kv_cache_dtype,
        "weight_dtype": asking.weight_dtype,
        "allowance_gib": asking.allowance_gib,
        "num_gpu_blocks_override": asking.num_gpu_blocks_override,
        **found.settings.summary(),
        "block_size": found.trace.block_size,
        "scheduling_policy": found.order.label,
        "eviction_policy": "free-list" if found.policy is None else found.policy.label,
        "data_parallel_size": asking.data_parallel_size,
        "routing": routing,
        "speedup": asking.speedup if timed or asking.sessions else None,
        "rate": None if traffic.rate is None or math.isinf(traffic.rate) else traffic.rate,
        "all_at_once": traffic.rate is not None and math.isinf(traffic.rate),
        "burstiness": None if math.isinf(traffic.burstiness) else traffic.burstiness,
        "seed": asking.seed,
        "concurrency": asking.concurrency,
        "sessions": asking.sessions,
        "think_s": asking.think_s,
        **{name: getattr(asking, name) for name in LIMITS},
        "swap_space": asking.swap_space,
        "swap_bandwidth": asking.swap_bandwidth,
        "swap_blocks": None if found.swap is None else found.swap.swap_blocks,
        "horizon_s": asking.horizon_s,
        "slo_ttft_s": objective.ttft_s,
        "slo_tpot_s": objective.tpot_s,
    }
