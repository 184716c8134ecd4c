"""The live kernel: one function that asks a policy's hooks, for every change to what is cached.

The same hooks in the same order as in `kvsched.replay.loop`; what is added is time between a
request's begin and its end. One function, so that each hook is compiled into it once or twice.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvsched.cache.names import (
    find,
    hide,
    is_idle,
    known,
    lay_paths,
    look_ahead,
    name,
    rest,
    unname,
    wake,
)
from kvsched.cache.state import (
    BLANK,
    CLOSED,
    COMPUTING,
    FLAT,
    FREE,
    FRESH,
    IN_LEVELS,
    IN_POLICY,
    LIMIT,
    LOCKED,
    LOST,
    NAMES,
    NEVER,
    PINNED,
    RANK,
    READY,
    RESIDENT,
    STORED,
    UNSET,
    USED,
    Live,
    Out,
    Pool,
)
from kvsched.kernel.heap import SIZE, heap_peek, heap_push, heap_remove
from kvsched.kernel.hooks import (
    begin,
    enter,
    forget,
    leave,
    on_drop,
    on_evict,
    on_hit,
    on_insert,
    on_release,
    resume,
    victim,
)
from kvsched.kernel.linked import BEHIND
from kvsched.kernel.table import NONE

ACQUIRE = 0
"""Look a chain up, hold it, and store what is missing."""
GROW = 1
"""The same below a node that the request holds, with blocks that it has filled."""
TAKE = 2
"""Take physical blocks that hold no node."""
EVICT = 3
"""Let so many blocks leave."""
EXPIRE = 4
"""Let what has outlived its lifetime leave."""
PROBE = 5
"""Look a chain up, and say what ACQUIRE would find; nothing changes."""
RELEASE = 6
"""End a request's hold; what it did not compute is dropped."""
UNHOLD = 7
"""End a hold of a chain that was not used further."""
UNPIN = 8
"""End a hold that PIN began."""
SHARE = 9
"""Hold a node once more."""
PIN = 10
"""Hold a node, and count it and its ancestors as pinned, if no more than so many are then."""
FORGET = 11
"""Let the policy forget the numbers that another tier is about to reuse for a chain."""
LOSE = 12
"""Nodes of a chain are found no more, and are dropped when nobody holds them."""
FAIL = 13
"""The same as RELEASE, and says of no block that it was computed."""

OK = 0
NO_ROOM = 1
"""It does not fit now; nothing has changed."""
BAD_VICTIM = 2
"""The policy named a node that cannot leave; what was stored so far is held."""

BY_POLICY = 0
BY_LIFETIME = 1
BY_LEVEL = 2
UNCOMPUTED = 3

HITS = 0
STORED_BLOCKS = 1
TAKEN = 2
EVICTED = 3
DEEPEST = 4
WAITS = 5
ROOM = 6
SEEN = 7
"""Places in ``report``: nodes hit and stored, blocks taken, nodes that left, the deepest node held,
the first hit that nobody has said is computed (or the hits), blocks that there was room for, and
nothing that means anything."""


def _lock(live: Live, node: int) -> None:
    """Hold a node, and so its ancestors. O(those that were not held)."""
    while node != NONE:
        live.locks[node] += 1
        if live.locks[node] > 1:
            return
        live.counts[LOCKED] += 1
        if live.counts[FLAT] != 0:
            return
        node = int(live.table.parent[node])


def _unlock(live: Live, node: int) -> None:
    while node != NONE:
        live.locks[node] -= 1
        if live.locks[node] > 0:
            return
        live.counts[LOCKED] -= 1
        if live.counts[FLAT] != 0:
            return
        node = int(live.table.parent[node])


def _pin(live: Live, node: int, most: int) -> bool:
    """Count a node and its ancestors as pinned, unless more than ``most`` blocks were then."""
    new = 0
    at = node
    while at != NONE and live.pins[at] == 0:
        new += 1
        at = int(live.table.parent[at])
    if live.counts[PINNED] + new > most:
        return False
    live.counts[PINNED] += new
    at = node
    while at != NONE:
        live.pins[at] += 1
        if live.pins[at] > 1:
            break
        at = int(live.table.parent[at])
    return True


def _unpin(live: Live, node: int) -> None:
    while node != NONE:
        live.pins[node] -= 1
        if live.pins[node] > 0:
            return
        live.counts[PINNED] -= 1
        node = int(live.table.parent[node])


def _open(live: Live, state: Any, node: int) -> None:
    """A resident node has become evictable."""
    if live.expires[node] != NEVER:
        heap_push(live.due, node, live.expires[node], live.rank[node])
    if live.level[node] == 0:
        live.where[node] = IN_POLICY
        enter(live.table, state, node)
    else:
        live.where[node] = IN_LEVELS
        heap_push(live.levels, node, live.level[node], live.rank[node])


def _close(live: Live, state: Any, node: int) -> None:
    """An evictable node is held, gets a child, or leaves by no choice of the policy."""
    if live.due.counts[SIZE] > 0 and live.due.place[node] != NONE:
        heap_remove(live.due, node)
    if live.where[node] == IN_POLICY:
        leave(live.table, state, node)
    else:
        heap_remove(live.levels, node)
    live.where[node] = CLOSED


def _choose(live: Live, state: Any, incoming: int, rank: int, now_us: int, expired: bool) -> int:
    """Return who leaves next, or NONE: what has expired, low levels, the policy's, high levels."""
    node = heap_peek(live.due)
    if node != NONE and live.expires[node] <= now_us:
        return int(node)
    if expired:
        return NONE
    first = heap_peek(live.levels)
    if first != NONE and live.level[first] < 0:
        return int(first)
    node = victim(live.table, state, incoming, rank)
    return int(first) if node == NONE else int(node)


def _is_open(live: Live, node: int) -> bool:
    return bool(0 <= node < len(live.where) and live.where[node] != CLOSED)


def _why(live: Live, node: int, now_us: int) -> int:
    if live.expires[node] <= now_us:
        return BY_LIFETIME
    return BY_LEVEL if live.where[node] == IN_LEVELS else BY_POLICY


def _remove(live: Live, state: Any, pool: Pool, out: Out, node: int, gone: int, why: int) -> None:
    """Take a node out of the cache: an evictable one, or one that was never opened."""
    if why == BY_POLICY:
        if live.due.counts[SIZE] > 0 and live.due.place[node] != NONE:
            heap_remove(live.due, node)
        live.where[node] = CLOSED
        on_evict(live.table, state, node)
    else:
        if live.where[node] != CLOSED:
            _close(live, state, node)
        on_drop(live.table, state, node)
    out.gone[gone] = node
    out.gone_blocks[gone] = live.block[node]
    out.gone_why[gone] = why
    pool.free[pool.counts[FREE]] = live.block[node]
    pool.counts[FREE] += 1
    live.table.resident[node] = 0
    live.block[node] = NONE
    live.rank[node] = live.counts[RANK]
    live.level[node] = 0
    live.expires[node] = UNSET
    live.counts[RESIDENT] -= 1
    live.counts[USED] -= 1
    parent = int(live.table.parent[node])
    if parent != NONE:
        live.table.children[parent] -= 1
    if is_idle(live, node):
        rest(live, node)


def _is_free_leaf(live: Live, node: int) -> bool:
    table = live.table
    return bool(table.children[node] == 0 and live.locks[node] == 0 and table.resident[node] != 0)


def _open_above(live: Live, state: Any, node: int) -> None:
    """The parent of a node that left may be evictable now."""
    parent = int(live.table.parent[node])
    if parent != NONE and _is_free_leaf(live, parent):
        _open(live, state, parent)


def _let_go(live: Live, state: Any, pool: Pool, out: Out, keep: int, length: int) -> int:
    """Open the end of a chain that was released, or drop it from its end up. Returns how many."""
    gone = 0
    at = length
    while at > 0:
        node = int(out.nodes[at - 1])
        if not _is_free_leaf(live, node):
            break
        if at <= keep and live.ready[node] != LOST:
            _open(live, state, node)
            break
        _remove(live, state, pool, out, node, gone, UNCOMPUTED)
        gone += 1
        at -= 1
    if gone > 0 and at == 0:
        _open_above(live, state, int(out.nodes[0]))
    return gone


def _release(
    live: Live,
    state: Any,
    pool: Pool,
    out: Out,
    length: int,
    keep: int,
    extra: int,
    now: float,
    level: int,
    expires: int,
    vouched: bool,
) -> None:
    table = live.table
    last = int(live.counts[RANK]) + length - 1
    live.counts[RANK] += length
    if length > 0:
        resume(table, state, 0, now, last)
    for at in range(min(keep, length)):
        node = int(out.nodes[at])
        rank = last - at
        on_release(table, state, node, rank)
        live.rank[node] = rank
        live.used_s[node] = now
        live.uses[node] += 1
        if live.expires[node] == UNSET:
            live.level[node] = level
        live.level[node] = max(int(live.level[node]), level)
        live.expires[node] = max(int(live.expires[node]), expires)
        if vouched and live.ready[node] == COMPUTING:
            live.ready[node] = READY
    for at in range(extra):
        pool.free[pool.counts[FREE]] = out.blocks[at]
        pool.counts[FREE] += 1
    live.counts[USED] -= extra
    gone = 0
    if length > 0:
        _unlock(live, int(out.nodes[length - 1]))
        gone = _let_go(live, state, pool, out, keep, length)
    out.report[EVICTED] = gone


def _walk(
    live: Live,
    out: Out,
    base: int,
    keys: NDArray[np.int64],
    space: NDArray[np.int64],
    length: int,
) -> int:
    """Write the longest resident prefix of a chain below ``base``; return its length."""
    deepest = base
    waits = -1
    at = 0
    while at < length:
        node = find(live, deepest, keys, at, space, int(out.paths[at]))
        if node == NONE or live.table.resident[node] == 0:
            break
        out.nodes[at] = node
        out.report[DEEPEST] = node
        if waits < 0 and live.ready[node] != READY:
            waits = at
        deepest = node
        at += 1
    out.report[HITS] = at
    out.report[WAITS] = at if waits < 0 else waits
    return at


def _fits(live: Live, pool: Pool, out: Out, need: int) -> bool:
    """Whether ``need`` blocks can be had, by letting all leave that is not held. O(1)."""
    counts = live.counts
    free = min(int(pool.counts[FREE]), int(counts[LIMIT] - counts[USED]))
    out.report[ROOM] = max(free, 0) + counts[RESIDENT] - counts[LOCKED]
    return bool(need <= out.report[ROOM])


def _settle(live: Live, node: int, parent: int, block: int) -> None:
    """Make a node resident and held; the hold on its parent moves to it."""
    live.table.resident[node] = 1
    live.block[node] = block
    live.ready[node] = COMPUTING
    live.uses[node] = 0
    live.stored[node] = live.counts[STORED]
    live.counts[STORED] += 1
    live.counts[RESIDENT] += 1
    live.locks[node] = 1
    live.counts[LOCKED] += 1
    if parent != NONE:
        live.table.children[parent] += 1
        # Else the hold on the parent is from now on its child's.
        if live.counts[FLAT] != 0:
            _unlock(live, parent)


def _forget(live: Live, state: Any, numbers: int) -> None:
    """Forget what the next ``numbers`` numbers stand for; they name nothing from now on."""
    names = live.names
    idle = names.idle
    numbers -= int(names.counts[NAMES] - names.counts[FRESH])
    node = int(idle[len(idle) - 1, BEHIND])
    while numbers > 0 and node != len(idle) - 1:
        forget(live.table, state, node)
        if names.kin[node] != BLANK:
            unname(live, node)
        node = int(idle[node, BEHIND])
        numbers -= 1


def _lose(live: Live, out: Out, first: int, length: int) -> None:
    for at in range(first, length):
        hide(live, int(out.nodes[at]))
        live.ready[out.nodes[at]] = LOST


def _share(live: Live, state: Any, node: int) -> None:
    if live.where[node] != CLOSED:
        _close(live, state, node)
    _lock(live, node)


def _unhold(live: Live, state: Any, pool: Pool, out: Out, how: int, length: int) -> None:
    deepest = int(out.nodes[length - 1])
    if how == UNPIN:
        _unpin(live, deepest)
    _unlock(live, deepest)
    out.report[EVICTED] = _let_go(live, state, pool, out, length, length)


def _store(
    live: Live,
    state: Any,
    pool: Pool,
    out: Out,
    keys: NDArray[np.int64],
    space: NDArray[np.int64],
    how: int,
    deepest: int,
    hits: int,
    length: int,
    extra: int,
    rank: int,
    now_us: int,
    last_tokens: int,
    block_size: int,
) -> int:
    """Store what is missing below ``deepest`` and take ``extra`` blocks, others leaving for them.

    Fills ``report``. One place for every hook that it calls: each is compiled into it.
    """
    table, counts = live.table, live.counts
    evicted, taken, at, node, code = 0, 0, hits, NONE, OK
    is_new = False
    while at < length + extra or how == EXPIRE:
        is_node = at < length
        if is_node and node == NONE:
            # Below a number that was given just now nothing is known.
            if not is_new:
                node = find(live, deepest, keys, at, space, int(out.paths[at]))
            is_new = node == NONE
            if is_new:
                tokens = last_tokens if at == length - 1 else block_size
                path = int(out.paths[at])
                node = name(live, state, deepest, keys, at, space, path, tokens, block_size)
        full = pool.counts[FREE] == 0 or counts[USED] >= counts[LIMIT]
        short = full and how != GROW and how < EVICT
        if short or (how == EVICT and evicted < extra) or how == EXPIRE:
            incoming = node if is_node else len(table.parent) - 1
            leaving = _choose(live, state, incoming, rank - at, now_us, how == EXPIRE)
            if leaving == NONE:
                break
            if not _is_open(live, leaving):
                code = BAD_VICTIM
                break
            _remove(live, state, pool, out, leaving, evicted, _why(live, leaving, now_us))
            _open_above(live, state, leaving)
            evicted += 1
            continue
        if how == EVICT:
            break
        if how != GROW:
            pool.counts[FREE] -= 1
            out.blocks[at] = pool.free[pool.counts[FREE]]
            counts[USED] += 1
            taken += 1
        if is_node:
            if not is_new and is_idle(live, node):
                wake(live, node)
            _settle(live, node, deepest, int(out.blocks[at]))
            out.nodes[at] = node
            on_insert(table, state, node, rank - at)
            deepest = node
            node = NONE
        at += 1
    if node != NONE and is_new:
        rest(live, node)
    out.report[STORED_BLOCKS] = min(at, length) - hits
    out.report[TAKEN] = taken
    out.report[EVICTED] = evicted
    out.report[DEEPEST] = deepest
    return code


def _hit(
    live: Live,
    state: Any,
    out: Out,
    how: int,
    base: int,
    deepest: int,
    hits: int,
    was_open: bool,
    rank: int,
    now: float,
) -> None:
    """Tell the policy of a request and of what it found."""
    table = live.table
    if how == ACQUIRE:
        begin(table, state, 0, now, rank)
    elif how == GROW:
        resume(table, state, 0, now, rank)
    for at in range(hits):
        on_hit(table, state, int(out.nodes[at]), rank - at)
        if how != GROW:
            out.blocks[at] = live.block[out.nodes[at]]
    if was_open:
        _close(live, state, deepest)
    if hits > 0 and base != NONE:
        _unlock(live, base)


def operate(
    live: Live,
    state: Any,
    pool: Pool,
    out: Out,
    keys: NDArray[np.int64],
    space: NDArray[np.int64],
    how: int,
    base: int,
    length: int,
    extra: int,
    whole: int,
    now: float,
    level: int,
    expires: int,
    last_tokens: int,
    block_size: int,
) -> int:
    """Do one of the operations above; return OK, NO_ROOM or BAD_VICTIM.

    ACQUIRE, GROW: ``keys`` (L, W) below ``base``, which for GROW the request holds, then ``extra``
    blocks without a node; all or nothing if ``whole`` ≥ 0, which is how many blocks more must stay
    to be had, else as much as fits. For GROW ``out.blocks`` has the blocks. RELEASE: ``out.nodes``
    the chain, of which ``whole`` were computed, and ``out.blocks`` the ``extra`` blocks that hold
    no node. O(length + blocks that leave) calls of hooks.
    """
    if how >= RELEASE:
        if how in (RELEASE, FAIL):
            _release(
                live, state, pool, out, length, whole, extra, now, level, expires, how == RELEASE
            )
        elif how <= UNPIN:
            _unhold(live, state, pool, out, how, length)
        elif how == FORGET:
            new = length - known(live, base, keys, space, length)
            _forget(live, state, min(new, extra))
        elif how == LOSE:
            _lose(live, out, whole, length)
        elif how == PIN and not _pin(live, base, whole):
            return NO_ROOM
        else:
            _share(live, state, base)
        return OK
    out.report[DEEPEST] = base
    out.report[SEEN] = lay_paths(live, out, base, keys, space, length)
    hits = _walk(live, out, base, keys, space, length)
    deepest = int(out.report[DEEPEST])
    if how == ACQUIRE and base != NONE:
        _share(live, state, base)
    was_open = hits > 0 and live.where[deepest] != CLOSED
    if hits > 0:
        _lock(live, deepest)
    need = extra + (0 if how == GROW else length - hits)
    fits = _fits(live, pool, out, need + whole)
    if how == PROBE or (whole >= 0 and how <= TAKE and not fits):
        if hits > 0:
            _unlock(live, deepest)
        return OK if fits else NO_ROOM
    out.report[SEEN] = look_ahead(live, length - hits)
    rank = int(live.counts[RANK]) + length - 1
    live.counts[RANK] += max(length, 1)
    _hit(live, state, out, how, base, deepest, hits, was_open, rank, now)
    code = _store(
        live, state, pool, out, keys, space, how, deepest, hits, length, extra, rank,
        int(now * 1e6), last_tokens, block_size,
    )  # fmt: skip
    if how == ACQUIRE and base != NONE and out.report[DEEPEST] == base:
        _unlock(live, base)
        if _is_free_leaf(live, base):
            _open(live, state, base)
    return code
