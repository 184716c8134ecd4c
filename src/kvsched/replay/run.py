"""`replay`: one policy, one capacity, one trace."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvsched.foundation.errors import KvschedError, UsageError
from kvsched.foundation.jit import bind, compilation_enabled
from kvsched.foundation.notebook import facts
from kvsched.kernel.table import empty_table
from kvsched.policy.base import Policy, Setup, Tuned
from kvsched.policy.lru import LRU
from kvsched.policy.registry import fault_of, make
from kvsched.replay.loop import Counts, Decisions, replay_loop
from kvsched.replay.lru_runs import lru_replay
from kvsched.replay.tuning import tune
from kvsched.trace.model import Trace

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
    """(R,) blocks stored."""
    request_evictions: NDArray[np.int32]
    """(R,) blocks that left to make room for the request."""
    resident_blocks: int
    """Blocks in the cache after the last request; tokens where blocks are unequal."""
    decisions: Decisions | None = None
    """(evictions,) who left and for whom, in order, where asked for."""
    tuned: Tuned | None = None
    """What was chosen where the policy has a parameter that is `auto`, and since when; None where
    it has none, or nothing was chosen before the trace ended."""

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
        """Blocks that left to make room: what was stored and is not there at the end."""
        return max(self.stored_blocks - self.resident_blocks, 0)

    @property
    def stored_blocks(self) -> int:
        """Blocks stored, as often as they were."""
        touched = self.trace.prefix_blocks(self.request_hits + self.request_stored)
        return int(touched.sum()) - self.hit_blocks

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
        return {
            "policy": self.policy.label,
            "capacity_tokens" if self.trace.unequal else "capacity_blocks": self.capacity_blocks,
            "hit_blocks": self.hit_blocks,
            "total_blocks": self.total_blocks,
            "hit_tokens": self.hit_tokens,
            "total_tokens": self.total_tokens,
            "evictions": self.evictions,
            **({"tuned": self.chosen} if self.policy.auto else {}),
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
        if type(error).__module__.startswith("numba."):
            lines = [line.strip() for line in str(error).splitlines()]
            said = (line for line in lines if line and not line.startswith("Failed in"))
            fault = next(said, type(error).__name__)
            told = f" does not compile: {fault} (KVSCHED_COMPILED=0 runs it as plain Python)"
        elif type(policy).__module__.startswith("kvsched."):
            raise
        else:
            told = f": {what} ({fault_of(error)})"
        raise UsageError(f"policy {policy.label}{told}") from error


_loops: dict[tuple[type[Policy], bool, bool], Callable[..., int]] = {}


def _bound(policy: type[Policy], compiled: bool, weighted: bool) -> Callable[..., int]:
    """Return the loop with the policy's hooks in it, bound once a process."""
    how = (policy, compiled, weighted)
    if how not in _loops:
        _loops[how] = bind(replay_loop, {**policy.hooks(), "weighted": weighted}, compiled)
    return _loops[how]


def replay(
    trace: Trace,
    policy: str | Policy | type[Policy] = "lru",
    capacity_blocks: int = 0,
    *,
    decisions: bool = False,
    compiled: bool | None = None,
    fast: bool = True,
) -> Replay:
    """Replay ``trace``, one request after another, through a cache of ``capacity_blocks``.

    The hit of a request is the longest resident prefix of its chain; missing nodes are stored in
    chain order, and while the cache is full the policy's smallest evictable leaf outside this
    chain leaves first; if there is none, the rest of the chain is not stored. Where the trace's
    blocks are unequal, ``capacity_blocks`` counts tokens, and victims leave until the node fits.

    ``policy`` is a name, ``path.py:Name``, ``module:Name``, a class or an instance.
    ``decisions=True`` keeps who left for whom. ``compiled=None`` compiles unless
    KVSCHED_COMPILED=0; ``fast=False`` keeps LRU from its fast path. A parameter that is ``auto``
    is chosen by `kvsched.replay.tuning`. Cost: 2 to 100 ns a block reference compiled; memory
    about 30 bytes a node. Raises UsageError for an unknown policy, one
    that needs a column that the trace lacks, or an impossible capacity.
    """
    capacity = check_capacity(capacity_blocks, trace.unequal)
    chosen = make(policy)
    chosen.check(trace)
    if compiled is None:
        compiled = compilation_enabled()
    if type(chosen) is LRU and fast and not trace.weighted:
        counts, log = _empty_counts(trace), _empty_log(trace, decisions)
        used = lru_replay(trace, capacity, counts, log, compiled)
        return _result(trace, chosen, capacity, counts, log if decisions else None, used)

    def first(policy: Policy, requests: int) -> Counts:
        counts, nothing = _empty_counts(trace), _empty_log(trace, False)
        _run(trace, policy, capacity, counts, nothing, compiled, requests)
        return counts

    tuned = tune(trace, chosen, first)
    runs = chosen if tuned is None else chosen.with_tuned(tuned)
    counts, log = _empty_counts(trace), _empty_log(trace, decisions)
    used = _run(trace, runs, capacity, counts, log, compiled, len(trace))
    return _result(trace, chosen, capacity, counts, log if decisions else None, used, tuned)


def _empty_counts(trace: Trace) -> Counts:
    return Counts(*(np.zeros(len(trace), np.int32) for _ in Counts._fields))


def _empty_log(trace: Trace, kept: bool) -> Decisions:
    room = trace.references if kept else 0
    return Decisions(np.empty(room, np.int32), np.empty(room, np.int32))


def _run(
    trace: Trace,
    policy: Policy,
    capacity: int,
    counts: Counts,
    log: Decisions,
    compiled: bool,
    requests: int,
) -> int:
    """Replay the first ``requests`` into ``counts`` and ``log``; return what is in use at the end.

    Raises UsageError for what a user's policy does wrong.
    """
    room, unit = capacity + trace.slack, trace.unit_tokens
    setup = Setup(trace.nodes, room, unit, trace, usual_room=trace.usual_room)
    with _blamed_on(policy, "its prepare fails"):
        state = policy.prepare(setup)
    table = empty_table(trace.parent, trace.depth, trace.tokens, trace.room, trace.begins)
    loop = _bound(type(policy), compiled, trace.weighted)
    arrays = (trace.time_s[:requests], trace.starts[: requests + 1], trace.chains)
    with _blamed_on(policy, "its hooks fail"):
        used = loop(table, state, room, *arrays, counts, log)
    if used < 0:
        raise UsageError(
            f"policy {policy.label}: its victim for request {-1 - used} (from 0) is no "
            "evictable node: return a resident leaf outside the request's chain, or NONE"
        )
    return used


def _result(
    trace: Trace,
    policy: Policy,
    capacity: int,
    counts: Counts,
    log: Decisions | None,
    used: int,
    tuned: Tuned | None = None,
) -> Replay:
    kept = None
    if log is not None:
        total = int(counts.evicted.sum(dtype=np.int64))
        kept = Decisions(log.victim[:total], log.incoming[:total])
    return Replay(trace, policy, capacity, *counts, min(int(used), capacity), kept, tuned)
