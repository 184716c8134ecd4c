"""Leases over partitions: hold, grow, share and release blocks; say what moved and what left."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kvsched.cache.chain import Chain, ChainMaker
from kvsched.cache.departures import Departures
from kvsched.cache.describing import announce, extra_keys
from kvsched.cache.events import GPU, EventLog, Moved
from kvsched.cache.growth import Grower
from kvsched.cache.lease import Lease
from kvsched.cache.metrics import Counters
from kvsched.cache.partition import BadVictimError, Partition
from kvsched.cache.pins import Pin
from kvsched.cache.request import Move, Request
from kvsched.cache.state import COMPUTING, NEVER, READY
from kvsched.cache.store import Gone, Home, Store

if TYPE_CHECKING:
    from kvsched.cache.serving import Serving

_NO_BLOCKS = np.zeros(0, np.int32)


class BlockManager:
    """What a lease holds, and how it changes. The caller holds the lock."""

    def __init__(
        self, store: Store, maker: ChainMaker, events: EventLog, counters: Counters
    ) -> None:
        self.store = store
        self.told = store.told
        self.departures = Departures(store, counters, store.told)
        self.maker = maker
        self.events = events
        self.counters = counters
        self.block_size = maker.block_size
        self.levels = True
        self.queue: list[Move] | None = None
        """Moves that nobody has taken yet, where they are kept."""
        self.shared: dict[int, int] = {}
        """Blocks without a node that several leases hold, and how many."""
        self.growth = Grower(self)
        self._number = 0

    # Looking up and holding

    def fits(self, home: Home, chain: Chain) -> tuple[int, int, int]:
        """Return blocks that would hit, blocks needed, and blocks that could be had. O(chain)."""
        partition = home.partition
        hits, need, room = partition.probe(chain.keys, chain.space, chain.extra)
        return hits, need, room + self.store.borrowable(home)

    def hold(
        self,
        cache: Serving,
        request: Request,
        chain: Chain,
        home: Home,
        spare: int,
        now: float,
    ) -> Lease | None:
        """Return a lease for a chain; None, with nothing changed, if it does not fit.

        ``spare``: blocks that must stay to be had beside; −1 stores the head that fits. Where a
        policy is at fault nothing is held, and its fault is raised.
        """
        partition = home.partition
        moves: list[Move] = []
        if len(self.store.homes) > 1:
            _, need, room = partition.probe(chain.keys, chain.space, chain.extra)
            if not self.give(home, need, room, spare, now, moves):
                return None
            # Others have made room for it, and were asked for the spare ones.
            spare = min(spare, 0)
        announce(home, request, chain, now)
        second = home.second
        found = second.hold_below(partition, chain, now) if second is not None else None
        lease = None
        try:
            if not partition.acquire(
                chain.keys, chain.space, chain.extra, spare, now, chain.last_tokens
            ):
                self.departures.take_back(moves, now)
                return None
            hits, stored, taken, gone, _, waits, _, _ = partition.report.tolist()
            lease = Lease(cache, home, request, self._number)
            self._number += 1
            lease._nodes = partition.out.nodes[: hits + stored].copy()
            lease._blocks = partition.out.blocks[: hits + taken].copy()
            lease.stored_blocks = stored
            if gone:
                self.departures.settle(home, gone, moves, now)
            loaded = 0
            if found is not None and second is not None:
                loaded = second.load(found, lease, hits, moves)
            self._describe(lease, chain, hits, stored, loaded, waits)
        except BadVictimError as error:
            self._undo(home, lease, error, moves, now)
            raise
        finally:
            if found is not None and second is not None:
                second.let_go(found, now)
        if moves:
            lease.moves = tuple(moves)
        if stored:
            self.tell_stored(lease, hits)
        return lease

    def _undo(
        self, home: Home, lease: Lease | None, error: BadVictimError, moves: list[Move], now: float
    ) -> None:
        """Let go what was held when a policy's fault showed; what left has left."""
        self.departures.drop(home, error.left, now)
        if lease is not None:
            lease.released = True
            hits = len(lease._nodes) - lease.stored_blocks
            private = np.array(lease._blocks[len(lease._nodes) :], np.int32)
            dropped = home.partition.fail(lease._nodes, private, hits, now)
            self.departures.settle(home, dropped, None, now)
        self.departures.take_back(moves, now)

    def give(
        self, home: Home, need: int, room: int, spare: int, now: float, moves: list[Move]
    ) -> bool:
        """Have other tenants give what is asked, if that makes it fit."""
        if spare >= 0 and need + spare > room + self.store.borrowable(home):
            return False
        gone: list[Gone] = []
        try:
            self.store.make_room(home, need, room, now, gone)
            while gone:
                self.departures.keep(*gone.pop(0), moves, now)
        except BadVictimError as error:
            for giver, left in gone:
                self.departures.drop(giver, left, now)
            self.departures.drop(home, error.left, now)
            self.departures.take_back(moves, now)
            raise
        return True

    def _describe(
        self, lease: Lease, chain: Chain, hits: int, stored: int, loaded: int, waits: int
    ) -> None:
        size, tokens = self.block_size, chain.tokens
        found = (hits + loaded) * size
        lease.hit_blocks = hits + loaded
        lease.loaded_blocks = loaded
        lease.hit_tokens = found if found < tokens else tokens
        lease.computed_tokens = waits * size if waits * size < tokens else tokens
        lease._theirs, lease._ready = hits, waits
        lease.prompt_blocks = chain.blocks
        room = len(lease._ids) * size
        lease.tokens = room if room < tokens else tokens
        lease.stored_blocks = stored
        if chain.tail is not None and hits + stored == len(chain.keys):
            lease._last_hash, lease._tail = chain.last_hash, list(chain.tail)

    def hold_hits(
        self,
        cache: Serving,
        request: Request,
        chain: Chain,
        home: Home,
        now: float,
        *,
        to_tier: bool,
    ) -> Lease | None:
        """Return a lease of what is cached alone; what is missing may go to the second tier."""
        hits, _, _ = self.fits(home, chain)
        cut = dataclasses.replace(chain, keys=chain.keys[:hits].copy(), blocks=hits)
        lease = self.hold(cache, request, cut, home, -1, now)
        if lease is None:
            return None
        lease.prompt_blocks = chain.blocks
        lease._tail = None
        if to_tier and home.second is not None:
            try:
                lease.spilled = home.second.spill(home.partition, lease, chain, now)
            except BadVictimError as error:
                error.left.clear()
                self._undo(home, lease, error, list(lease.moves), now)
                raise
        return lease

    # Sharing and releasing

    def fork(self, cache: Serving, lease: Lease) -> Lease:
        """Return a lease that holds the same blocks. O(blocks)."""
        twin = Lease(cache, lease._home, lease.request, self._number)
        self._number += 1
        for name in (
            "_last_hash", "computed_tokens", "hit_blocks", "hit_tokens", "loaded_blocks",
            "lost_from", "outcome", "prompt_blocks", "reason", "tokens", "_ready",
        ):  # fmt: skip
            setattr(twin, name, getattr(lease, name))
        twin._nodes = lease._nodes
        twin._theirs = len(lease._nodes)
        twin._blocks = list(lease._blocks)
        twin._own = dict(lease._own)
        twin._tail = None if lease._tail is None else list(lease._tail)
        if len(lease._nodes):
            lease._home.partition.share(lease.deepest)
        for block in self.private(lease):
            self.shared[block] = self.shared.get(block, 1) + 1
        return twin

    def private(self, lease: Lease) -> list[int]:
        """Blocks of a lease that hold no node."""
        return [*lease._own.values(), *lease._blocks[len(lease._nodes) :]]

    def unshare(self, blocks: Iterable[int]) -> list[int]:
        """Return the blocks that nobody else holds; of the others there is one holder less."""
        alone = []
        for block in blocks:
            holders = self.shared.get(block, 1)
            if holders == 1:
                alone.append(block)
            elif holders == 2:
                del self.shared[block]
            else:
                self.shared[block] = holders - 1
        return alone

    def release(self, lease: Lease, keep: int, now: float, *, failed: bool = False) -> list[Move]:
        """End a lease; nodes from ``keep`` on are dropped where nobody else holds them."""
        home = lease._home
        second = home.second
        moves: list[Move] = []
        vouched = not failed
        if second is not None and len(lease._spilled):
            second.end_spill(lease._spilled, vouched and lease.lost_from is None, now)
        private: Any = self.private(lease) if lease._own or lease.extra_blocks else _NO_BLOCKS
        if len(private) and self.shared:
            private = self.unshare(private)
        blocks = np.asarray(private, np.int32)
        self.end(lease, lease._nodes, blocks, keep, moves, now, vouched=vouched)
        if second is not None and second.writes_through and keep and vouched:
            second.write_through(home.partition, lease._nodes[:keep], moves, now)
        return moves

    def end(
        self,
        lease: Lease,
        nodes: NDArray[np.int32],
        private: NDArray[np.int32],
        keep: int,
        moves: list[Move],
        now: float,
        *,
        vouched: bool,
    ) -> None:
        """Release nodes of a lease, and tell what is dropped."""
        request = lease.request
        partition = lease._home.partition
        level, expires = self.retention(request, partition, now)
        if partition.columns.asked:
            chain = self.maker.make(request)
            announce(lease._home, request, chain, now, again=True)
        if not vouched:
            dropped = partition.fail(nodes, private, keep, now, level, expires)
        elif lease._own or lease.waits_for_blocks:
            # What others compute, or stored first, is not in place because this one ends.
            ready = partition.live.ready
            theirs = np.array([*lease._own, *range(lease._ready, lease._theirs)], np.int64)
            others = nodes[theirs[theirs < len(nodes)]]
            others = others[ready[others] == COMPUTING]
            dropped = partition.release(nodes, private, keep, now, level, expires)
            # Where nobody else is left, this one's word counts.
            ready[others[partition.live.locks[others] > 0]] = COMPUTING
        else:
            dropped = partition.release(nodes, private, keep, now, level, expires)
        self.departures.settle(lease._home, dropped, moves, now)

    def first_uncomputed(self, lease: Lease, keep: int) -> int:
        """Return the first block from ``keep`` on that a lease was to compute and nobody has.

        The number of its nodes if there is none. O(blocks).
        """
        ready = lease._home.partition.live.ready[lease._nodes]
        for at in range(keep, len(ready)):
            if ready[at] != READY and at not in lease._own:
                return at
        return len(ready)

    def retention(self, request: Request, partition: Partition, now: float) -> tuple[int, int]:
        """Return the level and the expiry that a request's blocks get at a release ``now``."""
        expires = NEVER
        if request.lifetime_s is not None:
            expires = min(int((partition.time(now) + request.lifetime_s) * 1e6), NEVER - 1)
        return int(request.priority) if self.levels else 0, expires

    def distrust(self, lease: Lease, place: int, leases: Collection[Lease], now: float) -> None:
        """Distrust a lease from a block on, the end of what was in place before it grew."""
        if place < len(lease._nodes):
            self.departures.lose(lease, place, leases, now)
        if lease.lost_from is None or place < lease.lost_from:
            lease.lost_from = place

    # What is said about it

    def mark_ready(self, lease: Lease) -> None:
        """Mark the blocks of a lease that are in place. O(blocks)."""
        done = lease.computed_tokens // self.block_size
        if lease.computed_tokens == lease.tokens:
            done = len(lease._nodes)
        ready = lease._home.partition.live.ready
        nodes = lease._nodes[:done]
        if lease._own:
            # Whoever stored the same first says when that block is computed.
            nodes = nodes[[at not in lease._own for at in range(len(nodes))]]
        nodes = nodes[ready[nodes] == COMPUTING]
        ready[nodes] = READY

    def expire(self, now: float) -> int:
        """Let all leave whose lifetime has ended; return how many. None of them is offloaded."""
        total = 0
        for home in self.store.homes.values():
            count = home.partition.expire(now)
            self.departures.settle(home, count, None, now)
            total += count
        return total

    def unpin(self, pin: Pin, now: float) -> None:
        """End a pin, and tell what is dropped."""
        partition = pin._home.partition
        self.departures.settle(pin._home, partition.unpin(pin._nodes), None, now)

    def tell_moves(self, moves: Iterable[Move]) -> None:
        """Tell of moves, and count them."""
        for move in moves:
            if self.queue is not None:
                self.queue.append(move)
            if move.kind == "offload":
                self.counters.offloads += 1
            elif move.kind == "load":
                self.counters.loads += 1
            if self.events.on:
                self.events.add(Moved(move.kind, move.source, move.target, move.block_hash))

    def tell_stored(self, lease: Lease, first: int, grown: list[int] | None = None) -> None:
        """Tell that a lease's nodes from ``first`` on were stored; ``grown`` are their tokens."""
        if not self.told.on:
            return
        request = lease.request
        keys = lease._home.partition.names.keys
        nodes = lease._nodes
        size = self.block_size
        ids: Any = request.token_ids
        tokens = grown
        if grown is None and ids is not None:
            tokens = [int(token) for token in ids[first * size : len(nodes) * size]]
        self.told.stored(
            keys[nodes[first:]],
            keys[nodes[first - 1]] if first else None,
            GPU,
            tokens,
            lora_name=request.lora_name,
            extra_keys=extra_keys(request, first, len(nodes)),
            session_id=request.session,
        )
