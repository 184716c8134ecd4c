"""A cache made from a file of `kvsched.cache.saved`."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kvsched.cache.names import reindex
from kvsched.cache.partition import Partition, count_numbers
from kvsched.cache.pins import Pin
from kvsched.cache.saved import (
    Head,
    HoldRecord,
    PolicyRecord,
    kernel_arrays,
    partitions,
    plain_names,
    policy_record,
    state_arrays,
    to_text,
)
from kvsched.cache.saved_file import SavedFile
from kvsched.cache.second import TierSettings
from kvsched.cache.sound import unsound
from kvsched.cache.state import FLAT, LIMIT, READY
from kvsched.cache.store import COMMON, Home, home_sizes
from kvsched.cache.tenants import Tenant
from kvsched.foundation.errors import KvschedError, UsageError
from kvsched.foundation.jit import hot
from kvsched.kernel.table import NONE
from kvsched.policy.base import Policy
from kvsched.policy.registry import find, make

if TYPE_CHECKING:
    from kvsched.cache.scheduler import KVCacheScheduler

_reindex = hot(reindex)

GIVEN_ANEW = (
    "when_full", "when_oversize", "degrade", "max_waiting", "max_waiting_tokens", "max_passes",
    "watermark", "max_pinned_blocks", "priority_retention", "max_events",
)  # fmt: skip
"""Settings that may be others than the saved cache's: no block lies elsewhere for them."""
NOT_KEPT = ("clock", "carry", "queue_moves")
"""What is the embedding program's, and in no file."""

Named = str | Policy | type[Policy]


@dataclass(frozen=True, slots=True)
class Restored:
    """What became of a saved cache."""

    saved_by: str
    """Version of kvsched that saved it."""
    cached_blocks: int
    """Blocks of the first tier that are cached now."""
    dropped_blocks: int
    """Blocks of the first tier that were not in place when it was saved, and are free now."""
    learnt_anew: tuple[str, ...]
    """Why a policy could not go on from its own state and learnt what is cached as by `set_policy`;
    empty where it goes on exactly."""


def restore(
    kind: type[KVCacheScheduler],
    path: str | os.PathLike[str],
    policy: Named | None,
    second_tier_policy: Named | None,
    same_clock: bool,
    settings: Mapping[str, Any],
) -> KVCacheScheduler:
    """Make a cache from a file: see `KVCacheScheduler.restore`."""
    unknown = sorted(set(settings) - {*GIVEN_ANEW, *NOT_KEPT})
    if unknown:
        raise UsageError(
            f"{unknown[0]} is the saved cache's own: only {', '.join((*GIVEN_ANEW, *NOT_KEPT))}, "
            "policy and second_tier_policy can be given anew"
        )
    file = SavedFile(path, Head)
    head = file.head
    _check_size(file)
    chosen = _policy(file, head.policy, policy, "policy")
    second = None
    if head.second is not None:
        below = _policy(file, head.second.policy, second_tier_policy, "second_tier_policy")
        second = _tier(file, below)
    elif second_tier_policy is not None:
        raise UsageError(f"{file.name}: the saved cache has no second tier")
    cache = _made(kind, file, chosen, second, settings)
    _check_names(file, cache)
    reasons = _fill(file, cache)
    _set_clock(cache, head, same_clock)
    _finish(file, cache, head)
    dropped = _let_go(cache, head)
    if cache.pins.blocks > cache.settings.max_pinned_blocks:
        raise UsageError(
            f"max_pinned_blocks={cache.settings.max_pinned_blocks:,} is below the "
            f"{cache.pins.blocks:,} that are pinned"
        )
    cache.restored = Restored(head.kvsched, cache.cached_blocks, dropped, tuple(reasons))
    return cache


def _check_size(file: SavedFile[Head]) -> None:
    """Refuse a file that claims more blocks than it has bytes for, before any is allocated."""
    head = file.head
    apart = [tenant for _, tenant in head.tenants if tenant.is_apart]
    names = [COMMON, *(to_text(name) for name, tenant in head.tenants if tenant.is_apart)]
    if [to_text(home.name) for home in head.homes] != names:
        raise file.fault("its tenants are not those that have blocks in it")
    slots = 0 if head.second is None else head.second.capacity_blocks
    sizes = {"pool/free": 4 * head.capacity_blocks, "slots/free": 4 * slots}
    common = slots - sum(tenant.second_tier_blocks for tenant in apart)
    if common < 0:
        raise file.fault("its tenants have more of the second tier than there is")
    for at, tenant in enumerate([Tenant(second_tier_blocks=common), *apart]):
        capacity, *more = home_sizes(tenant, head.capacity_blocks, head.history_blocks)
        sizes[f"{at}/listed"] = 1 + count_numbers(capacity, sum(more))
    for name, size in sizes.items():
        if file.plain_bytes(name) != size:
            raise file.fault(
                f"claims {head.capacity_blocks:,} blocks, but {name} has "
                f"{file.plain_bytes(name):,} bytes, not {size:,}"
            )


def _policy(
    file: SavedFile[Head], record: PolicyRecord, given: Named | None, option: str
) -> Policy:
    """Return the policy that is asked for, or the saved one made again."""
    if given is not None:
        return make(given)
    if not record.reference:
        raise UsageError(
            f"{file.name}: it was saved under policy {record.label}, which is not in the registry: "
            f"give its class as {option}"
        )
    return find(record.reference)(**record.values)


def _tier(file: SavedFile[Head], policy: Policy) -> TierSettings:
    second = file.head.second
    if second is None:
        raise file.fault("has no second tier")
    try:
        return TierSettings(
            capacity_blocks=second.capacity_blocks,
            policy=policy,
            write=second.write,
            medium=second.medium,
        )
    except UsageError as error:
        raise file.fault(f"its settings make no sense ({error})") from error


def _made(
    kind: type[KVCacheScheduler],
    file: SavedFile[Head],
    policy: Policy,
    second: TierSettings | None,
    settings: Mapping[str, Any],
) -> KVCacheScheduler:
    head = file.head
    own = {
        field.name: getattr(head.settings, field.name)
        for field in dataclasses.fields(head.settings)
    }
    try:
        return kind(
            head.capacity_blocks,
            head.block_size,
            policy,
            tenants={to_text(name): tenant for name, tenant in head.tenants},
            second_tier=second,
            isolate_tenants=head.isolate_tenants,
            history_blocks=head.history_blocks,
            hash_algorithm=head.hash_algorithm,
            hash_seed=head.hash_seed,
            hash_bytes=head.hash_bytes,
            request_fields=head.request_fields,
            **{**own, "max_events": head.max_events, **settings},
        )
    except UsageError as error:
        if settings:
            raise
        raise file.fault(f"no cache can be made of it ({error})") from error
    except MemoryError as error:
        raise KvschedError(f"{file.name}: its cache does not fit into memory") from error


def _check_names(file: SavedFile[Head], cache: KVCacheScheduler) -> None:
    """Refuse a file that lacks an array, or has one that no cache has."""
    kept = {*kernel_arrays(cache), *plain_names(len(cache.store.homes))}
    states = tuple(f"{name}/state" for name in partitions(cache))
    found = {name for name in file if not name.startswith(states)}
    if found != kept:
        one = min(found ^ kept)
        raise file.fault(f"array {one} {'is missing' if one in kept else 'is not a cache’s'}")


def _fill(file: SavedFile[Head], cache: KVCacheScheduler) -> list[str]:
    """Fill a fresh cache from a file; return why a policy had to learn anew."""
    head = file.head
    limits = {
        name: part.live.counts[[LIMIT, FLAT]] for name, (_, part) in partitions(cache).items()
    }
    for name, target in kernel_arrays(cache).items():
        file.load(name, target)
    for home, saved in zip(cache.store.homes.values(), head.homes, strict=True):
        for column, names in saved.known.items():
            for given, code, turn in names:
                if not home.partition.columns.learn(column, to_text(given), code, turn):
                    raise file.fault(f"a name of {column} has code {code}")
    fault = unsound(cache)
    if fault:
        raise file.fault(fault)
    reasons = []
    for name, (_, partition) in partitions(cache).items():
        if not np.array_equal(partition.live.counts[[LIMIT, FLAT]], limits[name]):
            raise file.fault(f"array {name}/counts has another limit")
        if not partition.is_flat:
            known = np.zeros(len(partition.live.block), np.uint8)
            file.load(f"{name}/listed", known)
            known[int(partition.names.counts[0]) :] = 0
            _reindex(partition.names, known)
        record = head.policy
        if partition.is_flat and head.second is not None:
            record = head.second.policy
        reason = _go_on(file, partition, name, record)
        if reason:
            partition.change_policy(partition.policy)
            reasons.append(reason)
    return list(dict.fromkeys(reasons))


def _go_on(file: SavedFile[Head], partition: Partition, name: str, record: PolicyRecord) -> str:
    """Have a policy go on from its saved state; return why it cannot, with nothing changed."""
    now = policy_record(partition.policy)
    if now.label != record.label or now.values != record.values:
        return f"{now.label} takes over from {record.label}"
    if now.hooks != record.hooks:
        return f"{now.label} has other code than the one that was saved"
    own = state_arrays(partition.state, f"{name}/state", now.label)
    forms = {each: (array.dtype.newbyteorder("<").str, array.shape) for each, array in own.items()}
    saved = {each: file.form(each) for each in file if each.startswith(f"{name}/state")}
    if forms != saved:
        return f"{now.label} keeps another state than the one that was saved"
    partition.columns.met_by(partition.form, partition.state)
    for each, target in own.items():
        file.load(each, target)
    return ""


def _set_clock(cache: KVCacheScheduler, head: Head, same_clock: bool) -> None:
    """Have ages go on from the moment of saving, or on the clock that the cache was saved under."""
    if same_clock:
        cache.store.shift(head.shift_s)
        cache.last_now = head.now_s
        return
    cache.store.shift(head.now_s + head.shift_s - cache.now())


def _chain(partition: Partition, node: int) -> NDArray[np.int32]:
    """Return a node and its ancestors, the root first."""
    nodes = []
    while node != NONE:
        nodes.append(node)
        node = int(partition.live.table.parent[node])
    return np.array(nodes[::-1], np.int32)


def _finish(file: SavedFile[Head], cache: KVCacheScheduler, head: Head) -> None:
    """Put back what stands beside the arrays."""
    for field in dataclasses.fields(head.counters):
        setattr(cache.counters, field.name, getattr(head.counters, field.name))
    cache.maker.numbers, cache.maker.width = head.hashes_are_numbers, head.hash_width
    cache.blocks._number, cache.pins._number = head.next_lease, head.next_pin
    homes = list(cache.store.homes.values())
    held = [(hold.home, hold.node) for hold in head.holds]
    held += [(pin.home, pin.node) for pin in head.pins]
    for at, node in held:
        known = homes[at].partition.live.table.resident if 0 <= at < len(homes) else ()
        if node != NONE and not (0 <= node < len(known) and known[node]):
            raise file.fault(f"node {node} is held, and not cached")
    private = [block for hold in head.holds for block in hold.private]
    if len(set(private)) != len(private) or len(private) != _unnamed(cache):
        raise file.fault("the blocks that were held without a name are miscounted")
    for pin in head.pins:
        home = homes[pin.home]
        nodes = _chain(home.partition, pin.node)
        cache.pins.held[pin.number] = Pin(
            pin.number, to_text(pin.owner), len(nodes), to_text(pin.tenant), home, nodes
        )


def _unnamed(cache: KVCacheScheduler) -> int:
    """Return how many blocks are in use without a node."""
    return sum(home.partition.used - home.partition.resident for home in cache.store.homes.values())


def _ready(partition: Partition, nodes: NDArray[np.int32]) -> int:
    """Return how many leading blocks of a chain are in place."""
    waits = np.flatnonzero(partition.live.ready[nodes] != READY)
    return int(waits[0]) if len(waits) else len(nodes)


def _let_go(cache: KVCacheScheduler, head: Head) -> int:
    """End what leases held, as though each had failed; return how many blocks were dropped."""
    before = cache.store.resident
    now = cache.now()
    homes = list(cache.store.homes.values())
    for pin in list(cache.pins.held.values()):
        _shorten(cache, pin)
    for hold in head.holds:
        _end(homes[hold.home], hold, now)
        _end_spill(homes[hold.home], hold, now)
    for home in homes:
        live = home.partition.live
        bad = np.flatnonzero((live.table.resident == 1) & (live.ready != READY))
        _drop(home, home.partition, bad, now)
    return before - cache.store.resident


def _end_spill(home: Home, hold: HoldRecord, now: float) -> None:
    """End what a degraded lease held in the second tier: it was never written."""
    if home.second is None or not hold.spilled:
        return
    live = home.second.partition.live
    there = np.isin(live.block, hold.spilled) & (live.table.resident == 1)
    nodes = np.flatnonzero(there).astype(np.int32)
    nodes = nodes[np.argsort(live.table.depth[nodes], kind="stable")]
    if len(nodes) and live.locks[nodes[-1]] > 0:
        home.second.end_spill(nodes, written=False, now=now)


def _shorten(cache: KVCacheScheduler, pin: Pin) -> None:
    """Have a pin hold only what is in place, or end it."""
    partition = pin._home.partition
    keep = _ready(partition, pin._nodes)
    if keep == len(pin._nodes):
        return
    del cache.pins.held[pin.number]
    if keep:
        partition.pin(int(pin._nodes[keep - 1]), cache.store.capacity)
        cache.pins.held[pin.number] = dataclasses.replace(
            pin, blocks=keep, _nodes=pin._nodes[:keep].copy()
        )
    partition.unpin(pin._nodes)


def _end(home: Home, hold: HoldRecord, now: float) -> None:
    partition = home.partition
    nodes = _chain(partition, hold.node)
    keep = _ready(partition, nodes)
    names = {name: to_text(value) for name, value in hold.names.items()}
    partition.columns.write({**hold.numbers, **names}, again=True)
    if keep < len(nodes):
        partition.lose(nodes, keep)
    private = np.array(hold.private, np.int32)
    gone = partition.release(nodes, private, keep, now, hold.level, hold.expires)
    if home.second is not None:
        for node in partition.out.gone[:gone].tolist():
            home.second.cut(node, now)


def _drop(home: Home, partition: Partition, bad: NDArray[np.int64], now: float) -> None:
    """Drop nodes that nobody holds, and what is cached below them, from the end up. O(N log N)."""
    if not len(bad):
        return
    table = partition.live.table
    order = np.flatnonzero(table.resident)
    order = order[np.argsort(table.depth[order], kind="stable")]
    gone = np.zeros(len(table.parent), np.bool_)
    gone[bad] = True
    for node in order.tolist():
        above = int(table.parent[node])
        gone[node] |= above != NONE and gone[above]
    for node in order[gone[order]][::-1].tolist():
        partition.drop(node, now)
        if not partition.is_flat and home.second is not None:
            home.second.cut(node, now)
