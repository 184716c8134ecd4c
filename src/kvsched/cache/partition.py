"""One partition of a cache: its columns, its policy, and the kernel compiled for both."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvsched.cache import kernel
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
        numbers = capacity + history
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
        self.columns.forget_policy()
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
        """Prepare a policy's state, of no node yet, and the kernel with its hooks."""
        self.policy = policy
        self.form = policy.live_form()
        self.setup = Setup(
            len(self.live.table.parent), self.capacity, self.block_size, None, self.columns
        )
        self.state: Any = self.form.prepare(self.setup)
        self.columns.met_by(self.form, self.state)
        words = self.names.keys.shape[1]
        keys = np.zeros((1, words), np.int64)
        arguments = (*self._places(), keys, NO_SPACE, 0, NONE, 0, 0, 0, 0.0, 0, 0, 0, 0)
        self._operate: Callable[..., int] = entry_point(
            _bind(operate, type(self.form), self.compiled), arguments
        )
        self.no_keys = np.zeros((0, words), np.int64)

    def _places(self) -> tuple[Live, Any, Pool, Out]:
        return self.live, self.state, self.pool, self.out

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
        code = self._operate(
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
        if code == kernel.BAD_VICTIM:
            raise self._bad_victim()
        return code

    def _bad_victim(self) -> UsageError:
        return UsageError(
            f"policy {self.policy.label}: its victim is no evictable node: return a resident "
            "leaf that nobody holds, or NONE"
        )

    def probe(
        self,
        keys: NDArray[np.int64],
        space: NDArray[np.int64],
        extra: int,
        spare: int = 0,
        base: int = NONE,
    ) -> tuple[int, int, int]:
        """Return what `acquire` would hit, how many blocks it needs, and for how many is room."""
        self._call(kernel.PROBE, keys, space, base, len(keys), extra, spare)
        hits = int(self.report[kernel.HITS])
        return hits, len(keys) - hits + extra, int(self.report[kernel.ROOM])

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
            self.live, self.state, self.pool, self.out, keys, space, kernel.ACQUIRE, base,
            len(keys), extra, spare, now + self.shift_s, 0, NEVER, last_tokens, self.block_size,
        )  # fmt: skip
        if code == kernel.BAD_VICTIM:
            self._undo()
            raise self._bad_victim()
        return code == kernel.OK

    def _undo(self) -> None:
        """Give back what a call stored and took before its policy failed; say again what left."""
        out = self.out
        hits, stored, taken, left = (int(self.report[at]) for at in range(4))
        nodes = hits + stored
        private = out.blocks[nodes : hits + taken].copy()
        gone = [array[:left].copy() for array in (out.gone, out.gone_blocks, out.gone_why)]
        self.release(out.nodes[:nodes].copy(), private, hits, 0.0)
        out.gone[:left], out.gone_blocks[:left], out.gone_why[:left] = gone
        self.report[kernel.EVICTED] = left

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
            kernel.GROW, keys, space, base, len(keys), 0, 0, now, last_tokens=self.block_size
        )
        return int(self.report[kernel.HITS])

    def take(self, blocks: int, spare: int, now: float) -> NDArray[np.int32] | None:
        """Return physical blocks that hold no node, or None if there is no room."""
        try:
            if self._call(kernel.TAKE, extra=blocks, whole=spare, now=now) != kernel.OK:
                return None
        except UsageError:
            self._undo()
            raise
        return self.out.blocks[:blocks].copy()

    def evict(self, blocks: int, now: float) -> int:
        """Let as many as ``blocks`` leave, into the pool; return how many did."""
        self._call(kernel.EVICT, extra=blocks, now=now)
        return int(self.report[kernel.EVICTED])

    def expire(self, now: float) -> int:
        """Let what has outlived its lifetime leave; return how many did."""
        self._call(kernel.EXPIRE, now=now)
        return int(self.report[kernel.EVICTED])

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
            self.live, self.state, self.pool, out, self.no_keys, NO_SPACE, kernel.RELEASE, NONE,
            length, extra, keep, now + self.shift_s, level, expires, 0, self.block_size,
        )  # fmt: skip
        return int(self.report[kernel.EVICTED])

    def lose(self, nodes: NDArray[np.int32], first: int) -> None:
        """Have nodes from ``first`` on found no more, and dropped when nobody holds them."""
        self.out.nodes[: len(nodes)] = nodes
        self._call(kernel.LOSE, length=len(nodes), whole=first)

    def pin(self, node: int, most: int) -> bool:
        """Hold a node, pinned with its ancestors; False if more than ``most`` blocks were then."""
        return self._call(kernel.PIN, base=node, whole=most) == kernel.OK

    def unpin(self, nodes: NDArray[np.int32]) -> int:
        """End a pin of a chain; return how many blocks left, as nobody had computed them."""
        self.out.nodes[: len(nodes)] = nodes
        self._call(kernel.UNPIN, length=len(nodes))
        return int(self.report[kernel.EVICTED])

    def unhold(self, nodes: NDArray[np.int32]) -> None:
        """End one hold of a chain, no use counted."""
        self.out.nodes[: len(nodes)] = nodes
        self._call(kernel.UNHOLD, length=len(nodes))

    def drop(self, node: int, now: float) -> int:
        """Drop one evictable node, whatever the policy says; return 1, as it left."""
        self.share(node)
        self.out.nodes[0] = node
        self._call(kernel.RELEASE, length=1, whole=0, now=now)
        return int(self.report[kernel.EVICTED])

    def forget(self, numbers: int) -> None:
        """Have the policy forget the numbers that are reused next."""
        self._call(kernel.FORGET, extra=numbers)

    def share(self, node: int) -> None:
        """Hold a held node once more."""
        self._call(kernel.SHARE, base=node)

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
