"""A benchmark's folder as a run to calibrate with: its requests, and the engine's settings."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvsched.evidence.bench.files import RESULT, WORKLOAD, by_number, read_run, run_folders
from kvsched.evidence.bench.measured import BenchResult
from kvsched.evidence.calibrate.observed import Observed, observe
from kvsched.foundation.errors import InputError, UsageError
from kvsched.serve.settings import Settings
from kvsched.trace.load import load_trace

CPU_DEFAULTS = {"max_num_seqs": 128, "max_num_batched_tokens": 2048}
"""vLLM 0.32.0's of a server on a processor (`engine/arg_utils.py`)."""
LEAST_BLOCKS = 2
_NUMBERS = ("max_num_seqs", "max_num_batched_tokens", "long_prefill_token_threshold")


@dataclass(frozen=True)
class EngineSaid:
    """What the user says of the engine; it comes before what the run says. None: as the run."""

    num_gpu_blocks_override: int | None = None
    """vLLM's number, its null block included."""
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    long_prefill_token_threshold: int | None = None


def folders_of(paths: Sequence[str]) -> list[Path]:
    """Return the runs' folders in ``paths``, by name with numbers in order.

    Each path is one, or holds them, at any depth. Raises InputError where there is none, and
    UsageError for one that comes twice.
    """
    found: list[Path] = []
    for path in paths:
        folder = Path(path)
        if (folder / RESULT).exists() or not folder.is_dir():
            found += run_folders(path)
            continue
        inner = [each.parent for each in folder.rglob(RESULT)]
        if not inner:
            raise InputError(path, f"holds no run: no folder in it has a {RESULT}")
        found += sorted(inner, key=by_number)
    seen: set[Path] = set()
    for folder in found:
        if folder.resolve() in seen:
            raise UsageError(f"{folder}: is given twice")
        seen.add(folder.resolve())
    return found


def read_observed(folder: Path, said: EngineSaid | None = None) -> Observed:
    """Return the run of a folder that `kvsched bench` wrote.

    Raises InputError, which names the file, and UsageError where the run does not say what the
    engine's settings were, or is no run to calibrate with.
    """
    run = read_run(folder)
    result = run.result
    trace = load_trace(folder / WORKLOAD)
    if len(trace) != result.requests:
        raise InputError(
            str(folder / WORKLOAD),
            f"{len(trace):,} requests, where result.json says {result.requests:,}",
        )
    name = result.name or folder.name
    settings, order, notes = engine_settings(name, result, said or EngineSaid())
    told = result.engine.get("block_size")
    if told is not None and told != trace.block_size:
        raise InputError(
            str(folder / WORKLOAD),
            f"blocks of {trace.block_size} tokens, where the engine has {told}: measure again "
            "without --engine-block-size",
        )
    waiting = bool(result.workload.get("waiting_turns"))
    concurrency = result.config.get("max_concurrency")
    if waiting:
        notes.append(
            "later turns wait for answers: requests come in the simulation as they were sent, so "
            "the part kept back says when, and only latencies are predicted"
        )
    found = observe(
        name,
        trace,
        run.outcomes,
        settings,
        concurrency=None if waiting else concurrency,
        order=order,
    )
    kind, version = result.engine.get("kind"), result.engine.get("version")
    model = Path(str(result.engine.get("model") or "")).name
    return dataclasses.replace(
        found,
        source=Path(str(result.workload.get("source", ""))).name,
        workload_digest=result.workload_digest,
        engine_name=", ".join(
            each
            for each in (" ".join(str(part) for part in (kind, version) if part), model)
            if each
        ),
        environment=result.environment,
        notes=(*found.notes, *notes, *result.warnings),
    )


def engine_settings(
    name: str, result: BenchResult, said: EngineSaid
) -> tuple[Settings, str, list[str]]:
    """Return the settings of the engine that was measured, its queue's order, and notes.

    From the options that it was started with, and from what its metrics say of its cache. Raises
    UsageError where the number of blocks is not known.
    """
    notes: list[str] = []
    flags = flags_of(result.engine.get("arguments") or ())
    labels = result.engine.get("cache") or {}
    blocks = said.num_gpu_blocks_override
    if blocks is not None and blocks < LEAST_BLOCKS:
        raise UsageError(
            f"--num-gpu-blocks-override {blocks}: at least {LEAST_BLOCKS}, of which one is vLLM's "
            "null block"
        )
    if blocks is None:
        blocks = result.engine.get("blocks")
    if blocks is None:
        raise UsageError(
            f"{name}: the run does not say how many blocks the engine has: "
            "--num-gpu-blocks-override"
        )
    numbers: dict[str, int] = {}
    for each in _NUMBERS:
        given = getattr(said, each)
        value = flags.get(each) if given is None else given
        if value is not None:
            numbers[each] = int(value)
        elif each in CPU_DEFAULTS:
            numbers[each] = CPU_DEFAULTS[each]
            notes.append(
                f"the run does not say {each}: {CPU_DEFAULTS[each]:,} is taken, vLLM's on a "
                f"processor; --{each.replace('_', '-')} says another"
            )
    settings = Settings(
        num_gpu_blocks=int(blocks) - 1,
        max_model_len=result.engine.get("max_model_len"),
        enable_prefix_caching=_caching(flags, labels),
        enable_chunked_prefill=flags.get("enable_chunked_prefill") != "no",
        watermark=float(flags.get("watermark", 0.0)),
        max_num_seqs=numbers["max_num_seqs"],
        max_num_batched_tokens=numbers["max_num_batched_tokens"],
        long_prefill_token_threshold=numbers.get("long_prefill_token_threshold", 0),
    )
    return settings, flags.get("scheduling_policy", "fcfs"), notes


def _caching(flags: dict[str, str], labels: dict[str, Any]) -> bool:
    """Whether prompts can hit: as the options say, else as the metrics do; on without either."""
    told = flags.get("enable_prefix_caching")
    if told is not None:
        return told != "no"
    return str(labels.get("enable_prefix_caching", "True")).lower() != "false"


def flags_of(arguments: Sequence[str]) -> dict[str, str]:
    """Return vLLM's options by name: ``--no-NAME`` is ``no``, one without a value ``yes``."""
    found: dict[str, str] = {}
    for at, argument in enumerate(arguments):
        if not argument.startswith("--"):
            continue
        name, mark, value = argument[2:].partition("=")
        name = name.replace("-", "_")
        follows = arguments[at + 1] if at + 1 < len(arguments) else "--"
        if name.startswith("no_"):
            found[name[3:]] = "no"
        elif mark:
            found[name] = value
        else:
            found[name] = "yes" if follows.startswith("--") else follows
    return found


def told_apart(runs: Sequence[Observed]) -> list[Observed]:
    """Return the runs with names of their own: with the workload's, and numbers, where needed."""
    found = list(runs)
    for numbered in (False, True):
        counts = Counter(run.name for run in found)
        seen: Counter[str] = Counter()
        for at, run in enumerate(found):
            if counts[run.name] < 2:
                continue
            seen[run.name] += 1
            name = f"{run.name} ({seen[run.name]})" if numbered else f"{run.source}: {run.name}"
            found[at] = dataclasses.replace(run, name=name)
    return found
