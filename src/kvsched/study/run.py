"""`study`: from a trace and a capacity to a decision."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from kvsched.catalog import (
    Accelerator,
    Capacity,
    Model,
    bytes_per_block,
    capacity_from_blocks,
    find_accelerator,
    load_model,
)
from kvsched.foundation.errors import UsageError
from kvsched.foundation.jit import digest
from kvsched.foundation.version import VERSION
from kvsched.policy.base import Policy
from kvsched.replay.curve import LRUCurve
from kvsched.replay.engine import GENERIC, Rules, find_engine
from kvsched.replay.loop import replay_loop
from kvsched.replay.run import Replay, check_capacity
from kvsched.replay.sampling import SamplingError, sampling_errors
from kvsched.replay.sweep import Point, on_all_cores, point_of
from kvsched.study import curves, describe
from kvsched.study.anatomy import anatomy
from kvsched.study.recommend import best_row, parts_led, recommend
from kvsched.study.result import PolicyRow, StudyResult
from kvsched.study.resume import Partial
from kvsched.study.reuse import hottest, returned, reuse_gaps, time_to_reuse
from kvsched.study.served import check_served, served_policies
from kvsched.study.warm import compile_ahead
from kvsched.study.worth import Worth, worth
from kvsched.trace.check import require_blocks
from kvsched.trace.model import Trace
from kvsched.trace.sample import SampledTrace

DEFAULT_POLICIES = ("lru", "fifo", "lfu", "slru", "chapter", "decay")
BOUNDS = ("opt-fit", "opt")
LEAST_GAP = 1e-3
"""Of the prompt tokens; below it no share of the gap between LRU and opt-fit is stated."""

Report = Callable[[str, int, int], None]
"""Told (what, done, all) as a study goes on."""


@dataclass(frozen=True)
class Options:
    """What to study."""

    policies: tuple[str, ...] | None = None
    """Compared beside opt and opt-fit; None: `DEFAULT_POLICIES`, as far as the trace allows."""
    policy: str | None = None
    """Its misses are explained; None: the engine's own."""
    engine: str = "generic"
    """Whose rules say what can be stored and hit: a name of `kvsched.replay.engine`."""
    cache_generated: bool = True
    """Whether an engine stores the blocks that decoding fills."""
    points: int = 12
    """Capacities on the grid."""
    batch: int = 64
    """Requests that decode together, for what a hit is worth."""
    efficiency: float = 1.0
    """Share of the accelerator's rate that prefill reaches, from 0 to 1."""
    kv_cache_dtype: str = "auto"
    weight_dtype: str = "auto"
    simulate: bool = False
    """Whether each policy is served too, in time."""
    threads: int = 0
    """0: one a core."""
    command: str = ""
    """Command to print in the result; made up from the options if empty."""
    experiment: dict[str, Any] = field(default_factory=dict)
    """The experiment's file that says the same, for the result to carry."""


@dataclass(frozen=True)
class _Plan:
    trace: Trace
    rules: Rules
    policies: dict[str, Policy]
    own: str
    capacity: Capacity
    grid: list[int]
    curve: LRUCurve | None
    model: Model | None
    gpu: Accelerator | None
    options: Options
    warnings: tuple[str, ...]

    def gib(self, blocks: int) -> float | None:
        if self.capacity.bytes_per_block is None:
            return None
        return blocks * self.capacity.bytes_per_block * self.capacity.ranks / 2**30


def asked_policies(options: Options) -> dict[str, Policy]:
    """Return every policy to study by label: LRU, those asked for, and the optima.

    Raises UsageError for one that does not exist or cannot be studied; reads no trace.
    """
    if not 0 < options.efficiency <= 1:
        raise UsageError(f"efficiency must be above 0 and at most 1, not {options.efficiency:g}")
    rules = find_engine(options.engine)
    own = rules.policy(options.policy)
    if own.looks_ahead:
        raise UsageError(f"policy {own.label} needs the future: no engine can run it")
    compared = DEFAULT_POLICIES if options.policies is None else options.policies
    asked: tuple[str | Policy, ...] = ("lru", *compared, own, *BOUNDS)
    made: dict[str, Policy] = {}
    for policy in [rules.policy(each) for each in asked]:
        known = made.setdefault(policy.label, policy)
        if type(known) is not type(policy) or known.values != policy.values:
            raise UsageError(f"two policies are called {policy.label}: give one another name")
    return made


def _runnable(
    made: dict[str, Policy], own: Policy, trace: Trace, options: Options
) -> tuple[dict[str, Policy], tuple[str, ...]]:
    """Leave out what nobody asked for by name and the trace cannot run; say which, and why.

    Raises UsageError for one that was asked for.
    """
    kept: dict[str, Policy] = {}
    warnings = []
    for label, policy in made.items():
        missing = policy.missing(trace)
        if missing and options.policies is None and label != own.label:
            columns = ", ".join(f"`{name}`" for name in missing)
            warnings.append(f"{label} was left out: the trace does not have {columns}.")
            continue
        policy.check(trace)
        kept[label] = policy
    return kept, tuple(warnings)


def default_capacity(trace: Trace) -> Capacity:
    """A tenth of the trace's distinct blocks (or tokens of them), for want of a real one."""
    weighed = trace.tokens * np.int64(1) * trace.node_weight
    distinct = int(weighed.sum()) if trace.unequal else trace.total_nodes
    what = "tokens of distinct blocks" if trace.unequal else "distinct blocks"
    why = f"No capacity was given: a tenth of the {distinct:,} {what} was taken."
    blocks = max(1, distinct // 10)
    return Capacity(blocks=blocks, block_size=trace.unit_tokens, derivation=(why,))


def _plan(
    trace: Trace,
    capacity: Capacity,
    model: Model | None,
    gpu: Accelerator | None,
    options: Options,
) -> _Plan:
    check_capacity(capacity.blocks, trace.unequal)
    if capacity.block_size != trace.unit_tokens:
        raise UsageError(
            f"the capacity counts blocks of {capacity.block_size} tokens, "
            f"the trace blocks of {trace.unit_tokens}"
        )
    require_blocks(trace)
    rules = find_engine(options.engine)(trace, cache_generated=options.cache_generated)
    own = rules.policy(options.policy)
    made, warnings = _runnable(asked_policies(options), own, trace, options)
    curve = curves.exact_curve(rules)
    grid = curves.choose_grid(rules, curve, options.points, [capacity.blocks])
    return _Plan(
        trace, rules, made, own.label, capacity, grid, curve, model, gpu, options, warnings
    )


def _run_here(plan: _Plan, report: Report) -> dict[str, Replay]:
    """Replay every policy at the study's capacity, with what it did to each request."""
    jobs = [
        functools.partial(plan.rules.replay, policy, plan.capacity.blocks)
        for policy in plan.policies.values()
    ]
    found = {}
    for result in on_all_cores(jobs, plan.options.threads):
        found[result.policy.label] = result
        report("policies at the capacity", len(found), len(jobs))
    return found


def _run_grid(
    plan: _Plan, here: dict[str, Replay], partial: Partial | None, report: Report
) -> dict[str, list[Point]]:
    """Return the points of every swept policy over the grid, those kept from before included."""
    kept = {} if partial is None else partial.points
    points = {
        key: point
        for key, point in kept.items()
        if key[0] in plan.policies and _can_be_kept(plan.policies[key[0]])
    }
    for label, result in here.items():
        points[label, plan.capacity.blocks] = point_of(result)
    labels = curves.swept(plan.policies, plan.curve)
    wanted = [(label, blocks) for label in labels for blocks in plan.grid]
    missing = [pair for pair in wanted if pair not in points]
    jobs = (
        functools.partial(plan.rules.replay, plan.policies[label], blocks)
        for label, blocks in missing
    )
    done = len(wanted) - len(missing)
    report("curves", done, len(wanted))
    for result in on_all_cores(jobs, plan.options.threads):
        point = point_of(result)
        points[point.policy, point.capacity_blocks] = point
        if partial is not None and _can_be_kept(result.policy):
            partial.add(point)
        done += 1
        report("curves", done, len(wanted))
    return {label: [points[label, blocks] for blocks in plan.grid] for label in labels}


def _worth_of(plan: _Plan, result: Replay, ceiling: np.ndarray[Any, Any]) -> Worth | None:
    if plan.model is None:
        return None
    return worth(
        plan.trace.input_tokens,
        plan.trace.located_tokens(result.request_hits),
        plan.trace.output_tokens,
        model=plan.model,
        accelerator=plan.gpu,
        ceiling_hit_tokens=ceiling,
        efficiency=plan.options.efficiency,
        batch=plan.options.batch,
        kv_cache_dtype=plan.options.kv_cache_dtype,
        weight_dtype=plan.options.weight_dtype,
    )


def _rows(plan: _Plan, here: dict[str, Replay], worths: dict[str, Worth | None]) -> list[PolicyRow]:
    prompt = int(plan.trace.input_tokens.sum())
    lru, fit = here["lru"].hit_tokens, here["opt-fit"].hit_tokens
    rows = []
    # A share of next to nothing says nothing.
    told = fit - lru > LEAST_GAP * prompt
    for label, policy in plan.policies.items():
        result, value = here[label], worths[label]
        rows.append(
            PolicyRow(
                policy=label,
                looks_ahead=policy.looks_ahead,
                hit_blocks=result.hit_blocks,
                hit_tokens=result.hit_tokens,
                block_share=result.block_hit_ratio,
                token_share=result.hit_tokens / prompt if prompt else None,
                gap_closed=(result.hit_tokens - lru) / (fit - lru) if told else None,
                evictions=result.evictions,
                prefill_seconds_saved=None if value is None else value.prefill_seconds_saved,
                tuned=result.chosen,
            )
        )
    return rows


def _identity(plan: _Plan) -> str:
    """Say what kept points belong to: this version, this trace, this code of the policies."""
    code = [digest(replay_loop, policy.hooks()) for policy in plan.policies.values()]
    rules = plan.rules.identity
    return f"{VERSION} {plan.trace.digest} {rules}{' '.join(code)}"


def _can_be_kept(policy: Policy) -> bool:
    """Whether a point may be used by a later run: only ours do not change under a version.

    What a user's policy does also rests on what its `prepare` reads, which no digest sees.
    """
    return type(policy).__module__.startswith("kvsched.")


def _silent(_what: str, _done: int, _total: int) -> None:
    """Tell nobody."""


def study(
    trace: Trace,
    capacity: Capacity | int | None = None,
    *,
    model: Model | str | None = None,
    gpu: Accelerator | str | None = None,
    options: Options | None = None,
    partial: Path | None = None,
    report: Report | None = None,
) -> StudyResult:
    """Study ``trace``: ceiling, curves, optima, why it missed, what it is worth, what to do.

    ``capacity`` is in blocks of the trace, or a `Capacity`; a tenth of the distinct blocks if
    None. ``model`` and ``gpu``, values or names of the catalogue, turn blocks into GiB and hits
    into seconds.
    ``partial`` names a file that keeps what was computed, so that an interrupted study goes on.
    Cost: two replays a policy and capacity, on all cores. Raises UsageError.
    """
    options = options or Options()
    told = report or _silent
    model = load_model(model) if isinstance(model, str) else model
    gpu = find_accelerator(gpu) if isinstance(gpu, str) else gpu
    if capacity is None:
        capacity = default_capacity(trace)
    elif not isinstance(capacity, Capacity):
        size = check_capacity(capacity, trace.unequal)
        capacity = capacity_from_blocks(size, trace.unit_tokens)
    if capacity.bytes_per_block is None and model is not None:
        size = bytes_per_block(model, trace.unit_tokens, options.kv_cache_dtype)
        capacity = msgspec.structs.replace(capacity, bytes_per_block=size)
    check_served(trace, options, model, gpu)
    plan = _plan(trace, capacity, model, gpu, options)
    kept = None if partial is None else Partial(partial, _identity(plan))
    limited = plan.rules.name != GENERIC
    compile_ahead(plan.policies.values(), trace.weighted, options.threads, told, limited)
    here = _run_here(plan, told)
    grid = _run_grid(plan, here, kept, told)
    served = served_policies(trace, plan.policies.values(), capacity, model, gpu, options, told)
    found = _result(plan, here, grid, _errors(plan, grid, told))
    return msgspec.structs.replace(found, served=served)


def _errors(plan: _Plan, grid: dict[str, list[Point]], report: Report) -> list[SamplingError]:
    """Say how far a sample's hits may be off, policy by policy; nothing for a whole trace."""
    if not isinstance(plan.trace, SampledTrace):
        return []
    report("errors of the sample", 0, 1)
    hits = {label: [point.hit_blocks for point in points] for label, points in grid.items()}
    if plan.curve is not None:
        hits["lru"] = [plan.curve.at(blocks)[0] for blocks in plan.grid]
    found = sampling_errors(
        plan.trace, plan.policies.values(), plan.grid, hits, threads=plan.options.threads
    )
    report("errors of the sample", 1, 1)
    return found


def _result(
    plan: _Plan,
    here: dict[str, Replay],
    grid: dict[str, list[Point]],
    errors: list[SamplingError],
) -> StudyResult:
    trace, own = plan.trace, here[plan.own]
    gaps = reuse_gaps(trace)
    generic = plan.rules.name == GENERIC
    seen = gaps.seen if generic else plan.rules.seen()
    hittable = gaps.seen if generic else plan.rules.ceiling()
    ceiling_tokens = trace.prefix_tokens(hittable)
    located = trace.located_tokens(hittable)
    worths = {label: _worth_of(plan, result, located) for label, result in here.items()}
    rows = _rows(plan, here, worths)
    by_label = {row.policy: row for row in rows}
    prompt = int(trace.input_tokens.sum())
    targets = curves.targets(plan.curve, grid, int(ceiling_tokens.sum()), plan.gib)
    best = best_row(rows, plan.own, plan.rules.model_of_own)
    led = parts_led(here[best.policy], own) if best.policy != plan.own else None
    capacity = describe.capacity(trace, plan.capacity, plan.model, plan.gpu)
    prefixes, once = hottest(own)
    said = describe.sampled(trace, errors)
    advice = recommend(
        rows,
        by_label[plan.own],
        capacity,
        targets,
        worths,
        led,
        trace.origin.settings,
        said,
        plan.rules,
    )
    value = worths[plan.own]
    return StudyResult(
        kvsched=VERSION,
        config=describe.config(plan.options, plan.own, plan.capacity, plan.policies, plan.grid),
        command=plan.options.command,
        experiment=plan.options.experiment,
        definitions=describe.definitions(trace, plan.rules),
        optimum_is_exact=generic and not trace.unequal,
        trace=describe.trace(trace),
        capacity=capacity,
        ceiling=describe.ceiling(trace, hittable),
        policy=plan.own,
        curves=curves.drawn(trace, plan.curve, plan.grid, grid),
        targets=tuple(targets),
        knees=tuple(curves.knees(plan.curve, grid, prompt, plan.gib)),
        policies=tuple(rows),
        anatomy=anatomy(own, here["opt-fit"], here["opt"], seen, hittable),
        reuse=time_to_reuse(trace, gaps),
        hottest=prefixes,
        seen_once=once,
        returned=returned(own),
        worth=value,
        recommendation=advice,
        warnings=plan.warnings + describe.warnings(own, value, plan.policies.values()),
        sample=describe.sample(trace, errors),
    )
