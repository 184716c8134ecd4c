"""A cache that was saved and restored decides as the one that went on."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from live_scenarios import LABELS

from kvsched.cache import KVCacheScheduler, Lease, Outcome, Request, Tenant, TierSettings
from kvsched.cache.state import READY
from kvsched.foundation.errors import KvschedError, UsageError
from kvsched.kernel.heap import Heap
from kvsched.kernel.table import NONE, Table
from kvsched.policy.base import Policy, RankedPolicy
from kvsched.policy.lfu import LFU, LFUState

BACKWARDS = LABELS[::-1]
"""The degenerate check compiles them from the first on, at the same time."""
SETTINGS: dict[str, Any] = {
    "when_oversize": "degrade",
    "when_full": "degrade",
    "hash_algorithm": "xxhash_cbor",
    "hash_bytes": 16,
}
TENANTS = {
    "a": Tenant(quota_blocks=12, second_tier_blocks=4, max_pinned_blocks=6),
    "b": Tenant(guaranteed_blocks=5, weight=2.0),
    "c\ud800": Tenant(weight=3.0),
}


class Clock:
    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def random_request(random: np.random.Generator, *, salt: bool = True) -> Request:
    """Draw a request among few prefixes, with every column that policies read."""
    path = random.integers(0, 3, size=int(random.integers(1, 9))).tolist()
    return Request(
        hashes=path,
        tokens=16 * len(path) - int(random.integers(0, 16)),
        tenant=("", "a", "b", "c\ud800")[random.integers(0, 4)],
        cache_salt="s" if salt and random.integers(0, 4) == 0 else None,
        priority=int(random.integers(-1, 2)),
        lifetime_s=(None, 5.0, 40.0)[random.integers(0, 3)],
        session=(None, "x", "y", "z\udfff")[random.integers(0, 4)],
        type=(None, "chat", "tool", "api")[random.integers(0, 4)],
        model=("m", None)[random.integers(0, 2)],
        output_tokens=int(random.integers(0, 50)),
        deadline_s=None,
    )


def step(cache: KVCacheScheduler, clock: Clock, random: Any, held: list[Any], fails: bool) -> Any:
    """Do one random operation; return all that can be seen of it."""
    clock.now += float(random.integers(0, 4))
    what = int(random.integers(0, 12))
    failed = fails and bool(random.integers(0, 4) == 0)
    if what < 6:
        admission = cache.acquire(random_request(random))
        lease = admission.lease
        if lease is None:
            return admission.outcome, admission.reason
        if random.integers(0, 2):
            held.append(lease)
        else:
            lease.close(failed=failed)
        return (
            admission.outcome, lease.hit_blocks, lease.loaded_blocks, lease.block_ids, lease.moves,
            lease.stored_blocks,
        )  # fmt: skip
    if what < 8 and held:
        lease = held.pop(int(random.integers(0, len(held))))
        return lease.block_ids, cache.release(lease, failed=failed)
    if what == 8 and held:
        lease = held[int(random.integers(0, len(held)))]
        if not lease.waits_for_blocks:
            cache.computed(lease, int(random.integers(lease.computed_tokens, lease.tokens + 1)))
        grown = cache.extend(lease, int(random.integers(1, 20)))
        return grown.outcome, grown.block_ids, grown.moves
    if what == 9 and len(cache.pins.held) < 3:
        try:
            return cache.pin(random_request(random), "me\udc80").blocks
        except UsageError as error:
            return str(error)
    if what == 10:
        return cache.drop_expired()
    return cache.unpin("me\udc80") if random.integers(0, 3) == 0 else cache.metrics()


def play(
    cache: KVCacheScheduler, clock: Clock, seed: int, steps: int, *, fails: bool = False
) -> tuple[list[Any], list[Any]]:
    """Do random operations; return what was seen, and the leases that are still held."""
    random = np.random.default_rng(seed)
    held: list[Any] = []
    return [step(cache, clock, random, held, fails) for _ in range(steps)], held


def made(label: str | Policy | type[Policy], clock: Clock, tiers: int = 2) -> KVCacheScheduler:
    second = TierSettings(capacity_blocks=14, policy="fifo", write="back", medium="disk")
    return KVCacheScheduler(
        30,
        16,
        label,
        tenants=TENANTS if tiers == 2 else None,
        second_tier=second if tiers == 2 else None,
        clock=clock,
        history_blocks=40,
        **SETTINGS,
    )


def compare(
    one: KVCacheScheduler,
    clock: Clock,
    two: KVCacheScheduler,
    other: Clock,
    *,
    counted: bool = True,
) -> None:
    """Do the same with both caches, and demand that they cannot be told apart.

    Not by counters either, if ``counted``.
    """
    two.check()
    first, held = play(one, clock, 77, 60)
    second, others = play(two, other, 77, 60)
    two.check()
    if not counted:
        first, second = (
            [each for each in seen if not isinstance(each, dict)] for seen in (first, second)
        )
    assert first == second
    for mine, its in zip(held, others, strict=True):
        assert one.release(mine) == two.release(its)
    assert one.metrics() == two.metrics() or not counted


def ready_head(lease: Lease) -> int:
    """Return how many leading blocks of a lease are in place."""
    ready = lease._home.partition.live.ready[lease._nodes] == READY
    return len(ready) if ready.all() else int(np.argmin(ready))


def ready_blocks(cache: KVCacheScheduler) -> list[dict[int, bytes]]:
    """Return the key of each block that is in place, as all above it are: by home and block id."""
    found = []
    for home in cache.store.homes.values():
        live = home.partition.live
        ready: dict[int, bool] = {-1: True}
        nodes = np.flatnonzero(live.table.resident == 1)
        for node in nodes[np.argsort(live.table.depth[nodes])].tolist():
            ready[node] = live.ready[node] == READY and ready[int(live.table.parent[node])]
        del ready[-1]
        found.append(
            {
                int(live.block[node]): live.names.keys[node].tobytes()
                for node, is_ready in ready.items()
                if is_ready
            }
        )
    return found


# The same decisions.


@pytest.mark.parametrize("label", BACKWARDS)
@settings(deadline=None, max_examples=6, derandomize=True)
@given(seed=st.integers(0, 10_000), steps=st.integers(0, 90), away=st.integers(-(2**20), 2**20))
def test_it_goes_on_as_the_original(label: str, seed: int, steps: int, away: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "cache"
        clock = Clock(100.0)
        cache = made(label, clock)
        for lease in play(cache, clock, seed, steps)[1]:
            lease.close()
        # Pins of what a request that failed had not computed are not restored.
        for pin in list(cache.pins.held.values()):
            if np.any(pin._home.partition.live.ready[pin._nodes] != READY):
                cache.unpin(pin)
        cache.save(path)
        other = Clock(clock.now + away)
        again = KVCacheScheduler.restore(path, clock=other)
    assert again.restored is not None
    assert again.restored.learnt_anew == ()
    assert again.restored.dropped_blocks == 0
    assert [pin.blocks for pin in cache.pins.held.values()] == [
        pin.blocks for pin in again.pins.held.values()
    ]
    compare(cache, clock, again, other)


@pytest.mark.parametrize("label", BACKWARDS)
@settings(deadline=None, max_examples=4, derandomize=True)
@given(seed=st.integers(0, 10_000), steps=st.integers(20, 60))
def test_leases_end_as_if_they_had_failed(label: str, seed: int, steps: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "cache"
        clock = Clock(100.0)
        cache = made(label, clock, tiers=1)
        held = play(cache, clock, seed, steps)[1]
        # Pins of what is not in place are cut, and not only let go.
        cache.unpin("me\udc80")
        cache.save(path)
        assert len(cache.leases) == len(held), "saving ended a lease"
        # What is in place below what is not is dropped in another order: other blocks are free.
        in_place = sum(
            int(np.count_nonzero(live.table.resident * (live.ready == READY)))
            for live in (home.partition.live for home in cache.store.homes.values())
        )
        loose = in_place - sum(map(len, ready_blocks(cache)))
        other = Clock(clock.now)
        again = KVCacheScheduler.restore(path, clock=other)
        assert again.leases == {}
        again.check()
        assert again.store.held == again.pins.blocks
        for lease in held:
            lease.computed_tokens = min(16 * ready_head(lease), lease.tokens)
            cache.release(lease, failed=True)
        assert ready_blocks(cache) == ready_blocks(again)
        if not loose:
            compare(cache, clock, again, other, counted=False)


def test_what_is_not_in_place_is_dropped(tmp_path: Path) -> None:
    clock = Clock()
    cache = KVCacheScheduler(8, 16, clock=clock)
    lease = cache.acquire(Request(hashes=[1, 2, 3, 4], tokens=64)).lease
    assert lease is not None
    cache.computed(lease, 32)
    assert cache.extend(lease, 10).block_ids, "a block without a node"
    pin = cache.pin(lease, "me")
    assert pin.blocks == 4
    cache.save(tmp_path / "cache")
    again = KVCacheScheduler.restore(tmp_path / "cache", clock=clock)
    again.check()
    assert again.restored is not None
    assert again.restored.dropped_blocks == 2
    assert again.cached_blocks == 2
    assert again.lookup(Request(hashes=[1, 2, 3, 4])) == 32
    assert [each.blocks for each in again.pins.held.values()] == [2]
    assert again.unpin("me") == 2
    assert again.free_blocks == 8
    assert cache.cached_blocks == 4, "the saved cache goes on"
    assert again.acquire(Request(hashes=[9], tokens=16)).lease is not None


def test_block_ids_and_keys_stay(tmp_path: Path) -> None:
    cache = made("s3fifo", Clock())
    for lease in play(cache, Clock(), 3, 80)[1]:
        lease.close()
    cache.save(tmp_path / "cache")
    again = KVCacheScheduler.restore(tmp_path / "cache", clock=Clock())
    assert ready_blocks(again) == ready_blocks(cache)
    assert sum(map(len, ready_blocks(cache))) > 20
    again.save(tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == (tmp_path / "cache").read_bytes()


def test_what_a_request_was_to_fill_in_the_second_tier_is_dropped(tmp_path: Path) -> None:
    tier = TierSettings(capacity_blocks=8)
    cache = KVCacheScheduler(4, 16, second_tier=tier, when_oversize="degrade", degrade="tier")
    lease = cache.acquire(Request(hashes=[1, 2, 3, 4, 5, 6], tokens=96)).lease
    assert lease is not None
    assert len(lease.spilled) == 6
    cache.save(tmp_path / "cache")
    again = KVCacheScheduler.restore(tmp_path / "cache")
    again.check()
    second = again.store.homes[""].second
    assert second is not None
    assert second.partition.resident == 0
    lease.close()
    cache.save(tmp_path / "cache")
    second = KVCacheScheduler.restore(tmp_path / "cache").store.homes[""].second
    assert second is not None
    assert second.partition.resident == 6


# Time.


def test_ages_go_on_from_the_moment_of_saving(tmp_path: Path) -> None:
    clock = Clock(1_000.0)
    cache = KVCacheScheduler(4, 16, clock=clock)
    cache.acquire(Request(hashes=[1], lifetime_s=10.0)).lease.close()  # type: ignore[union-attr]
    clock.now = 1_004.0
    cache.save(tmp_path / "cache")
    for start in (0.0, 1_004.0, 9e6):
        other = Clock(start)
        again = KVCacheScheduler.restore(tmp_path / "cache", clock=other)
        other.now = start + 5.5
        assert again.drop_expired() == 0
        other.now = start + 6.0
        assert again.drop_expired() == 1


def test_time_that_passed_counts_on_the_same_clock(tmp_path: Path) -> None:
    clock = Clock(1_000.0)
    cache = KVCacheScheduler(4, 16, clock=clock)
    cache.acquire(Request(hashes=[1], lifetime_s=10.0)).lease.close()  # type: ignore[union-attr]
    cache.save(tmp_path / "cache")
    clock.now = 1_011.0
    assert KVCacheScheduler.restore(tmp_path / "cache", clock=clock).drop_expired() == 0
    again = KVCacheScheduler.restore(tmp_path / "cache", clock=clock, same_clock=True)
    assert again.drop_expired() == 1
    early = KVCacheScheduler.restore(tmp_path / "cache", clock=Clock(3.0), same_clock=True)
    assert early.now() == 1_000.0, "time never falls"


def test_deadlines_are_on_the_clock_that_is_given(tmp_path: Path) -> None:
    cache = KVCacheScheduler(4, 16, clock=Clock(1_000.0))
    cache.save(tmp_path / "cache")
    again = KVCacheScheduler.restore(tmp_path / "cache", clock=Clock(50.0))
    assert again.acquire(Request(hashes=[1], deadline_s=51.0)).outcome is Outcome.ADMIT
    assert again.acquire(Request(hashes=[1], deadline_s=49.0)).outcome is Outcome.REJECT
    again.save(tmp_path / "twice")
    third = KVCacheScheduler.restore(tmp_path / "twice", clock=Clock(7.0))
    assert third.store.shift_s == 1_000.0 - 7.0


def test_a_clock_without_a_moment_is_refused(tmp_path: Path) -> None:
    cache = KVCacheScheduler(4, 16, clock=lambda: float("inf"))
    with pytest.raises(UsageError, match="the clock must give a number of seconds, not inf"):
        cache.save(tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


# Policies.


class Mine(LFU):
    name = "mine"


def _key(table: Table, state: LFUState, node: int) -> int:
    return -int(state.uses[node])


class MineChanged(LFU):
    name = "mine"
    key = staticmethod(_key)


class NumberState(NamedTuple):
    heap: Heap
    touched: Any
    number: int


class NoArrays(RankedPolicy):
    name = "no-arrays"

    def prepare(self, setup: Any) -> Any:
        return NumberState(*super().prepare(setup), 3)


def filled(policy: Any, tmp_path: Path, **more: Any) -> tuple[KVCacheScheduler, Clock]:
    clock = Clock(5.0)
    cache = made(policy, clock)
    for lease in play(cache, clock, 11, 90)[1]:
        lease.close()
    cache.save(tmp_path / "cache")
    return cache, clock


def test_a_class_outside_the_registry_is_given_again(tmp_path: Path) -> None:
    cache, clock = filled(Mine, tmp_path)
    with pytest.raises(UsageError, match="policy mine, which is not in the registry: give its"):
        KVCacheScheduler.restore(tmp_path / "cache")
    other = Clock(clock.now)
    again = KVCacheScheduler.restore(tmp_path / "cache", policy=Mine, clock=other)
    assert again.restored is not None
    assert again.restored.learnt_anew == ()
    compare(cache, clock, again, other)


def test_a_class_whose_code_changed_learns_anew(tmp_path: Path) -> None:
    cache, clock = filled(Mine, tmp_path)
    again = KVCacheScheduler.restore(tmp_path / "cache", policy=MineChanged, clock=clock)
    assert again.restored is not None
    assert again.restored.learnt_anew == ("mine has other code than the one that was saved",)
    again.check()
    assert ready_blocks(again) == ready_blocks(cache)


@pytest.mark.parametrize("label", ["lfu", "s3fifo", "ttl:lifetime_s=9"])
def test_another_policy_learns_as_by_set_policy(tmp_path: Path, label: str) -> None:
    cache, clock = filled("lru", tmp_path)
    other = Clock(clock.now)
    again = KVCacheScheduler.restore(tmp_path / "cache", policy=label, clock=other)
    assert again.restored is not None
    assert again.restored.learnt_anew == (f"{label} takes over from lru",)
    assert again.policy.label == label
    cache.set_policy(label)
    compare(cache, clock, again, other)


def test_other_parameters_learn_anew(tmp_path: Path) -> None:
    filled("decay:half_life_s=60", tmp_path)
    same = KVCacheScheduler.restore(tmp_path / "cache", policy="decay:half_life_s=60")
    other = KVCacheScheduler.restore(tmp_path / "cache", policy="decay:half_life_s=61")
    assert same.restored is not None
    assert other.restored is not None
    assert same.restored.learnt_anew == ()
    assert len(other.restored.learnt_anew) == 1


def test_a_second_tier_has_a_policy_of_its_own(tmp_path: Path) -> None:
    _, clock = filled("lru", tmp_path)
    other = Clock(clock.now)
    again = KVCacheScheduler.restore(tmp_path / "cache", second_tier_policy="lfu", clock=other)
    again.check()
    assert again.restored is not None
    assert again.restored.learnt_anew == ("lfu takes over from fifo",)
    play(again, other, 3, 40)
    again.check()
    KVCacheScheduler(4, 16).save(tmp_path / "one")
    with pytest.raises(UsageError, match="no second tier"):
        KVCacheScheduler.restore(tmp_path / "one", second_tier_policy="lfu")


def test_a_state_that_is_not_of_arrays_is_refused(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("old")
    with pytest.raises(UsageError, match=r"no-arrays cannot be saved: .* is no array but a int"):
        KVCacheScheduler(4, 16, NoArrays).save(tmp_path / "cache")
    assert (tmp_path / "cache").read_text() == "old"


def test_settings_that_move_no_block_may_change(tmp_path: Path) -> None:
    filled("lru", tmp_path)
    again = KVCacheScheduler.restore(tmp_path / "cache", when_full="queue", max_waiting=3)
    assert again.settings.when_full == "queue"
    assert again.settings.max_waiting == 3
    assert again.settings.when_oversize == "degrade"
    with pytest.raises(UsageError, match="block_size is the saved cache's own"):
        KVCacheScheduler.restore(tmp_path / "cache", block_size=32)
    with pytest.raises(UsageError, match="when_full must be one of"):
        KVCacheScheduler.restore(tmp_path / "cache", when_full="wait")
    cache = KVCacheScheduler(8, 16)
    cache.pin(cache.acquire(Request(hashes=[1, 2], tokens=32)).lease, "me")  # type: ignore[arg-type]
    cache.leases[0].computed(32)
    cache.save(tmp_path / "cache")
    with pytest.raises(UsageError, match="max_pinned_blocks=1 is below the 2 that are pinned"):
        KVCacheScheduler.restore(tmp_path / "cache", max_pinned_blocks=1)


def test_names_that_are_no_unicode_are_kept(tmp_path: Path) -> None:
    cache, _ = filled("wild", tmp_path)
    again = KVCacheScheduler.restore(tmp_path / "cache")
    assert list(again.store.tenants) == list(TENANTS)
    for one, two in zip(cache.store.homes.values(), again.store.homes.values(), strict=True):
        assert one.partition.columns.known() == two.partition.columns.known()
    known = cache.store.homes[""].partition.columns.known()
    assert "z\udfff" in [name for name, _, _ in known["session"]]


# The checks above can fail.


@pytest.mark.parametrize("spoilt", ["nothing", "state", "pool", "history", "clock", "turns"])
def test_a_difference_is_noticed(tmp_path: Path, spoilt: str) -> None:
    labels = {"pool": "lfu", "history": "arc", "clock": "ttl:lifetime_s=9", "turns": "wild"}
    cache, clock = filled(labels.get(spoilt, "s3fifo"), tmp_path)
    other = Clock(clock.now)
    again = KVCacheScheduler.restore(tmp_path / "cache", clock=other)
    for home in again.store.homes.values():
        partition = home.partition
        if spoilt == "state":
            partition.change_policy(partition.policy)
        elif spoilt == "pool":
            free = partition.pool.free[: again.store.free]
            free[:] = free[::-1].copy()
        elif spoilt == "history":
            # More names than there are numbers, none of them known.
            strangers = np.arange(2**40, 2**40 + 100, dtype=np.int64)
            keys = np.zeros((len(strangers), partition.names.keys.shape[1]), np.int64)
            keys[:, 0] = strangers
            partition.forget(keys, np.zeros(2, np.int64), NONE, len(keys))
        elif spoilt == "clock":
            partition.shift_s += 20.0
        elif spoilt == "turns":
            partition.columns._codes["session"].turns[:] = 0
    assert looks_different(cache, clock, again, other) == (spoilt != "nothing")


def looks_different(
    one: KVCacheScheduler, clock: Clock, two: KVCacheScheduler, other: Clock
) -> bool:
    try:
        for _ in range(6):
            compare(one, clock, two, other)
    except (AssertionError, KvschedError):
        return True
    return False


# Threads, and a process that dies.


def test_saving_while_others_work(tmp_path: Path) -> None:
    cache = KVCacheScheduler(200, 16, "arc")
    stop = threading.Event()
    errors: list[BaseException] = []

    def work(seed: int) -> None:
        random = np.random.default_rng(seed)
        try:
            while not stop.is_set():
                path = random.integers(0, 4, size=int(random.integers(1, 12))).tolist()
                lease = cache.acquire(Request(hashes=path)).lease
                if lease is not None:
                    cache.computed(lease, lease.tokens)
                    lease.close()
        except BaseException as error:  # noqa: BLE001  # a thread's failure is the test's
            errors.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(8):
            cache.save(tmp_path / "cache")
            again = KVCacheScheduler.restore(tmp_path / "cache")
            again.check()
            assert again.store.held == 0
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert not errors
    cache.check()


def test_a_process_that_dies_while_writing_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "cache"
    cache = KVCacheScheduler(8, 16)
    cache.save(path)
    before = path.read_bytes()
    script = textwrap.dedent(
        """
        import sys, time
        from kvsched.cache import KVCacheScheduler
        from kvsched.cache import saved_file

        class Slow:
            def __init__(self, inner):
                self.inner = inner
            def update(self, part):
                self.inner.update(part)
                print("writing", flush=True)
                time.sleep(60)
            def digest(self):
                return self.inner.digest()

        real = saved_file.hashlib.sha256
        cache = KVCacheScheduler(9, 16)
        saved_file.hashlib = type("h", (), {"sha256": lambda *a: Slow(real(*a))})
        cache.save(sys.argv[1])
        """
    )
    child = subprocess.Popen(
        [sys.executable, "-c", script, str(path)], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "writing\n"
    child.send_signal(signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL
    child.stdout.close()
    assert path.read_bytes() == before
    assert KVCacheScheduler.restore(path).capacity_blocks == 8
