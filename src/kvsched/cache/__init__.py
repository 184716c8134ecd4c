"""A cache that lives: paged blocks, leases, admission, tenants, tiers, under any policy."""

from kvsched.cache.lease import Lease
from kvsched.cache.pins import Pin
from kvsched.cache.request import Admission, Growth, Move, NotAdmittedError, Outcome, Request
from kvsched.cache.scheduler import KVCacheScheduler
from kvsched.cache.second import TierSettings
from kvsched.cache.tenants import Tenant
from kvsched.cache.waiting import Ticket

__all__ = [
    "Admission",
    "Growth",
    "KVCacheScheduler",
    "Lease",
    "Move",
    "NotAdmittedError",
    "Outcome",
    "Pin",
    "Request",
    "Tenant",
    "Ticket",
    "TierSettings",
]
