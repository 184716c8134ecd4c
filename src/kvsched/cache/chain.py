"""A request's blocks as the kernel takes them: keys, a namespace, and what no key names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvsched.cache.hashing import BlockHasher
from kvsched.cache.request import Request, space_of, to_keys
from kvsched.foundation.errors import UsageError


@dataclass(slots=True, eq=False)
class Chain:
    """What of a prompt is cached under which key, and what only takes room."""

    keys: NDArray[np.int64]
    """(L, W)"""
    space: NDArray[np.int64]
    """(2,) digest of the namespace."""
    tokens: int
    blocks: int
    """Blocks of the whole prompt."""
    last_tokens: int
    """Tokens in the last block that has a key."""
    last_hash: bytes | None
    """Hash that the next block is chained to, where token ids are hashed."""
    tail: list[int] | None
    """Token ids of the last, partial block, where token ids are hashed."""

    @property
    def extra(self) -> int:
        """Blocks without a key."""
        return self.blocks - len(self.keys)


class ChainMaker:
    """Makes chains of requests, under one block size and one way to hash."""

    def __init__(self, hasher: BlockHasher, words: int, isolate_tenants: bool) -> None:
        self.hasher = hasher
        self.block_size = hasher.block_size
        self.words = words
        self.isolate_tenants = isolate_tenants
        self.numbers = False
        """Whether hashes that were handed in first were numbers."""
        self.width = 0
        """Bytes of the hashes that were handed in first; 0 before."""

    def make(self, request: Request) -> Chain:
        """Return the chain of a request, made once. O(tokens) where token ids are hashed.

        Raises UsageError for what is no request, and for hashes that do not fit the tokens.
        """
        if not isinstance(request, Request):
            raise UsageError(f"a Request is needed, not {type(request).__name__}")
        if isinstance(request._made, tuple) and request._made[0] is self:
            made: Chain = request._made[1]
            return made
        chain = self._of_tokens(request) if request.hashes is None else self._of_hashes(request)
        request._made = (self, chain)
        return chain

    def _space(self, request: Request) -> NDArray[np.int64]:
        tenant = request.tenant if self.isolate_tenants else None
        adapter = (request.lora_name, request.lora_path or None)
        return space_of(request.cache_salt, *adapter, request.model_revision, tenant or None)

    def _of_tokens(self, request: Request) -> Chain:
        token_ids: Any = request.token_ids
        hashes = self.hash(request, token_ids, None)
        size = self.block_size
        tail = [int(token) for token in token_ids[len(hashes) * size :]]
        return Chain(
            to_keys(hashes, self.words),
            self._space(request),
            len(token_ids),
            -(-len(token_ids) // size),
            size,
            hashes[-1] if hashes else None,
            tail,
        )

    def hash(self, request: Request, token_ids: Any, parent: bytes | None) -> list[bytes]:
        """Return the hash of each full block of ``token_ids`` behind ``parent``."""
        self.width = self.width or self.hasher.digest_size
        extra = () if request.model_revision is None else (request.model_revision,)
        return self.hasher.chain(
            token_ids,
            parent=parent,
            lora_name=request.lora_name,
            lora_path=request.lora_path or "",
            cache_salt=request.cache_salt,
            extra=extra,
        )

    def keys(self, hashes: Any) -> NDArray[np.int64]:
        """Return (L, W) keys of hashes. Raises UsageError for hashes of no known form."""
        return to_keys(hashes, self.words)

    def to_hash(self, key: NDArray[np.int64]) -> bytes | int:
        """Return a key as it was handed in: bytes, or a number where those are handed in."""
        if self.numbers:
            return int(key[0])
        return key.tobytes()[: self.width or 8 * self.words]

    def _of_hashes(self, request: Request) -> Chain:
        hashes: Any = () if request.hashes is None else request.hashes
        keys = to_keys(hashes, self.words)
        if not self.width and len(keys):
            self._note(hashes)
        size = self.block_size
        tokens = len(keys) * size if request.tokens is None else int(request.tokens)
        blocks = -(-tokens // size)
        if len(keys) > blocks:
            raise UsageError(
                f"{len(keys)} hashes are more than {tokens} tokens fill: {blocks} blocks of {size}"
            )
        last = tokens - (len(keys) - 1) * size if len(keys) == blocks and blocks else size
        return Chain(keys, self._space(request), tokens, blocks, last, None, None)

    def _note(self, hashes: Any) -> None:
        first = hashes[0]
        self.numbers = isinstance(first, int | np.integer)
        self.width = 8 if self.numbers else len(first)
