"""Eight threads at once; afterwards nothing is held that nobody holds."""

from __future__ import annotations

import random
import threading
from typing import Any

from live_cache import cache, named

from kvsched.cache import KVCacheScheduler, Lease, Outcome, Tenant, TierSettings
from kvsched.foundation.errors import UsageError

THREADS = 8


class Worker:
    """One client: requests of its own, kept a while, ended well or badly."""

    def __init__(self, made: KVCacheScheduler, seed: int) -> None:
        self.made = made
        self.random = random.Random(seed)  # noqa: S311  # a test's choices
        self.held: list[Lease] = []
        self.faults: list[BaseException] = []

    def request(self) -> Any:
        """Draw one of many prompts that share heads."""
        pick = self.random.choice
        keys = [pick([0, 0, 1]) * 10 + at for at in range(self.random.randint(1, 5))]
        return named(*keys, tenant=pick(["", "q", "g"]), priority=pick([0, 1]))

    def step(self) -> None:
        """Do one thing."""
        made, what = self.made, self.random.random()
        if what < 0.4 and len(self.held) < 3:
            admission = made.acquire(self.request())
            if admission.ticket is not None:
                found = admission.ticket.wait(0.0005)
                if found is None:
                    if not admission.ticket.cancel():
                        found = admission.ticket.wait(60)
                        assert found is not None
                    else:
                        return
                admission = found
            if admission.lease is not None:
                self.held.append(admission.lease)
        elif what < 0.5 and self.held:
            lease = self.random.choice(self.held)
            if lease.outcome is Outcome.ADMIT:
                lease.extend(self.random.randint(0, 3))
        elif what < 0.55 and self.held:
            self.held.append(self.random.choice(self.held).fork())
        elif what < 0.6:
            try:
                made.unpin(made.pin(self.request(), str(self.random.randint(0, 2))))
            except UsageError:
                return
        elif what < 0.62:
            made.drop_expired()
            made.poll()
            made.metrics()
            made.take_events()
        elif what < 0.63:
            made.set_policy(self.random.choice(["lru", "fifo"]))
        elif self.held:
            lease = self.held.pop(self.random.randrange(len(self.held)))
            made.release(lease, failed=self.random.random() < 0.2)

    def run(self, steps: int) -> None:
        """Do many, then end all."""
        try:
            for _ in range(steps):
                self.step()
            for lease in self.held:
                self.made.release(lease)
        except BaseException as fault:  # noqa: BLE001  # told by the test
            self.faults.append(fault)


def hammer(made: KVCacheScheduler, steps: int) -> None:
    workers = [Worker(made, seed) for seed in range(THREADS)]
    threads = [threading.Thread(target=worker.run, args=[steps]) for worker in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    assert [fault for worker in workers for fault in worker.faults] == []
    made.check()
    assert made.leases == {}
    assert made.waiting == 0
    assert made.blocks.shared == {}
    assert made.free_blocks == made.capacity_blocks
    assert sum(home.partition.locked for home in made.store.homes.values()) == 0


def test_eight_threads() -> None:
    tenants = {"q": Tenant(quota_blocks=10, over_quota="queue"), "g": Tenant(guaranteed_blocks=8)}
    hammer(cache(24, tenants=tenants, max_events=100, max_pinned_blocks=6), 1_500)


def test_eight_threads_with_a_tier() -> None:
    moves: list[Any] = []
    made = cache(16, carry=moves.extend, second_tier=TierSettings(capacity_blocks=20))
    hammer(made, 600)
    assert moves
