"""The same requests under other policies: the registry's own, hook by hook, on whole entries.

An entry is a node without a parent, of its own size. What orders it is an indexed heap or a list
in which each entry stands once, so there is no stale record to show.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from kvsched.foundation.errors import UsageError
from kvsched.foundation.jit import bind
from kvsched.kernel.heap import KEY, TIE
from kvsched.kernel.hooks import (
    begin,
    enter,
    leave,
    on_evict,
    on_hit,
    on_insert,
    track_leaves,
    victim,
)
from kvsched.kernel.table import NONE, Table, empty_table
from kvsched.lesson.play_requests import Request
from kvsched.lesson.play_words import Message, Values
from kvsched.lesson.recording import CHAPTER, Recording, Row, Step, number, record_chapter
from kvsched.policy.base import Policy, RankedPolicy, Setup
from kvsched.policy.gdsf import GDSF, STEPS
from kvsched.policy.opt_fit import OptFit
from kvsched.policy.registry import make
from kvsched.policy.slru import PROTECTED
from kvsched.trace.build import build_trace
from kvsched.trace.model import Origin, Trace

DEFAULT_POLICIES = (CHAPTER, "lru", "lfu", "gdsf", "opt")


def flat_request(
    table: Table,
    state: Any,
    capacity: int,
    used: int,
    node: int,
    request: int,
    left: Callable[[int], None],
) -> int:
    """Serve one request for ``node`` as `replay_loop` does; return what is in use after it.

    ``left`` is told of each victim once it is out.
    """
    begin(table, state, request, float(request), request)
    if table.resident[node] != 0:
        on_hit(table, state, node, request)
        if track_leaves:
            leave(table, state, node)
            enter(table, state, node)
        return used
    while used + int(table.room[node]) > capacity:
        leaving = victim(table, state, node, request)
        if leaving == NONE:
            return used
        on_evict(table, state, leaving)
        table.resident[leaving] = 0
        used -= int(table.room[leaving])
        left(leaving)
    table.resident[node] = 1
    on_insert(table, state, node, request)
    if track_leaves:
        enter(table, state, node)
    return used + int(table.room[node])


def as_trace(requests: tuple[Request, ...]) -> Trace:
    """Return the requests as a trace of unequal blocks, a byte a token; a second apart."""
    names = {name: key for key, name in enumerate(dict.fromkeys(each.prefix for each in requests))}
    sizes = np.array([request.bytes_ for request in requests], np.int32)
    return build_trace(
        time_s=np.arange(len(requests), dtype=np.float64),
        input_tokens=sizes.astype(np.int64),
        output_tokens=np.zeros(len(requests), np.int64),
        starts=np.arange(len(requests) + 1, dtype=np.int64),
        keys=np.array([names[request.prefix] for request in requests], np.int64),
        block_size=0,
        origin=Origin("play", "play", "s"),
        sizes=sizes,
    )


def record(requests: tuple[Request, ...], capacity: int, policy: str) -> Recording:
    """Record the run of a policy of the registry, or of the chapter's own class.

    Raises UsageError for an unknown policy, or one that needs what these requests do not have.
    """
    if policy == CHAPTER:
        return record_chapter(requests, capacity)
    return FlatRecorder(requests, capacity, make(policy)).run()


class FlatRecorder:
    """A policy's hooks on whole entries, stopped after each step; one run."""

    def __init__(self, requests: tuple[Request, ...], capacity: int, policy: Policy) -> None:
        trace = as_trace(requests)
        missing = policy.missing(trace)
        if missing:
            raise UsageError(
                f"policy {policy.label} needs the {missing[0]} of every request, which a "
                "step-through does not have"
            )
        self.policy = policy
        self.trace = trace
        self.recording = Recording(policy.label, capacity, requests, summary=policy.summary())
        self.names = list(dict.fromkeys(request.prefix for request in requests))
        setup = Setup(trace.nodes, capacity, 1, trace, usual_room=trace.usual_room)
        # A prefix that comes back with another size takes that size, as the chapter's does.
        sizes = np.array(trace.tokens)
        self.table = empty_table(trace.parent, trace.depth, sizes)
        self.state = policy.prepare(setup)
        names = {**policy.hooks(), "weighted": True, "limited": False}
        self.serve = bind(flat_request, names, compiled=False)
        self.rows: dict[int, Row] = {}
        self.stored: dict[int, int] = {}
        self.now = 0
        self.used = 0
        self.hits = 0
        self.hit_bytes = 0
        self.evictions = 0

    def run(self) -> Recording:
        """Serve every request in turn."""
        for at, request in enumerate(self.recording.requests):
            self.now = at
            self._touch(request, int(self.trace.chains[at]))
        return self.recording

    def _touch(self, request: Request, node: int) -> None:
        prefix, size = request
        values: Values = {"number": self.now + 1, "prefix": prefix, "bytes": size}
        self._step("arrive", Message("arrive", values))
        known = self.rows.get(node)
        if known is None:
            self.table.tokens[node] = size
            free = self.recording.capacity - self.used
            key = "miss.fits" if size <= free else "miss.full"
            self._step("miss", Message(key, {"prefix": prefix, "bytes": size, "free": free}))
        else:
            self.hits += 1
            self.hit_bytes += known.bytes_
            hits = known.hits + 1
            self.rows[node] = known._replace(hits=hits, last_used=self.now + 1)
        standings = self._standings()
        self.used = self.serve(
            self.table,
            self.state,
            self.recording.capacity,
            self.used,
            node,
            self.now,
            lambda leaving: self._left(leaving, standings[leaving]),
        )
        if known is not None:
            changed = {"before": known.hits, "hits": known.hits + 1, "time": self.now + 1}
            resized = "" if size == known.bytes_ else ".resized"
            asked: Values = {"prefix": prefix, "bytes": known.bytes_, "asked": size}
            self.recording.log.append(f"reuse:{prefix}")
            self._step("reuse", Message(f"reuse{resized}", {**asked, **changed}))
        elif self.table.resident[node]:
            self.rows[node] = Row(prefix, size, 1, self.now + 1)
            self.stored[node] = self.now + 1
            self.recording.log.append(f"add:{prefix}")
            room = {"used": self.used, "capacity": self.recording.capacity}
            self._step("add", Message("add", {"prefix": prefix, "bytes": size, **room}))
        else:
            key = "decline.future" if self.policy.looks_ahead else "decline"
            said = Message(key, {"policy": self.policy.label, "prefix": prefix})
            self._step("decline", said)

    def _left(self, node: int, standing: Message) -> None:
        gone = self.rows.pop(node)
        self.used -= gone.bytes_
        self.evictions += 1
        self.recording.log.append(f"evict:{gone.prefix}")
        shown: Values = {
            "prefix": gone.prefix,
            "bytes": gone.bytes_,
            "policy": self.policy.label,
            "standing": standing,
        }
        gone = gone._replace(standing=standing)
        key = "evict.chosen" if standing.key == "by.queues" else "evict.policy"
        self._step("evict", Message(key, shown), gone=gone)

    def _order(self) -> list[int]:
        """Return the entries, the first to leave first; as they came where queues decide."""
        if isinstance(self.policy, RankedPolicy):
            heap = self.state.heap

            def rank(node: int) -> tuple[int, int]:
                entry = heap.entries[heap.place[node]]
                return int(entry[KEY]), int(entry[TIE])

            return sorted(self.rows, key=rank)
        if self.policy.name == "lru":
            return sorted(self.rows, key=lambda node: self.rows[node].last_used)
        return list(self.rows)

    def _standings(self) -> dict[int, Message]:
        return {node: self._standing(node, place) for place, node in enumerate(self._order(), 1)}

    def _standing(self, node: int, place: int) -> Message:
        """Say in the policy's own terms where an entry stands."""
        row, policy = self.rows[node], self.policy
        last: Values = {"last": row.last_used}
        if policy.name in ("lru", "mru"):
            said = Message("by.use", last)
        elif policy.name in ("fifo", "filo"):
            said = Message("by.arrival", {"stored": self.stored[node]})
        elif policy.name == "lfu":
            said = Message("by.count", {"hits": row.hits, **last})
        elif policy.name == "slru":
            said = Message(f"by.segment.{'again' if row.hits >= PROTECTED else 'once'}", last)
        elif isinstance(policy, GDSF) and not policy.values["attention_tokens"]:
            said = self._value(node)
        elif isinstance(policy, OptFit):
            said = self._next_use(node)
        elif isinstance(policy, RankedPolicy):
            said = Message("by.place", {"place": place})
        else:
            said = Message("by.queues", {"policy": policy.label})
        return said

    def _value(self, node: int) -> Message:
        row = self.rows[node]
        value = int(self.state.value[node]) / STEPS
        clock = number(value - row.hits / row.bytes_)
        parts: Values = {"clock": clock, "hits": row.hits, "bytes": row.bytes_}
        return Message("by.value", {"value": number(value), **parts})

    def _next_use(self, node: int) -> Message:
        following = int(self.state.next_use[node])
        if following == len(self.recording.requests):
            return Message("by.future.never", {})
        return Message("by.future", {"next": following + 1})

    def _step(self, kind: str, said: Message, gone: Row | None = None) -> None:
        ledger = tuple(
            self.rows[node]._replace(standing=standing)
            for node, standing in self._standings().items()
        )
        self.recording.steps.append(
            Step(
                request=self.now,
                kind=kind,
                said=said,
                ledger=ledger,
                used=self.used,
                hits=self.hits,
                hit_bytes=self.hit_bytes,
                evictions=self.evictions,
                gone=gone,
            )
        )
