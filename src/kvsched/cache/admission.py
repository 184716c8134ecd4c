"""The four outcomes: who runs now, who waits, who runs with less, who does not run; and why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvsched.cache.chain import Chain
from kvsched.cache.events import Admitted, Hit, Queued, Rejected
from kvsched.cache.lease import Lease
from kvsched.cache.outbox import Batch
from kvsched.cache.recover import recover
from kvsched.cache.request import Admission, Outcome, Request
from kvsched.cache.store import Home
from kvsched.cache.waiting import Ticket, WaitingList
from kvsched.foundation.errors import UsageError

if TYPE_CHECKING:
    from kvsched.cache.serving import Serving


@dataclass(slots=True, eq=False)
class Settled:
    """A request that waited, and what became of it: told when its moves are carried."""

    ticket: Ticket
    admission: Admission
    batch: Batch | None


class Gate:
    """Decides on requests, and keeps those that wait. The caller holds the lock."""

    def __init__(self, cache: Serving) -> None:
        self.cache = cache
        self.settings = cache.settings
        self.waiting = WaitingList(cache.settings.max_passes, self._weight)
        self._spare = int(cache.settings.watermark * cache.store.capacity)

    def _weight(self, tenant: str) -> float:
        return self.cache.store.tenant(tenant).weight

    def decide(self, request: Request, now: float) -> tuple[Admission, list[Settled]]:
        """Return a request's admission, and who of those that wait has been settled by it."""
        cache = self.cache
        chain = cache.maker.make(request)
        home = cache.store.home_of(request.tenant)
        # Where none is queued for room, those that wait do so for their own quota.
        if not self.waiting or self.settings.when_full != "queue":
            return self._fresh(request, chain, home, now), []
        if self._is_past(request, now):
            return self._reject(request, "its deadline has passed"), []
        if chain.blocks + self._growth(chain, request) > cache.store.sure(home):
            return self._oversize(request, chain, home, now), []
        queued = self._queue(request, chain, "others wait before it")
        if queued.ticket is None:
            return queued, []
        return queued, self.pump(now)

    def _fresh(self, request: Request, chain: Chain, home: Home, now: float) -> Admission:
        if self._is_past(request, now):
            return self._reject(request, "its deadline has passed")
        if self._never(chain, home, request):
            return self._oversize(request, chain, home, now)
        lease = self._try(request, chain, home, now)
        if lease is not None:
            return self._admit(lease, chain)
        if chain.blocks + self._growth(chain, request) > self.cache.store.sure(home):
            return self._oversize(request, chain, home, now)
        how, reason = self.settings.when_full, "the blocks it needs are held by others"
        if self._is_over_quota(request, chain, home):
            how = home.tenant.over_quota
            reason = f"the quota of tenant {home.name!r} has no room now"
        if how == "queue":
            return self._queue(request, chain, reason)
        if how == "degrade":
            return self._degrade(request, chain, home, reason, now)
        return self._reject(request, reason)

    def _try(self, request: Request, chain: Chain, home: Home, now: float) -> Lease | None:
        cache = self.cache
        spare = self._growth(chain, request)
        if self._spare and cache.leases:
            spare += self._spare
        return cache.blocks.hold(cache, request, chain, home, spare, now)

    def _never(self, chain: Chain, home: Home, request: Request) -> bool:
        return chain.blocks + self._growth(chain, request) > home.most

    def _growth(self, chain: Chain, request: Request) -> int:
        """Return how many blocks more a request takes when it adds what it reserves."""
        if not request.reserve_tokens:
            return 0
        size = self.cache.block_size
        # A partial block that has a key is copied before it grows.
        copied = chain.extra == 0 and chain.tokens % size > 0
        return -(-(chain.tokens + request.reserve_tokens) // size) - chain.blocks + copied

    def _is_past(self, request: Request, now: float) -> bool:
        return request.deadline_s is not None and request.deadline_s < now

    def _is_over_quota(self, request: Request, chain: Chain, home: Home) -> bool:
        if home.tenant.quota_blocks is None:
            return False
        _, need, room = home.partition.probe(chain.keys, chain.space, chain.extra)
        need += self._growth(chain, request)
        return self.cache.store.is_over_quota(home, need, room)

    # Outcomes

    def _admit(self, lease: Lease, chain: Chain) -> Admission:
        cache = self.cache
        cache.leases[lease.id] = lease
        counters = cache.counters
        hits = lease.hit_tokens
        loaded = 0
        if lease.loaded_blocks:
            loaded = hits - min((lease.hit_blocks - lease.loaded_blocks) * cache.block_size, hits)
        counters.admitted += 1
        counters.prompt_tokens += chain.tokens
        counters.prompt_tokens_cached += hits
        counters.prefix_cache_queries += chain.tokens
        counters.prefix_cache_hits += hits - loaded
        if lease._home.second is not None:
            counters.external_prefix_cache_queries += chain.tokens - (hits - loaded)
            counters.external_prefix_cache_hits += loaded
        counters.blocks_stored += lease.stored_blocks
        self.waiting.admitted(lease.request, chain.tokens)
        if lease.moves:
            cache.blocks.tell_moves(lease.moves)
        if cache.events.on:
            name = lease.request.id or ""
            degraded = lease.outcome is Outcome.DEGRADE
            cache.events.add(Admitted(name, lease.reason, degraded))
            if hits:
                cache.events.add(Hit(name, hits, loaded))
        return Admission(lease.outcome, lease.reason, lease)

    def _oversize(self, request: Request, chain: Chain, home: Home, now: float) -> Admission:
        reason = f"it needs {chain.blocks:,} blocks"
        if request.reserve_tokens:
            reason += f" and room for {request.reserve_tokens:,} more tokens"
        if self._never(chain, home, request):
            reason += f", and at most {home.most:,} can ever be held"
        else:
            sure = self.cache.store.sure(home)
            reason += f", and {sure:,} are left beside what others are guaranteed"
        if self.settings.when_oversize == "degrade":
            return self._degrade(request, chain, home, reason, now)
        return self._reject(request, reason)

    def _degrade(
        self, request: Request, chain: Chain, home: Home, reason: str, now: float
    ) -> Admission:
        cache = self.cache
        how = self.settings.degrade
        if how == "head":
            lease = cache.blocks.hold(cache, request, chain, home, -1, now)
        else:
            lease = cache.blocks.hold_hits(cache, request, chain, home, now, to_tier=how == "tier")
        if lease is None:
            return self._reject(request, reason)
        whole = len(lease._blocks) >= chain.blocks
        lease.outcome = Outcome.ADMIT if whole else Outcome.DEGRADE
        if not whole:
            cache.counters.degraded += 1
            lease.reason = f"{reason}: {_LESS[how]}"
        return self._admit(lease, chain)

    def _queue(self, request: Request, chain: Chain, reason: str) -> Admission:
        settings = self.settings
        if len(self.waiting) >= settings.max_waiting:
            return self._reject(request, f"the queue is full: {len(self.waiting):,} wait; {reason}")
        most = settings.max_waiting_tokens
        if most is not None and self.waiting.tokens + chain.tokens > most:
            return self._reject(
                request, f"the queue is full: {self.waiting.tokens:,} tokens wait; {reason}"
            )
        ticket = self.waiting.add(self.cache, request, chain.tokens)
        self.cache.counters.queued += 1
        if self.cache.events.on:
            self.cache.events.add(Queued(request.id or "", reason))
        return Admission(Outcome.QUEUE, reason, None, ticket)

    def _reject(self, request: Request, reason: str) -> Admission:
        self.cache.counters.rejected += 1
        if self.cache.events.on:
            self.cache.events.add(Rejected(request.id or "", reason))
        return Admission(Outcome.REJECT, reason)

    # Those that wait

    def remove(self, ticket: Ticket) -> bool:
        """Take a ticket out; False if its turn has come."""
        return self.waiting.remove(ticket, self.cache.maker.make(ticket.request).tokens)

    def pump(self, now: float) -> list[Settled]:
        """Admit all whose turn it is and who fit; reject those past their deadline."""
        settled = [
            self._settle(ticket, self._reject(ticket.request, "its deadline has passed"))
            for ticket in self.waiting.overdue(now)
        ]
        while True:
            one = self._next(now)
            if one is None:
                return settled
            settled.append(one)

    def _next(self, now: float) -> Settled | None:
        blocked: set[str] = set()
        for ticket in self.waiting.starved():
            if ticket.request.tenant in blocked:
                continue
            settled, own = self._turn(ticket, now)
            if settled is not None or not own:
                # Nothing passes one that has waited for too long, unless its own quota holds it.
                return settled
            blocked.add(ticket.request.tenant)
        for ticket in self.waiting.turns():
            if ticket.request.tenant not in blocked:
                settled, _ = self._turn(ticket, now)
                if settled is not None:
                    return settled
        return None

    def _turn(self, ticket: Ticket, now: float) -> tuple[Settled | None, bool]:
        """Return what became of a ticket, or None and whether its own quota holds it up."""
        request = ticket.request
        chain = self.cache.maker.make(request)
        home = self.cache.store.home_of(request.tenant)
        try:
            lease = self._try(request, chain, home, now)
        except UsageError as error:
            return self._settle(ticket, self._reject(request, str(error))), False
        except Exception as error:  # noqa: BLE001  # a policy's hooks may raise anything
            recover(self.cache)
            return self._settle(ticket, self._reject(request, f"a policy failed: {error}")), False
        if lease is None:
            return None, self._is_over_quota(request, chain, home)
        lease.reason = "its turn came"
        return self._settle(ticket, self._admit(lease, chain)), False

    def _settle(self, ticket: Ticket, admission: Admission) -> Settled:
        self.remove(ticket)
        moves = () if admission.lease is None else admission.lease.moves
        return Settled(ticket, admission, self.cache.outbox.add(moves))


_LESS = {
    "head": "the head that fits is stored",
    "unstored": "what is missing is not stored",
    "tier": "what is missing is stored in the second tier",
}
