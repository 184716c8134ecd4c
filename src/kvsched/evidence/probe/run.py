"""Run a probe: every measurement in turn, within a share of memory, and its report."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable, Iterator
from typing import Any

from kvsched.evidence.environment import describe_environment, load_torch
from kvsched.evidence.host_memory import host_memory
from kvsched.evidence.probe import measure
from kvsched.evidence.probe.backend import Backend, OutOfMemory
from kvsched.evidence.probe.cpu import CpuBackend
from kvsched.evidence.probe.cuda import HELP, CudaBackend
from kvsched.evidence.probe.decide import decide, middle
from kvsched.evidence.probe.fit import largest_fit
from kvsched.evidence.probe.report import Copy, Fragmentation, ProbeReport, Run, Varied
from kvsched.evidence.probe.settings import (
    MEMORY_SHARE,
    ProbeSettings,
    Variation,
    check_share,
    checked,
)
from kvsched.evidence.probe.shape import BlockShape, shape_facts
from kvsched.foundation.errors import KvschedError, UsageError
from kvsched.foundation.version import VERSION

PACKAGES = ("torch", "numpy")
EVIDENCE = {
    "synthetic_gpu_block_probe": "Synthetic blocks on a real GPU: what memory takes, not what an "
    "engine does with it.",
    "cpu_simulation": "Host memory in the GPU's place: the same path, but no figure here is a "
    "GPU's.",
}

Report = Callable[[str, int, int], None]


def open_backend(settings: ProbeSettings) -> Backend:
    """Return the memory that is probed. Raises UsageError without a CUDA device to probe."""
    torch, reason = load_torch()
    if settings.device == "cpu":
        return CpuBackend(torch)
    if torch is None:
        raise UsageError(f"no CUDA device to probe: {reason}; {HELP}")
    return CudaBackend(torch, settings.device_index)


def run_probe(
    settings: ProbeSettings, backend: Backend | None = None, report: Report | None = None
) -> ProbeReport:
    """Measure what blocks take, and return the report.

    Nothing is allocated unless all that is asked fits in the share of memory. Whatever ends it, an
    interrupt too, all blocks are freed. ``report`` is told (phase, done, total). Raises UsageError
    for settings that cannot be, KvschedError where the memory that was free is gone.
    """
    told = report or (lambda _phase, _done, _total: None)
    shape, varied = checked(settings)
    memory = open_backend(settings) if backend is None else backend
    ratio = settings.memory_share or MEMORY_SHARE[settings.device]
    usable = memory.usable_bytes()
    share = int(ratio * usable)
    said = f"the share {ratio:g} of {usable:,} bytes that are free"
    wanted = [("the probe", shape, settings.blocks)]
    wanted += [(f"--vary {v.key}={v.value}", v.shape, v.blocks) for v in varied]
    check_share(wanted, share, said, memory.object_bytes)
    with _limited(memory, share):
        try:
            return _measured(settings, memory, shape, varied, (ratio, usable, share), told)
        except OutOfMemory as error:
            raise KvschedError(
                f"the allocator refused blocks that fit the share by their own bytes ({error}): "
                "what it rounds them up to does not, or others use this memory; take fewer "
                "--blocks, or a larger --memory-share"
            ) from None


@contextlib.contextmanager
def _limited(memory: Backend, share: int) -> Iterator[None]:
    memory.limit(share)
    try:
        yield
    except BaseException as error:
        # Blocks in the frames that have ended are still held by the tracebacks.
        chained: BaseException | None = error
        while chained is not None:
            traceback.clear_frames(chained.__traceback__)
            chained = chained.__context__
        raise
    finally:
        memory.limit(None)
        memory.release_cache()


def _measured(
    settings: ProbeSettings,
    memory: Backend,
    shape: BlockShape,
    varied: tuple[Variation, ...],
    sizes: tuple[float, int, int],
    told: Report,
) -> ProbeReport:
    ratio, usable, share = sizes
    theory = settings.declared_bytes_per_block or shape.theoretical_bytes
    missing: dict[str, str] = {}
    runtime = memory.describe()
    measure.start(memory, shape)
    runs = []
    for repeat in range(1, settings.repeats + 1):
        told("repeats", repeat - 1, settings.repeats)
        runs.append(measure.measure_run(memory, shape, settings.blocks, repeat))
    held = middle(run.accounts.held_bytes for run in runs)
    overhead = None if held is None else held - settings.blocks * theory
    told("one pooled tensor", 0, 1)
    pooled = measure.measure_pooled(memory, shape, settings.blocks, held)
    if pooled is None:
        missing["pooled"] = "the allocator had no piece of that size"
    fragmentation = _fragmentation(settings, memory, shape, share, missing, told)
    rows = _varied(settings, memory, varied, told)
    told("bandwidth", 0, 1)
    bandwidth = _bandwidth(settings, memory, shape, share, missing)
    told("largest number of blocks", 0, 1)
    fit = largest_fit(memory, shape, share)
    memory.limit(share)
    decision = decide(
        runs,
        theory,
        where="On host memory, not on a GPU" if memory.name == "cpu" else "On this device",
        tolerance=settings.tolerance,
        overhead_limit=settings.overhead_limit,
        noise_bytes=memory.noise_bytes,
    )
    return ProbeReport(
        kvsched=VERSION,
        evidence_level=memory.evidence_level,  # type: ignore[arg-type]
        evidence=EVIDENCE[memory.evidence_level],
        status="ok",
        runtime=runtime,
        config=_config(settings, shape, theory)
        | {"memory_share": ratio, "usable_bytes": usable, "share_bytes": share},
        runs=tuple(runs),
        overhead_bytes=overhead,
        overhead_bytes_per_block=None if overhead is None else overhead / settings.blocks,
        pooled=pooled,
        fragmentation=tuple(fragmentation),
        fit=fit,
        bandwidth=tuple(bandwidth),
        varied=tuple(rows),
        decision=decision,
        environment=describe_environment(PACKAGES, devices=memory.name == "cuda"),
        missing={**memory.missing, **missing},
        notes=(*shape.notes, *memory.notes),
    )


def _config(settings: ProbeSettings, shape: BlockShape, theory: int) -> dict[str, Any]:
    stated = settings.shape
    declared = settings.declared_bytes_per_block
    return {
        **shape_facts(shape),
        "bytes_per_block_theoretical": theory,
        "total_bytes_theoretical": settings.blocks * theory,
        "bytes_per_block_by_formula": shape.theoretical_bytes,
        "theory": "the formula" if declared is None else "declared by the user",
        "block_count": settings.blocks,
        "repeats": settings.repeats,
        "model": None if stated.model is None else _model_name(stated.model),
        "tensor_parallel_size": stated.tensor_parallel_size,
        "kv_heads": stated.kv_heads,
        "head_dim": stated.head_dim,
        "layers": stated.layers,
        "device": settings.device,
        "device_index": settings.device_index,
        "tolerance": settings.tolerance,
        "overhead_limit": settings.overhead_limit,
        "copy_bytes": list(settings.copy_bytes),
        "vary": list(settings.vary),
        "seed": settings.seed,
    }


def _model_name(given: str) -> str:
    """The model's name: a path that was given instead stays out of the report."""
    from kvsched.catalog import load_model

    return load_model(given).name


def _fragmentation(
    settings: ProbeSettings,
    memory: Backend,
    shape: BlockShape,
    share: int,
    missing: dict[str, str],
    told: Report,
) -> list[Fragmentation]:
    blocks = min(settings.blocks, measure.MOST_IN_PATTERNS)
    if memory.name == "cpu":
        # No limit of the allocator's stops the larger block that what was freed cannot serve.
        each = shape.tensor_bytes + len(shape.parts) * memory.object_bytes
        blocks = min(blocks, share // each - max(measure.FACTORS))
    if blocks < measure.FEWEST_FOR_PATTERNS:
        few = f"fewer than {measure.FEWEST_FOR_PATTERNS} blocks"
        beside = (
            ""
            if settings.blocks < measure.FEWEST_FOR_PATTERNS
            else (f" and one {max(measure.FACTORS)} times as large are in the share")
        )
        missing["fragmentation"] = f"{few}{beside}: no pattern"
        return []
    cases = [(pattern, factor) for pattern in measure.PATTERNS for factor in measure.FACTORS]
    found = []
    for done, (pattern, factor) in enumerate(cases):
        told("fragmentation", done, len(cases))
        found.append(
            measure.measure_fragmentation(memory, shape, blocks, pattern, factor, settings.seed)
        )
    if any(each.fits is None for each in found):
        missing["fragmentation.fits"] = (
            "what is held is not known finely enough to see one larger block"
        )
    return found


def _varied(
    settings: ProbeSettings, memory: Backend, varied: tuple[Variation, ...], told: Report
) -> list[Varied]:
    rows = []
    for done, each in enumerate(varied):
        told("variations", done, len(varied))
        measure.start(memory, each.shape)
        runs = [
            measure.measure_run(memory, each.shape, each.blocks, repeat)
            for repeat in range(1, settings.repeats + 1)
        ]
        rows.append(_row(each, runs))
    return rows


def _row(each: Variation, runs: list[Run]) -> Varied:
    """The run whose allocation time is the (lower) median stands for its setting."""
    run = sorted(runs, key=lambda run: run.allocation_ms)[(len(runs) - 1) // 2]
    return Varied(
        key=each.key,
        value=each.value,
        block_count=each.blocks,
        bytes_per_block_theoretical=each.shape.theoretical_bytes,
        total_bytes_theoretical=each.blocks * each.shape.theoretical_bytes,
        allocation_ms=run.allocation_ms,
        warm_allocation_ms=run.warm_allocation_ms,
        accounts=run.accounts,
    )


def _bandwidth(
    settings: ProbeSettings,
    memory: Backend,
    shape: BlockShape,
    share: int,
    missing: dict[str, str],
) -> list[Copy]:
    sizes = sorted({shape.tensor_bytes, *settings.copy_bytes})
    most = share
    if memory.name != "cpu":
        # The host's side of a copy has a share of its own.
        most = min(share, int(MEMORY_SHARE["cpu"] * (host_memory().usable or share)))
    fitting = [size for size in sizes if 2 * size <= most]
    for size in sizes:
        if size not in fitting:
            missing[f"bandwidth of {size:,} bytes"] = "twice that is more than the share of memory"
    return measure.measure_copies(memory, fitting, settings.repeats)
