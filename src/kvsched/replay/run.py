"""`replay`: one policy, one capacity, one trace."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kvsched.foundation.blame import PLAINLY, compile_fault
from kvsched.foundation.errors import KvschedError, UsageError
from kvsched.foundation.jit import bind, compilation_enabled, is_kept
from kvsched.foundation.notebook import facts
from kvsched.kernel.table import empty_table
from kvsched.policy.base import Policy, Setup, Tuned
from kvsched.policy.lru import LRU
from kvsched.policy.registry import fault_of, make
from kvsched.replay.loop import Counts, Decisions, Limits, replay_loop
from kvsched.replay.lru_runs import lru_replay
from kvsched.replay.tuning import tune
from kvsched.trace.model import Trace

if TYPE_CHECKING:
    import os

    from kvsched.replay.engine import Rules
    from kvsched.replay.start import Start

MOST_BLOCKS = 2**31 - 1
"""Blocks are numbered with 32 bits."""
MOST_TOKENS = 2**40
"""The largest capacity where blocks are unequal, and it counts tokens."""


@dataclass(frozen=True, eq=False, repr=False)
class Replay:
    """What one policy did with one trace at one capacity."""

    trace: Trace
    policy: Policy
    capacity_blocks: int
    """Blocks; tokens where the trace's blocks are unequal."""
    request_hits: NDArray[np.int32]
    """(R,) blocks hit: the longest resident prefix of the chain at look-up."""
    request_stored: NDArray[np.int32]
    """(R,) blocks stored that were not there at look-up."""
    request_evictions: NDArray[np.int32]
    """(R,) blocks that left to make room for the request."""
    resident_blocks: int
    """Blocks in the cache after the last request; tokens where blocks are unequal."""
    decisions: Decisions | None = None
    """(evictions,) who left and for whom, in order, where asked for."""
    rules: Rules | None = None
    """The engine's rules it was replayed under; None: generic, every node stored and hit."""
    limits: Limits | None = None
    """What the rules let each request hit and store, and which they refused; None: generic."""
    tuned: Tuned | None = None
    """What was chosen where the policy has a parameter that is `auto`, and since when; None where
    it has none, or nothing was chosen before the trace ended."""
    start: Start | None = None
    """The saved cache that it started from; None: an empty one."""

    @functools.cached_property
    def request_hit_tokens(self) -> NDArray[np.int64]:
        """(R,) tokens hit."""
        return self.trace.prefix_tokens(self.request_hits)

    @property
    def hit_blocks(self) -> int:
        """Block references that were hits."""
        return int(self.trace.prefix_blocks(self.request_hits).sum())

    @property
    def total_blocks(self) -> int:
        """All block references."""
        return self.trace.total_references

    @property
    def hit_tokens(self) -> int:
        """Prompt tokens that were hits."""
        return int(self.request_hit_tokens.sum())

    @property
    def total_tokens(self) -> int:
        """Tokens that the chains cover."""
        return int(self.trace.chain_tokens.sum())

    @property
    def evictions(self) -> int:
        """Blocks that left to make room; in a sample, what was stored and did not stay."""
        if self.trace.references == self.trace.total_references:
            return int(self.request_evictions.sum(dtype=np.int64))
        return max(self.stored_blocks - self.resident_blocks, 0)

    @property
    def stored_blocks(self) -> int:
        """Blocks stored, as often as they were."""
        touched = self.trace.prefix_blocks(self.request_hits + self.request_stored)
        return int(touched.sum()) - self.hit_blocks

    @property
    def request_refused(self) -> NDArray[np.bool_]:
        """(R,) whether the request could never fit, and so did not run: only by engine rules."""
        if self.limits is None:
            return np.zeros(len(self.trace), np.bool_)
        return self.limits.refused

    @property
    def refused(self) -> int:
        """Requests that could never fit, and so did not run."""
        return int(self.request_refused.sum())

    @property
    def request_known(self) -> NDArray[np.int32]:
        """(R,) blocks resident from the root at look-up; more than the hits only by rules."""
        return self.request_hits if self.limits is None else self.limits.known

    @property
    def held_trace(self) -> Trace:
        """The trace whose nodes are stored and evicted: by rules with generated blocks, too."""
        return self.trace if self.rules is None else self.rules.held_trace

    @property
    def block_hit_ratio(self) -> float | None:
        """Hit blocks over all block references; None without references."""
        return self.hit_blocks / self.total_blocks if self.total_blocks else None

    @property
    def token_hit_ratio(self) -> float | None:
        """Hit tokens over the tokens that chains cover; None without tokens."""
        return self.hit_tokens / self.total_tokens if self.total_tokens else None

    def summary(self) -> dict[str, Any]:
        """Return the integers that define the result."""
        engine = {}
        if self.rules is not None:
            engine = {"engine": self.rules.name, "refused_requests": self.refused}
        return {
            **engine,
            "policy": self.policy.label,
            "capacity_tokens" if self.trace.unequal else "capacity_blocks": self.capacity_blocks,
            "hit_blocks": self.hit_blocks,
            "total_blocks": self.total_blocks,
            "hit_tokens": self.hit_tokens,
            "total_tokens": self.total_tokens,
            "evictions": self.evictions,
            **({"tuned": self.chosen} if self.policy.auto else {}),
            **({} if self.start is None else {"start": self.start.summary()}),
        }

    @property
    def chosen(self) -> dict[str, float] | None:
        """The parameter that is `auto` by name, and the first request that the value decided."""
        tunable = self.policy.tunable
        if tunable is None or self.tuned is None:
            return None
        return {
            tunable.parameter: self.tuned.value,
            "since_request": self.tuned.since_request,
        }

    def __repr__(self) -> str:
        unit = "tokens" if self.trace.unequal else "blocks"
        return (
            f"<Replay {self.policy.label} at {self.capacity_blocks:,} {unit}: hits "
            f"{self.hit_blocks:,} of {self.total_blocks:,} blocks, {self.evictions:,} evictions>"
        )

    def _repr_html_(self) -> str:
        ratios = {"block hit ratio": self.block_hit_ratio, "token hit ratio": self.token_hit_ratio}
        return facts("Replay", {**self.summary(), **ratios})


def check_capacity(capacity: int, unequal: bool = False) -> int:
    """Return ``capacity``, or raise UsageError if no cache can have it.

    In blocks; in tokens where the trace's blocks are ``unequal``.
    """
    unit, most = ("tokens", MOST_TOKENS) if unequal else ("blocks", MOST_BLOCKS)
    if isinstance(capacity, bool) or not isinstance(capacity, int | np.integer):
        raise UsageError(f"capacity must be a whole number of {unit}, not {capacity!r}")
    if not 0 < capacity <= most:
        raise UsageError(f"capacity must be from 1 to {most:,} {unit}, not {capacity:,}")
    return int(capacity)


@contextlib.contextmanager
def _blamed_on(policy: Policy, what: str) -> Iterator[None]:
    """Turn what a user's policy raises, or Numba of it, into a UsageError in one line."""
    try:
        yield
    except KvschedError:
        raise
    except (Exception, SystemExit) as error:
        fault = compile_fault(error)
        if fault is not None:
            told = f" does not compile: {fault[0]}; {PLAINLY}"
        elif type(policy).__module__.startswith("kvsched."):
            raise
        else:
            told = f": {what} ({fault_of(error)})"
        raise UsageError(f"policy {policy.label}{told}") from error


_loops: dict[tuple[type[Policy], bool, bool, bool], Callable[..., int]] = {}


def _bound(
    policy: type[Policy], compiled: bool, weighted: bool, limited: bool
) -> Callable[..., int]:
    """Return the loop with the policy's hooks in it, bound once a process."""
    how = (policy, compiled, weighted, limited)
    if how not in _loops:
        names = {**policy.hooks(), "weighted": weighted, "limited": limited}
        _loops[how] = bind(replay_loop, names, compiled)
    return _loops[how]


def is_compiled(policy: type[Policy], weighted: bool, limited: bool = False) -> bool:
    """Whether the loop with the policy's hooks is bound in this process, or kept on disk."""
    names = {**policy.hooks(), "weighted": weighted, "limited": limited}
    return (policy, True, weighted, limited) in _loops or is_kept(replay_loop, names)


def run_policy(
    trace: Trace,
    policy: Policy,
    capacity: int,
    counts: Counts,
    decisions: Decisions,
    compiled: bool,
    limits: Limits | None = None,
    requests: int | None = None,
) -> int:
    """Run the loop with a policy's hooks; fill ``counts`` and ``decisions``, return what is in use.

    ``limits`` are an engine's; only the first ``requests`` run, all if None. Raises UsageError for
    what a user's policy does wrong.
    """
    hit_limit = None if limits is None else limits.hit
    room = capacity + trace.slack
    setup = Setup(
        trace.nodes,
        room,
        trace.unit_tokens,
        trace,
        hit_limit=hit_limit,
        usual_room=trace.usual_room,
    )
    with _blamed_on(policy, "its prepare fails"):
        state = policy.prepare(setup)
    table = empty_table(trace.parent, trace.depth, trace.tokens, trace.room, trace.begins)
    loop = _bound(type(policy), compiled, trace.weighted, limits is not None)
    count = len(trace) if requests is None else requests
    arrays = (trace.time_s[:count], trace.starts[: count + 1], trace.chains)
    with _blamed_on(policy, "its hooks fail"):
        used = loop(table, state, room, *arrays, counts, decisions, limits)
    if used < 0:
        raise UsageError(
            f"policy {policy.label}: its victim for request {-1 - used} (from 0) is no "
            "evictable node: return a resident leaf outside the request's chain, or NONE"
        )
    return int(used)


def run_tuned(
    trace: Trace,
    policy: Policy,
    capacity: int,
    counts: Counts,
    decisions: Decisions,
    compiled: bool,
    limits: Limits | None = None,
) -> tuple[int, Tuned | None]:
    """Do what `run_policy` does, after choosing the parameter that is `auto`, if one is."""

    def first(candidate: Policy, requests: int) -> Counts:
        fresh, nothing = new_columns(len(trace), 0)
        again = None if limits is None else new_limits(limits.hit, limits.kept)
        run_policy(trace, candidate, capacity, fresh, nothing, compiled, again, requests)
        return fresh

    tuned = tune(trace, policy, first)
    runs = policy if tuned is None else policy.with_tuned(tuned)
    return run_policy(trace, runs, capacity, counts, decisions, compiled, limits), tuned


def replay(
    trace: Trace,
    policy: str | Policy | type[Policy] | None = None,
    capacity_blocks: int = 0,
    *,
    decisions: bool = False,
    compiled: bool | None = None,
    fast: bool = True,
    engine: str = "generic",
    cache_generated: bool = True,
    start: str | os.PathLike[str] | None = None,
    start_gap_s: float = 0.0,
) -> Replay:
    """Replay ``trace``, one request after another, through a cache of ``capacity_blocks``.

    The hit of a request is the longest resident prefix of its chain; missing nodes are stored in
    chain order, and while the cache is full the policy's smallest evictable leaf outside this
    chain leaves first; if there is none, the rest of the chain is not stored. Where the trace's
    blocks are unequal, ``capacity_blocks`` counts tokens, and victims leave until the node fits.

    ``policy`` is a name, ``path.py:Name``, ``module:Name``, a class or an instance; None is the
    engine's own, lru without one. ``engine`` names the rules of what can be stored and hit
    (`kvsched.replay.engine`), under which generated tokens are stored unless ``cache_generated``
    is off. ``decisions=True`` keeps who left for whom. ``compiled=None`` compiles unless
    KVSCHED_COMPILED=0; ``fast=False`` keeps LRU from its fast path. A parameter that is ``auto``
    is chosen by `kvsched.replay.tuning`. ``start``: a file of `KVCacheScheduler.save`, from which
    it goes on ``start_gap_s`` later, under the saved policy and at the saved capacity unless named:
    `kvsched.replay.start`. Cost: 2 to 100 ns a block reference compiled; memory about 30 bytes a
    node. Raises UsageError for an unknown policy or engine, a policy that needs a column that the
    trace lacks, or an impossible capacity.
    """
    if start is not None:
        from kvsched.replay.start import replay_from

        plain = compiled not in (None, compilation_enabled())
        if decisions or engine != "generic" or plain:
            raise UsageError(
                "a replay from a saved cache keeps no decisions, follows no engine's rules, and "
                "compiles as KVSCHED_COMPILED says"
            )
        return replay_from(trace, start, policy, capacity_blocks, start_gap_s)
    if engine != "generic":
        from kvsched.replay.engine import find_engine

        rules = find_engine(engine)(trace, cache_generated=cache_generated)
        return rules.replay(policy, capacity_blocks, decisions=decisions, compiled=compiled)
    capacity = check_capacity(capacity_blocks, trace.unequal)
    chosen = make("lru" if policy is None else policy)
    chosen.check(trace)
    if compiled is None:
        compiled = compilation_enabled()
    counts, log = new_columns(len(trace), trace.references if decisions else 0)
    if type(chosen) is LRU and fast and not trace.weighted:
        used, tuned = lru_replay(trace, capacity, counts, log, compiled), None
    else:
        used, tuned = run_tuned(trace, chosen, capacity, counts, log, compiled)
    kept = cut(log, counts) if decisions else None
    return Replay(
        trace, chosen, capacity, *counts, min(int(used), capacity), kept, None, None, tuned
    )


def new_columns(requests: int, room: int) -> tuple[Counts, Decisions]:
    """Return columns to fill: counts by request, and room for as many decisions. O(R)."""
    counts = Counts(*(np.zeros(requests, np.int32) for _ in Counts._fields))
    return counts, Decisions(np.empty(room, np.int32), np.empty(room, np.int32))


def new_limits(hit: NDArray[np.int64], kept: NDArray[np.int64]) -> Limits:
    """Return an engine's limits, with what is to be filled empty. O(R)."""
    return Limits(hit, kept, np.zeros(len(hit), np.bool_), np.zeros(len(hit), np.int32))


def cut(log: Decisions, counts: Counts) -> Decisions:
    """Return the decisions that were written: one an eviction."""
    total = int(counts.evicted.sum(dtype=np.int64))
    return Decisions(log.victim[:total], log.incoming[:total])
