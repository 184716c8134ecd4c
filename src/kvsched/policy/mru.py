"""Most recently used."""

from __future__ import annotations

from kvsched.kernel.table import Table
from kvsched.policy.base import RankedPolicy, RankedState


def _key(table: Table, state: RankedState, node: int) -> int:
    return -int(state.touched[node])


class MRU(RankedPolicy):
    """The leaf used most recently leaves first: for scans that come round again.

    SGLang's key is the negative of its `last_access_time`. Closed under ancestors: only leaves are
    ranked, so a chain still goes from its tail up, and the rest of the newest chain follows its
    tail. Nodes last used by one request are on one path, so no two of them are ever tied leaves.
    """

    name = "mru"
    source = "SGLang `mru`: −last access"
    key = staticmethod(_key)
