"""A benchmark's run as calibration sees it: what was sent, when, and the moment of each token."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvsched.evidence.bench.measured import RequestOutcome
from kvsched.foundation.errors import UsageError
from kvsched.serve.settings import Settings
from kvsched.trace.model import Float64s, Int64s, Trace
from kvsched.trace.pick import pick

MOST_FAILED = 0.1
"""Share of requests that may have failed: what they took of the engine is not known."""


@dataclass(frozen=True, eq=False)
class Observed:
    """R requests that ended well, in the order in which they were sent. Seconds on one clock."""

    name: str
    trace: Trace
    """The requests as sent, at the engine's block size."""
    settings: Settings
    concurrency: int | None
    """Of a closed loop; None where requests came at times of their own."""
    order: str
    """The engine's scheduling policy."""
    sent_s: Float64s
    """(R,)"""
    starts: Int64s
    """(R+1,) request r's tokens are ``token_s[starts[r]:starts[r+1]]``."""
    token_s: Float64s
    """Moment of each token; NaN for one that came in the same piece as a later one."""
    cached: Int64s
    """(R,) prompt tokens found in the cache, −1 where the engine does not say."""
    index: Int64s
    """(R,) each request's place in the workload."""
    source: str = ""
    """Where the workload came from."""
    workload_digest: str = ""
    engine_name: str = ""
    """Kind, version and model."""
    environment: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.sent_s)

    @property
    def outputs(self) -> Int64s:
        """(R,) tokens generated."""
        return np.diff(self.starts)

    @property
    def supposed_s(self) -> Float64s:
        """Moment of each token, of those that came in one piece spread evenly since the one before.

        Those of the first piece come with it.
        """
        places = np.arange(len(self.token_s))
        told = ~np.isnan(self.token_s)
        found = np.interp(places, places[told], self.token_s[told])
        for low, first in zip(self.starts.tolist(), self.first_s.tolist(), strict=False):
            piece = low + int(np.argmax(told[low:]))
            found[low : piece + 1] = first
        return found

    @property
    def first_s(self) -> Float64s:
        """(R,) moment of the first token; of the piece that brought it."""
        return _next_known(self.token_s)[self.starts[:-1]]

    @property
    def last_s(self) -> Float64s:
        """(R,) moment of the last token."""
        return self.token_s[self.starts[1:] - 1]

    @property
    def ttft_s(self) -> Float64s:
        """(R,) from sending to the first token."""
        return self.first_s - self.sent_s

    @property
    def tpot_s(self) -> Float64s:
        """(R,) mean time of the tokens after the first; NaN for one token."""
        gaps = self.outputs - 1
        found = np.full(len(self), np.nan)
        some = gaps > 0
        found[some] = ((self.last_s - self.first_s)[some]) / gaps[some]
        return found


def _next_known(moments: Float64s) -> Float64s:
    """Each moment, or that of the first known one after it. O(n)."""
    places = np.where(np.isnan(moments), len(moments), np.arange(len(moments)))
    later = np.minimum.accumulate(places[::-1])[::-1]
    return moments[np.minimum(later, len(moments) - 1)]


def observe(
    name: str,
    trace: Trace,
    outcomes: Sequence[RequestOutcome],
    settings: Settings,
    *,
    concurrency: int | None,
    order: str = "fcfs",
) -> Observed:
    """Return a run as calibration sees it: requests that ended well, by the moment of sending.

    Raises UsageError where the outcomes are of another workload, where more than `MOST_FAILED` of
    the requests failed, or where the engine does not say how many tokens a piece has. O(tokens).
    """
    if len(outcomes) != len(trace):
        raise UsageError(f"{name}: {len(outcomes):,} outcomes of {len(trace):,} requests")
    well = [each for each in outcomes if each.error is None and each.sent_s is not None]
    failed = len(outcomes) - len(well)
    if not well or failed > MOST_FAILED * len(outcomes):
        raise UsageError(
            f"{name}: {failed:,} of {len(outcomes):,} requests failed; a run to calibrate with "
            "must be nearly free of errors"
        )
    for each in well:
        _check(name, each, trace)
    well.sort(key=lambda each: (each.sent_s, each.index))
    counts = np.array([each.asked_output_tokens for each in well], np.int64)
    starts = np.zeros(len(well) + 1, np.int64)
    np.cumsum(counts, out=starts[1:])
    moments = np.full(int(starts[-1]), np.nan)
    for at, each in enumerate(well):
        ends = np.cumsum(each.token_counts) if each.token_counts else np.arange(1, counts[at] + 1)
        moments[starts[at] + ends - 1] = each.token_s
    indexes = np.array([each.index for each in well], np.int64)
    sent = np.array([each.sent_s for each in well], np.float64)
    notes = [f"{failed:,} requests failed and are left out"] if failed else []
    return Observed(
        name=name,
        trace=_sent(trace, indexes, sent),
        settings=settings,
        concurrency=concurrency,
        order=order,
        sent_s=sent,
        starts=starts,
        token_s=moments,
        cached=np.array(
            [-1 if each.cached_tokens is None else each.cached_tokens for each in well], np.int64
        ),
        index=indexes,
        notes=tuple(notes),
    )


def _sent(trace: Trace, indexes: Int64s, sent: Float64s) -> Trace:
    """The requests that ended well, with the moments at which they were sent as arrivals."""
    times = np.empty(len(trace))
    times[:] = np.nan
    times[indexes] = sent
    return pick(dataclasses.replace(trace, time_s=times), indexes, trace.origin)


def _check(name: str, each: RequestOutcome, trace: Trace) -> None:
    """Raise UsageError where an outcome is not that of its request, or says too little."""
    where = f"{name}: request {each.index}"
    if not 0 <= each.index < len(trace):
        raise UsageError(f"{where}: the workload has {len(trace):,} requests")
    sent, told = int(trace.input_tokens[each.index]), each.prompt_tokens
    if each.sent_prompt_tokens != sent or told not in (None, sent):
        raise UsageError(
            f"{where}: the workload has {sent:,} prompt tokens, the run sent "
            f"{each.sent_prompt_tokens:,} and the engine counted {told}: another workload"
        )
    counts = each.token_counts or (1,) * len(each.token_s)
    tokens = sum(counts)
    whole = len(counts) == len(each.token_s) and min(counts, default=0) > 0
    if tokens != each.asked_output_tokens or not whole:
        raise UsageError(
            f"{where}: pieces bring {tokens:,} tokens of {each.asked_output_tokens:,}; "
            "calibration needs an engine that says how many tokens each piece has"
        )
    moments = np.asarray(each.token_s)
    if (np.diff(moments) < 0).any() or (each.sent_s is not None and moments[0] < each.sent_s):
        raise UsageError(f"{where}: its moments do not ascend")


def known(values: Float64s) -> NDArray[np.float64]:
    """Return the values that are not NaN."""
    return values[~np.isnan(values)]
