"""A cache under random operations, for tests that look at it from outside after each of them."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from typing import Any

from kvsched.cache import KVCacheScheduler, Lease, Pin, Request, Tenant, Ticket, TierSettings

Path = tuple[int, ...]
BLOCK = 4
SPACES: tuple[dict[str, str], ...] = ({}, {"cache_salt": "s"}, {"lora_name": "a"})
TENANTS = ("", "", "other", "apart")


def hash_of(path: Path) -> bytes:
    """A hash that names a whole path."""
    return hashlib.sha256(repr(path).encode()).digest()


def hashes_of(path: Path) -> list[bytes]:
    return [hash_of(path[: at + 1]) for at in range(len(path))]


def make_cache(policy: str = "lru", *, capacity: int = 16, **settings: Any) -> KVCacheScheduler:
    """A cache whose clock is its attribute of that name's list."""
    time = [0.0]
    usual: dict[str, Any] = {
        "tenants": {"apart": Tenant(quota_blocks=6, guaranteed_blocks=2)},
        "when_full": "reject",
        "max_events": 1 << 20,
    }
    cache = KVCacheScheduler(
        capacity, BLOCK, policy, clock=lambda: time[0], **{**usual, **settings}
    )
    cache.time = time  # type: ignore[attr-defined]
    return cache


class Run:
    """Random operations on a cache; ``after`` is called behind each with its name."""

    def __init__(
        self,
        cache: KVCacheScheduler,
        seed: int,
        *,
        after: Callable[[str], None] = lambda what: None,
        spaces: tuple[dict[str, str], ...] = SPACES,
        tenants: tuple[str, ...] = TENANTS,
        ids: bool = False,
        policies: tuple[str, ...] = (),
    ) -> None:
        self.cache = cache
        self.draw = random.Random(seed)  # noqa: S311  # a test's randomness
        self.after = after
        self.spaces = spaces
        self.tenants = tenants
        self.ids = ids
        self.policies = policies
        self.leases: list[tuple[Lease, Path]] = []
        self.pins: list[Pin] = []
        self.tickets: list[Ticket] = []
        self.asked: dict[tuple[Path, int, str], None] = {}
        """Every prefix that a block was ever asked for by: (path, place of its space, tenant)."""
        self.did: dict[str, int] = {}

    def step(self) -> None:
        """Do one operation."""
        kinds = {
            "acquire": 40, "release": 22, "fail": 6, "computed": 8, "extend": 14, "fork": 4,
            "pin": 3, "unpin": 3, "wait": 10, "expire": 2, "clear": 1, "policy": 1, "poll": 1,
        }  # fmt: skip
        what = self.draw.choices(list(kinds), list(kinds.values()))[0]
        getattr(self, f"_{what}")()
        self.did[what] = self.did.get(what, 0) + 1
        self.after(what)

    def steps(self, count: int) -> Run:
        for _ in range(count):
            self.step()
        return self

    def _path(self, most: int = 5) -> Path:
        return tuple(self.draw.randrange(3) for _ in range(self.draw.randint(1, most)))

    def request(self, path: Path, space: int, tenant: str, **more: Any) -> Request:
        """A request for a path: hashes, or token ids that tell the path."""
        named: dict[str, Any] = {**self.spaces[space], "tenant": tenant, **more}
        if self.ids:
            tokens = [token for key in path for token in range(10 * key, 10 * key + BLOCK)]
            return Request(token_ids=tokens + [7] * self.draw.choice([0, 0, 1, 3]), **named)
        size = len(path) * BLOCK
        return Request(hashes=hashes_of(path), tokens=size + self.draw.choice([0, 0, 1]), **named)

    def _acquire(self) -> None:
        draw = self.draw
        path, space = self._path(), draw.randrange(len(self.spaces))
        tenant = draw.choice(self.tenants)
        for at in range(len(path)):
            self.asked[path[: at + 1], space, tenant] = None
        session = draw.choice("uvwxyz")
        request = self.request(
            path,
            space,
            tenant,
            id=f"r{len(self.asked)}",
            priority=draw.choice([0, 0, 0, -1, 1, 2]),
            lifetime_s=draw.choice([None, None, None, 5.0, 40.0]),
            reserve_tokens=draw.choice([0, 0, 3]),
            session=session,
            type=draw.choice(["chat", "tool", "api"]),
            output_tokens=8,
        )
        found = self.cache.acquire(request)
        if found.lease is not None:
            self.leases.append((found.lease, path))
        if found.ticket is not None:
            self.tickets.append(found.ticket)

    def _settled(self) -> None:
        """Take up the leases of those whose turn came."""
        for ticket in list(self.tickets):
            if ticket.admission is not None:
                self.tickets.remove(ticket)
                if ticket.admission.lease is not None:
                    self.leases.append((ticket.admission.lease, ()))

    def _take(self) -> Lease | None:
        self._settled()
        if not self.leases:
            return None
        return self.leases.pop(self.draw.randrange(len(self.leases)))[0]

    def _release(self) -> None:
        lease = self._take()
        if lease is not None:
            self.cache.release(lease)

    def _fail(self) -> None:
        lease = self._take()
        if lease is not None:
            self.cache.release(lease, failed=True)

    def _computed(self) -> None:
        if self.leases:
            lease, _ = self.draw.choice(self.leases)
            self.cache.computed(lease, self.draw.randint(0, lease.tokens))

    def _extend(self) -> None:
        if not self.leases:
            return
        at = self.draw.randrange(len(self.leases))
        lease, path = self.leases[at]
        count = self.draw.randint(1, 6)
        if self.ids:
            self.cache.extend(lease, [self.draw.randrange(2) for _ in range(count)])
            return
        full = (lease.tokens + count) // BLOCK
        if not path or full <= len(path) or self.draw.random() < 0.3:
            self.cache.extend(lease, count)
            return
        start = len(lease._nodes)
        if start != len(path) or any(
            block in self.cache.blocks.shared for block in lease.block_ids[start:]
        ):
            return
        longer = path + tuple(self.draw.randrange(2) for _ in range(full - len(path)))
        grown = self.cache.extend(lease, count, hashes=hashes_of(longer)[start:full])
        if grown.outcome == "admit":
            self.leases[at] = (lease, longer)
            space = self.spaces.index(
                {
                    name: value
                    for name in ("cache_salt", "lora_name")
                    if (value := getattr(lease.request, name)) is not None
                }
            )
            for end in range(start, full):
                self.asked[longer[: end + 1], space, lease.tenant] = None

    def _fork(self) -> None:
        if self.leases:
            lease, path = self.draw.choice(self.leases)
            self.leases.append((self.cache.fork(lease), path))

    def _pin(self) -> None:
        if self.leases and len(self.pins) < 3:
            lease, _ = self.draw.choice(self.leases)
            if len(lease._nodes) and lease.lost_from is None:
                owner = self.draw.choice(["ops", "batch"])
                if self.cache.pins.blocks + len(lease._nodes) <= self.cache.pins.most:
                    self.pins.append(self.cache.pin(lease, owner))

    def _unpin(self) -> None:
        if self.pins:
            self.cache.unpin(self.pins.pop(self.draw.randrange(len(self.pins))))

    def _wait(self) -> None:
        self.cache.time[0] += self.draw.choice([0.0, 0.5, 3.0, 20.0])  # type: ignore[attr-defined]

    def _expire(self) -> None:
        self.cache.drop_expired()

    def _clear(self) -> None:
        if self.draw.random() < 0.3:
            for pin in self.pins:
                self.cache.unpin(pin)
            self.pins.clear()
            while (lease := self._take()) is not None:
                self.cache.release(lease)
            self.after("emptied")
        self.cache.clear()

    def _policy(self) -> None:
        if self.policies:
            self.cache.set_policy(self.draw.choice(self.policies))

    def _poll(self) -> None:
        self.cache.poll()

    def end(self) -> None:
        """Release all that is held."""
        for pin in self.pins:
            self.cache.unpin(pin)
        self.pins.clear()
        while (lease := self._take()) is not None:
            self.cache.release(lease)
        self.after("end")


def second(write: str = "back", policy: str = "lru", blocks: int = 12) -> TierSettings:
    return TierSettings(capacity_blocks=blocks, policy=policy, write=write)
