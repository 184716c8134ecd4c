"""The workload of the live scheduler's comparison: numpy alone, the same in every environment.

20,000 requests of 100 blocks of 16 tokens. A request begins with one of 2,000 documents (30 to 60
blocks), goes on, seven times in ten, with one of the document's 64 branches (10 to 25 blocks), and
ends with blocks that no other request has. Documents and branches are drawn by Zipf's law,
exponent 1. The capacity is a tenth of the distinct blocks.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

BLOCK_SIZE = 16
BLOCKS = 100
"""A request's."""
REQUESTS = 20_000
SEED = 4
DOCUMENTS = 2_000
BRANCHES = 64
BRANCHING = 0.7
"""Share of the requests that go on with a branch."""
EXPONENT = 1.0
HASH_BYTES = 32


@dataclass(frozen=True)
class Workload:
    """Requests as numbers of blocks; a number stands for the whole prefix up to its block."""

    chains: NDArray[np.int64]
    """(requests, 100), from the root down."""
    distinct: int

    @property
    def capacity(self) -> int:
        """Blocks."""
        return self.distinct // 10

    @property
    def operations(self) -> int:
        """Acquiring and releasing every block of every request."""
        return 2 * self.chains.size

    @property
    def digest(self) -> str:
        """To see that two environments made the same."""
        return hashlib.sha256(self.chains.tobytes()).hexdigest()[:16]

    def hashes(self) -> list[list[bytes]]:
        """Each request's, equal ones one object: that spares dictionaries a comparison."""
        table = np.random.default_rng(SEED).bytes(self.distinct * HASH_BYTES)
        each = [table[at : at + HASH_BYTES] for at in range(0, len(table), HASH_BYTES)]
        return [[each[block] for block in chain] for chain in self.chains.tolist()]


def _zipf(random: np.random.Generator, names: int, count: int) -> NDArray[np.int64]:
    weights = np.cumsum(1.0 / np.arange(1, names + 1) ** EXPONENT)
    return np.searchsorted(weights, random.random(count) * weights[-1], side="right")


def make(requests: int = REQUESTS, seed: int = SEED) -> Workload:
    """Make it; the same arguments give the same blocks."""
    random = np.random.default_rng(seed)
    document_blocks = 30 + (random.random(DOCUMENTS) * 31).astype(np.int64)
    branch_blocks = 10 + (random.random((DOCUMENTS, BRANCHES)) * 16).astype(np.int64)
    documents = _zipf(random, DOCUMENTS, requests)
    branches = _zipf(random, BRANCHES, requests)
    goes_on = random.random(requests) < BRANCHING

    chains = np.empty((requests, BLOCKS), np.int64)
    fresh = 0
    first: dict[tuple[int, int], int] = {}
    for row, document, branch, goes in zip(chains, documents, branches, goes_on, strict=True):
        at = 0
        for part, blocks in (
            ((document, -1), document_blocks[document]),
            ((document, branch), branch_blocks[document, branch] if goes else 0),
            (None, BLOCKS),
        ):
            stop = min(at + int(blocks), BLOCKS)
            start = fresh if part is None else first.setdefault(part, fresh)
            row[at:stop] = np.arange(start, start + stop - at)
            fresh = max(fresh, start + stop - at)
            at = stop
    return Workload(chains, fresh)


if __name__ == "__main__":
    made = make()
    print(f"{made.distinct:,} distinct blocks, capacity {made.capacity:,}, digest {made.digest}")
