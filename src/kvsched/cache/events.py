"""What happened, as a stream: vLLM's events of its KV cache, and a few more.

`BlockStored`, `BlockRemoved` and `AllBlocksCleared` are those of vLLM 0.32.0's
`vllm.distributed.kv_events`: the same fields in the same order, with the same ones required, so
that what `encode_batch` returns is read by whoever reads vLLM's. There an event is a map with
``type`` (releases before wrote an array of values), and a batch an array: so it is here.

The second tier's blocks are told with its own ``medium``, as vLLM tells of those that it offloads;
of these, tokens and adapter are not known. Hits and releases store and remove nothing, and no event
tells of the order in which blocks would leave: `KVCacheScheduler.snapshot` does.

A mirror of what can be hit needs a counter of each hash in each medium, and not a set: the hashes
that were handed in may be the same in two namespaces.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

GPU = "GPU"
"""vLLM's name of the first tier's medium."""

GROUP = 0
"""vLLM's number of the only group of layers, which all keep every block."""

BlockHash = bytes | int

WHY = ("policy", "lifetime", "level", "failed")
"""Why a block left, by `kvsched.cache.operations`'s numbers."""
UNREACHABLE = "unreachable"


class CacheEvent(msgspec.Struct, omit_defaults=True, gc=False, tag=True):
    """Base of all events; a map with ``type``, and without what is at its default."""


class BlockStored(CacheEvent):
    """Blocks can be hit from now on; in order, the first below ``parent_block_hash``."""

    block_hashes: list[BlockHash]
    parent_block_hash: BlockHash | None
    token_ids: list[int]
    block_size: int
    """Tokens in a block."""
    lora_id: int | None
    """None: adapters have no numbers here."""
    medium: str | None
    lora_name: str | None
    extra_keys: list[tuple[Any, ...] | None] | None = None
    """What beside its tokens is in each block's hash (adapter, salt, revision, in this order); None
    where hashes were handed in."""
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None
    locality: str | None = None
    ownership: str | None = None
    session_id: str | None = None
    """The session of the request that stored them."""


class BlockRemoved(CacheEvent):
    """Blocks can be hit no more in ``medium``."""

    block_hashes: list[BlockHash]
    medium: str | None
    group_idx: int | None = None
    locality: str | None = None
    ownership: str | None = None
    reason: str | None = None
    """policy, lifetime, level, failed, or unreachable in the second tier, as what they follow left
    both; vLLM has no such field, and does not mind it."""


class AllBlocksCleared(CacheEvent):
    """Nothing is cached any more."""


class Hit(CacheEvent):
    """A request found blocks."""

    request_id: str
    tokens: int
    external_tokens: int
    """Of these, tokens that come from the second tier."""


class Pinned(CacheEvent):
    """A chain is pinned, or with ``pinned`` false is so no more."""

    owner: str
    blocks: int
    pinned: bool = True


class Admitted(CacheEvent):
    """A request runs; ``degraded`` where not all of it is stored."""

    request_id: str
    reason: str
    degraded: bool = False


class Queued(CacheEvent):
    """A request waits."""

    request_id: str
    reason: str


class Rejected(CacheEvent):
    """A request does not run."""

    request_id: str
    reason: str


class Moved(CacheEvent):
    """Bytes are to be carried."""

    kind: str
    source: int
    target: int
    block_hash: BlockHash | None = None


class EventBatch(msgspec.Struct, array_like=True, omit_defaults=True, gc=False):
    """What vLLM publishes at once: an array of these three."""

    ts: float
    """Seconds since 1970."""
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]
    data_parallel_rank: int | None = None


def encode_batch(
    events: Iterable[CacheEvent],
    ts: float,
    data_parallel_rank: int | None = None,
    *,
    int_hashes: bool = True,
) -> bytes:
    """Return a batch in MessagePack, as vLLM publishes it: what it has not is left out.

    ``int_hashes``: the last 64 bits of each hash as a number, which vLLM does unless
    VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES is 0; else hashes are whole. O(bytes).
    """
    known: list[BlockStored | BlockRemoved | AllBlocksCleared] = []
    for event in events:
        if isinstance(event, BlockStored):
            if int_hashes:
                above = event.parent_block_hash
                event = msgspec.structs.replace(  # noqa: PLW2901  # the event as it is published
                    event,
                    block_hashes=[_number(each) for each in event.block_hashes],
                    parent_block_hash=None if above is None else _number(above),
                )
            known.append(event)
        elif isinstance(event, BlockRemoved):
            hashes = event.block_hashes
            shown = [_number(each) for each in hashes] if int_hashes else hashes
            known.append(msgspec.structs.replace(event, block_hashes=shown, reason=None))
        elif isinstance(event, AllBlocksCleared):
            known.append(event)
    return msgspec.msgpack.encode(EventBatch(ts, known, data_parallel_rank))


def _number(block_hash: BlockHash) -> int:
    if isinstance(block_hash, int):
        return block_hash & _LOW
    return int.from_bytes(block_hash[-8:], "big")


_LOW = (1 << 64) - 1


class EventLog:
    """The latest events that nobody has taken yet, at most ``most``; off unless asked for."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.on = most > 0
        self.lost = 0
        """Events that were dropped as nobody took them in time."""
        self._events: deque[CacheEvent] = deque()
        self.sequence = 0
        """Events so far."""

    def add(self, event: CacheEvent) -> None:
        """Keep an event; the oldest goes where there are too many. O(1)."""
        self.sequence += 1
        if len(self._events) >= self.most:
            self._events.popleft()
            self.lost += 1
        self._events.append(event)

    def take(self) -> list[CacheEvent]:
        """Return the events since the last call. O(events)."""
        taken = list(self._events)
        self._events.clear()
        return taken


@dataclass(frozen=True, slots=True)
class Announcer:
    """Tells of blocks by their keys, where anybody listens."""

    events: EventLog
    to_hash: Callable[[NDArray[np.int64]], BlockHash]
    """Returns a key as it was handed in."""
    block_size: int

    @property
    def on(self) -> bool:
        """Whether anybody listens."""
        return self.events.on

    def stored(
        self,
        keys: Sequence[NDArray[np.int64]] | NDArray[np.int64],
        parent: NDArray[np.int64] | None,
        medium: str,
        tokens: list[int] | None = None,
        **named: Any,
    ) -> None:
        """Tell that a chain's blocks can be hit; ``named`` are `BlockStored`'s other fields."""
        if self.on:
            hashes = [self.to_hash(key) for key in keys]
            above = None if parent is None else self.to_hash(parent)
            adapter = named.pop("lora_name", None)
            self.events.add(
                BlockStored(
                    hashes,
                    above,
                    tokens or [],
                    self.block_size,
                    None,
                    medium,
                    adapter,
                    group_idx=GROUP,
                    **named,
                )
            )

    def removed(self, keys: Iterable[NDArray[np.int64]], medium: str, reason: str) -> None:
        """Tell that blocks cannot be hit any more."""
        if self.on:
            hashes = [self.to_hash(key) for key in keys]
            self.events.add(BlockRemoved(hashes, medium, GROUP, reason=reason))
