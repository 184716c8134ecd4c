"""`KVCacheScheduler`: who holds which blocks, what is kept, who waits, who is turned away."""

from __future__ import annotations

import asyncio
import functools
import operator
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvsched.cache.admission import Gate, Settled
from kvsched.cache.blocks import BlockManager
from kvsched.cache.chain import ChainMaker
from kvsched.cache.check import check
from kvsched.cache.events import AllBlocksCleared, CacheEvent, EventLog, Pinned
from kvsched.cache.hashing import BlockHasher
from kvsched.cache.lease import Lease
from kvsched.cache.metrics import Counters, exported, exposition
from kvsched.cache.outbox import Batch, Calls, Carry, Outbox
from kvsched.cache.pins import Pin, Pins
from kvsched.cache.recover import Guard
from kvsched.cache.request import Admission, Growth, Move, Outcome, Request
from kvsched.cache.second import TierSettings
from kvsched.cache.settings import Settings, check_whole
from kvsched.cache.store import Store
from kvsched.cache.tenants import Tenant
from kvsched.cache.waiting import Ticket
from kvsched.foundation.errors import KvschedError, UsageError
from kvsched.policy.base import Policy
from kvsched.policy.registry import make


class KVCacheScheduler:
    """A KV cache's blocks: shared prefixes, admission and retention, to embed in an engine.

    It holds no keys or values: it says which physical block holds which tokens, who may use them,
    and what leaves when there is no room, by any policy of the registry that needs no future.
    Every method is thread-safe, under one lock; none scans or rebuilds what is cached unless it
    says so. ``docs/embedding.md`` has a whole engine loop.

    ``capacity_blocks``: physical blocks, with ids from 0. ``block_size``: tokens a block.
    ``policy``: a name with parameters (``decay:half_life_s=60``), a class or an instance.
    ``hash_algorithm`` and ``hash_seed`` are for requests of token ids: `BlockHasher`.
    ``hash_bytes``: the longest hash that may be handed in, a multiple of 8.
    ``when_full``: what becomes of a request that does not fit now: queue, degrade or reject;
    ``when_oversize``: of one that never can: reject or degrade; ``degrade``: store the ``head``
    that fits, nothing (``unstored``), or what is missing in the second ``tier``.
    ``watermark``: share of the blocks that must stay to be had when a request is admitted while
    others run (vLLM's). ``max_passes``: later admissions after which one that waits goes first.
    ``history_blocks``: blocks that left of which a policy may remember something; as many as the
    cache holds at least. ``isolate_tenants``: whether a tenant's name is part of the namespace.
    ``request_fields``: columns that requests have, for policies that ask what is known; None: all.
    ``max_events``: events kept until they are taken, 0 for none. ``clock``: seconds, never falling.
    ``carry``: called with the moves of each answer before it is given, in the order of the
    decisions, by one thread at a time; also with those of a request whose turn came, by whoever
    made room. Without it answers' moves are to be carried in their order: one thread can do that
    which collects them and looks at its tickets afterwards; several need ``carry``.

    Memory: about 400 bytes a block of capacity, plus the policy's. Raises UsageError for settings
    that contradict, and policies that look ahead.
    """

    def __init__(
        self,
        capacity_blocks: int,
        block_size: int = 16,
        policy: str | Policy | type[Policy] = "lru",
        *,
        tenants: Mapping[str, Tenant] | None = None,
        second_tier: TierSettings | None = None,
        when_full: str = "queue",
        when_oversize: str = "reject",
        degrade: str = "head",
        max_waiting: int = 1024,
        max_waiting_tokens: int | None = None,
        max_passes: int = 1000,
        watermark: float = 0.0,
        max_pinned_blocks: int | None = None,
        priority_retention: bool | None = None,
        isolate_tenants: bool = True,
        history_blocks: int | None = None,
        hash_algorithm: str = "sha256_cbor",
        hash_seed: str | None = None,
        hash_bytes: int = 32,
        request_fields: Iterable[str] | None = None,
        max_events: int = 0,
        clock: Callable[[], float] = time.monotonic,
        carry: Carry | None = None,
    ) -> None:
        capacity = check_whole("capacity_blocks", capacity_blocks, 1, 2**28)
        size = check_whole("block_size", block_size, 1, 2**20)
        if check_whole("hash_bytes", hash_bytes, 8, 512) % 8:
            raise UsageError(f"hash_bytes must be a multiple of 8, not {hash_bytes}")
        if history_blocks is not None:
            check_whole("history_blocks", history_blocks, 0, 2**29)
        check_whole("max_events", max_events, 0)
        chosen = make(policy)
        self.policy = chosen
        pinned = capacity // 2 if max_pinned_blocks is None else max_pinned_blocks
        by_level = priority_retention
        if by_level is None:
            # A policy that reads priorities sees to them by itself.
            by_level = "priority" not in chosen.needs
        self.settings = Settings(
            when_full, when_oversize, degrade, max_waiting, max_waiting_tokens, max_passes,
            watermark, pinned, by_level,
        )  # fmt: skip
        if "tier" in (degrade,) and second_tier is None:
            raise UsageError("degrade='tier' needs a second_tier")
        hasher = BlockHasher(size, hash_algorithm, hash_seed)
        words = hash_bytes // 8
        if hasher.digest_size > hash_bytes:
            raise UsageError(f"hash_bytes must be at least {hasher.digest_size}")
        self.lock = threading.RLock()
        self._guard = Guard(self)
        self.clock = clock
        self.carry = carry
        self.maker = ChainMaker(hasher, words, isolate_tenants)
        self.counters = Counters()
        self.events = EventLog(max_events)
        fields = None if request_fields is None else frozenset(request_fields)
        self.store = Store(
            chosen, capacity, size, words, history_blocks, tenants or {}, fields, second_tier
        )
        self.blocks = BlockManager(self.store, self.maker, self.events, self.counters)
        self.blocks.levels = by_level
        self.pins = Pins(self.store, self.maker, pinned)
        self.leases: dict[int, Lease] = {}
        self.outbox = Outbox(self, carry)
        self.calls = Calls()
        self.gate = Gate(self)
        self.last_now = -np.inf

    def now(self) -> float:
        """Return the time on the cache's clock, which never falls here."""
        now = float(self.clock())
        if not abs(now) < 1e12:
            raise UsageError(f"the clock must give a number of seconds, not {now!r}")
        self.last_now = max(self.last_now, now)
        return self.last_now

    # Admission

    def acquire(self, request: Request) -> Admission:
        """Look a request up, and admit, queue, degrade or reject it: see `Outcome`.

        An admitted request holds a lease on all its blocks: those that hit, and those that it is to
        fill. O(blocks + blocks that leave). Raises UsageError for a request that makes no sense,
        with nothing changed, and what ``carry`` raises, with the lease released.
        """
        with self._guard:
            admission, settled = self.gate.decide(request, self.now())
            lease = admission.lease
            batch = None if lease is None else self.outbox.add(lease.moves)
        self._finish(settled)
        if lease is not None:
            self._carried(lease, batch)
        elif admission.ticket is not None and admission.ticket.admission is not None:
            if admission.ticket.fault is not None:
                raise admission.ticket.fault
            return admission.ticket.admission
        return admission

    def acquire_all(self, requests: Iterable[Request]) -> list[Admission]:
        """Acquire many, in order: each has its own outcome, and none stops those behind it.

        Raises UsageError before anything changes if one of them makes no sense, and what ``carry``
        or a policy raises, with all of them released or taken out of the waiting list.
        """
        every = list(requests)
        with self.lock:
            for request in every:
                self.maker.make(request)
        admissions: list[Admission] = []
        try:
            for request in every:
                admissions.append(self.acquire(request))
        except BaseException:
            for admission in admissions:
                self._withdraw(admission)
            raise
        return admissions

    def _withdraw(self, admission: Admission) -> None:
        """Give back what an answer gave, also if it is a place in the waiting list."""
        if admission.lease is not None:
            self.release(admission.lease, failed=True)
        elif admission.ticket is not None and not admission.ticket.cancel():
            admission.ticket.when_settled(self._withdraw)

    async def acquire_async(self, request: Request) -> Admission:
        """Acquire a request, waiting for its turn without blocking the event loop.

        Cancelled while it waits, it leaves the waiting list. Never returns QUEUE.
        """
        admission = self.acquire(request)
        ticket = admission.ticket
        if ticket is None:
            return admission
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[Admission] = loop.create_future()

        def settle(found: Admission) -> None:
            if not turn.done():
                turn.set_result(found)

        def tell(found: Admission) -> None:
            try:
                loop.call_soon_threadsafe(settle, found)
            except RuntimeError:  # the loop was closed: nobody waits
                self._withdraw(found)

        ticket.when_settled(tell)
        try:
            found = await turn
        except asyncio.CancelledError:
            self._withdraw(admission)
            raise
        if ticket.fault is not None:
            raise ticket.fault
        return found

    def poll(self) -> list[Admission]:
        """Admit what can be admitted of those that wait; reject those past their deadline.

        Releases do so by themselves: this is for time that passed. Returns what was settled.
        """
        with self._guard:
            settled = self.gate.pump(self.now())
        return self._finish(settled)

    def cancel(self, ticket: Ticket) -> bool:
        """Take a request out of the waiting list; False if it is not in it any more.

        Those that it held up are then admitted as far as they fit.
        """
        with self._guard:
            removed = self.gate.remove(ticket)
            settled = self._pumped() if removed else []
        self._finish(settled)
        return removed

    # Leases

    def extend(
        self,
        lease: Lease,
        tokens: int | Sequence[int] | NDArray[Any],
        *,
        hashes: Any = None,
    ) -> Growth:
        """Add tokens behind a lease's last: a count, or ids, by which full blocks are stored.

        ``hashes`` name the blocks that become full, in order, from the first of the lease that is
        not stored on. Blocks of a count without hashes hold no node, nor do those behind them. The
        outcome is REJECT, with nothing changed, if there is no room: release something first. O(1)
        within a block; O(new blocks + blocks that leave). Raises UsageError for a lease that was
        released, and ids or hashes that make no sense; what ``carry`` raises, with the lease grown
        and `Lease.lost_from` set at a block whose copy was not made.
        """
        ids: list[int] | None = None
        if isinstance(tokens, bool) or not isinstance(tokens, int | np.integer):
            ids = _ids(tokens)
            count = len(ids)
        else:
            count = int(tokens)
        if count < 0:
            raise UsageError(f"a lease cannot grow by {count} tokens")
        with self._guard:
            self._check_held(lease)
            if lease.outcome is Outcome.DEGRADE:
                return Growth(Outcome.REJECT, "a degraded request holds no room to grow")
            now, start = self.now(), lease.tokens // self.block_size
            try:
                grown = self.blocks.grow(lease, count, ids, hashes, self.leases.values(), now)
            except KvschedError:
                raise
            except BaseException:
                self.blocks.distrust(lease, start, self.leases.values(), now)
                raise
            if grown is None:
                return Growth(Outcome.REJECT, "no room: all blocks are held")
            blocks, moves = grown
            self.counters.generation_tokens += count
            self.blocks.tell_moves(moves)
            batch = self.outbox.add(moves)
        try:
            self.outbox.carry_until(batch)
        except BaseException:
            with self.lock:
                copied = [move.target for move in moves if move.kind == "copy"]
                if copied and not lease.released:
                    place = lease._blocks.index(copied[0])
                    self.blocks.distrust(lease, place, self.leases.values(), self.last_now)
            raise
        return Growth(Outcome.ADMIT, "", tuple(blocks), tuple(moves))

    def computed(self, lease: Lease, tokens: int) -> None:
        """Say that a lease's first ``tokens`` are in place, whatever becomes of its request.

        A partial last block that has a key stays cached when the lease grows only if this was said.
        """
        if isinstance(tokens, bool) or not isinstance(tokens, int | np.integer):
            raise UsageError(f"tokens must be a whole number, not {tokens!r}")
        with self._guard:
            self._check_held(lease)
            if not 0 <= tokens <= lease.tokens:
                raise UsageError(f"the lease has {lease.tokens} tokens, not {tokens}")
            if tokens > lease.computed_tokens:
                lease.computed_tokens = int(tokens)
                self.blocks.mark_ready(lease)

    def fork(self, lease: Lease) -> Lease:
        """Return another lease of the same blocks, for a parallel sample. O(blocks).

        The first of the two to write into a partial last block gets a copy: a ``copy`` move.
        """
        with self._guard:
            self._check_held(lease)
            twin = self.blocks.fork(self, lease)
            self.leases[twin.id] = twin
            return twin

    def release(self, lease: Lease, *, failed: bool = False) -> tuple[Move, ...]:
        """End a lease; its full blocks stay cached. Nothing happens to one that has ended.

        ``failed``: blocks beyond `Lease.computed_tokens` are dropped; leases of others that hold
        any of them, forks too, have `Lease.lost_from` from then on. Those that wait are then
        admitted as far as they fit. Returns moves to carry. O(blocks). Raises what ``carry``
        raises, with the lease released and what was to be offloaded forgotten.
        """
        with self._guard:
            if lease.released or lease._cache is not self:
                if lease._cache is not self:
                    raise UsageError("the lease is another cache's")
                return ()
            moves = self._end(lease, failed, self.now())
            batch = self.outbox.add(moves)
            settled = self._pumped()
        try:
            self.outbox.carry_until(batch)
        finally:
            self._finish(settled)
        return tuple(moves)

    def _end(self, lease: Lease, failed: bool, now: float) -> list[Move]:
        keep = len(lease._nodes)
        if failed:
            keep = min(keep, lease.computed_tokens // self.block_size)
            if lease.computed_tokens >= lease.tokens:
                keep = len(lease._nodes)
            self.counters.failed += 1
            keep = self.blocks.first_uncomputed(lease, keep)
        if lease.lost_from is not None:
            keep = min(keep, lease.lost_from)
        lease.released = True
        del self.leases[lease.id]
        if failed and keep < len(lease._nodes):
            self.blocks.lose(lease, keep, self.leases.values(), now)
        moves = self.blocks.release(lease, keep, now, failed=failed)
        lease.last_moves = tuple(moves)
        self.counters.released += 1
        self.blocks.tell_moves(moves)
        return moves

    def _check_held(self, lease: Lease) -> None:
        if lease._cache is not self:
            raise UsageError("the lease is another cache's")
        if lease.released:
            raise UsageError(f"lease {lease.id} was released")

    def uncarried(self, moves: Iterable[Move]) -> None:
        """Say that moves could not be carried: what they were to offload is forgotten. O(N).

        For whoever carries by itself. Release with ``failed`` the lease that they came with.
        """
        with self.lock:
            self.blocks.discard(moves, self.last_now)

    def _carried(self, lease: Lease, batch: Batch | None) -> None:
        try:
            self.outbox.carry_until(batch)
        except BaseException:
            self.release(lease, failed=True)
            raise

    def _pumped(self) -> list[Settled]:
        """Admit those whose turn it is. The caller holds the lock, and finishes them without."""
        return self.gate.pump(self.last_now) if self.gate.waiting else []

    def _finish(self, settled: list[Settled]) -> list[Admission]:
        """Carry what those need whose turn came, and tell them; without the lock."""
        found: list[Admission] = []
        calls: list[Callable[[], None]] = []
        for each in settled:
            admission = each.admission
            try:
                self.outbox.carry_until(each.batch)
            except BaseException as error:  # noqa: BLE001  # it is another's: told, not raised
                each.ticket.fault = error
                lease = admission.lease
                admission = Admission(
                    Outcome.REJECT, f"its moves could not be carried: {error}", None
                )
                if lease is not None:
                    self.release(lease, failed=True)
            with self.lock:
                told = each.ticket.settle(admission)
            calls.extend(functools.partial(callback, admission) for callback in told)
            found.append(admission)
        self.calls.make(calls)
        return found

    # Retention

    def pin(self, what: Request | Lease, owner: str) -> Pin:
        """Keep what is cached of a request's or a lease's chain until `unpin`; O(blocks).

        Raises UsageError if nothing of it is cached, or the owner's or the cache's limit of pinned
        blocks would be passed.
        """
        with self._guard:
            if isinstance(what, Lease):
                self._check_held(what)
            pin = self.pins.add(what, owner)
            if self.events.on:
                self.events.add(Pinned(owner, pin.blocks))
            return pin

    def unpin(self, pin: Pin | str) -> int:
        """End a pin, or all of an owner's; return how many blocks of chains they were."""
        with self._guard:
            now = self.now()
            ended = self.pins.remove(pin)
            for each in ended:
                self.blocks.unpin(each, now)
                if self.events.on:
                    self.events.add(Pinned(each.owner, each.blocks, pinned=False))
            settled = self._pumped()
        self._finish(settled)
        return sum(each.blocks for each in ended)

    def set_policy(self, policy: str | Policy | type[Policy]) -> None:
        """Rank by another policy from now on. It learns what is cached: order and number of uses.

        O(N log N) in the blocks that are cached.
        """
        chosen = make(policy)
        chosen.live_form()
        with self._guard:
            self.store.set_policy(chosen)
            self.policy = chosen

    def drop_expired(self) -> int:
        """Let all blocks leave whose lifetime has ended; return how many. O(those log N)."""
        with self._guard:
            return self.blocks.expire(self.now())

    def clear(self) -> bool:
        """Forget all that is cached; False, with nothing changed, while any of it is held.

        vLLM's `reset_prefix_cache`. O(N).
        """
        with self.lock:
            if self.leases or self.pins.count:
                return False
            self.store.clear()
            if self.events.on:
                self.events.add(AllBlocksCleared())
            return True

    # Looking

    def lookup(self, request: Request) -> int:
        """Return how many tokens of a request would hit now, in the first tier. O(blocks).

        Nothing is touched or counted.
        """
        with self.lock:
            chain = self.maker.make(request)
            home = self.store.home_of(request.tenant)
            hits, _, _ = home.partition.probe(chain.keys, chain.space, 0)
            return min(hits * self.block_size, chain.tokens)

    def check(self) -> None:
        """Raise BrokenInvariantError if what is kept contradicts itself: for tests. O(N)."""
        with self.lock:
            check(self)

    @property
    def capacity_blocks(self) -> int:
        """Physical blocks of the first tier."""
        return self.store.capacity

    @property
    def block_size(self) -> int:
        """Tokens a block."""
        return self.maker.block_size

    @property
    def cached_blocks(self) -> int:
        """Blocks of the first tier that can be hit, held or not."""
        return self.store.resident

    @property
    def free_blocks(self) -> int:
        """Blocks that could be had now: those that hold nothing, and those that may leave."""
        return self.store.capacity - self.store.held

    @property
    def waiting(self) -> int:
        """Requests that wait."""
        return len(self.gate.waiting)

    def take_events(self) -> list[CacheEvent]:
        """Return the events since the last call; none unless ``max_events`` was given."""
        with self.lock:
            return self.events.take()

    def metrics(self) -> dict[str, float]:
        """Return counters and gauges by their Prometheus names: vLLM's where they mean the same."""
        with self.lock:
            store = self.store
            return exported(
                self.counters,
                {
                    "vllm:kv_cache_usage_perc": store.held / store.capacity,
                    "vllm:num_requests_running": len(self.leases),
                    "vllm:num_requests_waiting": len(self.gate.waiting),
                    "kvsched:cached_blocks": store.resident,
                    "kvsched:pinned_blocks": self.pins.blocks,
                    "kvsched:lost_events": self.events.lost,
                },
            )

    def metrics_text(self, labels: Mapping[str, str] | None = None) -> str:
        """Return `metrics` in Prometheus's text format."""
        return exposition(self.metrics(), dict(labels or {}))

    def __repr__(self) -> str:
        return (
            f"<KVCacheScheduler {self.policy.label}: {self.cached_blocks:,} of "
            f"{self.capacity_blocks:,} blocks cached, {len(self.leases)} leases, "
            f"{self.waiting} waiting>"
        )


def _ids(tokens: Any) -> list[int]:
    if isinstance(tokens, str | bytes) or not isinstance(tokens, Sequence | np.ndarray):
        raise UsageError(f"tokens must be a count or token ids, not {type(tokens).__name__}")
    try:
        return [operator.index(token) for token in tokens]
    except TypeError as error:
        raise UsageError(f"token ids must be whole numbers: {error}") from None
