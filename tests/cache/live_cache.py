"""Short ways to make requests and caches in tests of the live cache."""

from __future__ import annotations

from typing import Any

from kvsched.cache import Admission, KVCacheScheduler, Lease, Outcome, Request


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def cache(capacity: int, size: int = 2, policy: Any = "lru", **settings: Any) -> KVCacheScheduler:
    """Return a cache with a clock of its own at `KVCacheScheduler.clock`."""
    return KVCacheScheduler(capacity, size, policy, **{"clock": Clock(), **settings})


def named(*keys: int, tokens: int | None = None, **about: Any) -> Request:
    """Return a request whose blocks have these keys."""
    return Request(hashes=list(keys), tokens=tokens, **about)


def admitted(made: KVCacheScheduler, request: Request) -> Lease:
    """Return the lease of a request that must be admitted at once."""
    admission: Admission = made.acquire(request)
    assert admission.outcome is Outcome.ADMIT, admission
    assert admission.lease is not None
    return admission.lease


def serve(made: KVCacheScheduler, *keys: int, **about: Any) -> int:
    """Run a whole request; return the blocks that it hit."""
    lease = admitted(made, named(*keys, **about))
    made.release(lease)
    made.check()
    return lease.hit_blocks


def hits(made: KVCacheScheduler, *keys: int, **about: Any) -> int:
    """Return how many blocks would hit."""
    return made.lookup(named(*keys, **about)) // made.block_size
