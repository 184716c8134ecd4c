"""First in, last out."""

from __future__ import annotations

from kvsched.kernel.table import Table
from kvsched.policy.base import RankedState
from kvsched.policy.fifo import FIFO


def _key(table: Table, state: RankedState, node: int) -> int:
    return -int(state.touched[node])


class FILO(FIFO):
    """The leaf stored last leaves first, however often it was hit.

    SGLang's key is the negative of its `creation_time`; a rank is of the insertion here, as in
    `fifo`. Closed under ancestors: only leaves are ranked, and a parent is older than its children.
    """

    name = "filo"
    source = "SGLang `filo`: −creation time"
    key = staticmethod(_key)
