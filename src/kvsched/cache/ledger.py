"""The ledger: what is cached, in order of retention, as the policy would decide now.

The order is that in which blocks leave as a prompt that nobody has seen, and of which a policy
knows nothing else, is admitted at this moment and stays: exactly so under every policy, with
levels, lifetimes, holds and pins, within each home (a tenant with blocks of its own, or all others
together; a home may take from another before it lets its own leave). Many prompts of a block each
let the same leave, but under `wild`, which learns from each. So do blocks that decoding takes
without naming them, but under `arc`, `s3fifo` and `wtinylfu`, which count what is stored. What
changes it: a use; a release; time, for lifetimes and policies that look at the clock; and, where
what was stored is released before the old blocks are gone, its own claim to stay: under `lru` it is
the last, under `lfu`, `mru` and `filo` it may leave first. The second tier's order is likewise that
of blocks which are stored there and stay.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from kvsched.cache.events import WHY, BlockHash
from kvsched.cache.pages import Page, open_page
from kvsched.cache.state import COMPUTING, LOST, NEVER, UNSET
from kvsched.foundation.errors import UsageError
from kvsched.foundation.notebook import table
from kvsched.kernel.table import NONE

if TYPE_CHECKING:
    from rich.table import Table as RichTable

    from kvsched.cache.scheduler import KVCacheScheduler

BY = ("block", "prefix")
ORDERS = ("kept", "leaving")
SHOWN = 20
"""Rows that a ledger shows of itself."""


@dataclass(frozen=True, slots=True)
class Row:
    """One cached block."""

    block_hash: BlockHash
    """As it was handed in, or as its token ids hash."""
    block_id: int | None
    """Physical block of the first tier; None where only the second has it."""
    depth: int
    """Blocks before it in its prompt."""
    first_token: int
    """Tokens before it in its prompt."""
    tokens: int
    home: str
    """The tenant whose own share it is in; empty for the share of all that have none."""
    tiers: tuple[str, ...]
    """Media that have it."""
    state: str
    """computing, ready, or lost (found no more, as the request that computed it failed)."""
    uses: int
    """Requests that used it and have ended, since it came into its tier."""
    idle_s: float | None
    """Seconds since the last of them ended; None where none has."""
    level: int
    """Retention priority: the highest of theirs."""
    lifetime_left_s: float | None
    """Seconds for which it is kept before others, 0 once they are over; None: no end is set."""
    leases: int
    """Leases whose chain it is in."""
    pinned_by: tuple[str, ...]
    """Owners of pins, sorted."""
    children: int
    """Blocks of its tier that follow it directly: they leave before it."""
    place: int | None
    """1 for the block of its home that leaves the first tier next; None where it cannot leave."""
    leaves_by: str | None
    """Why it leaves then: policy, lifetime or level."""
    second_place: int | None
    """The same place in the second tier."""


@dataclass(frozen=True, slots=True)
class PrefixRow:
    """One end of a chain of cached blocks, and all before it."""

    last: Row
    """Its deepest block."""
    blocks: int
    tokens: int
    own_blocks: int
    """Its last blocks that no other row's chain has."""
    gone_place: int | None
    """Place of the last of these to leave the first tier; `last` has that of the first."""


AnyRow = TypeVar("AnyRow", Row, PrefixRow)


class Ledger(Sequence[AnyRow], Generic[AnyRow]):
    """Rows in order. `to_table` is for a terminal; a notebook shows it by itself."""

    def __init__(self, rows: Sequence[AnyRow], title: str) -> None:
        self.rows: list[AnyRow] = list(rows)
        self.title = title

    @overload
    def __getitem__(self, at: int) -> AnyRow: ...
    @overload
    def __getitem__(self, at: slice) -> list[AnyRow]: ...
    def __getitem__(self, at: int | slice) -> AnyRow | list[AnyRow]:
        found: AnyRow | list[AnyRow] = self.rows[at]
        return found

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[AnyRow]:
        return iter(self.rows)

    def to_table(self, limit: int = SHOWN) -> RichTable:
        """Return the first rows as a table of rich's."""
        from rich.box import SIMPLE_HEAD
        from rich.markup import escape
        from rich.table import Table

        shown = _shown(self.rows[:limit])
        found = Table(title=self._caption(len(shown)), box=SIMPLE_HEAD, pad_edge=False)
        for name in shown[0] if shown else ():
            found.add_column(name, justify="left" if name in _TEXTS else "right", no_wrap=True)
        for cells in shown:
            found.add_row(*(escape(_text(value)) for value in cells.values()))
        return found

    def _caption(self, shown: int) -> str:
        return self.title if shown == len(self) else f"{self.title}; {shown} of {len(self):,} rows"

    def __repr__(self) -> str:
        shown = _shown(self.rows[:SHOWN])
        texts = [list(shown[0])] if shown else []
        texts += [[_text(value) for value in cells.values()] for cells in shown]
        widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
        lines: list[str] = [
            "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip()
            for line in texts
        ]
        return "\n".join([self._caption(len(shown)), *lines])

    def _repr_html_(self) -> str:
        shown = _shown(self.rows[:SHOWN])
        return table(self._caption(len(shown)), shown)


_USUAL = (None, "", 0, "ready")
_OPTIONAL = ("home", "state", "level", "life s", "leases", "pinned by", "second place")
"""Columns that are left out where every row has something usual there."""


def _shown(rows: Sequence[Row | PrefixRow]) -> list[dict[str, Any]]:
    """Return the cells of rows, in the columns that tell them apart."""
    cells = [_cells(row) for row in rows]
    dull = {name for name in _OPTIONAL if all(each[name] in _USUAL for each in cells)}
    return [{name: each[name] for name in each if name not in dull} for each in cells]


_TEXTS = ("hash", "home", "tiers", "pinned by", "leaves by", "state")


def _text(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:,.4g}" if isinstance(value, float) else str(value)


def short(block_hash: BlockHash) -> str:
    """Return the first digits of a hash, to tell blocks apart at a glance."""
    return str(block_hash) if isinstance(block_hash, int) else block_hash.hex()[:12]


def _cells(row: Row | PrefixRow) -> dict[str, Any]:
    """Return what people look at, by the heading of its column."""
    block = row if isinstance(row, Row) else row.last
    cells: dict[str, Any] = {"hash": short(block.block_hash)}
    if isinstance(row, PrefixRow):
        cells |= {"blocks": row.blocks, "own": row.own_blocks, "tokens": row.tokens}
    else:
        cells |= {"block": row.block_id, "depth": row.depth, "tokens": row.tokens}
    cells |= {
        "home": block.home,
        "tiers": "+".join(block.tiers),
        "state": block.state,
        "uses": block.uses,
        "idle s": block.idle_s,
        "level": block.level,
        "life s": block.lifetime_left_s,
        "leases": block.leases,
        "pinned by": ", ".join(block.pinned_by),
        "place": block.place,
    }
    if isinstance(row, PrefixRow):
        return cells | {"gone": row.gone_place, "second place": block.second_place}
    return cells | {"leaves by": row.leaves_by, "second place": row.second_place}


def row_of(cache: KVCacheScheduler, page: Page, node: int) -> Row:
    """Return the row of a number that one of the tiers has. O(1)."""
    first, second = page.first, page.second
    here = first.holds(node)
    below = second is not None and second.holds(node)
    tier = first if here or second is None else second
    columns = tier.columns
    expires, uses = int(columns.expires[node]), int(columns.uses[node])
    place = int(first.place[node])
    media = [tier.medium for tier in (first, second) if tier is not None and tier.holds(node)]
    ready = int(columns.ready[node])
    return Row(
        block_hash=cache.maker.to_hash(columns.keys[node]),
        block_id=int(columns.block[node]) if here else None,
        depth=int(columns.depth[node]),
        first_token=int(columns.begins[node]),
        tokens=int(columns.tokens[node]),
        home=page.name,
        tiers=tuple(media),
        state="computing" if ready == COMPUTING else "lost" if ready == LOST else "ready",
        uses=uses,
        idle_s=max(0.0, tier.now - float(columns.used_s[node])) if uses else None,
        level=int(columns.level[node]),
        lifetime_left_s=None if expires in (NEVER, UNSET) else max(0.0, expires / 1e6 - tier.now),
        leases=int(page.leases[node]),
        pinned_by=tuple(sorted(page.owners.get(node, ()))),
        children=int(columns.children[node]),
        place=place or None,
        leaves_by=WHY[int(first.why[node])] if place else None,
        second_place=int(second.place[node]) or None if second is not None and below else None,
    )


def _sorted(pages: Sequence[Page], ends: bool) -> list[tuple[int, int]]:
    """Return (page, number) of what is cached, what is kept longest first. O(N log N).

    What cannot leave the first tier, most leases first; then what leaves it last, up to what leaves
    next; then what only the second tier has, likewise. ``ends``: only what no cached block follows.
    """
    parts = []
    for at, page in enumerate(pages):
        there, children = page.cached()
        nodes = np.flatnonzero(there & (children == 0) if ends else there)
        here = page.first.columns.resident[nodes] != 0
        place = page.first.place[nodes]
        group = np.where(here, np.where(place > 0, 1, 0), 2)
        if page.second is not None:
            place = np.where(here, place, page.second.place[nodes])
        rank = np.where(group == 0, -page.leases[nodes], -place)
        depth = page.first.columns.depth[nodes]
        parts.append(np.stack([group, rank, np.full(len(nodes), at), depth, nodes]))
    columns = np.concatenate(parts, axis=1)
    order = np.lexsort(columns[::-1])
    return [(int(at), int(node)) for at, node in columns[[2, 4]][:, order].T]


def _prefix(
    cache: KVCacheScheduler, page: Page, node: int, children: NDArray[np.int64]
) -> PrefixRow:
    """Return the row of a chain's end. O(its own blocks)."""
    last = row_of(cache, page, node)
    own, gone, stays = 1, last.place or 0, last.place is None
    above = int(page.first.columns.parent[node])
    while above != NONE and children[above] == 1:
        place = int(page.first.place[above])
        own, gone, stays = own + 1, max(gone, place), stays or place == 0
        above = int(page.first.columns.parent[above])
    tokens = last.first_token + last.tokens
    return PrefixRow(last, last.depth + 1, tokens, own, None if stays else gone)


def snapshot(
    cache: KVCacheScheduler, limit: int | None, tenant: str | None, by: str, order: str
) -> Ledger[Any]:
    """See `KVCacheScheduler.snapshot`."""
    if by not in BY:
        raise UsageError(f"by must be one of {', '.join(BY)}, not {by!r}")
    if order not in ORDERS:
        raise UsageError(f"order must be one of {', '.join(ORDERS)}, not {order!r}")
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 0):
        raise UsageError(f"limit must be a whole number of at least 0, not {limit!r}")
    store = cache.store
    homes = list(store.homes.values()) if tenant is None else [store.home_of(tenant)]
    pages = [open_page(cache, home) for home in homes]
    found = _sorted(pages, by == "prefix")
    if order == "leaving":
        found.reverse()
    rows: list[Any]
    if by == "block":
        rows = [row_of(cache, pages[at], node) for at, node in found[:limit]]
    else:
        children = [page.cached()[1] for page in pages]
        rows = [_prefix(cache, pages[at], node, children[at]) for at, node in found[:limit]]
    what = "blocks" if by == "block" else "prefixes"
    first = "kept longest" if order == "kept" else "leaving next"
    title = f"{cache.policy.label}: {len(found):,} {what}, those {first} first"
    return Ledger(rows, title)
