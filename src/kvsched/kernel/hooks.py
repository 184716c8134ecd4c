"""The hook contract: what a kernel calls, and what a policy answers.

A kernel names these functions; `kvsched.foundation.jit.bind` puts a policy's own in their
place. Every hook gets the node table and the policy's state (a NamedTuple of arrays that the
policy allocates in `prepare`), and runs compiled and plain alike: scalars that change live in
arrays, nothing is allocated, nothing raises.

``rank`` is the moment of a touch: a number that grows from request to request and, inside one
request, is larger for a shallower node. The order by rank is the order (request of last access,
deeper first) that every policy breaks its ties by. No two touches share one.

Order of calls for one request: `begin`; `on_hit` for every resident node of the chain from the
root down; `leave` for the deepest of them if it was evictable (it is pinned now); then for each
missing node, while the cache is full, `victim` and `on_evict`, `enter` for a parent that lost
its last resident child; and `on_insert`. At the end `enter` for the deepest node stored, which
is pinned no more.

A cache that lives calls the same hooks for requests that overlap. A node is evictable while it has
no resident child and no request holds it. A request that stored its prompt holds all of it: its
deepest node enters only at the end. Blocks that it fills later are announced by `resume`, then
stored by `on_insert`. Its end is `resume` with the moment of release, as many ranks as it holds
nodes, `on_release` for each of them from the root down, and `enter` for the deepest where nobody
else holds it. Nodes may be held by several requests, and hit while they are. A node that is taken
out although the policy did not name it is told by `leave`, if it was evictable, and `on_drop`. The
number of a node that is not resident may be given to another node, after `forget`; a number whose
children are known is not. Calls do not interleave: each of begin with its hits and insertions,
resume with its, a release, is over before the next. ``now`` never falls. ``request`` is 0, and the
columns that `Setup.column` gave have the values of the request that begins or resumes.
"""

from __future__ import annotations

from typing import Any

from kvsched.kernel.table import NONE, Table

track_leaves = True
"""Whether the kernel counts resident children and calls `enter` and `leave`. A policy whose order
always ends in a leaf says False and pays for neither."""


weighted = False
"""Whether a node takes as much of the capacity as its room in the table says, and not 1."""

limited = False
"""Whether an engine's rules limit what a request can hit and store."""


def begin(table: Table, state: Any, request: int, now: float, last_rank: int) -> None:
    """A request begins at ``now`` seconds; the root of its chain will get rank ``last_rank``."""


def resume(table: Table, state: Any, request: int, now: float, last_rank: int) -> None:
    """A request that began earlier goes on at ``now``, or ends; columns are its own again.

    What it filled since is stored by the calls of `on_insert` that follow, the first with rank
    ``last_rank``, or hit where another request has stored the same; at its end the root is released
    with that rank. No rank is at or below one that was given before. A policy without one of its
    own has `begin` here.
    """


def on_hit(table: Table, state: Any, node: int, rank: int) -> None:
    """A resident node is used by the request."""


def on_insert(table: Table, state: Any, node: int, rank: int) -> None:
    """A node enters the cache; its parent, if any, is resident."""


def enter(table: Table, state: Any, node: int) -> None:
    """A resident node becomes evictable: no resident child, not pinned."""


def leave(table: Table, state: Any, node: int) -> None:
    """An evictable node is pinned, or gets a child. Not called for a node that is evicted."""


def on_evict(table: Table, state: Any, node: int) -> None:
    """The victim that the policy named leaves the cache, and the evictable nodes with it."""


def on_release(table: Table, state: Any, node: int, rank: int) -> None:
    """A request that holds the node ends: it was in use until now, and is not evictable yet.

    No use to count. Others may hold it still.
    """


def on_drop(table: Table, state: Any, node: int) -> None:
    """A resident node that is not evictable leaves the cache, and the policy did not name it.

    Its place among the evictable, if it had one, was taken by `leave`. Nothing is learnt from it:
    no ghost, no clock moves.
    """


def forget(table: Table, state: Any, node: int) -> None:
    """A node gives its number to another: nothing that was known of it may be left.

    It is not resident and none of its children is known; its ancestors are, and the table's row is
    still its own.
    """


def victim(table: Table, state: Any, incoming: int, rank: int) -> int:
    """Name the evictable node to go so that ``incoming`` can be stored, or NONE to decline.

    Changes nothing that a second call would notice.
    """
    return NONE


def key(table: Table, state: Any, node: int) -> int:
    """Order of an evictable node in a ranked policy (int64): the smallest leaves first."""
    return 0


HOOKS = (
    "track_leaves",
    "begin",
    "resume",
    "on_hit",
    "on_insert",
    "enter",
    "leave",
    "on_evict",
    "on_release",
    "on_drop",
    "forget",
    "victim",
    "key",
)
"""The names that a kernel leaves open, in one place."""
