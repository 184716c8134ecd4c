"""The course chapter "37. KV Cache Scheduling": its class, as it is, and lessons around it.

>>> from kvsched.lesson import KVCacheSchedulerSim
>>> sim = KVCacheSchedulerSim(100)
>>> sim.schedule([("system", 60), ("chat", 30), ("system", 60), ("code", 40)])
['add:system', 'add:chat', 'reuse:system', 'evict:chat', 'add:code']

Nothing here needs compilation; the class imports the standard library alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kvsched.lesson.chapter import Entry, KVCacheSchedulerSim

if TYPE_CHECKING:
    from kvsched.lesson.report import Report

__all__ = ["Entry", "KVCacheSchedulerSim", "check"]


def check(
    number: int, namespace: Mapping[str, Any], task: int | None = None, language: str | None = None
) -> Report | None:
    """Check what a notebook has defined so far: ``check(37, globals())``, or one task of it.

    See `kvsched.lesson.grading.check`.
    """
    from kvsched.lesson import grading

    return grading.check(number, namespace, task, language)
