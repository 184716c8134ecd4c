"""The course chapter "37. KV Cache Scheduling": its class, as it is, and lessons around it.

>>> from kvsched.lesson import KVCacheSchedulerSim
>>> sim = KVCacheSchedulerSim(100)
>>> sim.schedule([("system", 60), ("chat", 30), ("system", 60), ("code", 40)])
['add:system', 'add:chat', 'reuse:system', 'evict:chat', 'add:code']

Nothing here needs compilation; the class imports the standard library alone.
"""

from __future__ import annotations

from kvsched.lesson.chapter import Entry, KVCacheSchedulerSim

__all__ = ["Entry", "KVCacheSchedulerSim"]
