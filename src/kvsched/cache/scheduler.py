"""`KVCacheScheduler`: who holds which blocks, what is kept, who waits, who is turned away."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Self, cast

from kvsched.cache.check import check
from kvsched.cache.events import AllBlocksCleared, CacheEvent, Pinned
from kvsched.cache.explain import Explanation, explain
from kvsched.cache.lease import Lease
from kvsched.cache.ledger import Ledger, snapshot
from kvsched.cache.metrics import exported, exposition
from kvsched.cache.pins import Pin
from kvsched.cache.recover import mend
from kvsched.cache.request import Hashes, Request
from kvsched.cache.restored import restore
from kvsched.cache.saved import save
from kvsched.cache.serving import Serving
from kvsched.policy.base import Policy
from kvsched.policy.registry import make


class KVCacheScheduler(Serving):
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
    ``queue_moves``: all moves are kept in the order of the decisions until `take_moves`, for an
    engine that carries them once a step.

    Memory: about 400 bytes a block of capacity, plus the policy's. Raises UsageError for settings
    that contradict, and policies that look ahead.
    """

    # Retention

    def pin(self, what: Request | Lease, owner: str) -> Pin:
        """Keep what is cached of a request's or a lease's chain until `unpin`; O(blocks).

        Raises UsageError if nothing of it is cached, or the owner's or the cache's limit of pinned
        blocks would be passed.
        """
        with self.lock:
            if isinstance(what, Lease):
                self._check_held(what)
            pin = self.pins.add(what, owner)
            if self.events.on:
                self.events.add(Pinned(owner, pin.blocks))
            return pin

    def unpin(self, pin: Pin | str) -> int:
        """End a pin, or all of an owner's, if there are any; return the blocks of their chains."""
        with self.lock:
            now = self.now()
            ended = self.pins.remove(pin)
            try:
                for each in ended:
                    self.blocks.unpin(each, now)
                    if self.events.on:
                        self.events.add(Pinned(each.owner, each.blocks, pinned=False))
            except BaseException as error:
                mend(self, error)
                raise
            settled = self._pumped()
        self._finish(settled)
        return sum(each.blocks for each in ended)

    def set_policy(self, policy: str | Policy | type[Policy]) -> None:
        """Rank by another policy from now on. It learns what is cached: order and number of uses.

        O(N log N) in the blocks that are cached.
        """
        chosen = make(policy)
        chosen.live_form()
        with self.lock:
            self.store.set_policy(chosen)
            self.policy = chosen

    def drop_expired(self) -> int:
        """Let all blocks leave whose lifetime has ended; return how many. O(those log N)."""
        with self.lock:
            try:
                return self.blocks.expire(self.now())
            except BaseException as error:
                mend(self, error)
                raise

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

    # Saving

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the cache to a file, whole or not at all, for `restore`: `kvsched.cache.saved`.

        With all that decides: what is cached under which key in which block, pins, tenants, the
        second tier, what left and is remembered, the policy's own state, counters, settings. Not
        with what is in passing: callbacks, events, and requests that wait. A lease is let go in the
        restored cache as if it had failed now. The bytes of the blocks are the caller's to keep, as
        is having carried all moves. O(N), of which the lock is held to copy; other calls go on
        while it is written. Raises UsageError for a policy whose state is not of arrays, for moves
        that were not taken, and where nothing can be written.
        """
        save(self, path)

    @classmethod
    def restore(
        cls,
        path: str | os.PathLike[str],
        *,
        policy: str | Policy | type[Policy] | None = None,
        second_tier_policy: str | Policy | type[Policy] | None = None,
        same_clock: bool = False,
        **settings: Any,
    ) -> Self:
        """Return the cache that was saved; it decides as that one would have gone on to.

        ``clock``, ``carry`` and ``queue_moves`` are not in the file. Whatever the clock says, ages
        and lifetimes go on from the moment of saving, unless it is the ``same_clock``: then time
        that passed since counts. A policy that is another than was saved, in name, parameters or
        code (or under other versions of Python, NumPy or Numba), learns what is cached as by
        `set_policy`; `restored` says so. ``settings`` may be any that move no block:
        `kvsched.cache.restored.GIVEN_ANEW`.

        O(N). Raises InputError, which names the fault, for a file that is cut off, changed, of
        another version or no saved cache, and UsageError for settings that do not go with it.
        """
        found = restore(cls, path, policy, second_tier_policy, same_clock, settings)
        return cast(Self, found)

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

    def snapshot(
        self,
        limit: int | None = None,
        tenant: str | None = None,
        *,
        by: str = "block",
        order: str = "kept",
    ) -> Ledger[Any]:
        """Return the ledger: a `Row` a cached block, what is kept longest first.

        ``order="leaving"`` is the reverse: what leaves next first. ``limit``: rows; ``tenant``: of
        its own share, or of the one that it has a part in; ``by="prefix"``: a `PrefixRow` for each
        end of a chain. `kvsched.cache.ledger` says in what sense the order is exact. O(N log N) on
        copies, the lock held for O(N). Raises UsageError for another ``by``, ``order`` or limit.
        """
        return snapshot(self, limit, tenant, by, order)

    def explain(self, what: Request | Hashes) -> Explanation:
        """Return why a request's prefix, or that of hashes, is kept or not, and what goes before.

        Nothing is touched or counted. Costs what `snapshot` does. Raises UsageError for a request
        that makes no sense.
        """
        return explain(self, what)

    def check(self) -> None:
        """Raise BrokenInvariantError if what is kept contradicts itself: for tests. O(N)."""
        with self.lock:
            check(self)

    @property
    def capacity_blocks(self) -> int:
        """Physical blocks of the first tier."""
        return self.store.capacity

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
