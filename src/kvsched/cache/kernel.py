"""The live kernel: one function that asks a policy's hooks, for every change to what is cached.

The same hooks in the same order as in `kvsched.replay.loop`; what is added is time between a
request's begin and its end. One function, so that each hook is compiled into it once or twice.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvsched.cache.eviction import (
    choose,
    close_node,
    is_free_leaf,
    is_open,
    let_go,
    open_above,
    open_node,
    remove,
    why_leaves,
)
from kvsched.cache.holding import lock, pin, unlock, unpin
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
from kvsched.cache.operations import (
    ACQUIRE,
    BAD_VICTIM,
    DEEPEST,
    EVICT,
    EVICTED,
    EXPIRE,
    FAIL,
    FORGET,
    GROW,
    HITS,
    LOSE,
    NO_ROOM,
    OK,
    PIN,
    PROBE,
    RELEASE,
    ROOM,
    SEEN,
    STORED_BLOCKS,
    TAKE,
    TAKEN,
    UNPIN,
    WAITS,
)
from kvsched.cache.state import (
    BLANK,
    CLOSED,
    COMPUTING,
    FLAT,
    FREE,
    FRESH,
    LIMIT,
    LOCKED,
    LOST,
    NAMES,
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
from kvsched.kernel.hooks import begin, forget, on_hit, on_insert, on_release, resume
from kvsched.kernel.linked import BEHIND
from kvsched.kernel.table import NONE


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
        unlock(live, int(out.nodes[length - 1]))
        gone = let_go(live, state, pool, out, keep, length)
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
            unlock(live, parent)


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
        close_node(live, state, node)
    lock(live, node)


def _unhold(live: Live, state: Any, pool: Pool, out: Out, how: int, length: int) -> None:
    deepest = int(out.nodes[length - 1])
    if how == UNPIN:
        unpin(live, deepest)
    unlock(live, deepest)
    out.report[EVICTED] = let_go(live, state, pool, out, length, length)


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
            leaving = choose(live, state, incoming, rank - at, now_us, how == EXPIRE)
            if leaving == NONE:
                break
            if not is_open(live, leaving):
                code = BAD_VICTIM
                break
            remove(live, state, pool, out, leaving, evicted, why_leaves(live, leaving, now_us))
            open_above(live, state, leaving)
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
        close_node(live, state, deepest)
    if hits > 0 and base != NONE:
        unlock(live, base)


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
    """Do one of the `operations`; return OK, NO_ROOM or BAD_VICTIM.

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
        elif how == PIN and not pin(live, base, whole):
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
        lock(live, deepest)
    need = extra + (0 if how == GROW else length - hits)
    fits = _fits(live, pool, out, need + whole)
    if how == PROBE or (whole >= 0 and how <= TAKE and not fits):
        if hits > 0:
            unlock(live, deepest)
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
        unlock(live, base)
        if is_free_leaf(live, base):
            open_node(live, state, base)
    return code
