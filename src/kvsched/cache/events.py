"""What happened, as a stream: vLLM's events of its KV cache, and a few more.

`BlockStored`, `BlockRemoved` and `AllBlocksCleared` have the fields of vLLM 0.32.0's
`vllm.distributed.kv_events`, so that whoever reads its events reads these.
"""

from __future__ import annotations

from collections import deque

import msgspec

GPU = "GPU"
"""vLLM's name of the first tier's medium."""

BlockHash = bytes | int

WHY = ("policy", "lifetime", "level", "failed", "cleared")
"""Why a block left, by `kvsched.cache.kernel`'s numbers."""


class CacheEvent(msgspec.Struct, array_like=True, omit_defaults=True, gc=False, tag=True):
    """Base of all events."""


class BlockStored(CacheEvent):
    """Blocks can be hit from now on; in order, the first below ``parent_block_hash``."""

    block_hashes: list[BlockHash]
    parent_block_hash: BlockHash | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None = None
    medium: str | None = GPU
    lora_name: str | None = None


class BlockRemoved(CacheEvent):
    """Blocks can be hit no more in ``medium``."""

    block_hashes: list[BlockHash]
    medium: str | None = GPU
    reason: str | None = None
    """policy, lifetime, level, failed or cleared; vLLM has no such field."""


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
