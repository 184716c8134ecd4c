"""Measure once: warm up, empty the cache, send the load, and read the engine's own counters."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from kvsched.engine.counters import (
    Growth,
    Sampler,
    growth,
    reset_prefix_cache,
    scrape,
    wanted_names,
)
from kvsched.engine.metrics_text import Scrape
from kvsched.engine.openai_accepted import TRIAL_PROMPT, accepted_fields
from kvsched.evidence.bench.live import LiveEngine, check_fits
from kvsched.evidence.bench.load import run_load
from kvsched.evidence.bench.load_settings import LoadSettings
from kvsched.evidence.bench.measured import BenchResult, RequestOutcome
from kvsched.evidence.bench.prompts import warm_up
from kvsched.evidence.bench.sent import as_trace, workload_digest
from kvsched.evidence.bench.summary import BenchObjective, EngineSaid, numbers
from kvsched.evidence.bench.workload import BenchWorkload
from kvsched.foundation.errors import KvschedError
from kvsched.foundation.version import VERSION
from kvsched.trace.model import Trace

Report = Callable[[str, int, int], None]
"""Told a step's name, what is done, and of how much."""
USUAL_BLOCK = 16
SETTLING_S = 2.0
"""How long counters that lag behind the last answer are waited for."""


@dataclass(frozen=True)
class RunPlan:
    """How one run is measured."""

    task: Literal["prefix-cache", "scheduler", "replay"]
    load: LoadSettings
    name: str = ""
    warmup: int = 4
    """Requests before the run, which share no prefix with it and are not counted."""
    seed: int = 0
    objective: BenchObjective = field(default_factory=BenchObjective)
    sample_interval_s: float = 0.25
    block_size: int | None = None
    """Of the workload's trace; None for the engine's."""
    config: dict[str, Any] = field(default_factory=dict)
    """What else shaped the run: how requests arrive, what of a trace is sent."""
    environment: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Measured:
    """A run."""

    result: BenchResult
    outcomes: tuple[RequestOutcome, ...]
    trace: Trace
    samples: dict[str, list[Any]]
    """Gauges by name, and ``at_s``."""


def load_plan(settings: LoadSettings) -> dict[str, Any]:
    """Return what of the load decides which workload it is."""
    return {"concurrency": settings.concurrency}


def measure(
    workload: BenchWorkload,
    engine: LiveEngine,
    plan: RunPlan,
    report: Report | None = None,
    *,
    repeat: int = 0,
) -> Measured:
    """Send ``workload`` once and return what was measured.

    Before it one small request shows what the engine takes (`accepted_fields`), the warm-up is
    sent and the prefix cache emptied; where that cannot be, a warning says so. Raises UsageError
    where requests are longer than the engine takes, and KvschedError where it does not answer the
    first one well; what goes wrong with the others is an outcome. ``repeat`` counts the runs on
    this engine from 0.
    """
    check_fits(workload, engine)
    plan, warnings = _accepted(workload, engine, plan)
    warnings += _prepare(workload, engine, plan, report, repeat)
    started_at = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    before = _scrape(engine)
    outcomes, sampler = _send(workload, engine, plan, report)
    done = sum(one.error is None for one in outcomes)
    said = _said(engine, before, sampler, done)
    found = numbers(outcomes, plan.objective, said)
    if sampler is not None and sampler.problem is not None:
        warnings.append(sampler.problem)
    ended = None if engine.running is None else engine.running.ended()
    if ended is not None:
        warnings.append(ended)
    size = plan.block_size or engine.cache.block_size
    if size is None:
        size = USUAL_BLOCK
        warnings.append(f"the engine does not say its block size: {size} tokens are taken")
    result = BenchResult(
        task=plan.task,
        kvsched=VERSION,
        name=plan.name,
        started_at=started_at,
        config={**plan.config, **_config(plan)},
        engine=engine.facts,
        environment=plan.environment,
        workload=_workload(workload),
        workload_digest=workload_digest(workload, load_plan(plan.load)),
        **found.values,
        missing=found.missing,
        warnings=(*warnings, *found.warnings),
    )
    trace = as_trace(workload, size)
    samples: dict[str, list[Any]] = {}
    if sampler is not None:
        samples = {"at_s": list(sampler.at_s), **sampler.values}
    return Measured(result, tuple(outcomes), trace, samples)


def _accepted(
    workload: BenchWorkload, engine: LiveEngine, plan: RunPlan
) -> tuple[RunPlan, list[str]]:
    """Leave out of requests what the engine refuses; what the user gave stays. Return warnings."""
    asked = plan.load.extra_body
    trial = TRIAL_PROMPT if workload.words is None else "".join(workload.words[:2])
    found = accepted_fields(
        engine.target, extra_body=asked, timeout_s=plan.load.timeout_s, trial=trial
    )
    body = {**found.extra_body, **asked}
    load = dataclasses.replace(plan.load, extra_body=body)
    return dataclasses.replace(plan, load=load), list(found.notes)


def _prepare(
    workload: BenchWorkload,
    engine: LiveEngine,
    plan: RunPlan,
    report: Report | None,
    repeat: int,
) -> list[str]:
    """Warm the engine up and empty its cache; return warnings."""
    warnings: list[str] = []
    if plan.warmup:
        warm = warm_up(workload, plan.warmup, plan.seed)
        one_by_one = dataclasses.replace(plan.load, concurrency=1, workers=1)
        failed = [one for one in run_load(warm, engine.target, one_by_one) if one.error is not None]
        if report is not None:
            report("warm-up", plan.warmup, plan.warmup)
        if any(one.error == "cancelled" for one in failed):
            raise KeyboardInterrupt
        if len(failed) == plan.warmup or any(one.error == "refused" for one in failed):
            raise KvschedError(_of_warm_up(workload, engine, failed))
        if failed:
            warnings.append(
                f"{len(failed)} of {plan.warmup} requests of the warm-up failed "
                f"({failed[0].error}: {failed[0].detail})"
            )
    if engine.kind is None:
        why: str | None = "the engine's kind is not known"
    else:
        why = reset_prefix_cache(engine.kind, engine.target)
    if why is None:
        return warnings
    if repeat:
        warnings.append(
            f"the cache still held what the run before left, so this one hits more ({why}); "
            "prompts of another seed would be another workload"
        )
    elif engine.running is None:
        warnings.append(f"what the cache held before the run may have been hit ({why})")
    return warnings


def _of_warm_up(
    workload: BenchWorkload, engine: LiveEngine, failed: Sequence[RequestOutcome]
) -> str:
    """Say that an engine does not serve requests of the workload's kind."""
    said = f"{engine.target.url}: {len(failed)} requests of the warm-up failed"
    said += f" ({failed[0].error}: {failed[0].detail})"
    ended = None if engine.running is None else engine.running.ended()
    if ended is not None:
        said += f"; {ended}"
    if workload.words is None:
        highest = workload.source["token_ids"][1]
        said += f"; token ids go up to {highest:,}: if the model has fewer, give --vocab-size"
    return said


def _send(
    workload: BenchWorkload, engine: LiveEngine, plan: RunPlan, report: Report | None
) -> tuple[list[RequestOutcome], Sampler | None]:
    def told(done: int, total: int) -> None:
        if report is not None:
            report("requests", done, total)

    with contextlib.ExitStack() as stack:
        sampler = None
        if engine.kind is not None and plan.sample_interval_s > 0:
            sampler = Sampler(engine.kind, engine.target, plan.sample_interval_s)
            stack.enter_context(sampler)
        return run_load(workload, engine.target, plan.load, report=told), sampler


def _scrape(engine: LiveEngine) -> Scrape | str:
    if engine.kind is None:
        return "the engine has no metrics that are known"
    try:
        return scrape(engine.target, wanted_names(engine.kind))
    except KvschedError as error:
        return str(error)


def _said(
    engine: LiveEngine, before: Scrape | str, sampler: Sampler | None, done: int
) -> EngineSaid:
    """Scrape again, once the engine has counted the last request or some time has passed."""
    until = time.monotonic() + SETTLING_S
    while True:
        after = _scrape(engine)
        if engine.kind is None:
            found = Growth({}, {"*": str(after)})
            break
        found = growth(engine.kind, before, after)
        ended, _ = found.delta(engine.kind.finished)
        if ended is None or ended >= done or time.monotonic() > until:
            break
        time.sleep(0.05)
    if sampler is None:
        why = "the engine has no metrics" if engine.kind is None else "nothing was sampled"
        return EngineSaid(engine.kind, found, {}, why)
    why = "" if sampler.at_s else sampler.last_failure or "the run ended before the first sample"
    return EngineSaid(engine.kind, found, sampler.values, why)


def _config(plan: RunPlan) -> dict[str, Any]:
    """The settings of a run, as options name them."""
    load = plan.load
    return {
        "max_concurrency": load.concurrency,
        "workers": load.workers,
        "ttft_timeout_s": load.ttft_timeout_s,
        "timeout_s": load.timeout_s,
        "retries": load.retries,
        "extra_body": load.extra_body,
        "warmup": plan.warmup,
        "seed": plan.seed,
        "slo_ttft_ms": plan.objective.ttft_ms,
        "slo_tpot_ms": plan.objective.tpot_ms,
        "sample_interval_s": plan.sample_interval_s,
    }


def _workload(workload: BenchWorkload) -> dict[str, Any]:
    return {
        **workload.source,
        "requests": len(workload),
        "prompt_tokens": sum(len(prompt) for prompt in workload.prompts),
        "output_tokens": int(workload.output_tokens.sum()),
        "waiting_turns": int((workload.after >= 0).sum()),
        "notes": list(workload.notes),
    }
