"""A warm cache in a file: what `KVCacheScheduler.save` writes, and how one is made from it.

Every column that decides is written as it stands, the policy's own among them, so that the restored
cache decides as the one that was saved would have gone on to. What requests hold is written with
its owner, and let go when the cache is restored: each lease ends there as one that failed, with all
that was in place kept.
"""

from __future__ import annotations

import dataclasses
import os
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from kvsched.cache.describing import request_values
from kvsched.cache.kernel import operate
from kvsched.cache.metrics import Counters
from kvsched.cache.partition import Partition
from kvsched.cache.saved_file import save_arrays
from kvsched.cache.second import TierSettings
from kvsched.cache.settings import Settings
from kvsched.cache.store import Home
from kvsched.cache.tenants import Tenant
from kvsched.foundation.errors import UsageError
from kvsched.foundation.jit import digest
from kvsched.foundation.version import VERSION as KVSCHED
from kvsched.kernel.table import NONE
from kvsched.policy.base import Policy
from kvsched.policy.registry import find

if TYPE_CHECKING:
    from kvsched.cache.lease import Lease
    from kvsched.cache.scheduler import KVCacheScheduler

Arrays = dict[str, NDArray[Any]]


class _Record(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Part of a header. Names that users gave are bytes: they need not be Unicode."""


class PolicyRecord(_Record):
    """A policy: how to make it again, and how to tell whether it is still the same."""

    label: str
    reference: str
    """Its name in the registry; empty for a class that is not there."""
    values: dict[str, float]
    hooks: str
    """Digest of its hooks and the kernel's code."""


class TierRecord(_Record):
    """The second tier."""

    capacity_blocks: int
    write: str
    medium: str
    policy: PolicyRecord


class HomeRecord(_Record):
    """One tenant's blocks."""

    name: bytes
    known: dict[str, list[tuple[bytes, int, int]]]
    """Names of columns with their codes and turns, the longest unmet first."""


class HoldRecord(_Record):
    """What one lease held."""

    home: int
    node: int
    level: int
    expires: int
    numbers: dict[str, float]
    names: dict[str, bytes]
    """Values of its request, by column."""
    private: list[int]
    """Blocks that it held without a node, and no later lease."""
    spilled: list[int]
    """Blocks of the second tier that it was to fill."""


class PinRecord(_Record):
    """One pin."""

    number: int
    owner: bytes
    tenant: bytes
    home: int
    node: int


class Head(_Record):
    """Everything but the arrays."""

    kvsched: str
    now_s: float
    shift_s: float
    capacity_blocks: int
    block_size: int
    policy: PolicyRecord
    second: TierRecord | None
    tenants: list[tuple[bytes, Tenant]]
    settings: Settings
    isolate_tenants: bool
    history_blocks: int | None
    hash_algorithm: str
    hash_seed: str
    hash_bytes: int
    hashes_are_numbers: bool
    hash_width: int
    request_fields: list[str] | None
    max_events: int
    counters: Counters
    next_lease: int
    next_pin: int
    homes: list[HomeRecord]
    holds: list[HoldRecord]
    pins: list[PinRecord]


def to_bytes(name: str) -> bytes:
    """Return a name's bytes, surrogates included."""
    return name.encode("utf-8", "surrogatepass")


def to_text(name: bytes) -> str:
    """Return the name of `to_bytes`."""
    return name.decode("utf-8", "surrogatepass")


def policy_record(policy: Policy) -> PolicyRecord:
    """Return how to make a policy again."""
    reference = policy.name
    try:
        if find(reference) is not type(policy):
            reference = ""
    except UsageError:
        reference = ""
    values = {name: float(value) for name, value in getattr(policy, "values", {}).items()}
    hooks = digest(operate, type(policy.live_form()).hooks())
    return PolicyRecord(label=policy.label, reference=reference, values=values, hooks=hooks)


def state_arrays(state: Any, name: str, label: str) -> Arrays:
    """Return the arrays of a policy's state by name, nested ones behind a slash.

    Raises UsageError for a state that has anything but arrays in it.
    """
    if isinstance(state, np.ndarray) and not state.dtype.hasobject and state.dtype.kind != "V":
        return {name: state}
    if not isinstance(state, tuple):
        raise UsageError(
            f"policy {label} cannot be saved: {name} is no array but a {type(state).__name__}"
        )
    fields = getattr(state, "_fields", range(len(state)))
    found: Arrays = {}
    for field, value in zip(fields, state, strict=True):
        found |= state_arrays(value, f"{name}/{field}", label)
    return found


def partition_arrays(partition: Partition, name: str) -> Arrays:
    """Return a partition's own arrays by name, without its policy's and its index."""
    live = partition.live
    table = live.table
    found: Arrays = {f"{name}/table/{each}": getattr(table, each) for each in _OWN}
    if not partition.is_flat:
        found |= {f"{name}/table/{each}": getattr(table, each) for each in _SHARED}
        found |= {f"{name}/names/{each}": getattr(live.names, each) for each in _NAMES}
    for each in _LIVE:
        found |= state_arrays(getattr(live, each), f"{name}/{each}", "")
    return found


_OWN = ("resident", "children")
_SHARED = ("parent", "depth", "tokens", "begins")
_NAMES = ("keys", "space", "path", "kin", "idle", "counts")
_LIVE = (
    "block", "locks", "pins", "rank", "stored", "used_s", "uses", "level", "expires", "ready",
    "where", "levels", "due", "counts",
)  # fmt: skip


def partitions(cache: KVCacheScheduler) -> dict[str, tuple[Home, Partition]]:
    """Return every partition of a cache by its name in the file: ``0``, ``0/second``, ``1``, …."""
    found = {}
    for at, home in enumerate(cache.store.homes.values()):
        found[str(at)] = (home, home.partition)
        if home.second is not None:
            found[f"{at}/second"] = (home, home.second.partition)
    return found


def kernel_arrays(cache: KVCacheScheduler) -> Arrays:
    """Return all arrays of a cache by name, without those of policies and indices."""
    store = cache.store
    found: Arrays = {"pool/free": store.pool.free, "pool/counts": store.pool.counts}
    found |= {"slots/free": store.second_pool.free, "slots/counts": store.second_pool.counts}
    for name, (_, partition) in partitions(cache).items():
        found |= partition_arrays(partition, name)
    return found


def plain_names(homes: int) -> list[str]:
    """Return the arrays that are not compressed, so that the file grows with what it claims."""
    return ["pool/free", "slots/free", *(f"{at}/listed" for at in range(homes))]


def listed(partition: Partition) -> NDArray[np.uint8]:
    """Return (N+1,) 1 for each number that can be found. O(N)."""
    slots = partition.names.slots
    found = np.zeros(len(partition.live.block), np.uint8)
    found[slots[slots != NONE] & 0xFFFF_FFFF] = 1
    return found


def save(cache: KVCacheScheduler, path: str | os.PathLike[str]) -> None:
    """Write a cache to a file: see `KVCacheScheduler.save`."""
    with cache.lock:
        if cache.blocks.queue:
            raise UsageError(
                f"{len(cache.blocks.queue):,} moves were not taken: carry them (take_moves) before "
                "the cache is saved"
            )
        arrays = {name: array.copy() for name, array in kernel_arrays(cache).items()}
        for name, (_, partition) in partitions(cache).items():
            label = partition.policy.label
            own = state_arrays(partition.state, f"{name}/state", label)
            arrays |= {each: array.copy() for each, array in own.items()}
            if not partition.is_flat:
                arrays[f"{name}/listed"] = listed(partition)
        head = _head(cache)
    try:
        save_arrays(path, head, arrays, plain_names(len(head.homes)))
    except UnicodeEncodeError as error:
        raise UsageError(f"{path}: cannot be written: {error.object!a} is no Unicode") from error


def _head(cache: KVCacheScheduler) -> Head:
    store, maker = cache.store, cache.maker
    homes = list(store.homes.values())
    now = cache.now()
    if not np.isfinite(now):
        raise UsageError(f"the cache's clock says {now}: no moment to save it at")
    return Head(
        kvsched=KVSCHED,
        now_s=now,
        shift_s=store.shift_s,
        capacity_blocks=store.capacity,
        block_size=store.block_size,
        policy=policy_record(store.policy),
        second=_tier(store.second),
        tenants=[(to_bytes(name), tenant) for name, tenant in store.tenants.items()],
        settings=cache.settings,
        isolate_tenants=maker.isolate_tenants,
        history_blocks=store.history,
        hash_algorithm=maker.hasher.algorithm,
        hash_seed=maker.hasher.seed,
        hash_bytes=8 * maker.words,
        hashes_are_numbers=maker.numbers,
        hash_width=maker.width,
        request_fields=None if store.fields is None else sorted(store.fields),
        max_events=cache.events.most,
        counters=dataclasses.replace(cache.counters),
        next_lease=cache.blocks._number,
        next_pin=cache.pins._number,
        homes=[_home(home) for home in homes],
        holds=_holds(cache, homes, now),
        pins=[
            PinRecord(
                number=pin.number,
                owner=to_bytes(pin.owner),
                tenant=to_bytes(pin.tenant),
                home=homes.index(pin._home),
                node=int(pin._nodes[-1]),
            )
            for pin in cache.pins.held.values()
        ],
    )


def _tier(second: TierSettings | None) -> TierRecord | None:
    if second is None:
        return None
    return TierRecord(
        capacity_blocks=second.capacity_blocks,
        write=second.write,
        medium=second.medium,
        policy=policy_record(second.made),
    )


def _home(home: Home) -> HomeRecord:
    known = {
        column: [(to_bytes(name), code, turn) for name, code, turn in names]
        for column, names in home.partition.columns.known().items()
    }
    return HomeRecord(name=to_bytes(home.name), known=known)


def _holds(cache: KVCacheScheduler, homes: list[Home], now: float) -> list[HoldRecord]:
    """Return what leases hold, in the order in which they are let go."""
    holders = dict(cache.blocks.shared)
    found = []
    for lease in cache.leases.values():
        private = []
        for block in cache.blocks.private(lease):
            holders[block] = holders.get(block, 1) - 1
            if not holders[block]:
                private.append(int(block))
        found.append(_hold(cache, lease, homes, private, now))
    return found


def _hold(
    cache: KVCacheScheduler, lease: Lease, homes: list[Home], private: list[int], now: float
) -> HoldRecord:
    home, request = lease._home, lease.request
    level, expires = cache.blocks.retention(request, home.partition, now)
    chain = cache.maker.make(request)
    values = request_values(request, chain, now, home.partition.shift_s)
    known = {name: value for name, value in values.items() if value is not None}
    texts = {name: to_bytes(value) for name, value in known.items() if isinstance(value, str)}
    return HoldRecord(
        home=homes.index(home),
        node=lease.deepest,
        level=level,
        expires=expires,
        numbers={name: float(value) for name, value in known.items() if name not in texts},
        names=texts,
        private=private,
        spilled=list(lease.spilled),
    )
