"""What a run means, in words: who did not finish and why, and whether arrivals exceed service."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from kvsched.serve.asked import REASONS
from kvsched.serve.result import Simulation
from kvsched.serve.state import EXPECTED, RUNNING, WAITING
from kvsched.serve.summary import Summary
from kvsched.serve.traffic import Traffic

NAMED = 5
"""Requests that are named by their number, of each kind."""
BUNCHED = 0.5
"""Share of distinct times up to which requests are said to come in bunches."""
FULL = 0.99
"""Utilisation from which an engine is said to be at its limit."""
_WHERE = {RUNNING: "still ran", WAITING: "still waited", EXPECTED: "had not arrived"}


def _requests(count: int) -> str:
    return "1 request" if count == 1 else f"{count:,} requests"


def _which(rows: NDArray[np.bool_]) -> str:
    """Name requests by their number in time order, from 0: the first few."""
    at = np.flatnonzero(rows)
    named = ", ".join(f"{each}" for each in at[:NAMED].tolist())
    return f"number {named}{', …' if len(at) > NAMED else ''}"


def _seconds(value: float) -> str:
    return f"{value:,.0f} s" if value >= 1000 else f"{value:.4g} s"


def _ended(found: Simulation) -> list[str]:
    """Say how many finished, and of all others why not. Together they are all requests."""
    done = int(found.finished.sum())
    total = len(found.status)
    said = [
        f"All {_requests(total)} finished in {_seconds(found.end_s)}."
        if done == total
        else f"{done:,} of {_requests(total)} finished in {_seconds(found.end_s)}."
    ]
    for code in np.unique(found.reason[found.rejected]).tolist():
        rows = found.rejected & (found.reason == code)
        said.append(
            f"Rejected: {_requests(int(rows.sum()))} ({REASONS[code]}): {_which(rows)} "
            "in time order, from 0."
        )
    for code, where in _WHERE.items():
        rows = found.unfinished & (found.status == code)
        if rows.any():
            said.append(
                f"Unfinished: {_requests(int(rows.sum()))} {where} at the end: {_which(rows)}."
            )
    return said


def _bunched(found: Simulation, traffic: Traffic) -> list[str]:
    """Say where a trace's times are so coarse that requests come in bunches."""
    if traffic.rate is not None or traffic.closed_loop:
        return []
    times, together = np.unique(found.trace.time_s, return_counts=True)
    if len(times) > BUNCHED * len(found.trace.time_s):
        return []
    return [
        f"The trace has {len(times):,} times for {_requests(len(found.trace.time_s))}, up to "
        f"{int(together.max()):,} at one: they wait for each other at any --speedup; --rate draws "
        "times of their own."
    ]


def _overload(summary: Summary, traffic: Traffic, engines: int) -> str:
    found = summary.overload
    if found.overloaded is None:
        return f"Overload cannot be told: {found.why_unknown}."
    left = found.queue_at_last_arrival
    emptied = (
        "and the queue was never empty again"
        if found.drain_s is None
        else f"and the queue was empty {_seconds(found.drain_s)} later"
    )
    waited = f"{_requests(left)} waited when the last arrived, {emptied}"
    one = engines == 1
    if not found.overloaded:
        busy = summary.utilisation or 0.0
        if busy < FULL:
            return f"Not overloaded: {waited}."
        return (
            f"Not overloaded, but at its limit: {100 * busy:.1f}% of the time "
            f"{'it computes' if one else 'they compute'}; {waited}. --find-rate finds a rate that "
            "keeps latencies low."
        )
    said = (
        f"OVERLOADED: {found.arrival_rate:,.3g} requests arrive a second, more than "
        f"{'the engine finishes' if one else 'the engines finish'}, and the queue grows without "
        f"end, by {found.growth:,.3g} a second; {waited}. Latencies say how long the trace is, "
        f"not what {'the engine is' if one else 'the engines are'} like."
    )
    if found.service_rate is not None and found.arrival_rate:
        by_rate = traffic.rate is not None
        given = traffic.speedup if traffic.rate is None else traffic.rate
        least = given * found.service_rate / found.arrival_rate
        said += (
            f" {'It finishes' if one else 'They finish'} {found.service_rate:,.3g} a "
            f"second at most (--{'rate' if by_rate else 'speedup'} {least:,.2g}), and latencies "
            "are low only well below that: --find-rate finds how far."
        )
    return said


def _pressed(summary: Summary) -> list[str]:
    """Say what admission and the second tier did."""
    said = []
    if summary.degraded:
        said.append(f"Served without being stored: {_requests(summary.degraded)}.")
    if summary.paused_steps:
        said.append(
            f"Nobody was admitted in {summary.paused_steps:,} steps in which somebody waited: "
            "requests held too many blocks."
        )
    moved = summary.swap
    if moved is not None and moved.refused:
        said.append(
            f"The second tier was full for {moved.refused:,} of "
            f"{moved.refused + moved.preemptions:,} preemptions: they were computed again."
        )
    return said


def _beyond(summary: Summary, bands: Mapping[str, Summary]) -> list[str]:
    """Say where an end of the step time's band is overloaded otherwise than its middle."""
    said = []
    for band, other in bands.items():
        verdict = other.overload.overloaded
        if verdict == summary.overload.overloaded:
            continue
        told = "not overloaded" if verdict is False else "overloaded"
        said.append(
            f"With the {band} step time it is {told}."
            if verdict is not None
            else f"With the {band} step time it cannot be told: {other.overload.why_unknown}."
        )
    return said


def sentences(
    found: Simulation, summary: Summary, bands: Mapping[str, Summary], traffic: Traffic
) -> tuple[str, ...]:
    """Return one sentence each: who finished, who did not and why, overload, the objective."""
    said = [
        *_ended(found),
        *_pressed(summary),
        _overload(summary, traffic, found.replicas),
        *_beyond(summary, bands),
        *_bunched(found, traffic),
    ]
    if summary.goodput is not None:
        good = summary.goodput
        said.append(
            f"{_requests(good.requests)} ({100 * good.share:.1f}%) meet the objective: "
            f"{good.requests_s:,.3g} a second."
        )
    return tuple(said)
