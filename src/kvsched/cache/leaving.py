"""What leaves next, and after it, to the last: found by running the kernel on a copy of the state.

Nothing is modelled: the policy's hooks decide, compiled, in the kernel that decides in earnest.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvsched.cache import operations
from kvsched.cache.partition import Partition
from kvsched.cache.request import space_of
from kvsched.cache.state import FREE, LIMIT, NEVER, USED, Live, Pool, new_out
from kvsched.kernel.table import NONE

NOBODY = space_of("kvsched", "a prompt that nobody has seen")
"""A namespace of its own: of two parts, where those of requests have four."""


class Leaving(NamedTuple):
    """The blocks of a partition that can leave, the next one first."""

    nodes: NDArray[np.int32]
    """(L,) numbers."""
    why: NDArray[np.uint8]
    """(L,) `operations.BY_POLICY`, `BY_LIFETIME` or `BY_LEVEL`."""
    free: int
    """Blocks that can be stored before the first of them leaves."""


class Copy(NamedTuple):
    """Everything that decides in a partition, at one moment."""

    live: Live
    state: Any
    pool: Pool
    operate: Callable[..., int]
    capacity: int
    block_size: int
    now: float
    """As the partition counts it."""


def copy_of(partition: Partition, now: float) -> Copy:
    """Return a copy of what decides in a partition; what its policy reads of requests is blank.

    O(N), and as much memory as the partition has. The caller holds the lock.
    """
    memo: dict[int, Any] = {}
    live = copy.deepcopy(partition.live, memo)
    state = copy.deepcopy(partition.state, memo)
    partition.columns.blank(memo)
    pool = copy.deepcopy(partition.pool, memo)
    return Copy(
        live,
        state,
        pool,
        partition._operate,
        partition.capacity,
        partition.block_size,
        partition.time(now),
    )


def leaving(at: Copy) -> Leaving:
    """Return what leaves, in order, as one prompt that nobody has seen is stored block by block.

    It asks for all that can be had, and stays: what is stored leaves nothing else to choose from.
    O(L log N). The copy is used up.
    """
    room = at.capacity
    free = min(int(at.pool.counts[FREE]), int(at.live.counts[LIMIT] - at.live.counts[USED]))
    out = new_out(room)
    keys = np.zeros((room, at.live.names.keys.shape[1]), np.int64)
    keys[:, 0] = np.arange(room)
    at.operate(
        at.live, at.state, at.pool, out, keys, NOBODY, operations.ACQUIRE, NONE, room, 0, -1,
        at.now, 0, NEVER, at.block_size, at.block_size,
    )  # fmt: skip
    count = int(out.report[operations.EVICTED])
    return Leaving(out.gone[:count].copy(), out.gone_why[:count].copy(), max(free, 0))
