"""An engine's side of a live cache, without a model: what is written where, and what must be there.

A block's content is the namespace and the whole prompt up to its last token, as keys and values
depend on all of it. Nothing here looks into the cache but `Embedder.audit`, which reads which block
is cached under which names.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from kvsched.cache.lease import Lease
from kvsched.cache.partition import Partition
from kvsched.cache.request import Move
from kvsched.cache.scheduler import KVCacheScheduler
from kvsched.cache.state import READY
from kvsched.kernel.table import NONE

Space = tuple[Any, ...]


class CarryError(Exception):
    """Bytes that could not be carried, on purpose."""


@dataclass(frozen=True)
class Content:
    """What is in a block: tokens of a prompt up to the block's last."""

    space: Space
    tokens: tuple[int, ...]

    def serves(self, space: Space, tokens: Sequence[int], size: int) -> bool:
        """Whether the block is right for a prompt that goes up to ``tokens``' end in it."""
        return (
            self.space == space
            and len(self.tokens) >= len(tokens)
            and (len(self.tokens) - 1) // size == (len(tokens) - 1) // size
            and self.tokens[: len(tokens)] == tuple(tokens)
        )


@dataclass(eq=False)
class Held:
    """One lease, and what the engine knows of its prompt."""

    lease: Lease
    space: Space
    tokens: list[int]
    """All that the lease's blocks hold or will; then, where it was degraded, what is spilled."""
    done: int
    """Leading tokens that are in place."""
    prompt: tuple[int, ...] = ()
    named: bool = True
    """Whether all of its full blocks have had names so far."""
    responsible: int = 0
    """First block that it writes by itself."""
    others: list[Held] = field(default_factory=list)


class Embedder:
    """Both tiers' memory, and what must be in it."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.cache: KVCacheScheduler | None = None
        self.first: dict[int, Content] = {}
        self.second: dict[int, Content] = {}
        self.names: dict[tuple[Any, ...], Content] = {}
        """What a chain of keys stands for."""
        self.fail_at: int | None = None
        """Moves that are carried before one fails."""
        self.failed = 0

    # Bytes

    def carry(self, moves: Sequence[Move]) -> None:
        """Carry bytes in order, or fail on the way."""
        for move in moves:
            if self.fail_at is not None:
                if self.fail_at == 0:
                    self.fail_at = None
                    self.failed += 1
                    raise CarryError(f"not carried: {move}")
                self.fail_at -= 1
            source = self.second if move.kind == "load" else self.first
            target = self.second if move.kind == "offload" else self.first
            found = source.get(move.source)
            if found is None:
                target.pop(move.target, None)
            else:
                target[move.target] = found

    def is_right(self, held: Held, block: int) -> bool:
        """Whether a lease's block has what its prompt has there, as far as it is done."""
        upto = min((block + 1) * self.size, len(held.tokens))
        found = self.first.get(held.lease.block_ids[block])
        return found is not None and found.serves(held.space, held.tokens[:upto], self.size)

    def compute(self, held: Held, upto: int) -> int:
        """Write a prompt's blocks as far as ``upto``; stop where another's block is not there yet.

        Returns the tokens that are in place.
        """
        size = self.size
        upto = min(upto, len(held.tokens))
        blocks = held.lease.block_ids
        while held.done < upto:
            block = held.done // size
            end = min((block + 1) * size, upto)
            if block < held.responsible:
                end = min((block + 1) * size, len(held.tokens))
                if not self.is_right(held, block):
                    break
            elif block < len(blocks):
                content = Content(held.space, tuple(held.tokens[:end]))
                now = self.first.get(blocks[block])
                longer = now is not None and now.serves(held.space, content.tokens, size)
                self.first[blocks[block]] = now if longer and now is not None else content
            held.done = end
        return held.done

    def spill(self, held: Held) -> None:
        """Write what follows a degraded lease's blocks into the second tier."""
        start = len(held.lease.block_ids)
        for at, slot in enumerate(held.lease.spilled):
            end = min((start + at + 1) * self.size, len(held.prompt))
            self.second[slot] = Content(held.space, tuple(held.prompt[:end]))

    # What must be there

    def note(self, held: Held) -> None:
        """Remember which chains of keys stand for this prompt."""
        names = held.lease._home.partition.names
        chain: tuple[Any, ...] = (held.lease._home.name,)
        for at, node in enumerate(held.lease._nodes.tolist()):
            if at == 0:
                chain = (*chain, names.space[node].tobytes())
            chain = (*chain, names.keys[node].tobytes())
            self.note_chain(chain, held.space, held.tokens[: (at + 1) * self.size])

    def note_chain(self, chain: tuple[Any, ...], space: Space, tokens: Sequence[int]) -> None:
        """Remember one; a chain never stands for two prompts."""
        content = Content(space, tuple(tokens))
        assert self.names.setdefault(chain, content) == content, "one name for two prompts"

    def check_lease(self, held: Held) -> None:
        """What is done of a lease is right, and stays so."""
        lost = held.lease.lost_from
        for block in range(min(-(-held.done // self.size), len(held.lease.block_ids))):
            if lost is not None and block >= lost:
                break
            upto = min((block + 1) * self.size, held.done)
            found = self.first.get(held.lease.block_ids[block])
            right = found is not None and found.serves(held.space, held.tokens[:upto], self.size)
            assert right, (
                f"block {block} of {held.lease} has {found}, not {held.space} {held.tokens[:upto]}"
            )

    def audit(self, cache: KVCacheScheduler) -> None:
        """Every block that can be hit and is said to be computed has what its name says."""
        for home in cache.store.homes.values():
            self._audit(home.partition, home.name, self.first)
            if home.second is not None:
                self._audit(home.second.partition, home.name, self.second)

    def _audit(self, partition: Partition, home: str, memory: dict[int, Content]) -> None:
        live, names = partition.live, partition.names
        listed = set((names.slots[names.slots != NONE] & ((1 << 32) - 1)).tolist())
        for node in listed:
            if not live.table.resident[node] or live.ready[node] != READY:
                continue
            chain: list[bytes] = []
            at = int(node)
            while at != NONE:
                chain.append(names.keys[at].tobytes())
                root, at = at, int(live.table.parent[at])
            whole = (home, names.space[root].tobytes(), *reversed(chain))
            expected = self.names.get(whole)
            assert expected is not None, f"node {node} has a name that nobody gave"
            found = memory.get(int(live.block[node]))
            assert found is not None, f"node {node}: nothing was written into its block"
            assert found.serves(expected.space, expected.tokens, self.size), (
                f"block {int(live.block[node])} of node {node} has {found}, not {expected}"
            )


def shared_rightly(helds: Sequence[Held], size: int) -> None:
    """No two leases share a block unless their prompts are the same up to there."""
    owners: dict[int, tuple[int, Held]] = {}
    for held in helds:
        ids = held.lease.block_ids
        assert len(set(ids)) == len(ids), f"{held.lease} has a block twice"
        for at, block in enumerate(ids):
            if block not in owners:
                owners[block] = (at, held)
                continue
            place, other = owners[block]
            mine, its = held.tokens[: (at + 1) * size], other.tokens[: (at + 1) * size]
            short = min(len(mine), len(its))
            same = place == at and held.space == other.space and mine[:short] == its[:short]
            assert same, f"block {block} has two uses"
            assert short > at * size, f"block {block} is held by a lease that needs none there"
