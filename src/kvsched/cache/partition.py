"""One partition of a cache: its columns, its policy, and the kernel compiled for both."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvsched.cache import operations
from kvsched.cache.adopt import adopt, orders
from kvsched.cache.columns import LiveColumns
from kvsched.cache.kernel import operate
from kvsched.cache.state import (
    CLOSED,
    FLAT,
    IN_LEVELS,
    LOCKED,
    NEVER,
    PINNED,
    RANK,
    RESIDENT,
    USED,
    Live,
    Names,
    Out,
    Pool,
    new_live,
    new_names,
    new_out,
    new_table,
)
from kvsched.foundation.errors import UsageError
from kvsched.foundation.jit import bind, compilation_enabled, entry_point
from kvsched.kernel.heap import heap_push
from kvsched.kernel.table import NONE
from kvsched.policy.base import Policy, Setup

NO_KEYS = np.zeros((0, 1), np.int64)
NO_SPACE = np.zeros(2, np.int64)

_bound: dict[tuple[Callable[..., Any], type[Policy], bool], Callable[..., Any]] = {}


def _bind(function: Callable[..., Any], policy: type[Policy], compiled: bool) -> Callable[..., Any]:
    # Once each: compiled code is never unloaded.
    key = (function, policy, compiled)
    if key not in _bound:
        _bound[key] = bind(function, policy.hooks(), compiled)
    return _bound[key]


def count_numbers(capacity: int, history: int) -> int:
    """Return how many numbers a partition has: one is always left for what is to be stored."""
    return capacity + history + 1


class Left(NamedTuple):
    """A block that left a partition."""

    node: int
    block: int
    why: int
    key: NDArray[np.int64]


class BadVictimError(UsageError):
    """A policy named what cannot leave. The call that asked it has been undone."""

    def __init__(self, message: str, left: list[Left]) -> None:
        super().__init__(message)
        self.left = left
        """Blocks that had left by then."""


class Partition:
    """Blocks under one policy, in a pool of physical blocks that other partitions may share.

    Every method changes all or nothing, and is O(blocks it names + blocks that leave). The caller
    holds the lock.
    """

    def __init__(
        self,
        policy: Policy,
        pool: Pool,
        *,
        capacity: int,
        limit: int,
        history: int,
        block_size: int,
        words: int,
        columns: LiveColumns,
        above: Partition | None = None,
    ) -> None:
        # One chain may name one number more than it stores.
        numbers = count_numbers(capacity, history)
        self.capacity = capacity
        self.block_size = block_size
        self.pool = pool
        self.columns = columns
        self.names: Names
        self.live: Live
        if above is None:
            self.names = new_names(numbers, words)
            self.live = new_live(new_table(numbers), self.names, capacity, limit)
        else:
            self.names = above.names
            self.live = self._below(above.live, capacity, limit)
        self.shift_s = 0.0
        """Added to every moment: a restored cache goes on from the moment of saving."""
        self.out: Out = new_out(capacity)
        self.report: NDArray[np.int64] = self.out.report
        self.compiled = compilation_enabled()
        self.set_policy(policy)

    @staticmethod
    def _below(above: Live, capacity: int, limit: int) -> Live:
        """Return an empty tier under another: the same numbers, each knows what the other holds."""
        shared = above.table
        rows = len(shared.parent)
        resident, children = np.zeros(rows, np.uint8), np.zeros(rows, np.int32)
        table = shared._replace(resident=resident, children=children)
        live = new_live(table, above.names, capacity, limit)
        live.counts[FLAT] = 1
        return live._replace(elsewhere=shared.resident)

    @property
    def is_flat(self) -> bool:
        """Whether a node may be here without its parent."""
        return bool(self.live.counts[FLAT])

    def change_policy(self, policy: Policy) -> None:
        """Rank by another policy from now on, which learns what is cached. O(N log N)."""
        self.set_policy(policy)
        live = self.live
        by_storing, by_use = orders(live)
        if len(by_use):
            self.columns.write({})
            bound = _bind(adopt, type(self.form), self.compiled)
            bound(live, self.state, by_storing, by_use)
            self._rank_anew(by_use)

    def _rank_anew(self, by_use: NDArray[np.int32]) -> None:
        """Put the evictable into the kernel's own heaps by their new ranks."""
        live = self.live
        for heap in (live.due, live.levels):
            heap.counts[:] = 0
            heap.place[:] = NONE
        for node in by_use[live.where[by_use] != CLOSED].tolist():
            if live.expires[node] != NEVER:
                heap_push(live.due, node, int(live.expires[node]), int(live.rank[node]))
            if live.where[node] == IN_LEVELS:
                heap_push(live.levels, node, int(live.level[node]), int(live.rank[node]))

    def set_policy(self, policy: Policy) -> None:
        """Prepare a policy's state, of no node yet, and the kernel with its hooks.

        Raises UsageError, with nothing changed, where it cannot run here.
        """
        form = policy.live_form()
        asked = self.columns.asked.copy()
        self.columns.forget_policy()
        try:
            setup = Setup(
                len(self.live.table.parent), self.capacity, self.block_size, None, self.columns
            )
            state: Any = form.prepare(setup)
            words = self.names.keys.shape[1]
            keys = np.zeros((1, words), np.int64)
            places = (self.live, state, self.pool, self.out)
            arguments = (*places, keys, NO_SPACE, 0, NONE, 0, 0, 0, 0.0, 0, 0, 0, 0)
            operation: Callable[..., int] = entry_point(
                _bind(operate, type(form), self.compiled), arguments
            )
        except BaseException:
            self.columns.asked |= asked
            raise
        self.policy, self.form, self.setup, self.state = policy, form, setup, state
        self._operate: Callable[..., int] = operation
        self.no_keys = np.zeros((0, words), np.int64)
        self.columns.met_by(form, state)

    def _call(
        self,
        how: int,
        keys: NDArray[np.int64] | None = None,
        space: NDArray[np.int64] = NO_SPACE,
        base: int = NONE,
        length: int = 0,
        extra: int = 0,
        whole: int = -1,
        now: float = 0.0,
        level: int = 0,
        expires: int = NEVER,
        last_tokens: int = 0,
    ) -> int:
        return self._operate(
            self.live,
            self.state,
            self.pool,
            self.out,
            self.no_keys if keys is None else keys,
            space,
            how,
            base,
            length,
            extra,
            whole,
            now + self.shift_s,
            level,
            expires,
            last_tokens,
            self.block_size,
        )

    def left(self, count: int) -> list[Left]:
        """Return what the last call let leave. O(count)."""
        out, keys = self.out, self.names.keys
        return [
            Left(
                int(out.gone[at]),
                int(out.gone_blocks[at]),
                int(out.gone_why[at]),
                keys[out.gone[at]].copy(),
            )
            for at in range(count)
        ]

    def _fault(self, code: int, left: list[Left]) -> BadVictimError:
        what = "its victim is no evictable node: return a resident leaf that nobody holds"
        if code == operations.OK:
            what = "it names no victim, and there are evictable nodes: in a live cache it must"
        return BadVictimError(f"policy {self.policy.label}: {what}", left)

    def probe(
        self,
        keys: NDArray[np.int64],
        space: NDArray[np.int64],
        extra: int,
        spare: int = 0,
        base: int = NONE,
    ) -> tuple[int, int, int]:
        """Return what `acquire` would hit, how many blocks it needs, and for how many is room."""
        self._call(operations.PROBE, keys, space, base, len(keys), extra, spare)
        hits = int(self.report[operations.HITS])
        return hits, len(keys) - hits + extra, int(self.report[operations.ROOM])

    def acquire(
        self,
        keys: NDArray[np.int64],
        space: NDArray[np.int64],
        extra: int,
        spare: int,
        now: float,
        last_tokens: int,
        base: int = NONE,
    ) -> bool:
        """Hold a chain below ``base``; False, with nothing changed, if it does not fit.

        ``spare``: blocks that must stay to be had beside; −1 takes what fits. ``report`` and
        ``out`` say what was done.
        """
        code = self._operate(
            self.live, self.state, self.pool, self.out, keys, space, operations.ACQUIRE, base,
            len(keys), extra, spare, now + self.shift_s, 0, NEVER, last_tokens, self.block_size,
        )  # fmt: skip
        if code == operations.NO_ROOM:
            return False
        if code == operations.BAD_VICTIM or spare >= 0:
            hits, stored, taken, gone = self.report[:4].tolist()
            if code == operations.BAD_VICTIM or taken < len(keys) - hits + extra:
                left = self.left(gone)
                nodes = self.out.nodes[: hits + stored].copy()
                private = self.out.blocks[hits + stored : hits + taken].copy()
                raise self._fault(code, left + self.left(self.fail(nodes, private, hits, now)))
        return True

    def grow(
        self,
        base: int,
        keys: NDArray[np.int64],
        space: NDArray[np.int64],
        blocks: NDArray[np.int32],
        now: float,
    ) -> int:
        """Store blocks that a request has filled below ``base``; return how many were there.

        Those that were there keep their own block, and the request's stays its own.
        """
        self.out.blocks[: len(blocks)] = blocks
        self._call(
            operations.GROW, keys, space, base, len(keys), 0, 0, now, last_tokens=self.block_size
        )
        return int(self.report[operations.HITS])

    def take(self, blocks: int, spare: int, now: float) -> NDArray[np.int32] | None:
        """Return physical blocks that hold no node, or None if there is no room."""
        code = self._call(operations.TAKE, extra=blocks, whole=spare, now=now)
        if code == operations.NO_ROOM:
            return None
        taken, gone = self.report[operations.TAKEN : operations.EVICTED + 1].tolist()
        if taken < blocks:
            left = self.left(gone)
            self.fail(self.out.nodes[:0], self.out.blocks[:taken].copy(), 0, now)
            raise self._fault(code, left)
        return self.out.blocks[:blocks].copy()

    def evict(self, blocks: int, now: float) -> int:
        """Let as many as ``blocks`` leave, into the pool; return how many did."""
        code = self._call(operations.EVICT, extra=blocks, now=now)
        gone = int(self.report[operations.EVICTED])
        if code == operations.BAD_VICTIM:
            raise self._fault(code, self.left(gone))
        return gone

    def expire(self, now: float) -> int:
        """Let what has outlived its lifetime leave; return how many did."""
        self._call(operations.EXPIRE, now=now)
        return int(self.report[operations.EVICTED])

    def release(
        self,
        nodes: NDArray[np.int32],
        private: NDArray[np.int32],
        keep: int,
        now: float,
        level: int = 0,
        expires: int = NEVER,
    ) -> int:
        """End a hold; all but the first ``keep`` are dropped where nobody else holds them."""
        out = self.out
        length, extra = len(nodes), len(private)
        out.nodes[:length] = nodes
        if extra:
            out.blocks[:extra] = private
        self._operate(
            self.live, self.state, self.pool, out, self.no_keys, NO_SPACE, operations.RELEASE, NONE,
            length, extra, keep, now + self.shift_s, level, expires, 0, self.block_size,
        )  # fmt: skip
        return int(self.report[operations.EVICTED])

    def fail(
        self,
        nodes: NDArray[np.int32],
        private: NDArray[np.int32],
        keep: int,
        now: float,
        level: int = 0,
        expires: int = NEVER,
    ) -> int:
        """End a hold like `release`, which says of no block that it was computed."""
        out = self.out
        out.nodes[: len(nodes)] = nodes
        out.blocks[: len(private)] = private
        self._call(
            operations.FAIL,
            None,
            NO_SPACE,
            NONE,
            len(nodes),
            len(private),
            keep,
            now,
            level,
            expires,
        )
        return int(self.report[operations.EVICTED])

    def lose(self, nodes: NDArray[np.int32], first: int) -> None:
        """Have nodes from ``first`` on found no more, and dropped when nobody holds them."""
        self.out.nodes[: len(nodes)] = nodes
        self._call(operations.LOSE, length=len(nodes), whole=first)

    def pin(self, node: int, most: int) -> bool:
        """Hold a node, pinned with its ancestors; False if more than ``most`` blocks were then."""
        return self._call(operations.PIN, base=node, whole=most) == operations.OK

    def unpin(self, nodes: NDArray[np.int32]) -> int:
        """End a pin of a chain; return how many blocks left, as nobody had computed them."""
        self.out.nodes[: len(nodes)] = nodes
        self._call(operations.UNPIN, length=len(nodes))
        return int(self.report[operations.EVICTED])

    def unhold(self, nodes: NDArray[np.int32]) -> None:
        """End one hold of a chain, no use counted."""
        self.out.nodes[: len(nodes)] = nodes
        self._call(operations.UNHOLD, length=len(nodes))

    def drop(self, node: int, now: float) -> int:
        """Drop a node, whatever the policy says, unless it is held or has a child.

        Returns how many left: 1, or 0.
        """
        self.share(node)
        self.out.nodes[0] = node
        self._call(operations.FAIL, length=1, whole=0, now=now)
        return int(self.report[operations.EVICTED])

    def forget(
        self, keys: NDArray[np.int64], space: NDArray[np.int64], base: int, most: int
    ) -> None:
        """Have the policy forget what numbers stand for that another tier reuses for a chain."""
        self._call(operations.FORGET, keys, space, base, len(keys), most)

    def share(self, node: int) -> None:
        """Hold a held node once more."""
        self._call(operations.SHARE, base=node)

    def time(self, now: float) -> float:
        """Return a moment of the cache's clock as this partition counts it."""
        return now + self.shift_s

    @property
    def resident(self) -> int:
        """Blocks that hold a node."""
        return int(self.live.counts[RESIDENT])

    @property
    def locked(self) -> int:
        """Of those, blocks that cannot leave."""
        return int(self.live.counts[LOCKED])

    @property
    def pinned(self) -> int:
        """Of those, blocks that pins hold."""
        return int(self.live.counts[PINNED])

    @property
    def used(self) -> int:
        """Physical blocks, with those that hold no node."""
        return int(self.live.counts[USED])

    @property
    def next_rank(self) -> int:
        """The rank that the next touch gets, or more."""
        return int(self.live.counts[RANK])
