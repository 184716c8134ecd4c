"""What ran when, in the JSON form that Perfetto and Chrome's own viewer open.

Source of the form: the Trace Event Format (Chromium project): complete events (X), instants (i),
counters (C), metadata (M); times in µs.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
import numpy as np

from kvsched.serve.asked import REASONS
from kvsched.serve.result import Simulation
from kvsched.serve.state import (
    LOG_FREE,
    LOG_PREEMPTED,
    LOG_RUNNING,
    LOG_SECONDS,
    LOG_START_S,
    LOG_WAITING,
    Float64s,
)
from kvsched.serve.timeline import timeline

REQUESTS = 1
"""The process whose tracks are slots: a request has one from its first step to its end."""
ENGINE = 2
"""The process of counters and preemptions; with several engines the first of theirs."""
MOST_STEPS = 10_000
"""Of more steps the counters are means over so many intervals of time."""

Event = dict[str, Any]


def _us(seconds: float) -> float:
    return round(1e6 * seconds, 3)


def slots(starts: Float64s, ends: Float64s) -> list[int]:
    """Return a slot for each interval, given by start: the lowest that is free. O(n log n)."""
    free: list[int] = []
    used: list[tuple[float, int]] = []
    found = []
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        while used and used[0][0] <= start:
            heapq.heappush(free, heapq.heappop(used)[1])
        slot = heapq.heappop(free) if free else len(used)
        heapq.heappush(used, (end, slot))
        found.append(slot)
    return found


def _named(kind: str, process: int, track: int, name: str) -> Event:
    return {"ph": "M", "name": kind, "pid": process, "tid": track, "args": {"name": name}}


def _bar(name: str, kind: str, start: float, end: float, track: int, args: Event) -> Event:
    return {
        "ph": "X",
        "name": name,
        "cat": kind,
        "pid": REQUESTS,
        "tid": track,
        "ts": _us(start),
        "dur": max(round(_us(end) - _us(start), 3), 0.0),
        "args": args,
    }


def _requests(found: Simulation) -> Iterator[Event]:
    """A bar of prefill and one of decode for each request that ran, in the order of their start."""
    ran = np.flatnonzero(~np.isnan(found.scheduled_s))
    ran = ran[np.argsort(found.scheduled_s[ran], kind="stable")]
    ends = np.where(np.isnan(found.finished_s), found.end_s, found.finished_s)
    places = slots(found.scheduled_s[ran], ends[ran])
    for track in range(max(places, default=-1) + 1):
        yield _named("thread_name", REQUESTS, track + 1, f"slot {track}")
    for request, slot in zip(ran.tolist(), places, strict=True):
        start, end = float(found.scheduled_s[request]), float(ends[request])
        token = float(found.first_token_s[request])
        between = end if np.isnan(token) else token
        args = {
            "request": request,
            "input_tokens": int(found.trace.input_tokens[request]),
            "hit_tokens": int(found.hit_tokens[request]),
            "generated_tokens": int(found.generated_tokens[request]),
            "queue_wait_ms": round(1e3 * float(found.queued_s[request]), 3),
            "preemptions": int(found.preemptions[request]),
        }
        if found.replica is not None:
            args["replica"] = int(found.replica[request])
        yield _bar(f"prefill {request}", "prefill", start, between, slot + 1, args)
        if end > between:
            yield _bar(f"decode {request}", "decode", between, end, slot + 1, args)


def _instant(name: str, seconds: float, args: Event, process: int = ENGINE) -> Event:
    where = {"pid": process, "tid": 1, "ts": _us(seconds), "s": "p"}
    return {"ph": "i", "name": name, "cat": name, **where, "args": args}


def _instants(found: Simulation) -> Iterator[Event]:
    log = found.step_log
    if log is not None:
        for at in np.flatnonzero(log[:, LOG_PREEMPTED] > 0).tolist():
            counted = {"requests": int(log[at, LOG_PREEMPTED])}
            engine = 0 if found.step_replica is None else int(found.step_replica[at])
            yield _instant("preemption", float(log[at, LOG_START_S]), counted, ENGINE + engine)
    rejected = found.rejected & ~np.isnan(found.arrival_s)
    when = np.where(np.isnan(found.rejected_s), found.arrival_s, found.rejected_s)
    for request in np.flatnonzero(rejected).tolist():
        why = {"request": request, "reason": REASONS[int(found.reason[request])]}
        yield _instant("rejection", float(when[request]), why)


def _counter(
    name: str, times: Iterable[float], values: Iterable[float], process: int
) -> Iterator[Event]:
    before: float | None = None
    for seconds, value in zip(times, values, strict=True):
        if value != before:
            where = {"pid": process, "tid": 0, "ts": _us(seconds)}
            yield {"ph": "C", "name": name, **where, "args": {"value": value}}
        before = value


def _counters(found: Simulation) -> Iterator[Event]:
    log = found.step_log
    if log is None or not len(log):
        return
    for engine in range(found.replicas):
        own = log if found.step_replica is None else log[found.step_replica == engine]
        yield from _engine_counters(found, own, ENGINE + engine)


def _engine_counters(found: Simulation, log: Float64s, process: int) -> Iterator[Event]:
    """Counters of one engine, from its rows of the log."""
    capacity, most = found.settings.num_gpu_blocks, MOST_STEPS // found.replicas
    if not len(log):
        return
    if len(log) > most:
        levels = timeline(log, capacity, found.end_s, max(most, 1))
        if levels is None:
            return
        yield from _counter(
            "KV use, %", levels.edges_s, (*(100 * v for v in levels.kv_use.means), 0.0), process
        )
        yield from _counter("running", levels.edges_s, (*levels.running.means, 0.0), process)
        yield from _counter("waiting", levels.edges_s, (*levels.waiting.means, 0.0), process)
        return
    starts, ends = log[:, LOG_START_S], log[:, LOG_START_S] + log[:, LOG_SECONDS]
    # Between two steps nobody runs: the level falls to 0 where the next does not follow at once.
    follows = np.concatenate([ends[:-1] >= starts[1:] - 1e-12 * starts[1:], [False]])
    times = np.column_stack([starts, ends])
    keep = np.column_stack([np.ones(len(log), bool), ~follows])
    for name, values in (
        ("KV use, %", 100.0 * (capacity - log[:, LOG_FREE]) / capacity),
        ("running", log[:, LOG_RUNNING]),
        ("waiting", log[:, LOG_WAITING]),
    ):
        both = np.column_stack([values, np.zeros(len(log))])
        yield from _counter(name, times[keep].tolist(), both[keep].tolist(), process)


def chrome_events(found: Simulation) -> Iterator[Event]:
    """Yield every event: a bar a phase of a request, instants, counters of the step log.

    A request that is preempted keeps its slot in the picture until it ends. O(R log R + steps).
    """
    yield _named("process_name", REQUESTS, 0, "requests")
    for engine in range(found.replicas):
        name = "engine" if found.replicas == 1 else f"engine {engine}"
        yield _named("process_name", ENGINE + engine, 0, name)
    yield from _requests(found)
    yield from _instants(found)
    yield from _counters(found)


def chrome_trace(found: Simulation) -> Iterator[bytes]:
    """Yield the file's bytes, an event a line."""
    encoder = msgspec.json.Encoder()
    yield b'{"displayTimeUnit":"ms","traceEvents":['
    mark = b"\n"
    for event in chrome_events(found):
        yield mark + encoder.encode(event)
        mark = b",\n"
    yield b"\n]}\n"
