"""From settings and a seed to a `Trace`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec
import numpy as np

from kvsched.foundation.errors import UsageError
from kvsched.trace.generate import loops
from kvsched.trace.generate.draw import Clock
from kvsched.trace.generate.heads import Heads, build_heads
from kvsched.trace.generate.plan import TICKS_PER_S, Plan, Segments, joined, plan_stream
from kvsched.trace.generate.settings import check
from kvsched.trace.generate.workload import Workload
from kvsched.trace.model import Int32s, Int64s, Labels, Origin, Trace

_MOST = 2**31 - 1
_MOST_PLANNED = 200_000_000
_ON_LIMIT = {"truncate": loops.TRUNCATE, "restart": loops.RESTART, "end": loops.END}


def generate(workload: Workload, seed: int) -> Trace:
    """Generate the trace of ``workload``; the same workload and seed give the same bytes.

    Nodes are numbered by first appearance and a node's key is its number, as an id of the
    Mooncake format stands for the whole prefix up to it. Every chain covers its whole prompt.
    Cost: about 10 ns a block reference and 0.3 µs a request; memory 4 bytes a reference, 20 a
    node, about 200 a request. Raises UsageError naming the setting that is out of range.
    """
    chosen = choose(workload, seed)
    chains = _chains(workload, measured(workload, chosen))
    return Trace(
        starts=chains.starts,
        chains=chains.chains,
        parent=chains.parent,
        depth=chains.depth,
        tokens=chains.tokens,
        key=np.arange(len(chains.parent), dtype=np.int64),
        **request_columns(workload, seed, chosen),
    )


def request_columns(workload: Workload, seed: int, chosen: Chosen) -> dict[str, Any]:
    """Return the fields of the trace that hold requests, the block size and the origin."""
    plan, at = chosen.plan, chosen.order
    ticks = _ticks(plan.tick[at], workload.time_grid_s)
    delay = plan.delay[at]
    names = np.array([stream.name for stream in workload.streams])
    priorities = np.array([stream.priority for stream in workload.streams], np.int32)
    return {
        "time_s": (ticks - ticks[0]) / TICKS_PER_S,
        "input_tokens": chosen.inputs[at],
        "output_tokens": plan.output[at],
        "block_size": workload.block_size,
        "tenant": _labels(plan.tenant[at], "tenant-{}"),
        "session": _by_appearance(plan.session[at]),
        "type": Labels(plan.stream[at], tuple(str(name) for name in names)),
        "turn": plan.turn[at],
        "priority": priorities[plan.stream[at]] if priorities.any() else None,
        "delay_s": np.where(delay < 0, np.nan, delay / TICKS_PER_S),
        "origin": Origin(
            source=workload.name,
            format="generated",
            time_unit="s",
            notes=(f"generated with seed {seed}",),
            settings={"seed": seed, **msgspec.to_builtins(workload)},
        ),
    }


@dataclass
class Chosen:
    """A plan with its prompts' lengths, and the rows that the trace takes, in time order."""

    plan: Plan
    segment_tokens: Int64s
    inputs: Int64s
    broken: loops.Flags
    order: Int64s


def choose(workload: Workload, seed: int) -> Chosen:
    """Plan ever longer spans until one holds the requests that were asked for.

    Only requests up to a span's end count: later ones would lack sessions not yet begun.
    Raises UsageError naming the setting that is out of range.
    """
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**64:
        raise UsageError(f"seed must be an integer from 0 to {2**64 - 1}, not {seed!r}")
    check(workload)
    span_s = (1.02 * workload.requests + 8 * math.sqrt(workload.requests)) / workload.rate
    while (span_s + workload.warm_up_s) * workload.rate < _MOST_PLANNED:
        chosen = _planned(workload, seed, span_s)
        if chosen is not None:
            return chosen
        span_s *= 1.25
    raise UsageError(
        f"requests, rate, warm_up_s: {workload.requests} requests at {workload.rate:g} a second "
        f"after {workload.warm_up_s:g} s of warm-up need more than {_MOST_PLANNED} requests planned"
    )


def _planned(workload: Workload, seed: int, span_s: float) -> Chosen | None:
    seeds = np.random.SeedSequence(seed).spawn(1 + len(workload.streams))
    randoms = [np.random.Generator(np.random.PCG64(each)) for each in seeds]
    clock = Clock(workload.arrivals, -workload.warm_up_s, span_s, randoms[0])
    segments = Segments([np.array([workload.preamble_tokens], np.int64)], 1)
    plan = joined(
        [
            plan_stream(workload, number, clock, segments, random)
            for number, random in enumerate(randoms[1:])
        ]
    )
    segment_tokens = np.concatenate(segments.tokens)
    head_tokens = np.append(segment_tokens, 0)[plan.heads].sum(axis=1)
    inputs = np.empty(len(plan.turn), np.int64)
    broken = np.zeros(len(plan.turn), np.bool_)
    kept = np.zeros(len(plan.turn), np.bool_)
    loops.grow(
        plan.turn,
        head_tokens[plan.row],
        plan.text,
        plan.output,
        workload.context_limit,
        _ON_LIMIT[workload.on_limit],
        inputs,
        broken,
        kept,
    )
    kept &= (plan.tick >= 0) & (plan.tick <= math.floor(span_s * TICKS_PER_S))
    rows = np.flatnonzero(kept)
    if len(rows) < workload.requests:
        return None
    order = rows[np.argsort(plan.tick[rows], kind="stable")][: workload.requests]
    return Chosen(plan, segment_tokens, inputs, broken, order)


class Measured(NamedTuple):
    """What every request takes from an earlier one or from its head, before chains are laid."""

    starts: Int64s
    inputs: Int64s
    session: Int64s
    heads: Heads
    head: Int64s
    """(R,) head of each request."""
    before: Int64s
    reused: Int64s
    nodes: int


class _Chains(NamedTuple):
    starts: Int64s
    chains: Int32s
    parent: Int32s
    depth: Int32s
    tokens: Int32s


def measured(workload: Workload, chosen: Chosen) -> Measured:
    """Find each request's length, head and what it reuses. Raises UsageError above 2^31 nodes."""
    size = workload.block_size
    plan, order = chosen.plan, chosen.order
    inputs = chosen.inputs[order]
    starts = np.concatenate([[0], np.cumsum((inputs + size - 1) // size)])
    _fits("block references", int(starts[-1]))
    used, row = np.unique(plan.row[order], return_inverse=True)
    heads = build_heads(plan.heads[used], chosen.segment_tokens, size)
    head = heads.head_of[row.reshape(len(order))]
    before = np.empty(len(order), np.int64)
    reused = np.empty(len(order), np.int64)
    session = plan.session[order]
    last = np.full(int(session.max()) + 1, -1, np.int64)
    nodes = loops.measure(session, head, inputs, chosen.broken[order], size, heads.edges,
                          heads.blocks, heads.edge_slot, last, before, reused)  # fmt: skip
    _fits("nodes", nodes)
    return Measured(starts, inputs, session, heads, head, before, reused, nodes)


def _chains(workload: Workload, found: Measured) -> _Chains:
    """The ragged chains and the forest."""
    starts, heads, nodes = found.starts, found.heads, found.nodes
    chains = np.empty(int(starts[-1]), np.int32)
    parent = np.empty(nodes, np.int32)
    depth = np.empty(nodes, np.int32)
    tokens = np.empty(nodes, np.int32)
    loops.lay(found.head, found.inputs, workload.block_size, heads.edges, heads.edge_slot,
              found.before, found.reused, starts, chains, parent, depth, tokens)  # fmt: skip
    return _Chains(starts, chains, parent, depth, tokens)


def _fits(what: str, count: int) -> None:
    if count > _MOST:
        raise UsageError(
            f"requests, block_size: {count} {what} would be needed, at most {_MOST} are possible; "
            "ask for fewer requests or larger blocks"
        )


def _ticks(ticks: Int64s, grid_s: float) -> Int64s:
    """Times from the first request, rounded down to the grid."""
    grid = max(1, round(grid_s * TICKS_PER_S))
    floored: Int64s = ticks // grid * grid
    return floored


def _by_appearance(codes: Int64s) -> Labels:
    """Sessions, numbered by their first request in the trace."""
    found, first, place = np.unique(codes, return_index=True, return_inverse=True)
    rank = np.empty(len(found), np.int32)
    rank[np.argsort(first)] = np.arange(len(found), dtype=np.int32)
    return Labels(
        rank[place.reshape(len(codes))], tuple(f"session-{i}" for i in range(1, len(found) + 1))
    )


def _labels(codes: Int32s, pattern: str) -> Labels:
    """Names of those that occur, numbered from 1."""
    found, place = np.unique(codes, return_inverse=True)
    names = tuple(pattern.format(int(code) + 1) for code in found)
    return Labels(place.reshape(len(codes)).astype(np.int32), names)
