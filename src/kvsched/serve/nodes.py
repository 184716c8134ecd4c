"""Memory where any policy of the registry decides who leaves: the cached blocks are nodes.

The same five names as in `blocks`, over a policy's hooks (`kvsched.kernel.hooks`), which are called
as a live cache calls them. A duplicate is one node, touched again. Blocks that are not full, or
are never cached, are private: they take room while their request runs. With one request at a time
it decides what the sequential replay under vLLM's rules decides.
"""

from __future__ import annotations

from kvsched.kernel.hooks import (
    begin,
    enter,
    leave,
    on_evict,
    on_hit,
    on_insert,
    on_release,
    resume,
    victim,
)
from kvsched.kernel.table import NONE
from kvsched.serve.blocks import blocks_of, idle_needs_no_watermark, most_hits
from kvsched.serve.hooks import stored_blocks
from kvsched.serve.state import (
    CURRENT,
    EVICTIONS,
    FAULT,
    FREE_BLOCKS,
    PRIVATE,
    RANK,
    RESIDENT,
    RUNNING_COUNT,
    Rules,
    State,
)


def _known(state: State, request: int, most: int) -> int:
    """Return how many nodes from the root are resident, ``most`` at most. O(those)."""
    low = state.work.starts[request]
    resident = state.table.resident
    at = 0
    while at < most and resident[state.work.chains[low + at]] != 0:
        at += 1
    return at


def hit_blocks(state: State, request: int, size: int) -> int:
    """Return how many blocks from the root a waiting request would hit now. O(hits)."""
    return _known(state, request, most_hits(state, request, size))


def lacks_room(state: State, rules: Rules, request: int, hits: int, reach: int) -> bool:
    """Whether a waiting request finds no blocks for ``reach`` tokens. O(known blocks).

    What it will compute again is there already, and takes no block of its own.
    """
    low = state.work.starts[request]
    free = int(state.counts[FREE_BLOCKS])
    if state.counts[RUNNING_COUNT] > 0 or not idle_needs_no_watermark:
        free -= rules.watermark_blocks
    known = max(hits, _known(state, request, int(state.work.kept[request])))
    for at in range(known):
        if state.references[state.work.chains[low + at]] == 0:
            free -= 1
    return max(blocks_of(reach, rules.block_size) - known, 0) > free


def _ranks(state: State, request: int, place: int) -> int:
    """Reserve ranks for what is left of a chain; return that of ``place``. O(1)."""
    work = state.work
    left = int(work.starts[request + 1] - work.starts[request]) - place
    last = int(state.counts[RANK]) + left - 1
    state.counts[RANK] += left
    state.progress.rank[request] = last + place
    state.counts[CURRENT] = request
    return last


def _go_on(state: State, request: int, place: int) -> None:
    """Tell the policy that a request goes on, unless nobody else came between."""
    if state.counts[CURRENT] != request:
        last = _ranks(state, request, place)
        resume(state.table, state.policy, request, float(state.clock[0]), last)


def _hold(state: State, node: int) -> None:
    if state.references[node] == 0:
        state.counts[FREE_BLOCKS] -= 1
    state.references[node] += 1


def _is_open(state: State, node: int) -> bool:
    """Whether a resident node is evictable."""
    return bool(state.references[node] == 0 and state.table.children[node] == 0)


def hold_hits(state: State, request: int, hits: int) -> None:
    """Begin a request that is admitted, and hold all of its chain that is resident. O(those).

    ``hits`` of them are hit; the others are computed again, and are not stored twice.
    """
    low = state.work.starts[request]
    known = max(hits, _known(state, request, int(state.work.kept[request])))
    last = _ranks(state, request, 0)
    begin(state.table, state.policy, request, float(state.clock[0]), last)
    for at in range(known):
        on_hit(state.table, state.policy, int(state.work.chains[low + at]), last - at)
    if known > 0 and _is_open(state, int(state.work.chains[low + known - 1])):
        leave(state.table, state.policy, int(state.work.chains[low + known - 1]))
    for at in range(known):
        _hold(state, int(state.work.chains[low + at]))
    state.progress.blocks[request] = known
    state.progress.hashed[request] = known


def _evict(state: State, incoming: int, rank: int) -> bool:
    """Let the policy's victim leave; False where it names no evictable node."""
    table = state.table
    node = int(victim(table, state.policy, incoming, rank))
    if node < 0 or node >= len(table.resident):
        return False
    if table.resident[node] == 0 or not _is_open(state, node):
        return False
    on_evict(table, state.policy, node)
    table.resident[node] = 0
    state.counts[RESIDENT] -= 1
    state.counts[EVICTIONS] += 1
    parent = int(table.parent[node])
    if parent != NONE:
        table.children[parent] -= 1
        if _is_open(state, parent):
            enter(table, state.policy, parent)
    return True


def _take(state: State, request: int) -> None:
    """Take a private block for a request's next place."""
    counts = state.counts
    place = int(state.progress.blocks[request])
    if counts[RESIDENT] + counts[PRIVATE] >= state.capacity[0]:
        _go_on(state, request, place)
        incoming = int(state.work.chains[state.work.starts[request] + place])
        if not _evict(state, incoming, int(state.progress.rank[request]) - place):
            counts[FAULT] = request + 1
    counts[PRIVATE] += 1
    counts[FREE_BLOCKS] -= 1
    state.progress.blocks[request] += 1


def _fill(state: State, request: int) -> None:
    """A private block is full: it becomes its node, or is that of another who stored it first."""
    counts = state.counts
    table = state.table
    place = int(state.progress.hashed[request])
    node = int(state.work.chains[state.work.starts[request] + place])
    _go_on(state, request, place)
    rank = int(state.progress.rank[request]) - place
    counts[PRIVATE] -= 1
    counts[FREE_BLOCKS] += 1
    if table.resident[node] != 0:
        on_hit(table, state.policy, node, rank)
        if _is_open(state, node):
            leave(table, state.policy, node)
    else:
        table.resident[node] = 1
        counts[RESIDENT] += 1
        if table.parent[node] != NONE:
            table.children[table.parent[node]] += 1
        on_insert(table, state.policy, node, rank)
    _hold(state, node)
    state.progress.hashed[request] += 1


def extend(state: State, request: int, reach: int, size: int) -> None:
    """Give a request blocks for ``reach`` tokens; those that are full are stored. O(blocks)."""
    progress = state.progress
    if reach <= int(progress.blocks[request]) * size and (
        reach < (int(progress.hashed[request]) + 1) * size
    ):
        return
    need = blocks_of(reach, size)
    full = min(int(reach // size), stored_blocks(state, request))
    while progress.blocks[request] < need or progress.hashed[request] < full:
        if progress.hashed[request] < min(int(progress.blocks[request]), full):
            _fill(state, request)
        else:
            _take(state, request)


def free_blocks(state: State, request: int) -> None:
    """Let go of all that a request holds; what is stored stays. O(its blocks)."""
    counts = state.counts
    progress = state.progress
    table = state.table
    low = state.work.starts[request]
    length = int(progress.hashed[request])
    private = int(progress.blocks[request]) - length
    counts[PRIVATE] -= private
    counts[FREE_BLOCKS] += private
    last = int(counts[RANK]) + length - 1
    counts[RANK] += length
    if length > 0:
        resume(table, state.policy, request, float(state.clock[0]), last)
    counts[CURRENT] = NONE
    for at in range(length):
        on_release(table, state.policy, int(state.work.chains[low + at]), last - at)
    for at in range(length):
        node = int(state.work.chains[low + at])
        state.references[node] -= 1
        if state.references[node] == 0:
            counts[FREE_BLOCKS] += 1
    if length > 0 and _is_open(state, int(state.work.chains[low + length - 1])):
        enter(table, state.policy, int(state.work.chains[low + length - 1]))
    progress.blocks[request] = 0
    progress.hashed[request] = 0


MEMORY = {
    "hit_blocks": hit_blocks,
    "lacks_room": lacks_room,
    "hold_hits": hold_hits,
    "extend": extend,
    "free_blocks": free_blocks,
}
"""What the loop is bound to in place of the block pool."""
