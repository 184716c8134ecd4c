"""Segmented LRU."""

from __future__ import annotations

from kvsched.kernel.table import Table
from kvsched.policy.lfu import LFU, LFUState

PROTECTED = 2


def _key(table: Table, state: LFUState, node: int) -> int:
    return 1 if state.uses[node] >= PROTECTED else 0


class SLRU(LFU):
    """Nodes used once leave before nodes used again; the least recent first in each segment.

    Closed under ancestors: only leaves are ranked.
    """

    name = "slru"
    source = "SGLang `slru`: (count ≥ 2, last access); insertion counts 1"
    key = staticmethod(_key)
