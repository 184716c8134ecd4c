"""What a simulation comes to: latencies, rates, use of the engine, objectives, fairness."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from kvsched.foundation.errors import UsageError
from kvsched.serve.asked import REASONS
from kvsched.serve.distribution import Distribution, distribution
from kvsched.serve.fairness import Fairness, fairness
from kvsched.serve.overload import Overload, overload
from kvsched.serve.result import Simulation
from kvsched.serve.state import EXPECTED, RUNNING, WAITING
from kvsched.serve.timeline import Timeline, timeline

DEFINITIONS = {
    "ttft": "seconds from a request's arrival to its first token",
    "tpot": "(latency − TTFT) / (generated tokens − 1); none for an answer of one token",
    "latency": "seconds from a request's arrival to its last token",
    "queue wait": "seconds from a request's arrival to the start of the first step that it is in",
    "duration": "seconds from the first arrival to the end of the last step",
    "throughput": "finished requests, their prompt tokens and their generated tokens, over the "
    "duration",
    "utilisation": "share of the duration in which a step runs; of several engines their mean",
    "hit ratio": "prompt tokens found in the cache at a request's first admission, over the prompt "
    "tokens of requests that were admitted",
    "KV use": "blocks that requests hold over all blocks, weighted by time; what is only cached "
    "counts as free; of several engines, over the blocks of all",
    "batch": "requests that run, weighted by time, idle time as 0; of several engines together",
    "queue": "requests that wait as the scheduler leaves them in each step, weighted by time; of "
    "several engines together",
    "goodput": "finished requests that meet all objectives, over the duration; the share is of all "
    "requests, those rejected or unfinished included; an answer of one token meets any TPOT",
    "fairness": "the course's: max(0, 1 − (longest − shortest wait) / max(mean wait, 1 s)), over "
    "requests and over tenants' means; Jain's index: (Σx)² / (n·Σx²) over tenants' rates, tokens "
    "of finished requests over the seconds that their requests were in the system",
    "overload": "cut the time of arrivals in 20: the queue grows by more than 3 standard errors a "
    "window, and its mean rises from each quarter to the next; nothing is said where chance may "
    "explain it, or the batch still fills",
    "percentiles": "linear between neighbours",
}
"""What each number means, printed beside it."""


class Objective(msgspec.Struct, frozen=True, kw_only=True):
    """What a request must reach to count in goodput. Raises UsageError for limits not above 0."""

    ttft_s: float | None = None
    tpot_s: float | None = None

    def __post_init__(self) -> None:
        for name in ("ttft_s", "tpot_s"):
            limit = getattr(self, name)
            if limit is not None and not (limit > 0 and math.isfinite(limit)):
                raise UsageError(f"the objective {name} must be above 0 s, not {limit:g}")

    @property
    def asked(self) -> bool:
        """Whether there is any limit."""
        return self.ttft_s is not None or self.tpot_s is not None


class Goodput(msgspec.Struct, frozen=True, kw_only=True):
    """Requests that meet the objectives."""

    ttft_s: float | None
    tpot_s: float | None
    requests: int
    requests_s: float
    share: float
    """Of all requests, those rejected or unfinished included."""


class Throughput(msgspec.Struct, frozen=True, kw_only=True):
    """What is finished a second."""

    requests_s: float
    input_tokens_s: float
    output_tokens_s: float


class Swapped(msgspec.Struct, frozen=True, kw_only=True):
    """What the second tier saw, of all engines."""

    preemptions: int
    """Those whose blocks moved out."""
    refused: int
    """Those whose blocks did not fit, and were computed again."""
    out_blocks: int
    back_blocks: int
    most_blocks: int
    """The most that one engine's tier held."""
    seconds: float
    """That steps took for moves."""


class EngineShare(msgspec.Struct, frozen=True, kw_only=True):
    """What one of several engines did."""

    requests: int
    """That were routed to it."""
    finished: int
    hit_ratio: float | None
    busy: float | None
    """Share of the duration in which a step of it runs; None where no steps are logged."""
    kv_use: float | None
    """Mean share of its blocks that requests hold."""


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """What a simulation comes to. What could not be measured is None."""

    requests: int
    finished: int
    rejected: int
    rejected_because: dict[str, int]
    unfinished: int
    unfinished_as: dict[str, int]
    """Where they were at the horizon: running, waiting, not arrived."""
    duration_s: float
    steps: int
    ttft_s: Distribution | None
    tpot_s: Distribution | None
    latency_s: Distribution | None
    queue_wait_s: Distribution | None
    throughput: Throughput | None
    prompt_tokens: int
    """Of the requests that were admitted."""
    hit_tokens: int
    hit_ratio: float | None
    computed_tokens: int
    """Again where a preemption lost them."""
    preemptions: int
    preempted_requests: int
    timeline: Timeline | None
    """None where the run kept no log of its steps."""
    goodput: Goodput | None
    fairness: Fairness
    overload: Overload
    recomputed_tokens: int = 0
    """Of the computed ones, those that their request had computed before it was preempted."""
    degraded: int = 0
    """Requests that were served and of which nothing was stored."""
    paused_steps: int = 0
    """Steps in which somebody waited and nobody was admitted, for memory was above its mark."""
    swap: Swapped | None = None
    """None where there is no second tier."""
    engines: tuple[EngineShare, ...] = ()
    """What each engine did; empty with one."""
    utilisation: float | None = None
    """As `DEFINITIONS` has it, from the moments at which requests run, without a log of steps."""


def meets(found: Simulation, objective: Objective) -> NDArray[np.bool_]:
    """(R,) whether each request finished and met every limit."""
    good = found.finished
    if objective.ttft_s is not None:
        good = good & (found.ttft_s <= objective.ttft_s)
    if objective.tpot_s is not None:
        # An answer of one token has no time between tokens.
        good = good & ~(found.tpot_s > objective.tpot_s)
    return good


def _goodput(found: Simulation, objective: Objective | None) -> Goodput | None:
    if objective is None or not objective.asked or not found.end_s > 0:
        return None
    good = int(meets(found, objective).sum())
    return Goodput(
        ttft_s=objective.ttft_s,
        tpot_s=objective.tpot_s,
        requests=good,
        requests_s=good / found.end_s,
        share=good / len(found.status),
    )


def _throughput(found: Simulation) -> Throughput | None:
    if not found.end_s > 0:
        return None
    done = found.finished
    return Throughput(
        requests_s=int(done.sum()) / found.end_s,
        input_tokens_s=int(found.trace.input_tokens[done].sum()) / found.end_s,
        output_tokens_s=int(found.generated_tokens[done].sum()) / found.end_s,
    )


def _rejected(found: Simulation) -> dict[str, int]:
    codes, counts = np.unique(found.reason[found.rejected], return_counts=True)
    return {REASONS[int(code)]: int(count) for code, count in zip(codes, counts, strict=True)}


def _unfinished(found: Simulation) -> dict[str, int]:
    words = {RUNNING: "running", WAITING: "waiting", EXPECTED: "not arrived"}
    counted = {word: int((found.status == code).sum()) for code, word in words.items()}
    return {word: count for word, count in counted.items() if count}


def _swapped(found: Simulation, total: dict[str, Any]) -> Swapped | None:
    if found.swap is None:
        return None
    return Swapped(
        preemptions=total["swaps"],
        refused=total["swaps_refused"],
        out_blocks=total["swapped_out_blocks"],
        back_blocks=total["swapped_in_blocks"],
        most_blocks=total["most_swapped_blocks"],
        seconds=total["swap_s"],
    )


def _engines(found: Simulation) -> tuple[EngineShare, ...]:
    """Say what each engine did. O(R + steps) each."""
    if found.replica is None or found.replicas == 1:
        return ()
    shares = []
    for engine in range(found.replicas):
        own = found.replica == engine
        ran = own & ~np.isnan(found.scheduled_s)
        prompt = int(found.trace.input_tokens[ran].sum())
        levels = None
        if found.step_log is not None and found.step_replica is not None:
            rows = found.step_log[found.step_replica == engine]
            levels = timeline(rows, found.settings.num_gpu_blocks, found.end_s)
        shares.append(
            EngineShare(
                requests=int(own.sum()),
                finished=int((own & found.finished).sum()),
                hit_ratio=int(found.hit_tokens[ran].sum()) / prompt if prompt else None,
                busy=None if levels is None else levels.busy,
                kv_use=None if levels is None else levels.kv_use.mean,
            )
        )
    return tuple(shares)


def utilisation(found: Simulation) -> float | None:
    """Return the share of the duration in which somebody runs, of several engines their mean.

    An engine steps as long as somebody runs: from the first step of a request to its end there is
    one that does, for a preempted one waits behind others. O(R log R).
    """
    if not found.end_s > 0:
        return None
    ran = ~np.isnan(found.scheduled_s)
    replica = np.zeros(len(ran), np.int64) if found.replica is None else found.replica
    order = np.lexsort((found.scheduled_s, replica))
    order = order[ran[order]]
    ends = np.where(np.isnan(found.finished_s), found.end_s, found.finished_s)[order]
    starts, engine = found.scheduled_s[order], replica[order]
    busy = 0.0
    for each in range(found.replicas):
        own = engine == each
        # Everything up to here is over at the latest of all ends before.
        until = np.maximum.accumulate(np.concatenate([[0.0], ends[own]]))
        begin = np.maximum(starts[own], until[:-1])
        busy += float(np.maximum(until[1:] - begin, 0.0).sum())
    return min(busy / found.end_s / found.replicas, 1.0)


def _timeline(found: Simulation) -> Timeline | None:
    if found.step_log is None:
        return None
    return timeline(
        found.step_log, found.settings.num_gpu_blocks, found.end_s,
        replica=found.step_replica, replicas=found.replicas,
    )  # fmt: skip


def summarise(
    found: Simulation, objective: Objective | None = None, *, closed_loop: bool = False
) -> Summary:
    """Return what a simulation comes to; `DEFINITIONS` says what each number means.

    Levels over time need a simulation with ``step_log=True``. O(R log R + steps).
    """
    admitted = ~np.isnan(found.scheduled_s)
    prompt = int(found.trace.input_tokens[admitted].sum())
    hit = int(found.hit_tokens[admitted].sum())
    total = found.summary()
    return Summary(
        requests=len(found.status),
        finished=int(found.finished.sum()),
        rejected=int(found.rejected.sum()),
        rejected_because=_rejected(found),
        unfinished=int(found.unfinished.sum()),
        unfinished_as=_unfinished(found),
        duration_s=found.end_s,
        steps=found.steps,
        ttft_s=distribution(found.ttft_s),
        tpot_s=distribution(found.tpot_s),
        latency_s=distribution(found.latency_s),
        queue_wait_s=distribution(found.queued_s),
        throughput=_throughput(found),
        prompt_tokens=prompt,
        hit_tokens=hit,
        hit_ratio=hit / prompt if prompt else None,
        computed_tokens=total["computed_tokens"],
        preemptions=total["preemptions"],
        preempted_requests=int((found.preemptions > 0).sum()),
        timeline=_timeline(found),
        goodput=_goodput(found, objective),
        fairness=fairness(found),
        overload=overload(found, closed_loop=closed_loop),
        recomputed_tokens=total["recomputed_tokens"],
        degraded=total["degraded"],
        paused_steps=total["paused_steps"],
        swap=_swapped(found, total),
        engines=_engines(found),
        utilisation=utilisation(found),
    )
