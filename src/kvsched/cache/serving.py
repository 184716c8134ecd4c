"""Requests in, leases out: the part of `KVCacheScheduler` that an engine calls at every step."""

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
from kvsched.cache.events import Announcer, EventLog
from kvsched.cache.hashing import BlockHasher
from kvsched.cache.lease import Lease
from kvsched.cache.metrics import Counters
from kvsched.cache.outbox import Batch, Calls, Carry, Outbox
from kvsched.cache.pins import Pins
from kvsched.cache.recover import mend
from kvsched.cache.request import Admission, Growth, Move, Outcome, Request
from kvsched.cache.restored import Restored
from kvsched.cache.second import TierSettings
from kvsched.cache.settings import Settings, check_whole
from kvsched.cache.store import Store
from kvsched.cache.tenants import Tenant
from kvsched.cache.waiting import Ticket
from kvsched.foundation.errors import KvschedError, UsageError
from kvsched.policy.base import Policy
from kvsched.policy.registry import make


class Serving:
    """Admission and leases; `kvsched.cache.scheduler.KVCacheScheduler` says what is what."""

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
        queue_moves: bool = False,
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
        self.clock = clock
        self.carry = carry
        self.maker = ChainMaker(hasher, words, isolate_tenants)
        self.counters = Counters()
        self.events = EventLog(max_events)
        fields = None if request_fields is None else frozenset(request_fields)
        self.store = Store(
            chosen, capacity, size, words, history_blocks, tenants or {}, fields, second_tier,
            told=Announcer(self.events, self.maker.to_hash, size),
        )  # fmt: skip
        if queue_moves and carry is not None:
            raise UsageError("moves are carried by carry or taken by take_moves, not both")
        self.blocks = BlockManager(self.store, self.maker, self.events, self.counters)
        self.blocks.queue = [] if queue_moves else None
        self.blocks.levels = by_level
        self.pins = Pins(self.store, self.maker, pinned)
        self.leases: dict[int, Lease] = {}
        self.outbox = Outbox(self, carry)
        self.calls = Calls()
        self.gate = Gate(self)
        self.last_now = -np.inf
        self.restored: Restored | None = None
        """What became of the file that it was made from; None for a new one."""

    def now(self) -> float:
        """Return the time on the cache's clock, which never falls here."""
        now = float(self.clock())
        if not abs(now) < 1e12:
            raise UsageError(f"the clock must give a number of seconds, not {now!r}")
        self.last_now = max(self.last_now, now)
        return self.last_now

    @property
    def block_size(self) -> int:
        """Tokens a block."""
        return self.maker.block_size

    # Admission

    def acquire(self, request: Request) -> Admission:
        """Look a request up, and admit, queue, degrade or reject it: see `Outcome`.

        An admitted request holds a lease on all its blocks: those that hit, and those that it is to
        fill. O(blocks + blocks that leave). Raises UsageError for a request that makes no sense,
        with nothing changed, and what ``carry`` raises, with the lease released.
        """
        with self.lock:
            try:
                admission, settled = self.gate.decide(request, self.now())
            except BaseException as error:
                mend(self, error)
                raise
            lease = admission.lease
            batch = None if lease is None else self.outbox.add(lease.moves)
        if settled:
            self._finish(settled)
        if lease is not None:
            if batch is not None:
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
        if not isinstance(requests, Iterable):
            raise UsageError(f"acquire_all takes requests, not {type(requests).__name__}")
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

    def withdraw(self, ticket: Ticket) -> None:
        """Take a request out of the waiting list; release its lease if its turn has come."""
        _check_ticket(ticket)
        if not ticket.cancel():
            ticket.when_settled(self._withdraw)

    def _withdraw(self, admission: Admission) -> None:
        """Give back what an answer gave, also if it is a place in the waiting list."""
        if admission.lease is not None:
            self.release(admission.lease, failed=True)
        elif admission.ticket is not None:
            self.withdraw(admission.ticket)

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
        with self.lock:
            try:
                settled = self.gate.pump(self.now())
            except BaseException as error:
                mend(self, error)
                raise
        return self._finish(settled)

    def cancel(self, ticket: Ticket) -> bool:
        """Take a request out of the waiting list; False if it is not in it any more.

        Those that it held up are then admitted as far as they fit.
        """
        _check_ticket(ticket)
        with self.lock:
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
        with self.lock:
            self._check_held(lease)
            if lease.outcome is Outcome.DEGRADE:
                return Growth(Outcome.REJECT, "a degraded request holds no room to grow")
            now, start = self.now(), lease.tokens // self.block_size
            try:
                grown = self.blocks.growth.grow(
                    lease, count, ids, hashes, self.leases.values(), now
                )
            except BaseException as error:
                if not isinstance(error, KvschedError):
                    self.blocks.distrust(lease, start, self.leases.values(), now)
                    mend(self, error)
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
        with self.lock:
            self._check_held(lease)
            if not 0 <= tokens <= lease.tokens:
                raise UsageError(
                    f"tokens must be from 0 to the {lease.tokens} of the lease, not {tokens}: "
                    "extend it first"
                )
            if tokens > lease.computed_tokens:
                lease.computed_tokens = int(tokens)
                self.blocks.mark_ready(lease)

    def fork(self, lease: Lease) -> Lease:
        """Return another lease of the same blocks, for a parallel sample. O(blocks).

        The first of the two to write into a partial last block gets a copy: a ``copy`` move.
        """
        with self.lock:
            self._check_held(lease)
            twin = self.blocks.fork(self, lease)
            self.leases[twin.id] = twin
            return twin

    def release(
        self, lease: Lease, *, failed: bool = False, admit: bool = True
    ) -> tuple[Move, ...]:
        """End a lease; its full blocks stay cached. Nothing happens to one that has ended.

        ``failed``: blocks beyond `Lease.computed_tokens` are dropped; leases of others that hold
        any of them, forks too, have `Lease.lost_from` from then on. ``admit``: those that wait are
        then admitted as far as they fit; without it at the next `release` or `poll`, so that a
        request that runs can have the room first. Returns moves to carry. O(blocks). Raises what
        ``carry`` raises, with the lease released and what was to be offloaded forgotten.
        """
        _check_lease(lease)
        with self.lock:
            if lease.released or lease._cache is not self:
                if lease._cache is not self:
                    raise UsageError("the lease is another cache's")
                return ()
            now = self.now()
            try:
                moves = self._end(lease, failed, now)
            except BaseException as error:
                mend(self, error)
                raise
            batch = self.outbox.add(moves)
            settled = self._pumped() if admit else []
        try:
            self.outbox.carry_until(batch)
        finally:
            if settled:
                self._finish(settled)
        return tuple(moves)

    def take_moves(self) -> list[Move]:
        """Return the moves of all answers since the last call, in order; with ``queue_moves``.

        An engine whose steps run one after another carries them before each step that writes or
        reads blocks, and leaves the moves of the answers alone. Raises UsageError without
        ``queue_moves``.
        """
        with self.lock:
            if self.blocks.queue is None:
                raise UsageError("moves are kept only where the cache has queue_moves=True")
            taken, self.blocks.queue = self.blocks.queue, []
            return taken

    def _end(self, lease: Lease, failed: bool, now: float) -> list[Move]:
        keep = len(lease._nodes)
        if failed:
            # What others compute is theirs to lose.
            keep = min(keep, max(lease.computed_tokens // self.block_size, lease._theirs))
            if lease.computed_tokens >= lease.tokens:
                keep = len(lease._nodes)
            self.counters.failed += 1
            keep = self.blocks.first_uncomputed(lease, keep)
        if lease.lost_from is not None:
            keep = min(keep, lease.lost_from)
        lease.released = True
        del self.leases[lease.id]
        if failed and keep < len(lease._nodes):
            self.blocks.departures.lose(lease, keep, self.leases.values(), now)
        moves = self.blocks.release(lease, keep, now, failed=failed)
        lease.last_moves = tuple(moves)
        self.counters.released += 1
        self.blocks.tell_moves(moves)
        return moves

    def _check_held(self, lease: Lease) -> None:
        _check_lease(lease)
        if lease._cache is not self:
            raise UsageError("the lease is another cache's")
        if lease.released:
            raise UsageError(f"lease {lease.id} was released")

    def uncarried(self, moves: Iterable[Move]) -> None:
        """Say that moves could not be carried: what they were to offload is forgotten. O(N).

        For whoever carries by itself. Release with ``failed`` the lease that they came with.
        """
        failed = list(moves) if isinstance(moves, Iterable) else [moves]
        if not all(isinstance(move, Move) for move in failed):
            raise UsageError("uncarried takes the moves that were not carried")
        with self.lock:
            self.blocks.departures.discard(failed, self.last_now)

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


def _check_lease(lease: object) -> None:
    if not isinstance(lease, Lease):
        more = ": it is in its `lease`" if isinstance(lease, Admission) else ""
        raise UsageError(f"a Lease is needed, not {type(lease).__name__}{more}")


def _check_ticket(ticket: object) -> None:
    if not isinstance(ticket, Ticket):
        raise UsageError(f"a Ticket is needed, not {type(ticket).__name__}")


def _ids(tokens: Any) -> list[int]:
    if isinstance(tokens, str | bytes) or not isinstance(tokens, Sequence | np.ndarray):
        raise UsageError(f"tokens must be a count or token ids, not {type(tokens).__name__}")
    try:
        return [operator.index(token) for token in tokens]
    except TypeError as error:
        raise UsageError(f"token ids must be whole numbers: {error}") from None
