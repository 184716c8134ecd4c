"""Two settings of an engine under one workload: what changed, how surely, and what follows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from kvsched.evidence.bench.bootstrap import (
    STATISTICS,
    BootstrapSettings,
    Interval,
    paired_interval,
    run_interval,
)
from kvsched.evidence.bench.decide import (
    Change,
    Decision,
    Overhead,
    Rules,
    Verdict,
    decide_prefix_cache,
    decide_scheduler,
)
from kvsched.evidence.bench.measured import BenchResult, RequestOutcome
from kvsched.evidence.bench.summary import bunched_share, hit_tokens, per_request
from kvsched.foundation.errors import UsageError
from kvsched.foundation.version import VERSION

Float64s = NDArray[np.float64]

LEAST_MISSES = 20
"""Requests without a hit, from which their TTFT counts as overhead."""
MOST_BUNCHED = 0.5
"""Share of answers whose tokens came together above which times decide nothing."""
LEAST_SAMPLES = 10
"""Of a gauge, from which its mean counts as measured."""
RULES_OF = {"prefix-cache": "prefix-cache", "scheduler": "scheduler", "replay": "scheduler"}
_IGNORED = ("url", "port", "pid", "command", "log", "repeat", "started_at")
_SETTINGS = (
    "config.",
    "engine.arguments.",
    "engine.cache.enable_prefix_caching",
    "engine.kind",
    "engine.model",
    "engine.version",
)
"""What repeats have in common; blocks, for one, are as many as the memory had room for."""
DEFINITIONS = {
    "difference": "B − A, of the pooled values of all repeats of a side",
    "interval": "percentile bootstrap: requests are drawn with replacement, the same for both "
    "sides, with all their repeats; where a side has repeats, moved by a t-distributed amount with "
    "the repeats' standard error and Welch's degrees of freedom",
    "requests": "those that ended well in every repeat of both sides",
    "overhead": "the larger of the relative rise of the median TPOT and, where at least "
    f"{LEAST_MISSES} requests hit nothing on either side, that of their median TTFT",
    "hit rate": "cached prompt tokens over prompt tokens by usage, else by the engine's counters",
    "running requests": "mean of the engine's gauge while the load was sent, from "
    f"{LEAST_SAMPLES} samples on: its utilisation",
    "fairness": "max(0, 1 − (longest − shortest)/max(mean, 1 s)) of the times to the first token",
}


@dataclass(frozen=True)
class Run:
    """A measured run, read back."""

    name: str
    result: BenchResult
    outcomes: tuple[RequestOutcome, ...]


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """What one side is."""

    name: str
    runs: int
    requests: int
    """A run's."""
    completed: tuple[int, ...]
    """Of each run."""
    engine: dict[str, Any]
    config: dict[str, Any]


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """A setting that differs."""

    name: str
    a: Any
    b: Any


class BenchComparison(msgspec.Struct, frozen=True, kw_only=True):
    """B against A."""

    schema_version: int = 1
    kvsched: str
    task: str
    a: Side
    b: Side
    workload: dict[str, Any]
    workload_digest: str
    differences: tuple[Difference, ...]
    common_requests: int
    """Requests that ended well in every run: those that are compared."""
    changes: tuple[Change, ...]
    overhead: Overhead
    rules: Rules
    bootstrap: dict[str, Any]
    decision: Verdict
    reason: str
    conditions: tuple[Any, ...]
    definitions: dict[str, str]
    warnings: tuple[str, ...]


def compare_runs(
    a: Sequence[Run],
    b: Sequence[Run],
    *,
    rules: Rules | None = None,
    bootstrap: BootstrapSettings | None = None,
    task: str | None = None,
    names: tuple[str, str] | None = None,
) -> BenchComparison:
    """Compare the repeats of two settings, called ``names`` (or as the first run of each).

    Raises UsageError where a side has no run, the workloads differ, the runs of a side are not of
    one setting, or no request ended well in every run. O(draws · requests · repeats).
    """
    rules, bootstrap = rules or Rules(), bootstrap or BootstrapSettings()
    _same_workload(a, b)
    _same_setting(a)
    _same_setting(b)
    task = task or b[0].result.task
    if task not in RULES_OF:
        raise UsageError(f"task {task!r} is not known: use {', '.join(RULES_OF)}")
    columns_a, columns_b = _columns(a), _columns(b)
    common = _common(columns_a, columns_b)
    if not common.any():
        raise UsageError("no request ended well in every run: there is nothing to compare")
    changes = {each.name: each for each in _changes(a, b, columns_a, columns_b, common, bootstrap)}
    overhead = _overhead(columns_a, columns_b, common)
    decided = (
        decide_prefix_cache(changes, overhead, rules)
        if RULES_OF[task] == "prefix-cache"
        else decide_scheduler(changes, rules)
    )
    bunched = max(bunched_share(run.outcomes) for run in (*a, *b))
    if bunched > MOST_BUNCHED:
        decided = msgspec.structs.replace(
            decided,
            decision="pending",
            reason=f"not decided: the tokens of {bunched:.0%} of a run's answers came together, so "
            "their times are of whole answers; ask for longer answers, or of a slower model",
        )
    return BenchComparison(
        kvsched=VERSION,
        task=task,
        a=_side(a, None if names is None else names[0]),
        b=_side(b, None if names is None else names[1]),
        workload=a[0].result.workload,
        workload_digest=a[0].result.workload_digest,
        differences=tuple(_differences(a[0].result, b[0].result)),
        common_requests=int(common.sum()),
        changes=tuple(changes.values()),
        overhead=overhead,
        rules=rules,
        bootstrap={
            "draws": bootstrap.draws,
            "confidence": bootstrap.confidence,
            "seed": bootstrap.seed,
        },
        decision=decided.decision,
        reason=decided.reason,
        conditions=decided.conditions,
        definitions=DEFINITIONS,
        warnings=tuple(_warnings(a, b, common, decided)),
    )


def _same_workload(a: Sequence[Run], b: Sequence[Run]) -> None:
    if not a or not b:
        raise UsageError("each side needs at least one run")
    first = a[0]
    for run in (*a, *b):
        one, other = first.result.workload_digest, run.result.workload_digest
        if one != other or first.result.requests != run.result.requests:
            raise UsageError(
                f"{first.name} and {run.name} sent different workloads ({one[:12]}, {other[:12]}): "
                "they cannot be compared"
            )


def _same_setting(side: Sequence[Run]) -> None:
    """Raise UsageError where runs that should be repeats are of different settings."""
    for run in side[1:]:
        for each in _differences(side[0].result, run.result):
            if each.name.startswith(_SETTINGS):
                raise UsageError(
                    f"{side[0].name} and {run.name} are no repeats of one setting ({each.name}: "
                    f"{each.a}, {each.b}): a folder of runs is one side"
                )


def _columns(runs: Sequence[Run]) -> dict[str, Float64s]:
    """(repeats, R) of each figure of a request."""
    found = [per_request(run.outcomes) for run in runs]
    columns = {name: np.stack([each[name] for each in found]) for name in found[0]}
    columns["hits"] = np.stack([hit_tokens(run.outcomes) for run in runs])
    return columns


def _common(a: dict[str, Float64s], b: dict[str, Float64s]) -> NDArray[np.bool_]:
    both = np.concatenate([a["ttft_ms"], b["ttft_ms"]])
    found: NDArray[np.bool_] = ~np.isnan(both).any(axis=0)
    return found


def _changes(
    a: Sequence[Run],
    b: Sequence[Run],
    columns_a: dict[str, Float64s],
    columns_b: dict[str, Float64s],
    common: NDArray[np.bool_],
    asked: BootstrapSettings,
) -> list[Change]:
    found = []
    for title, name in (("TTFT", "ttft_ms"), ("TPOT", "tpot_ms"), ("latency", "latency_ms")):
        one, other = columns_a[name][:, common], columns_b[name][:, common]
        known = ~(np.isnan(one).any(axis=0) | np.isnan(other).any(axis=0))
        one, other = one[:, known], other[:, known]
        for label, statistic in STATISTICS.items():
            if not known.any():
                found.append(change(f"{title} {label}", "ms", None, None, None))
                continue
            first, second = (float(statistic(side.reshape(-1))) for side in (one, other))
            interval = paired_interval(one, other, statistic, asked)
            found.append(change(f"{title} {label}", "ms", first, second, interval))
    for title, unit, read in _OF_RUNS:
        sides = []
        for runs in (a, b):
            told = [read(run.result) for run in runs]
            values_known = [value for value in told if value is not None]
            sides.append(np.array(values_known) if len(values_known) == len(told) else None)
        one_side, other_side = sides
        if one_side is None or other_side is None:
            means = [None if side is None else float(side.mean()) for side in sides]
            found.append(change(title, unit, means[0], means[1], None))
        else:
            interval = run_interval(one_side, other_side, asked)
            if title == "hit rate" and interval is None:
                interval = _hit_interval(a, columns_a, columns_b, common, asked)
            pair = float(one_side.mean()), float(other_side.mean())
            found.append(change(title, unit, *pair, interval))
    return found


def _hit_interval(
    a: Sequence[Run],
    columns_a: dict[str, Float64s],
    columns_b: dict[str, Float64s],
    common: NDArray[np.bool_],
    asked: BootstrapSettings,
) -> Interval | None:
    """Of the difference of cached over prompt tokens, requests drawn as pairs."""
    hits = columns_b["hits"][:, common].mean(axis=0) - columns_a["hits"][:, common].mean(axis=0)
    prompts = np.array([one.sent_prompt_tokens for one in a[0].outcomes], np.float64)[common]
    if np.isnan(hits).any() or len(hits) < 2:
        return None
    random = np.random.Generator(np.random.PCG64(asked.seed))
    draws = np.empty(asked.draws)
    for at in range(asked.draws):
        taken = random.integers(0, len(hits), len(hits))
        draws[at] = hits[taken].sum() / prompts[taken].sum()
    outside = (1 - asked.confidence) / 2
    low, high = np.quantile(draws, [outside, 1 - outside])
    return Interval(float(low), float(high))


def _hit_rate(result: BenchResult) -> float | None:
    found = result.hit_rate
    return found.usage if found.usage is not None else found.counters


def _running(result: BenchResult) -> float | None:
    found = result.gauges.get("running")
    return None if found is None or found.count < LEAST_SAMPLES else found.mean


_OF_RUNS: tuple[tuple[str, str, Any], ...] = (
    ("hit rate", "share", _hit_rate),
    ("request throughput", "requests/s", lambda result: result.request_throughput),
    ("output throughput", "tokens/s", lambda result: result.output_token_throughput),
    ("goodput", "requests/s", lambda result: result.goodput),
    ("fairness", "share", lambda result: result.fairness),
    ("running requests", "requests", _running),
)


def change(
    name: str, unit: str, a: float | None, b: float | None, interval: Interval | None
) -> Change:
    """Return a figure's change."""
    difference = None if a is None or b is None else b - a
    return Change(
        name=name,
        unit=unit,
        a=a,
        b=b,
        difference=difference,
        relative=difference / a if difference is not None and a else None,
        low=None if interval is None else interval.low,
        high=None if interval is None else interval.high,
        distinguishable=None if interval is None else interval.leaves_out_0,
    )


def _overhead(
    a: dict[str, Float64s], b: dict[str, Float64s], common: NDArray[np.bool_]
) -> Overhead:
    known = common & ~np.isnan(a["tpot_ms"]).any(axis=0) & ~np.isnan(b["tpot_ms"]).any(axis=0)
    tpot = _median_rise(a["tpot_ms"][:, known], b["tpot_ms"][:, known])
    # Nobody says that it hit where nobody says anything.
    missed = common & (a["hits"] == 0).all(axis=0) & (b["hits"] == 0).all(axis=0)
    count = int(missed.sum())
    ttft = None
    if count >= LEAST_MISSES:
        ttft = _median_rise(a["ttft_ms"][:, missed], b["ttft_ms"][:, missed])
    parts = [part for part in (tpot, ttft) if part is not None]
    return Overhead(
        value=max(parts) if tpot is not None else None,
        tpot_rise=tpot,
        miss_ttft_rise=ttft,
        miss_requests=count,
    )


def _median_rise(a: Float64s, b: Float64s) -> float | None:
    if not a.size or not b.size:
        return None
    one, other = float(np.median(a)), float(np.median(b))
    return other / one - 1 if one > 0 and other > 0 else None


def _side(runs: Sequence[Run], name: str | None) -> Side:
    return Side(
        name=name or runs[0].name,
        runs=len(runs),
        requests=runs[0].result.requests,
        completed=tuple(run.result.completed for run in runs),
        engine=runs[0].result.engine,
        config=runs[0].result.config,
    )


def _differences(a: BenchResult, b: BenchResult) -> list[Difference]:
    """Settings of load, engine and machine that differ, by their path."""
    one, other = _flat(a), _flat(b)
    return [
        Difference(name=name, a=one.get(name), b=other.get(name))
        for name in sorted(one.keys() | other.keys())
        if one.get(name) != other.get(name)
    ]


def _flat(result: BenchResult) -> dict[str, Any]:
    found: dict[str, Any] = {}

    def walk(path: str, value: Any) -> None:
        if path == "engine.arguments" and isinstance(value, list | tuple):
            value = _flags([str(each) for each in value])
        if isinstance(value, Mapping):
            for name, inner in value.items():
                if name not in _IGNORED:
                    walk(f"{path}.{name}", inner)
        else:
            found[path] = value

    walk("config", result.config)
    walk("engine", result.engine)
    walk("environment", result.environment)
    return found


def _flags(arguments: Sequence[str]) -> dict[str, str]:
    """Options and their values; an option without one is ``given``."""
    found: dict[str, str] = {}
    last = ""
    for each in arguments:
        if each.startswith("--"):
            last, mark, value = each.partition("=")
            found[last] = value if mark else "given"
        else:
            found[last] = each if found.get(last, "given") == "given" else f"{found[last]} {each}"
    return found


def _warnings(
    a: Sequence[Run], b: Sequence[Run], common: NDArray[np.bool_], decided: Decision
) -> list[str]:
    told = []
    if any(one.outcomes == other.outcomes for one in a for other in b):
        told.append("A and B have a run in common: it is compared with itself")
    if max(len(a), len(b)) < 2:
        told.append(
            "one run a side: the intervals know of requests, not of what moves a whole run "
            "(measure again with --repeats)"
        )
    left_out = len(common) - int(common.sum())
    if left_out:
        told.append(f"{left_out:,} of {len(common):,} requests failed in a run and are left out")
    for run in (*a, *b):
        told += [f"{run.name}: {warning}" for warning in run.result.warnings]
    if decided.decision == "pending":
        told.append("the decision hangs on what was not measured")
    return told
