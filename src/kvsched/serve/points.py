"""Many simulations of one trace, each in a few figures: a point. On all cores, kept as they end."""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from kvsched.foundation.blame import compile_fault
from kvsched.foundation.by_name import fault_of
from kvsched.foundation.errors import InputError, KvschedError, UsageError
from kvsched.foundation.jit import compilation_enabled, digest
from kvsched.foundation.version import VERSION
from kvsched.policy.base import Policy
from kvsched.replay.sweep import cores, on_all_cores
from kvsched.serve.admission import ADMISSION
from kvsched.serve.distribution import Distribution
from kvsched.serve.engine import COMPILING, find_eviction, is_compiled
from kvsched.serve.loop import run_steps
from kvsched.serve.nodes import MEMORY
from kvsched.serve.orders.base import QueueOrder
from kvsched.serve.orders.registry import make_order
from kvsched.serve.parts import find_admission, find_swap, find_traffic
from kvsched.serve.routing.registry import make_routing
from kvsched.serve.served import Asking, find_settings, find_step_time, hardware, serve, step_cost
from kvsched.serve.step_time import BANDS
from kvsched.serve.summary import Summary
from kvsched.serve.swap import SWAP
from kvsched.trace.model import Trace
from kvsched.trace.slice import slice_trace

Value = bool | int | float | str | None
Report = Callable[[str, int, int], None]
"""Told (what, done, all)."""


POINTS = "points"
INTERNAL = "internal error"
"""Begins the fault of a point that kvsched itself is to blame for; it is run again each time."""


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """What a run comes to in a row of a table. What could not be measured is None."""

    requests: int
    finished: int
    rejected: int
    unfinished: int
    duration_s: float
    requests_s: float | None
    output_tokens_s: float | None
    goodput_s: float | None
    """Requests a second that meet the objective."""
    goodput_share: float | None
    """Of all requests."""
    ttft_p50_s: float | None
    ttft_p99_s: float | None
    tpot_p50_s: float | None
    tpot_p99_s: float | None
    latency_p50_s: float | None
    latency_p99_s: float | None
    hit_ratio: float | None
    preemptions: int
    overloaded: bool | None
    """None where that cannot be told."""
    utilisation: float | None = None
    """Share of the duration in which a step runs."""


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """One run of many."""

    settings: dict[str, Value]
    """What was set otherwise than in the other points, by option."""
    figures: Figures | None
    """With the middle step time; None where it could not run."""
    bands: dict[str, Figures]
    """With the low and the high step time, where they were asked for."""
    fault: str | None
    """Why it could not run."""


@dataclasses.dataclass(frozen=True)
class Ask:
    """A point to run."""

    settings: dict[str, Value]
    asking: Asking


def figures_of(summary: Summary) -> Figures:
    """Return a summary's row."""
    rates, good = summary.throughput, summary.goodput

    def part(found: Distribution | None, name: str) -> float | None:
        return None if found is None else float(getattr(found, name))

    return Figures(
        requests=summary.requests,
        finished=summary.finished,
        rejected=summary.rejected,
        unfinished=summary.unfinished,
        duration_s=summary.duration_s,
        requests_s=None if rates is None else rates.requests_s,
        output_tokens_s=None if rates is None else rates.output_tokens_s,
        goodput_s=None if good is None else good.requests_s,
        goodput_share=None if good is None else good.share,
        ttft_p50_s=part(summary.ttft_s, "p50"),
        ttft_p99_s=part(summary.ttft_s, "p99"),
        tpot_p50_s=part(summary.tpot_s, "p50"),
        tpot_p99_s=part(summary.tpot_s, "p99"),
        latency_p50_s=part(summary.latency_s, "p50"),
        latency_p99_s=part(summary.latency_s, "p99"),
        hit_ratio=summary.hit_ratio,
        preemptions=summary.preemptions,
        overloaded=summary.overload.overloaded,
        utilisation=summary.utilisation,
    )


def check_point(asking: Asking, trace: Trace) -> None:
    """Refuse what can be refused without a run. Raises UsageError, or InputError for a file."""
    find_step_time(asking)
    find_traffic(asking)
    find_admission(asking)
    find_settings(asking, trace.block_size)
    find_swap(asking, hardware(asking)[0], trace.block_size)
    make_order(asking.scheduling_policy).check(trace)
    find_eviction(asking.eviction_policy, trace)
    if asking.routing is not None:
        make_routing(asking.routing)


def run_point(trace: Trace, ask: Ask, compiled: bool | None = None) -> Point:
    """Run one point. What is wrong with it alone (a setting, a stall) is its fault, not raised.

    So is an internal error, and a hook that does not compile. Raises InputError.
    """
    try:
        served = serve(trace, ask.asking, compiled=compiled, step_log=False)
    except InputError:
        raise
    except KvschedError as error:
        said = " ".join(str(error).split())
        return Point(settings=ask.settings, figures=None, bands={}, fault=said)
    except Exception as error:  # noqa: BLE001  # one point's fault ends no sweep
        compiling = compile_fault(error)
        said = fault_of(error) if compiling is None else f"does not compile: {compiling[0]}"
        return Point(settings=ask.settings, figures=None, bands={}, fault=f"{INTERNAL}: {said}")
    result = served.result
    return Point(
        settings=ask.settings,
        figures=figures_of(result.summary),
        bands={band: figures_of(each) for band, each in result.bands.items()},
        fault=None,
    )


def _own(*parts: object) -> bool:
    """Whether all are kvsched's own, which do not change under a version."""
    return all(type(part).__module__.startswith("kvsched.") for part in parts if part is not None)


def _more(asking: Asking) -> dict[str, Any]:
    gate = {} if find_admission(asking) is None else ADMISSION
    return {**gate, **({} if asking.swap_space is None else SWAP)}


def _code(order: QueueOrder, policy: Policy | None, asking: Asking, cost: dict[str, Any]) -> str:
    names = {**order.hooks(), **cost, **_more(asking)}
    if policy is not None:
        names |= {**MEMORY, **policy.hooks()}
    return digest(run_steps, names)


def identity(trace: Trace, asking: Asking) -> str | None:
    """Return a hex digest of all that decides a point: trace, settings, step time, version, code.

    None where an order, a policy or a routing is the user's own: what it does also rests on what
    no digest sees. O(1) beside the trace's digest. Raises UsageError.
    """
    order = make_order(asking.scheduling_policy)
    policy = find_eviction(asking.eviction_policy, trace)
    routing = None if asking.routing is None else make_routing(asking.routing)
    if not _own(order, policy, routing):
        return None
    step_time = find_step_time(asking)
    costs = [step_cost(step_time, band) for band in (BANDS if asking.band else BANDS[1:2])]
    settings, _ = find_settings(asking, trace.block_size)
    limits = find_admission(asking)
    swap = find_swap(asking, hardware(asking)[0], trace.block_size)
    said = [
        VERSION,
        Figures.__struct_fields__,
        trace.digest,
        _code(order, policy, asking, costs[0].bound()),
        settings.summary(),
        [cost.coefficients.tobytes().hex() for cost in costs],
        [step_time.window, step_time.decode_threshold],
        order.label,
        None if policy is None else policy.label,
        [asking.data_parallel_size, None if routing is None else routing.name],
        dataclasses.astuple(find_traffic(asking)),
        None if limits is None else limits.summary(),
        None if swap is None else swap.summary(),
        [asking.horizon_s, asking.objective],
    ]
    return hashlib.sha256(repr(said).encode()).hexdigest()[:32]


def _is_internal(point: Point) -> bool:
    return point.fault is not None and point.fault.startswith(INTERNAL)


class _Line(msgspec.Struct, frozen=True):
    identity: str
    point: Point
    checksum: str


def _checksum(identity: str, point: Point) -> str:
    return hashlib.sha256(identity.encode() + msgspec.json.encode(point)).hexdigest()[:16]


class Records:
    """Points that have ended, a line each, appended to a file: a later run does not make them.

    A line that is damaged, the last one of a run that was killed, is left out and told in `notes`.
    Raises UsageError where the file cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.points: dict[str, Point] = {}
        self.notes: list[str] = []
        self.reused = 0
        """Points that were asked for and were there."""
        try:
            if path.exists() and not path.is_file():
                raise UsageError(f"{path}: is no file")
            data = path.read_bytes() if path.exists() else b""
        except OSError as error:
            raise UsageError(f"{path}: cannot be read ({error.strerror})") from error
        self._torn = bool(data) and not data.endswith(b"\n")
        for row, line in enumerate(data.split(b"\n"), 1):
            if not line:
                continue
            try:
                found = msgspec.json.decode(line, type=_Line)
                if found.checksum != _checksum(found.identity, found.point):
                    raise ValueError("the point is not the one that was written")
            except (msgspec.DecodeError, UnicodeDecodeError, ValueError):
                self.notes.append(f"{path}, row {row}: damaged, its point is run again")
                continue
            self.points[found.identity] = found.point

    def add(self, name: str, point: Point) -> None:
        """Keep a point: the system has its whole line when this returns. Raises KvschedError."""
        self.points[name] = point
        line = msgspec.json.encode(_Line(name, point, _checksum(name, point))) + b"\n"
        if self._torn:
            line = b"\n" + line
            self._torn = False
        try:
            handle = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
            try:
                if os.write(handle, line) != len(line):
                    raise OSError(28, "no space left")
            finally:
                os.close(handle)
        except OSError as error:
            raise KvschedError(f"{self._path}: cannot be written ({error.strerror})") from error


def _compile_ahead(trace: Trace, asks: Sequence[Ask], told: Report) -> None:
    """Compile every loop once, before several threads would each do so; tell of those that are new.

    What fails here fails in its point again, and is told there.
    """
    new: dict[str, bool] = {}
    loops: dict[str, Ask] = {}
    first = slice_trace(trace, first=1)
    for ask in asks:
        asking = ask.asking
        try:
            order = make_order(asking.scheduling_policy)
            policy = find_eviction(asking.eviction_policy, trace)
            cost = step_cost(find_step_time(asking))
            more = _more(asking)
        except UsageError:
            continue
        several = asking.data_parallel_size > 1 or asking.routing is not None
        kind = f"{_code(order, policy, asking, cost.bound())} {several}"
        if kind not in loops:
            loops[kind] = ask
            new[kind] = not is_compiled(type(order), cost, policy, more)
    count = sum(new.values())
    done = 0
    for kind, ask in loops.items():
        if new[kind]:
            told(COMPILING, done, count)
        run_point(first, ask)
        if new[kind]:
            done += 1
            told(COMPILING, done, count)


def _looked_up(asks: Sequence[Ask]) -> list[Ask]:
    """Return the same asks, their models and accelerators looked up once: 2 ms each time."""
    known: dict[tuple[int, int], dict[str, Any]] = {}
    found = []
    for ask in asks:
        asking = ask.asking
        pair = (id(asking.model), id(asking.gpu))
        if pair not in known:
            try:
                known[pair] = dict(zip(("model", "gpu"), hardware(asking), strict=True))
            except UsageError:
                known[pair] = {}
        found.append(Ask(ask.settings, dataclasses.replace(asking, **known[pair])))
    return found


def run_points(
    trace: Trace,
    asks: Sequence[Ask],
    *,
    records: Records | None = None,
    threads: int = 0,
    report: Report | None = None,
    compiled: bool | None = None,
) -> list[Point]:
    """Run points from ``threads`` threads (0: one a core); return them in the order asked for.

    What ``records`` hold is not run, and what ends is kept there. The same points whatever the
    number of threads. An interruption lets the running ones end and starts no more. Cost: a
    `serve` a point, and its memory a thread. Raises InputError, and KvschedError where a record
    cannot be written.
    """
    asks = _looked_up(asks)
    names: list[str | None] = [None] * len(asks)
    if records is not None:
        names = [_identity_or_none(trace, ask.asking) for ask in asks]
    found: dict[int, Point] = {}
    if records is not None:
        for at, (name, ask) in enumerate(zip(names, asks, strict=True)):
            if name is not None and name in records.points:
                kept = records.points[name]
                found[at] = msgspec.structs.replace(kept, settings=ask.settings)
    told = report or (lambda _what, _done, _all: None)
    if records is not None:
        records.reused += len(found)
    told(POINTS, len(found), len(asks))
    left = [at for at in range(len(asks)) if at not in found]
    workers = min(threads or cores(), max(len(left), 1))
    several = workers > 1 or report is not None
    if several and (compilation_enabled() if compiled is None else compiled):
        _compile_ahead(trace, [asks[at] for at in left], told)
    jobs = (lambda at=at: (at, run_point(trace, asks[at], compiled)) for at in left)
    for at, point in on_all_cores(jobs, workers):
        found[at] = point
        name = names[at]
        if records is not None and name is not None and not _is_internal(point):
            records.add(name, point)
        told(POINTS, len(found), len(asks))
    return [found[at] for at in range(len(asks))]


def _identity_or_none(trace: Trace, asking: Asking) -> str | None:
    """The identity; None for a point that is refused, which takes no time to refuse again."""
    try:
        return identity(trace, asking)
    except InputError:
        raise
    except KvschedError:
        return None
