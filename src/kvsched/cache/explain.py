"""Why a prefix is kept or not, and what goes before it: as numbers, and in sentences."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kvsched.cache.chain import Chain
from kvsched.cache.ledger import Row, row_of, short
from kvsched.cache.names import find, path_below, path_of_space
from kvsched.cache.pages import copy_page
from kvsched.cache.partition import Partition
from kvsched.cache.request import Hashes, Request
from kvsched.cache.store import Home
from kvsched.foundation.notebook import facts
from kvsched.kernel.table import NONE
from kvsched.policy.base import RankedPolicy

if TYPE_CHECKING:
    from kvsched.cache.scheduler import KVCacheScheduler

FIRST = 5
"""Blocks that leave before it, of which an explanation has the rows."""


@dataclass(frozen=True, slots=True)
class Missing:
    """The first block of a prefix that is in no tier. Why it left is not kept."""

    depth: int
    known: bool
    """Whether it was cached before and its number is not given to another yet, so that a policy may
    remember it."""
    uses: int | None
    """If known: requests that used it and ended before it left the first tier."""
    idle_s: float | None
    """If known and used: seconds since the last of them ended."""
    left_s: float | None = None
    """Seconds since it left: None, as the cache does not keep it."""
    left_by: str | None = None
    """Why it left: None, as the cache does not keep it. The event of its removal says it."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a prefix is kept or not. ``str`` of it says the same in sentences.

    What is said of the order holds as `kvsched.cache.ledger` says.
    """

    policy: str
    home: str
    blocks: int
    """Blocks of the prefix that have a key."""
    tokens: int
    cached_blocks: int
    """Leading blocks in the first tier: they can be hit."""
    cached_tokens: int
    second_blocks: int
    """Blocks behind them that the second tier has."""
    deepest: Row | None
    """The last of the leading blocks in the first tier, which leaves before the others."""
    key: int | float | None
    """What a ranked policy orders it by, the smallest first; None under other policies."""
    rank: int | None
    """Its last touch, that breaks ties between keys: larger is later."""
    blocks_before: int | None
    """Blocks of its home that leave before it; None where it cannot leave."""
    before: tuple[Row, ...]
    """The first few of them."""
    leaves_at: int | None
    """How many blocks are stored when it leaves, itself making room for the last; None where it
    cannot leave."""
    lends: bool
    """Whether other homes could take blocks from this one, or give it some, before that."""
    missing: Missing | None
    """What is missing first; None where the whole prefix is in one of the tiers."""

    @property
    def standing(self) -> str:
        """Where its deepest block stands: missing, held, pinned, inner (blocks follow), evictable.

        Held goes before pinned.
        """
        row = self.deepest
        if row is None:
            return "missing"
        if row.place is None and row.leases:
            return "held"
        if row.place is None and row.pinned_by:
            return "pinned"
        if row.children:
            return "inner"
        return "evictable" if row.place is not None else "held"

    def __str__(self) -> str:
        parts = [self._how_much()]
        if self.deepest is not None:
            parts += [self._where(self.deepest), self._words(self.deepest)]
            parts += [self._when()]
        if self.missing is not None:
            parts.append(self._missing(self.missing))
        return "\n".join(parts)

    def _how_much(self) -> str:
        if not self.blocks:
            return "The prefix has no full block: nothing of it can be cached."
        verb = "is" if self.cached_blocks == 1 else "are"
        text = f"{self.cached_blocks:,} of {_many(self.blocks, 'block')} {verb} in the first tier"
        text += f" and can be hit ({self.cached_tokens:,} of {self.tokens:,} tokens)"
        if self.second_blocks:
            text += f"; the second tier has {self.second_blocks:,} more behind them"
        return text + "."

    def _where(self, row: Row) -> str:
        text = f"The deepest of them, {_named(row)},"
        holds = []
        if row.leases:
            holds.append(f"held by {_many(row.leases, 'lease')}")
        if row.pinned_by:
            holds.append("pinned by " + ", ".join(row.pinned_by))
        if holds:
            text += f" is {' and '.join(holds)}: it cannot leave."
        elif row.place is None:
            text += " cannot leave, as something that follows it is held, or the policy declines."
        elif row.children:
            text += f" is held by nobody; {_many(row.children, 'cached block')} that "
            text += f"follow{'s' if row.children == 1 else ''} it directly must leave before it."
        else:
            text += " is held by nobody and no cached block follows it: it can leave."
        if row.state == "computing":
            text += " It is still being computed."
        return text

    def _words(self, row: Row) -> str:
        if self.key is None:
            text = f"Policy {self.policy} has no single number for it."
        else:
            text = f"Policy {self.policy} orders it by {self.key:,}, the smallest leaving first, "
            text += f"and then by its last touch, number {self.rank:,}."
        uses = f" {_many(row.uses, 'request')} used it"
        text += (
            f"{uses}, the last {_ago(row.idle_s)}."
            if row.idle_s is not None
            else (" No request that used it has ended yet.")
        )
        if row.level:
            text += f" Its level is {row.level}: {_LEVELS[row.level > 0]}."
        if row.lifetime_left_s == 0:
            text += " Its lifetime is over: it leaves before all that have none or some left."
        elif row.lifetime_left_s is not None:
            text += f" Its lifetime has {row.lifetime_left_s:,.4g} s left."
        return text

    def _when(self) -> str:
        if self.blocks_before is None or self.leaves_at is None:
            return "It stays until that ends."
        if self.blocks_before:
            shown = ", ".join(f"{short(row.block_hash)} ({row.leaves_by})" for row in self.before)
            more = ", …" if self.blocks_before > len(self.before) else ""
            text = f"{_many(self.blocks_before, 'block')} leave before it: {shown}{more}."
        else:
            text = "It is the next to leave."
        least = "At the earliest it leaves" if self.lends else "It leaves"
        return text + (
            f" {least} when {_many(self.leaves_at, 'block')} that nobody has seen "
            f"{'is' if self.leaves_at == 1 else 'are'} stored, if nothing is used meanwhile."
        )

    def _missing(self, missing: Missing) -> str:
        text = f"Block {missing.depth:,} is in no tier"
        if not missing.known:
            return text + ", and nothing is known of it: it was never stored, or is forgotten."
        text += ", and its number is still known"
        if missing.idle_s is not None and missing.uses is not None:
            text += f": {_many(missing.uses, 'request')} used it before it left, the last "
            text += _ago(missing.idle_s)
        return text + ". When and why it left is not kept."

    def _repr_html_(self) -> str:
        row = self.deepest
        values: dict[str, Any] = {
            "blocks": self.blocks,
            "in the first tier": self.cached_blocks,
            "more in the second": self.second_blocks,
            "standing": self.standing,
            "key": self.key,
            "level": None if row is None else row.level,
            "lifetime left, s": None if row is None else row.lifetime_left_s,
            "leases": None if row is None else row.leases,
            "pinned by": None if row is None else ", ".join(row.pinned_by),
            "blocks that leave before it": self.blocks_before,
            "leaves when so many blocks are stored": self.leaves_at,
        }
        return facts(f"{self.policy}: why a prefix is kept", values)


_LEVELS = (
    "it leaves before all of level 0",
    "it leaves when nothing of a lower level can",
)


def _many(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _named(row: Row) -> str:
    return f"block {row.depth:,} of the prefix (hash {short(row.block_hash)}, id {row.block_id})"


def _ago(seconds: float | None) -> str:
    return f"{seconds:,.4g} s ago"


def explain(cache: KVCacheScheduler, what: Request | Hashes) -> Explanation:
    """See `KVCacheScheduler.explain`."""
    request = what if isinstance(what, Request) else Request(hashes=what)
    with cache.lock:
        chain = cache.maker.make(request)
        home = cache.store.home_of(request.tenant)
        turn = copy_page(cache, home)
        partition = home.partition
        hits, _, _ = partition.probe(chain.keys, chain.space, 0)
        nodes = partition.out.nodes[:hits].tolist()
        deepest = nodes[-1] if nodes else NONE
        behind = _behind(home, chain, hits, deepest)
        missing = _find_missing(partition, chain, hits + behind, cache.now())
        key, rank = _key(partition, deepest) if nodes else (None, None)
        lends = len(cache.store.homes) > 1
    page = turn()
    place = int(page.first.place[deepest]) if nodes else 0
    before = page.first.order.nodes[: min(max(place - 1, 0), FIRST)].tolist()
    return Explanation(
        policy=cache.policy.label,
        home=home.name,
        blocks=len(chain.keys),
        tokens=chain.tokens,
        cached_blocks=hits,
        cached_tokens=min(hits * cache.block_size, chain.tokens),
        second_blocks=behind,
        deepest=row_of(cache, page, deepest) if nodes else None,
        key=key,
        rank=rank,
        blocks_before=place - 1 if place else None,
        before=tuple(row_of(cache, page, node) for node in before),
        leaves_at=page.first.order.free + place if place else None,
        lends=lends,
        missing=missing,
    )


def _behind(home: Home, chain: Chain, hits: int, deepest: int) -> int:
    """Return how many blocks the second tier has where the first ends."""
    if home.second is None:
        return 0
    more, _, _ = home.second.partition.probe(chain.keys[hits:], chain.space, 0, base=deepest)
    return more


def _find_missing(partition: Partition, chain: Chain, depth: int, now: float) -> Missing | None:
    if depth == len(chain.keys):
        return None
    live = partition.live
    node, path = NONE, path_of_space(chain.space)
    for at in range(depth + 1):
        path = path_below(path, int(chain.keys[at, 0]))
        node = find(live, node, chain.keys, at, chain.space, path)
        if node == NONE:
            return Missing(depth, False, None, None)
    uses = int(live.uses[node])
    idle = max(0.0, partition.time(now) - float(live.used_s[node])) if uses else None
    return Missing(depth, True, uses, idle)


def _key(partition: Partition, node: int) -> tuple[int | float | None, int | None]:
    """Return what a ranked policy orders a block by."""
    form = partition.form
    if not isinstance(form, RankedPolicy):
        return None, None
    key: Callable[..., Any] = type(form).key
    touched: NDArray[np.int64] = partition.state.touched
    found = key(partition.live.table, partition.state, node)
    return (float(found) if isinstance(found, float) else int(found)), int(touched[node])
