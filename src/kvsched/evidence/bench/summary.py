"""From each request's outcome to the whole run's numbers. What is not known is None, with why."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvsched.engine.counters import Growth
from kvsched.engine.kinds.base import EngineKind
from kvsched.evidence.bench.load_lag import lag_facts
from kvsched.evidence.bench.measured import HitRate, RequestOutcome
from kvsched.foundation.errors import UsageError
from kvsched.serve.distribution import Distribution, distribution
from kvsched.serve.fairness import course_fairness

Float64s = NDArray[np.float64]

LEAST_FOR_P999 = 1_000
FEW_BUNCHED = 0.1
"""A share of answers up to which it is of no matter that their tokens came together."""


@dataclass(frozen=True)
class BenchObjective:
    """What a request has to meet to count as good; None asks for nothing.

    Raises UsageError for what nothing can meet.
    """

    ttft_ms: float | None = None
    tpot_ms: float | None = None

    def __post_init__(self) -> None:
        for name, value in (("ttft", self.ttft_ms), ("tpot", self.tpot_ms)):
            if value is not None and not (math.isfinite(value) and value >= 0):
                raise UsageError(f"--slo-{name}-ms {value}: a number of at least 0")

    def __bool__(self) -> bool:
        return self.ttft_ms is not None or self.tpot_ms is not None


@dataclass(frozen=True)
class EngineSaid:
    """What came from the engine's metrics."""

    kind: EngineKind | None
    growth: Growth
    gauges: dict[str, list[float | None]] = field(default_factory=dict)
    gauges_missing: str = ""
    """Why there are no samples."""


def per_request(outcomes: Sequence[RequestOutcome]) -> dict[str, Float64s]:
    """Return ttft_ms, tpot_ms, latency_ms (R,) of completed requests and lag_ms; NaN where none.

    The time to the first token and the latency are from the sending (of the last attempt, where
    one was refused with 429); the lag is from when the request was due to its sending, of those
    that were sent once. The time per output token is the time from the first token to the last
    over the tokens but one.
    """
    found = {name: np.full(len(outcomes), np.nan) for name in _COLUMNS}
    for at, one in enumerate(outcomes):
        sent = one.sent_s
        if sent is None:
            continue
        if one.attempts == 1:
            found["lag_ms"][at] = 1e3 * (sent - one.due_s)
        if one.error is not None or one.first_token_s is None:
            continue
        found["ttft_ms"][at] = 1e3 * (one.first_token_s - sent)
        found["tpot_ms"][at] = _tpot_ms(one)
        if one.finished_s is not None:
            found["latency_ms"][at] = 1e3 * (one.finished_s - sent)
    return found


_COLUMNS = ("ttft_ms", "tpot_ms", "latency_ms", "lag_ms")


def generated(one: RequestOutcome) -> int:
    """Return the tokens that came: as `usage` has them, else as the stream has, else as asked."""
    if one.output_tokens is not None:
        return one.output_tokens
    return sum(one.token_counts) if one.token_counts else one.asked_output_tokens


def _tpot_ms(one: RequestOutcome) -> float:
    count = generated(one)
    if count < 2 or not one.token_s or one.first_token_s is None:
        return math.nan
    return 1e3 * (one.token_s[-1] - one.first_token_s) / (count - 1)


def gaps_ms(outcomes: Sequence[RequestOutcome]) -> Float64s:
    """Return every gap between two pieces of a stream, over completed requests."""
    found = [np.diff(one.token_s) for one in outcomes if one.error is None]
    joined: Float64s = 1e3 * np.concatenate(found) if found else np.zeros(0)
    return joined


def hit_tokens(outcomes: Sequence[RequestOutcome]) -> NDArray[np.float64]:
    """Return (R,) prompt tokens that `usage` says were cached; NaN where it does not say."""
    return np.array(
        [math.nan if one.cached_tokens is None else float(one.cached_tokens) for one in outcomes]
    )


def duration_s(outcomes: Sequence[RequestOutcome]) -> float:
    """Return the seconds from the first request due to the last moment known of any."""
    if not outcomes:
        return 0.0
    last = [
        max(
            moment
            for moment in (one.due_s, one.sent_s, one.first_token_s, one.finished_s)
            if moment is not None
        )
        for one in outcomes
    ]
    return max(last) - min(one.due_s for one in outcomes)


def hit_rate(outcomes: Sequence[RequestOutcome], said: EngineSaid) -> HitRate:
    """Return the share of prompt tokens found in the cache, by `usage` and by the counters."""
    done = [one for one in outcomes if one.error is None]
    known = [one for one in done if one.cached_tokens is not None and one.prompt_tokens]
    hits = sum(one.cached_tokens or 0 for one in known)
    prompts = sum(one.prompt_tokens or 0 for one in known)
    wrong = [one for one in known if not 0 <= (one.cached_tokens or 0) <= (one.prompt_tokens or 0)]
    whole = bool(done) and len(known) == len(done)
    notes = []
    if not done:
        notes.append("no request ended well")
    elif not known:
        notes.append("the engine's usage does not say how many prompt tokens were cached")
    elif not whole:
        notes.append(f"usage says it of {len(known)} of {len(done)} requests alone")
    if wrong:
        notes.append(f"usage of {len(wrong)} requests has more cached tokens than the prompt has")
    counter_hits, queries, why = _counted(said)
    if why:
        notes.append(why)
    usage_hits = hits if whole else None
    agree = None
    if usage_hits is not None and counter_hits is not None:
        agree = usage_hits == counter_hits
        if not agree:
            failed = len(outcomes) - len(done)
            because = f": {failed} requests failed, which counters count" if failed else ""
            notes.append(
                f"usage counts {usage_hits:,} hit tokens, the engine's counters "
                f"{counter_hits:,}{because}"
            )
    return HitRate(
        usage=hits / prompts if whole and prompts and not wrong else None,
        counters=counter_hits / queries if counter_hits is not None and queries else None,
        usage_hit_tokens=usage_hits,
        counter_hit_tokens=counter_hits,
        agree=agree,
        note="; ".join(notes),
    )


def _counted(said: EngineSaid) -> tuple[int | None, float | None, str]:
    """Hit tokens and queries by the engine's counters, and why one is missing."""
    if said.kind is None:
        return None, None, said.growth.missing.get("*", "the engine's kind is not known")
    hits, no_hits = said.growth.delta(said.kind.hit_tokens)
    queries, no_queries = said.growth.delta(said.kind.query_tokens)
    if hits is None or queries is None:
        return None if hits is None else int(hits), queries, no_hits or no_queries
    if not queries:
        return int(hits), None, "the engine's counters counted no look-up: it caches no prefixes"
    return int(hits), queries, ""


@dataclass(frozen=True)
class Numbers:
    """The numbers of a `BenchResult`, by its fields' names."""

    values: dict[str, Any]
    missing: dict[str, str]
    warnings: tuple[str, ...]


def numbers(
    outcomes: Sequence[RequestOutcome], objective: BenchObjective, said: EngineSaid
) -> Numbers:
    """Return every number of the run. O(pieces of all streams)."""
    columns = per_request(outcomes)
    missing: dict[str, str] = {}
    distributions: dict[str, Distribution | None] = {
        "ttft_ms": distribution(columns["ttft_ms"]),
        "tpot_ms": distribution(columns["tpot_ms"]),
        "itl_ms": distribution(gaps_ms(outcomes)),
        "latency_ms": distribution(columns["latency_ms"]),
        "lag_ms": distribution(columns["lag_ms"]),
    }
    done = [one for one in outcomes if one.error is None]
    nobody = "no request ended well"
    because = {
        "ttft_ms": nobody,
        "tpot_ms": "no request had a second token" if done else nobody,
        "itl_ms": "no stream had a second piece" if done else nobody,
        "latency_ms": nobody,
        "lag_ms": "no request was sent",
    }
    missing |= {name: because[name] for name, value in distributions.items() if value is None}
    hits = hit_rate(outcomes, said)
    if hits.usage is None or hits.counters is None:
        missing["hit_rate"] = hits.note
    missing |= {f"counters.{name}": why for name, why in said.growth.missing.items()}
    values = {
        "requests": len(outcomes),
        "completed": len(done),
        "errors": dict(sorted(Counter(one.error for one in outcomes if one.error).items())),
        "duration_s": duration_s(outcomes),
        **distributions,
        "p999_ms": _p999(columns, gaps_ms(outcomes), missing),
        **_rates(outcomes, columns, objective, missing),
        "hit_rate": hits,
        "counters": said.growth.counters,
        "gauges": _gauges(said, missing),
        "fairness": _fairness(columns, missing),
    }
    return Numbers(values, missing, tuple(_warnings(outcomes, hits, said)))


def _p999(
    columns: dict[str, Float64s], gaps: Float64s, missing: dict[str, str]
) -> dict[str, float | None]:
    found: dict[str, float | None] = {}
    for name, values in (
        ("ttft", columns["ttft_ms"]),
        ("tpot", columns["tpot_ms"]),
        ("itl", gaps),
        ("latency", columns["latency_ms"]),
    ):
        known = values[~np.isnan(values)]
        enough = len(known) >= LEAST_FOR_P999
        found[name] = float(np.percentile(known, 99.9)) if enough else None
        if not enough:
            missing[f"p999_ms.{name}"] = (
                f"{len(known):,} values: a 99.9th percentile needs {LEAST_FOR_P999:,}"
            )
    return found


def _rates(
    outcomes: Sequence[RequestOutcome],
    columns: dict[str, Float64s],
    objective: BenchObjective,
    missing: dict[str, str],
) -> dict[str, Any]:
    passed = duration_s(outcomes)
    done = [one for one in outcomes if one.error is None]

    def rate(amount: float, name: str) -> float | None:
        if passed > 0 and done:
            return amount / passed
        missing[name] = "no request ended well" if not done else "the run took no time"
        return None

    good: int | None = None
    if objective:
        good = int(_good(columns, objective).sum())
    else:
        missing["goodput"] = missing["good_requests"] = "no objective was given (--slo-ttft-ms)"
    sent = sum(one.prompt_tokens or one.sent_prompt_tokens for one in done)
    return {
        "request_throughput": rate(len(done), "request_throughput"),
        "input_token_throughput": rate(sent, "input_token_throughput"),
        "output_token_throughput": rate(
            sum(generated(one) for one in done), "output_token_throughput"
        ),
        "good_requests": good,
        "goodput": None if good is None else (good / passed if passed > 0 else 0.0),
    }


def _good(columns: dict[str, Float64s], objective: BenchObjective) -> NDArray[np.bool_]:
    """(R,) whether each completed request met the objective; one token has no time between two."""
    good: NDArray[np.bool_] = ~np.isnan(columns["ttft_ms"])
    if objective.ttft_ms is not None:
        good &= columns["ttft_ms"] <= objective.ttft_ms
    if objective.tpot_ms is not None:
        tpot = columns["tpot_ms"]
        good &= np.isnan(tpot) | (tpot <= objective.tpot_ms)
    return good


def _gauges(said: EngineSaid, missing: dict[str, str]) -> dict[str, Distribution | None]:
    found: dict[str, Distribution | None] = {}
    for name in ("running", "waiting", "kv_use"):
        values = [value for value in said.gauges.get(name, []) if value is not None]
        found[name] = distribution(np.array(values, np.float64))
        if found[name] is None:
            why = said.gauges_missing or "the engine does not report it"
            missing[f"gauges.{name}"] = why
    return found


def _fairness(columns: dict[str, Float64s], missing: dict[str, str]) -> float | None:
    waits = columns["ttft_ms"]
    found = course_fairness(waits[~np.isnan(waits)] / 1e3)
    if found is None:
        missing["fairness"] = "no request ended well"
    return found


def _warnings(outcomes: Sequence[RequestOutcome], hits: HitRate, said: EngineSaid) -> list[str]:
    told = []
    failed = [one for one in outcomes if one.error is not None]
    if failed:
        told.append(f"{len(failed):,} of {len(outcomes):,} requests failed")
    lag = lag_facts(outcomes)
    if lag is not None and lag.warning is not None:
        told.append(lag.warning)
    if hits.agree is False:
        told.append(f"hit tokens differ: {hits.note}")
    done = [one for one in outcomes if one.error is None]
    wrong = [each for each in done if generated(each) != each.asked_output_tokens]
    if wrong:
        told.append(f"{len(wrong):,} answers have another length than was asked for")
    other = [each for each in done if each.prompt_tokens not in (None, each.sent_prompt_tokens)]
    if other:
        told.append(f"{len(other):,} prompts had another length for the engine than was sent")
    bunched = bunched_share(outcomes)
    if bunched > FEW_BUNCHED:
        told.append(
            f"the tokens of {bunched:.0%} of the answers came together, in one read: their time to "
            "the first token is that of the whole answer, and TPOT says nothing of them"
        )
    told += _shared(outcomes, said)
    if any(not one.token_counts and one.token_s for one in done):
        told.append("the engine does not say how many tokens a piece brings: ITL is of pieces")
    return told


def bunched_share(outcomes: Sequence[RequestOutcome]) -> float:
    """Return the share of answers of several tokens that came in one read; 0 without any."""
    several = [one for one in outcomes if one.error is None and one.token_s and generated(one) > 1]
    if not several:
        return 0.0
    return sum(one.token_s[0] == one.token_s[-1] for one in several) / len(several)


def _shared(outcomes: Sequence[RequestOutcome], said: EngineSaid) -> list[str]:
    """Whether others used the engine: it ended more requests than were sent, or fewer than came."""
    if said.kind is None or not said.kind.finished:
        return []
    ended, _ = said.growth.delta(said.kind.finished)
    if ended is None:
        return []
    done = sum(one.error is None for one in outcomes)
    sent = sum(one.attempts for one in outcomes if one.sent_s is not None)
    if done <= ended <= sent:
        return []
    return [
        f"the engine counted {int(ended):,} requests that ended, {done:,} came from here: its "
        "counters are shared with others, or late"
    ]
