"""A trace through a live cache, one request after another: what the replay does, the live way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvsched.cache.columns import MOST_NAMES
from kvsched.cache.request import Request
from kvsched.cache.scheduler import KVCacheScheduler
from kvsched.foundation.errors import UsageError
from kvsched.policy.base import Policy
from kvsched.policy.registry import make
from kvsched.trace.model import NO_PARENT, Labels, Trace

_LABELS = ("tenant", "session", "type", "model")
_NUMBERS = ("turn", "priority", "deadline_s", "delay_s")


class Driven(NamedTuple):
    """What happened, by request."""

    hits: NDArray[np.int32]
    """(R,) blocks hit, in either tier."""
    stored: NDArray[np.int32]
    """(R,) blocks stored."""
    evicted: NDArray[np.int32]
    """(R,) blocks that left the first tier."""
    rejected: NDArray[np.bool_]
    """(R,) whether the request did not run."""


def columns_of(trace: Trace) -> list[str]:
    """Return the request columns that a trace has beside those that all have; O(1).

    ``turn`` is among them where there are sessions, by which both caches count it.
    """
    found = [name for name in (*_LABELS, *_NUMBERS) if getattr(trace, name) is not None]
    if trace.session is not None and trace.turn is None:
        found.append("turn")
    return found


def cache_for(
    trace: Trace, policy: str | Policy | type[Policy], capacity_blocks: int
) -> KVCacheScheduler:
    """Return a live cache that decides on ``trace`` as `kvsched.replay` does, driven by `drive`.

    It remembers every block that left, has the trace's own columns and knows its names, keeps
    tenants together, stores of a chain that is too long the head that fits, and leaves priorities
    to the policy. Raises UsageError for a trace of unequal blocks, as a live cache's are pages of
    one size, or of a sample, which has holes; one with more names than a live cache tells apart;
    and a policy that cannot run live or needs a column that the trace lacks.
    """
    _check(trace)
    chosen = make(policy)
    chosen.check(trace)
    cache = KVCacheScheduler(
        capacity_blocks,
        trace.block_size,
        chosen,
        when_full="degrade",
        when_oversize="degrade",
        degrade="head",
        priority_retention=False,
        isolate_tenants=False,
        history_blocks=trace.nodes,
        request_fields=columns_of(trace),
        clock=float,
    )
    columns = cache.store.home_of("").partition.columns
    for name in _LABELS:
        labels: Labels | None = getattr(trace, name)
        if labels is None:
            continue
        if len(labels.names) > MOST_NAMES[name]:
            raise UsageError(
                f"{trace.origin.source} has {len(labels.names):,} names of {name}, and a live "
                f"cache tells {MOST_NAMES[name]:,} apart"
            )
        for each in labels.names:
            columns.meet(name, each)
    return cache


def _check(trace: Trace) -> None:
    source = trace.origin.source
    if trace.unequal:
        raise UsageError(f"{source}: its blocks are unequal, and a live cache's are of one size")
    if trace.references != trace.total_references:
        raise UsageError(f"{source}: a sample has holes in its chains: a live cache needs all")


def drive(trace: Trace, cache: KVCacheScheduler) -> Driven:
    """Acquire every request of ``trace`` and release it at once, at its time on the trace's clock.

    Keys are the trace's, with a salt where roots share one; columns become fields of the request. A
    last block's tokens count as the node's own; tokens that no node covers take no room. A deadline
    that has passed on arrival is left out. The cache's clock stands aside meanwhile. O(B), 25 µs a
    request. Raises UsageError for a trace with blocks of another size than the cache's.
    """
    _check(trace)
    if trace.block_size != cache.block_size:
        raise UsageError(
            f"{trace.origin.source} has blocks of {trace.block_size} tokens, and the cache of "
            f"{cache.block_size}"
        )
    count = len(trace)
    hits, stored, evicted = (np.zeros(count, np.int32) for _ in range(3))
    driven = Driven(hits, stored, evicted, np.zeros(count, np.bool_))
    times = trace.time_s.tolist()
    keys = trace.key[trace.chains]
    bounds = trace.starts.tolist()
    request_of = requests(trace)
    clock = cache.clock
    counters = cache.counters
    at = 0
    try:
        cache.clock = lambda: times[at]
        for at in range(count):  # the clock reads it
            before = counters.blocks_evicted
            request = request_of(at, keys[bounds[at] : bounds[at + 1]])
            lease = cache.acquire(request).lease
            driven.evicted[at] = counters.blocks_evicted - before
            if lease is None:
                driven.rejected[at] = True
                continue
            driven.hits[at] = lease.hit_blocks
            driven.stored[at] = lease.stored_blocks
            cache.release(lease)
    finally:
        cache.clock = clock
    return driven


def requests(trace: Trace) -> Callable[[int, NDArray[np.int64]], Request]:
    """Return what makes a request of a trace's number and its chain's keys."""
    size = trace.block_size
    blocks = trace.chain_blocks.tolist()
    last = np.zeros(len(trace), np.int64)
    some = trace.chain_blocks > 0
    last[some] = trace.tokens[trace.chains[trace.starts[1:][some] - 1]]
    # A block holds no more than its size, whatever the source says.
    last_tokens = np.clip(last, np.minimum(some, 1), size).tolist()
    inputs, outputs = trace.input_tokens.tolist(), trace.output_tokens.tolist()
    times = trace.time_s.tolist()
    columns = {name: _values(trace, name) for name in (*_LABELS, *_NUMBERS)}
    columns["cache_salt"] = _salts(trace)

    def make_request(at: int, keys: NDArray[np.int64]) -> Request:
        fields: dict[str, Any] = {name: column[at] for name, column in columns.items() if column}
        if fields.get("deadline_s") is not None and fields["deadline_s"] < times[at]:
            del fields["deadline_s"]
        if fields.get("tenant", "") is None:
            del fields["tenant"]
        return Request(
            hashes=keys,
            tokens=max(blocks[at] - 1, 0) * size + last_tokens[at],
            input_tokens=inputs[at],
            output_tokens=outputs[at],
            **fields,
        )

    return make_request


def _salts(trace: Trace) -> list[str | None]:
    """Return what keeps roots of one key apart, by request; empty where no two have one.

    Ids may be a session's own (Weka's are): its name is then the salt, the root's number where that
    does not tell them apart.
    """
    roots = np.flatnonzero(trace.parent == NO_PARENT)
    keys = trace.key[roots]
    if len(np.unique(keys)) == len(keys):
        return []
    some = np.flatnonzero(trace.chain_blocks > 0)
    root = trace.chains[trace.starts[:-1][some]]
    names = {int(each): str(each) for each in roots}
    if trace.session is not None:
        of_root = np.full(trace.nodes, -1, np.int32)
        of_root[root[::-1]] = trace.session.codes[some][::-1]
        found = of_root[roots]
        pairs = zip(found.tolist(), keys.tolist(), strict=True)
        if found.min() >= 0 and len(set(pairs)) == len(roots):
            names = {
                int(each): trace.session.names[code]
                for each, code in zip(roots, found.tolist(), strict=True)
            }
    salts: list[str | None] = [None] * len(trace)
    for at, each in zip(some.tolist(), root.tolist(), strict=True):
        salts[at] = names[each]
    return salts


def _values(trace: Trace, name: str) -> list[Any]:
    """Return a column by request, None where it says nothing; empty if there is none."""
    column: Any = getattr(trace, name)
    if column is None:
        return []
    if isinstance(column, Labels):
        return [None if code < 0 else column.names[code] for code in column.codes.tolist()]
    return [None if value != value else value for value in column.tolist()]  # noqa: PLR0124  # NaN
