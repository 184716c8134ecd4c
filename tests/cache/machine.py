"""A machine over all operations of `KVCacheScheduler`, with an engine's model beside it."""

from __future__ import annotations

import hashlib
import itertools
from typing import Any, ClassVar

import numpy as np
from embedder import CarryError, Embedder, Held, shared_rightly
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvsched.cache.pins import Pin
from kvsched.cache.request import Admission, NotAdmittedError, Outcome, Request
from kvsched.cache.scheduler import KVCacheScheduler
from kvsched.cache.second import TierSettings
from kvsched.cache.tenants import Tenant
from kvsched.cache.waiting import Ticket
from kvsched.foundation.errors import UsageError
from kvsched.policy.registry import names as policy_names

AHEAD = ("opt", "opt-fit")
POLICIES = [name for name in policy_names() if name not in AHEAD]
NEED_COLUMNS = ("priority", "tlru")
"""Policies that ask what a request is: a second tier has blocks, and knows of no request."""
TIER_POLICIES = [name for name in POLICIES if name not in NEED_COLUMNS]
FORMS = ("ids", "bytes", "ints", "array", "content")
SMALL = st.integers(0, 30)

settings_of_cache = st.fixed_dictionaries(
    {
        "capacity_blocks": st.integers(2, 10),
        "block_size": st.integers(2, 3),
        "when_full": st.sampled_from(["queue", "queue", "degrade", "reject"]),
        "when_oversize": st.sampled_from(["reject", "degrade"]),
        "max_waiting": st.sampled_from([0, 1, 5, 5]),
        "max_waiting_tokens": st.sampled_from([None, None, 12]),
        "max_passes": st.sampled_from([0, 2, 1000]),
        "watermark": st.sampled_from([0.0, 0.0, 0.3]),
        "max_pinned_blocks": st.sampled_from([None, 0, 3]),
        "priority_retention": st.sampled_from([None, True, False]),
        "isolate_tenants": st.booleans(),
        "history_blocks": st.sampled_from([None, 0, 30]),
        "max_events": st.sampled_from([0, 4, 1000]),
    }
)
tiers = st.one_of(
    st.none(),
    st.fixed_dictionaries(
        {
            "capacity_blocks": st.integers(1, 8),
            "policy": st.sampled_from(TIER_POLICIES),
            "write": st.sampled_from(["back", "through"]),
        }
    ),
)
SPACES: list[dict[str, Any]] = [
    {}, {}, {}, {}, {}, {"cache_salt": "salt"}, {"lora_name": "adapter"}, {"model_revision": "1"},
    {"cache_salt": "adapter"},
]  # fmt: skip
abouts = st.fixed_dictionaries(
    {
        "tenant": st.sampled_from(["", "", "", "", "", "q", "q", "g", "g", "r"]),
        "priority": st.sampled_from([0, 0, 0, -1, 1]),
        "lifetime_s": st.sampled_from([None, None, None, 0.0, 2.0]),
        "deadline": st.sampled_from([None] * 8 + [-1.0, 0.0, 3.0]),
        "reserve_tokens": st.sampled_from([0, 0, 0, 0, 1, 4]),
    },
    optional={
        "session": st.sampled_from(["a", "b"]),
        "turn": st.sampled_from([None, 1, 2]),
        "type": st.sampled_from([None, "chat", "tool"]),
        "model": st.sampled_from([None, "m"]),
        "output_tokens": st.integers(0, 9),
        "delay_s": st.sampled_from([None, 1.0]),
    },
)
prompts = st.tuples(
    st.lists(st.sampled_from([0, 0, 1]), max_size=4),
    st.integers(0, 2),
    st.sampled_from(FORMS),
    st.booleans(),
    st.sampled_from([0, 0, 0, 1, 2]),
    st.sampled_from(SPACES),
    abouts,
    st.integers(0, 60),
)


def _digest(tokens: tuple[int, ...]) -> bytes:
    return hashlib.blake2b(repr(tokens).encode(), digest_size=8).digest()


class CacheMachine(RuleBasedStateMachine):
    """Operations in any order; `policies` and what is compiled are a subclass's."""

    policies: ClassVar[list[str]] = POLICIES
    others: ClassVar[list[str]] = POLICIES
    """Policies that `set_policy` may change to."""
    tier_policies: ClassVar[list[str] | None] = None

    @initialize(
        made=settings_of_cache,
        which=SMALL,
        tier=tiers,
        degrade=st.sampled_from(["head", "unstored", "tier"]),
        tenants=st.booleans(),
        own_carry=st.booleans(),
    )
    def begin(
        self,
        made: dict[str, Any],
        which: int,
        tier: dict[str, Any] | None,
        degrade: str,
        tenants: bool,
        own_carry: bool,
    ) -> None:
        self.now = 100.0
        self.size = made["block_size"]
        self.engine = Embedder(self.size)
        self.own_carry = own_carry
        capacity = made["capacity_blocks"]
        tier = None if tier is None else dict(tier)
        if tier is not None and self.tier_policies is not None:
            tier["policy"] = self.tier_policies[which % len(self.tier_policies)]
        if tier is None and degrade == "tier":
            degrade = "head"
        self.tenants: dict[str, Tenant] = {}
        if tenants:
            half = max(1, capacity // 2)
            slots = 1 if tier is not None and tier["capacity_blocks"] > 1 else 0
            self.tenants = {
                "q": Tenant(
                    quota_blocks=half, over_quota="queue", max_pinned_blocks=2,
                    second_tier_blocks=slots,
                ),
                "g": Tenant(guaranteed_blocks=half, weight=2.0),
                "r": Tenant(quota_blocks=1, over_quota="reject"),
            }  # fmt: skip
        self.isolated = made["isolate_tenants"]
        self.cache = KVCacheScheduler(
            **made,
            policy=self.policies[which % len(self.policies)],
            tenants=self.tenants,
            second_tier=None if tier is None else TierSettings(**tier),
            degrade=degrade,
            clock=lambda: self.now,
            carry=None if own_carry else self.engine.carry,
        )
        self.tier = tier
        self.held: list[Held] = []
        self.waiting: list[tuple[Ticket, Request, tuple[int, ...]]] = []
        self.told: list[Admission] = []
        self.pins: list[tuple[Pin, Request | None]] = []
        self.fresh = itertools.count(1_000)
        self.asked: list[Any] = []
        self.form = FORMS[which % len(FORMS)]

    # What a client does

    def _request(self, prompt: Any) -> tuple[Request, tuple[int, ...]]:
        *_, about, again = prompt
        if again % 3 and self.asked:
            # Prompts come again, or nothing would be hit.
            prompt = self.asked[again % len(self.asked)]
        else:
            self.asked = [*self.asked[-5:], prompt]
        blocks, tail, form, partial, unnamed, space, _, _ = prompt
        about = {**about, **space}
        if again % 2:
            form = self.form
        size = self.size
        tokens = tuple(
            [10 * each + at for each in blocks for at in range(size)]
            + [7] * min(tail, size - 1)
        )  # fmt: skip
        deadline = about.pop("deadline", None)
        if deadline is not None:
            about["deadline_s"] = self.now + deadline
        if form == "ids":
            return Request(token_ids=list(tokens), **about), tokens
        full = -(-len(tokens) // size) if partial else len(tokens) // size
        full = max(0, full - unnamed)
        return Request(
            hashes=self._hashes(tokens, form, 0, full), tokens=len(tokens), **about
        ), tokens

    def _hashes(self, tokens: tuple[int, ...], form: str, first: int, last: int) -> Any:
        """Return hashes of blocks: of all before them, or of what is in them alone."""
        size = self.size
        found = [
            _digest(tokens[at * size : (at + 1) * size] if form == "content"
                    else tokens[: (at + 1) * size])
            for at in range(first, last)
        ]  # fmt: skip
        if form == "ints":
            return [int.from_bytes(each, "little") for each in found]
        if form == "array":
            return np.array([int.from_bytes(each, "little") for each in found], np.uint64)
        return found

    def _space(self, request: Request) -> tuple[Any, ...]:
        tenant = request.tenant if self.isolated else ""
        return tenant, request.cache_salt, request.lora_name, request.model_revision

    def _home(self, tenant: str) -> str:
        return tenant if tenant in self.tenants else ""

    def _admitted(
        self, admission: Admission, request: Request, tokens: tuple[int, ...]
    ) -> Held | None:
        """Look at what a client was told, and take its lease over."""
        if admission.outcome is Outcome.QUEUE:
            assert admission.ticket is not None
            assert admission.lease is None
            self.waiting.append((admission.ticket, request, tokens))
            return None
        if admission.outcome is Outcome.REJECT:
            assert admission.lease is None
            assert admission.reason
            return None
        lease = admission.lease
        assert lease is not None
        assert lease.outcome is admission.outcome
        size = self.size
        if self.own_carry:
            self.engine.carry(lease.moves)
        blocks = -(-len(tokens) // size)
        whole = len(lease.block_ids) == blocks
        assert whole == (admission.outcome is Outcome.ADMIT), admission
        assert len(lease.block_ids) <= min(blocks, self.cache.capacity_blocks)
        mine = tokens[: len(lease.block_ids) * size]
        held = Held(lease, self._space(request), list(mine), 0, tokens)
        held.responsible = lease.hit_blocks
        assert lease.tokens == len(mine)
        assert lease.hit_tokens == min(lease.hit_blocks * size, len(tokens)) <= len(mine)
        self.held.append(held)
        self.engine.note(held)
        self._note_spilled(held)
        first = lease.hit_blocks - lease.loaded_blocks
        for block in range(lease.hit_blocks):
            if first - lease.waits_for_blocks <= block < first:
                continue
            assert self.engine.is_right(held, block), (
                f"hit {block} of {lease} has {self.engine.first.get(lease.block_ids[block])}"
            )
        upto = lease.hit_tokens
        if lease.waits_for_blocks:
            upto = (first - lease.waits_for_blocks) * size
        held.done = upto
        return held

    def _note_spilled(self, held: Held) -> None:
        lease = held.lease
        if not lease.spilled:
            return
        home = lease._home
        assert home.second is not None
        own = home.second.partition
        names = own.names
        for at, slot in enumerate(lease.spilled):
            node = int(np.flatnonzero((own.live.block == slot) & (own.live.table.resident == 1))[0])
            chain, root = [], node
            while node != -1:
                chain.append(names.keys[node].tobytes())
                root, node = node, int(own.live.table.parent[node])
            upto = (len(lease.block_ids) + at + 1) * self.size
            self.engine.note_chain(
                (home.name, names.space[root].tobytes(), *reversed(chain)),
                held.space,
                held.prompt[:upto],
            )

    def _collect(self) -> None:
        """Take over what became of those that waited, in the order in which it was told."""
        still = []
        settled = []
        for entry in self.waiting:
            (still if entry[0].admission is None else settled).append(entry)
        self.waiting = still
        order = {id(each): at for at, each in enumerate(self.told)}
        settled.sort(key=lambda entry: order.get(id(entry[0].admission), -1))
        for ticket, request, tokens in settled:
            assert ticket.admission is not None
            assert ticket.admission.outcome is not Outcome.QUEUE
            assert id(ticket.admission) in order or ticket.number in self.untold
            self._admitted(ticket.admission, request, tokens)

    untold: ClassVar[set[int]] = set()

    def _tell(self, raises: bool) -> Any:
        def told(admission: Admission) -> None:
            assert not any(each is admission for each in self.told), "told twice"
            self.told.append(admission)
            if raises:
                raise ValueError("a callback that fails")

        return told

    def _room(self, tenant: str) -> dict[str, int]:
        homes = self.cache.store.homes
        return {
            name: homes[name].partition.used
            for name in self.tenants
            if name != tenant
        }  # fmt: skip

    def _kept(self, before: dict[str, int]) -> None:
        for name, used in before.items():
            least = min(used, self.tenants[name].guaranteed_blocks)
            assert self.cache.store.homes[name].partition.used >= least, f"{name} lost its share"

    # Rules

    @rule(prompt=prompts, raises=st.booleans())
    def acquire(self, prompt: Any, raises: bool) -> None:
        self._acquire(prompt, raises)

    def _acquire(self, prompt: Any, raises: bool) -> Held | None:
        request, tokens = self._request(prompt)
        before = self._room(self._home(request.tenant))
        waited = len(self.waiting)
        try:
            admission = self.cache.acquire(request)
        except CarryError:
            assert not self.own_carry
            self._collect()
            return None
        if not waited:
            self._kept(before)
        if admission.ticket is not None and admission.outcome is Outcome.QUEUE:
            admission.ticket.when_settled(self._tell(raises))
        held = self._admitted(admission, request, tokens)
        self._collect()
        return held

    @rule(several=st.lists(prompts, min_size=1, max_size=4))
    def serve(self, several: list[Any]) -> None:
        """Whole requests, one after another: what fills a cache."""
        for prompt in several:
            held = self._acquire(prompt, False)
            if held is not None:
                self._release(held, fails=False)

    @rule(several=st.lists(prompts, min_size=2, max_size=5))
    def serve_more(self, several: list[Any]) -> None:
        self.serve(several)

    @rule(several=st.lists(prompts, min_size=1, max_size=2))
    def acquire_more(self, several: list[Any]) -> None:
        for prompt in several:
            self._acquire(prompt, False)

    @rule(several=st.lists(prompts, max_size=3))
    def acquire_all(self, several: list[Any]) -> None:
        pairs = [self._request(prompt) for prompt in several]
        try:
            admissions = self.cache.acquire_all([request for request, _ in pairs])
        except CarryError:
            self._collect()
            return
        assert len(admissions) == len(pairs)
        for admission, (request, tokens) in zip(admissions, pairs, strict=True):
            if admission.ticket is not None and admission.outcome is Outcome.QUEUE:
                admission.ticket.when_settled(self._tell(False))
            self._admitted(admission, request, tokens)
        self._collect()

    @rule(prompt=prompts, fails=st.booleans())
    def context(self, prompt: Any, fails: bool) -> None:
        request, tokens = self._request(prompt)
        held = None
        try:
            admission = self.cache.acquire(request)
            if admission.outcome is Outcome.QUEUE:
                assert admission.ticket is not None
                admission.ticket.when_settled(self._tell(False))
            held = self._admitted(admission, request, tokens)
            with admission as lease:
                assert held is not None
                assert held.lease is lease
                self.engine.compute(held, len(held.tokens))
                self.engine.spill(held)
                if fails or held.done < len(held.tokens):
                    raise KeyError("the body fails")
        except NotAdmittedError:
            assert held is None
            # Nobody would take the lease of one that waits on.
            self.waiting = [each for each in self.waiting if each[0] is not admission.ticket]
        except (KeyError, CarryError):
            pass
        if held is not None:
            assert held.lease.released
            self.held.remove(held)
            if self.own_carry:
                self.engine.carry(held.lease.last_moves)
        self._collect()

    @precondition(lambda self: self.held)
    @rule(which=SMALL, count=st.integers(0, 5), how=st.sampled_from(["ids", "count", "hashes"]),
          symbol=st.integers(0, 1))  # fmt: skip
    def extend(self, which: int, count: int, how: str, symbol: int) -> None:
        held = self.held[which % len(self.held)]
        lease, size = held.lease, self.size
        before = (lease.block_ids, lease.tokens, len(lease._nodes))
        more = [symbol] * count if how != "count" else [next(self.fresh) for _ in range(count)]
        tokens = (*held.tokens, *more)
        try:
            if how == "ids":
                growth = lease.extend(more)
            elif how == "count":
                growth = lease.extend(count)
            else:
                start = len(lease._nodes)
                if len(held.tokens) % size and start == len(lease.block_ids) and count:
                    start -= 1
                hashes = self._hashes(tokens, "bytes", start, len(tokens) // size)
                growth = lease.extend(count, hashes=hashes)
        except CarryError:
            assert not self.own_carry
            held.tokens.extend(more)
            self.engine.note(held)
            self.engine.compute(held, 0)
            self._collect()
            return
        except UsageError:
            assert how == "hashes"
            assert (lease.block_ids, lease.tokens, len(lease._nodes)) == before
            return
        if growth.outcome is Outcome.REJECT:
            assert (lease.block_ids, lease.tokens, len(lease._nodes)) == before
            assert not growth.moves
            return
        if self.own_carry:
            self.engine.carry(growth.moves)
        held.tokens.extend(more)
        assert lease.tokens == len(held.tokens)
        assert len(lease.block_ids) == -(-len(held.tokens) // size)
        held.responsible = min(held.responsible, len(before[0]))
        if count and before[1] % size:
            held.responsible = min(held.responsible, before[1] // size)
        self.engine.note(held)

    @precondition(lambda self: self.held)
    @rule(which=SMALL, share=st.integers(0, 4), tell=st.booleans())
    def compute(self, which: int, share: int, tell: bool) -> None:
        held = self.held[which % len(self.held)]
        if held.lease.lost_from is not None:
            return
        self.engine.compute(held, len(held.tokens) * share // 4)
        if tell:
            held.lease.computed(min(held.done, held.lease.tokens))

    @precondition(lambda self: self.held)
    @rule(which=SMALL)
    def fork(self, which: int) -> None:
        held = self.held[which % len(self.held)]
        twin = held.lease.fork()
        copy = Held(twin, held.space, list(held.tokens), held.done, held.prompt)
        copy.responsible = held.responsible
        assert twin.block_ids == held.lease.block_ids
        self.held.append(copy)

    @precondition(lambda self: self.held)
    @rule(which=SMALL, fails=st.booleans(), twice=st.booleans())
    def release(self, which: int, fails: bool, twice: bool) -> None:
        held = self.held[which % len(self.held)]
        self._release(held, fails)
        if twice:
            assert self.cache.release(held.lease) == ()

    def _release(self, held: Held, fails: bool) -> None:
        upto = len(held.tokens)
        if held.lease.lost_from is not None:
            upto = min(upto, held.lease.lost_from * self.size)
        if not fails:
            fails = self.engine.compute(held, upto) < upto
        if not fails:
            self.engine.spill(held)
        self.held.remove(held)
        try:
            moves = self.cache.release(held.lease, failed=fails)
            if self.own_carry:
                self.engine.carry(moves)
        except CarryError:
            assert not self.own_carry
        self._collect()

    @rule(prompt=prompts, owner=st.sampled_from(["a", "b"]), which=SMALL, lease=st.booleans())
    def pin(self, prompt: Any, owner: str, which: int, lease: bool) -> None:
        request, _ = self._request(prompt)
        what: Any = request
        if lease and self.held:
            what = self.held[which % len(self.held)].lease
        try:
            made = self.cache.pin(what, owner)
        except UsageError:
            return
        ready = made._home.partition.live.ready[made._nodes]
        self.pins.append((made, request if what is request and np.all(ready == 1) else None))

    @precondition(lambda self: self.pins)
    @rule(which=SMALL, by_owner=st.booleans())
    def unpin(self, which: int, by_owner: bool) -> None:
        pin, _ = self.pins[which % len(self.pins)]
        if by_owner:
            ended = [each for each in self.pins if each[0].owner == pin.owner]
        else:
            ended = [each for each in self.pins if each[0] is pin]
        total = sum(each.blocks for each, _ in ended)
        assert self.cache.unpin(pin.owner if by_owner else pin) == total
        self.pins = [each for each in self.pins if each not in ended]
        self._collect()

    @rule(which=SMALL)
    def set_policy(self, which: int) -> None:
        self.cache.set_policy(self.others[which % len(self.others)])

    @rule()
    def drop_expired(self) -> None:
        self.cache.drop_expired()

    @rule()
    def clear(self) -> None:
        done = self.cache.clear()
        assert done == (not self.held and not self.pins)
        if done:
            assert self.cache.cached_blocks == 0
            self.pins = []

    @rule()
    def poll(self) -> None:
        self.cache.poll()
        self._collect()

    @precondition(lambda self: self.waiting)
    @rule(which=SMALL)
    def cancel(self, which: int) -> None:
        entry = self.waiting.pop(which % len(self.waiting))
        assert entry[0].cancel()
        assert entry[0].admission is None
        assert not entry[0].cancel()
        self._collect()

    @rule(prompt=prompts)
    def lookup(self, prompt: Any) -> None:
        request, tokens = self._request(prompt)
        assert 0 <= self.cache.lookup(request) <= len(tokens)

    @rule(seconds=st.sampled_from([0.5, 3.0, -5.0]))
    def tick(self, seconds: float) -> None:
        self.now += seconds

    @precondition(lambda self: not self.own_carry)
    @rule(after=st.integers(0, 2))
    def fail_next_carry(self, after: int) -> None:
        self.engine.fail_at = after

    @rule()
    def take_events(self) -> None:
        assert len(self.cache.take_events()) <= self.cache.events.most

    # What always holds

    @invariant()
    def is_sound(self) -> None:
        self.cache.check()
        self.engine.audit(self.cache)
        assert len(self.cache.leases) == len(self.held)
        for held in self.held:
            self.engine.check_lease(held)
        shared_rightly(self.held, self.size)
        assert self.cache.waiting == len(self.waiting)
        for name, tenant in self.tenants.items():
            blocks = {
                block
                for held in self.held
                if held.lease.tenant == name
                for block in held.lease.block_ids
            }
            if tenant.quota_blocks is not None:
                assert len(blocks) <= tenant.quota_blocks, "a quota was passed"
        for pin, request in self.pins:
            if request is not None:
                found = self.cache.lookup(request)
                assert found >= min(pin.blocks * self.size, found), "a pinned block left"

    @invariant()
    def somebody_will_write(self) -> None:
        """What a lease waits for, another is to write."""
        writers: dict[int, set[int]] = {}
        for held in self.held:
            for block in held.lease.block_ids[held.responsible :]:
                writers.setdefault(block, set()).add(id(held))
        for held in self.held:
            if held.lease.lost_from is not None:
                continue
            for at in range(held.done // self.size, min(held.responsible, len(held.tokens))):
                if at >= len(held.lease.block_ids) or self.engine.is_right(held, at):
                    continue
                assert held.lease.block_ids[at] in writers, f"nobody writes block {at}"

    def teardown(self) -> None:
        if not hasattr(self, "cache"):
            return
        self.engine.fail_at = None
        for held in list(self.held):
            self.cache.release(held.lease, failed=True)
        for ticket, _, _ in self.waiting:
            if ticket.admission is not None and ticket.admission.lease is not None:
                self.cache.release(ticket.admission.lease, failed=True)
        while self.cache.leases:
            for lease in list(self.cache.leases.values()):
                self.cache.release(lease, failed=True)
        for pin, _ in self.pins:
            self.cache.unpin(pin)
        while self.cache.leases:
            for lease in list(self.cache.leases.values()):
                self.cache.release(lease, failed=True)
        self.cache.check()
        assert self.cache.free_blocks == self.cache.capacity_blocks
        assert not self.cache.waiting, "somebody waits for an empty cache"
        assert not self.cache.blocks.shared
