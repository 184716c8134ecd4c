"""A lease: the blocks that one running request holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kvsched.cache.request import Growth, Move, Outcome, Request
from kvsched.cache.state import READY
from kvsched.kernel.table import NONE

if TYPE_CHECKING:
    from kvsched.cache.serving import Serving
    from kvsched.cache.store import Home


class Lease:
    """What a request holds from `acquire` to `release`. Made by the cache alone.

    Its blocks stay where they are and cannot leave. Changing anything is the cache's: `extend`,
    `fork`, `computed` and `close` here are its methods of those names, `close` being `release`.
    """

    __slots__ = (
        "_cache",
        "_home",
        "_ids",
        "_last_hash",
        "_nodes",
        "_own",
        "_ready",
        "_spilled",
        "_tail",
        "_theirs",
        "computed_tokens",
        "hit_blocks",
        "hit_tokens",
        "id",
        "last_moves",
        "loaded_blocks",
        "lost_from",
        "moves",
        "outcome",
        "prompt_blocks",
        "reason",
        "released",
        "request",
        "spilled",
        "stored_blocks",
        "tokens",
    )

    def __init__(self, cache: Serving, home: Home, request: Request, number: int) -> None:
        self._cache = cache
        self._home = home
        self._nodes: NDArray[np.int32] = _NOTHING
        self._ids: list[int] | NDArray[np.int32] = []
        self._own: dict[int, int] = {}
        self._spilled: NDArray[np.int32] = _NOTHING
        self._last_hash: bytes | None = None
        self._tail: list[int] | None = None
        self._theirs = 0
        self._ready = 0
        self.id = number
        self.request = request
        self.outcome = Outcome.ADMIT
        self.reason = ""
        self.tokens = 0
        """Tokens that the blocks hold, or will: the prompt, or what is stored of it, and what was
        added."""
        self.prompt_blocks = 0
        """Blocks of the whole prompt, stored or not."""
        self.hit_blocks = 0
        """Leading blocks that were there, in either tier."""
        self.hit_tokens = 0
        """Leading tokens of the prompt that need no computing, where all of `moves` are carried."""
        self.loaded_blocks = 0
        """Of the hits, blocks that come from the second tier."""
        self.stored_blocks = 0
        """Blocks that this request stores, generated ones included."""
        self.computed_tokens = 0
        """Leading tokens whose keys and values are known to be in place."""
        self.moves: tuple[Move, ...] = ()
        """To carry, in order, before anything is written into these blocks."""
        self.last_moves: tuple[Move, ...] = ()
        """Moves of its release, to carry where the cache does not: a context cannot return them."""
        self.lost_from: int | None = None
        """First block whose content is not to be trusted: the request that computed it failed."""
        self.spilled: tuple[int, ...] = ()
        """Blocks of the second tier for what follows the held blocks, where it was degraded to
        them: write what is computed there."""
        self.released = False

    @property
    def _blocks(self) -> list[int]:
        """Physical blocks: a list from the first look on, as most requests never look."""
        if isinstance(self._ids, list):
            return self._ids
        found: list[int] = self._ids.tolist()
        self._ids = found
        return found

    @_blocks.setter
    def _blocks(self, blocks: list[int] | NDArray[np.int32]) -> None:
        self._ids = blocks

    @property
    def block_ids(self) -> tuple[int, ...]:
        """Physical blocks in the order of the tokens. O(blocks)."""
        return tuple(self._blocks)

    @property
    def waits_for_blocks(self) -> int:
        """Of the hits, trailing blocks that another request is computing at this moment.

        Nothing behind them can be computed before it is 0. O(1), and O(hits) over all calls.
        """
        ready = self._home.partition.live.ready
        while self._ready < self._theirs and ready[self._nodes[self._ready]] == READY:
            self._ready += 1
        return self._theirs - self._ready

    def holds(self, home: Home, node: int, place: int) -> bool:
        """Whether its block at ``place`` is that of a node of ``home``."""
        nodes = self._nodes
        return self._home is home and len(nodes) > place and int(nodes[place]) == node

    @property
    def extra_blocks(self) -> int:
        """Blocks behind the last that has a key."""
        return len(self._ids) - len(self._nodes)

    @property
    def tenant(self) -> str:
        """Whose it is."""
        return self.request.tenant

    @property
    def deepest(self) -> int:
        """Number of the last node of its chain, -1 for none."""
        return int(self._nodes[-1]) if len(self._nodes) else NONE

    def computed(self, tokens: int) -> None:
        """Say that the first ``tokens`` are in place: they stay if the request fails later."""
        self._cache.computed(self, tokens)

    def extend(self, tokens: int | Sequence[int] | NDArray[Any], *, hashes: Any = None) -> Growth:
        """Grow it: see `KVCacheScheduler.extend`."""
        return self._cache.extend(self, tokens, hashes=hashes)

    def fork(self) -> Lease:
        """Share it with another sample: see `KVCacheScheduler.fork`."""
        return self._cache.fork(self)

    def close(self, *, failed: bool = False) -> tuple[Move, ...]:
        """Release it, once: see `KVCacheScheduler.release`."""
        return self._cache.release(self, failed=failed)

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(failed=kind is not None)

    def __repr__(self) -> str:
        state = "released" if self.released else "held"
        return (
            f"<Lease {self.id} {state}: {len(self._blocks)} blocks, {self.hit_blocks} hit, "
            f"{self.tokens} tokens>"
        )


_NOTHING = np.zeros(0, np.int32)
