"""A second tier: what goes down, what comes back, and that bytes can be carried one by one."""

from __future__ import annotations

from typing import Any

import pytest
from embedder import CarryError
from live_cache import admitted, cache, hits, named, serve

from kvsched.cache import KVCacheScheduler, Move, TierSettings
from kvsched.foundation.errors import UsageError

pytestmark = pytest.mark.usefixtures("plain")


class Memory:
    """Bytes in both tiers: every block holds the key that was written into it."""

    def __init__(self) -> None:
        self.first: dict[int, int] = {}
        self.second: dict[int, int] = {}
        self.carried: list[Move] = []
        self.fails = False

    def carry(self, moves: Any) -> None:
        for move in moves:
            if self.fails:
                raise CarryError
            self.carried.append(move)
            source = self.second if move.kind == "load" else self.first
            target = self.second if move.kind == "offload" else self.first
            target[move.target] = source[move.source]


def with_memory(
    capacity: int, slots: int, write: str = "back", policy: str = "lru", **settings: Any
) -> tuple[KVCacheScheduler, Memory]:
    memory = Memory()
    made = cache(
        capacity, carry=memory.carry,
        second_tier=TierSettings(capacity_blocks=slots, write=write, policy=policy), **settings,
    )  # fmt: skip
    return made, memory


def use(made: KVCacheScheduler, memory: Memory, *keys: int, **about: Any) -> tuple[int, int]:
    """Run a request whose blocks are to hold their keys; return blocks hit and loaded."""
    lease = admitted(made, named(*keys, **about))
    for at, block in enumerate(lease.block_ids):
        if at < lease.hit_blocks:
            assert memory.first[block] == keys[at], "a hit with another's content"
        memory.first[block] = keys[at]
    made.release(lease)
    made.check()
    return lease.hit_blocks, lease.loaded_blocks


def test_write_back_keeps_what_leaves_and_promotes_what_is_hit() -> None:
    made, memory = with_memory(3, 6)
    use(made, memory, 1, 2, 3)
    assert memory.carried == []
    use(made, memory, 4, 5, 6)
    assert [move.kind for move in memory.carried] == ["offload"] * 3
    assert hits(made, 1, 2, 3) == 0
    assert use(made, memory, 1, 2, 3) == (3, 3)
    assert hits(made, 1, 2, 3) == 3
    kinds = [move.kind for move in memory.carried[3:]]
    assert kinds == ["offload"] * 3 + ["load"] * 3
    assert made.metrics()["vllm:external_prefix_cache_hits_total"] == 6
    # It is in both tiers now: nothing is carried when it leaves again.
    use(made, memory, 4, 5, 6)
    assert [move.kind for move in memory.carried[9:]] == ["load"] * 3


def test_write_through_keeps_what_was_computed_at_its_release() -> None:
    made, memory = with_memory(4, 8, "through")
    use(made, memory, 1, 2)
    assert [(move.kind, move.source) for move in memory.carried] == [("offload", 0), ("offload", 1)]
    use(made, memory, 1, 2)
    assert len(memory.carried) == 2
    lease = admitted(made, named(7, 8))
    made.release(lease, failed=True)
    assert len(memory.carried) == 2
    for key in range(10, 14):
        use(made, memory, key)
    assert use(made, memory, 1, 2) == (2, 2)


def test_a_hit_across_both_tiers() -> None:
    made, memory = with_memory(4, 4)
    use(made, memory, 1, 2, 3, 4)
    use(made, memory, 9, 8)
    assert hits(made, 1, 2, 3, 4) == 2
    assert use(made, memory, 1, 2, 3, 4) == (4, 2)


def test_it_has_a_capacity_and_a_policy_of_its_own() -> None:
    made, memory = with_memory(1, 2, policy="fifo")
    for key in (1, 2, 3, 4):
        use(made, memory, key)
    # First in, first out below: 1 left for 3.
    assert [use(made, memory, key)[0] for key in (1,)] == [0]
    other, memory = with_memory(1, 3, policy="mru")
    for key in (1, 2, 3, 4, 5):
        use(other, memory, key)
    assert use(other, memory, 1)[0] == 1


def test_a_chain_of_the_length_of_both_tiers_goes_round() -> None:
    for capacity in range(1, 5):
        for slots in range(1, 6):
            made, memory = with_memory(capacity, slots)
            for round_ in range(12):
                keys = [100 * (round_ % 3) + at for at in range(capacity)]
                use(made, memory, *keys)


def test_a_name_that_left_in_this_call_is_not_reused_in_it() -> None:
    """Long chains that never come again use up all numbers but the latest."""
    for capacity in range(2, 8):
        made, memory = with_memory(capacity, 2, history_blocks=0)
        lengths = range(1, capacity + 1)
        key = 0
        for _ in range(4):
            for length in (*lengths, *reversed(lengths)):
                key += 100
                chain = [key + at for at in range(length)]
                use(made, memory, *chain)
                use(made, memory, *chain)


def test_an_oversize_head_names_one_block_more_than_there_are() -> None:
    made, memory = with_memory(3, 2, when_oversize="degrade", history_blocks=0)
    for start in range(100, 1_300, 100):
        use(made, memory, start, start + 1, start + 2)
        admission = made.acquire(named(*range(start + 50, start + 60)))
        assert admission.lease is not None
        for block, key in zip(
            admission.lease.block_ids, range(start + 50, start + 60), strict=False
        ):
            memory.first[block] = key
        made.release(admission.lease)
        made.check()
        use(made, memory, start, start + 1, start + 2)


def test_spilled_blocks_are_found_when_they_are_written_and_not_before() -> None:
    made, memory = with_memory(3, 3, when_full="degrade", degrade="tier")
    held = admitted(made, named(90, 91, 92))
    lease = made.acquire(named(1, 2)).lease
    assert lease is not None
    assert lease.spilled == (0, 1)
    made.release(held, failed=True)
    assert use(made, memory, 1, 2, 3) == (0, 0)
    # Nobody is given the slots while they are being written.
    for key in range(10, 20):
        use(made, memory, key, key + 100, key + 200)
    memory.second |= {0: 1, 1: 2}
    made.release(lease)
    made.check()
    assert use(made, memory, 1, 2) == (2, 2)


def test_spilled_blocks_of_a_failure_are_dropped() -> None:
    made, memory = with_memory(2, 3, when_full="degrade", degrade="tier")
    held = admitted(made, named(90, 91))
    lease = made.acquire(named(1, 2)).lease
    assert lease is not None
    made.release(lease, failed=True)
    made.release(held, failed=True)
    made.check()
    assert made.store.homes[""].second is not None
    assert made.store.homes[""].second.partition.resident == 0
    assert use(made, memory, 1, 2) == (0, 0)


def test_bytes_that_were_not_carried_are_forgotten() -> None:
    made, memory = with_memory(2, 4)
    use(made, memory, 1, 2)
    memory.fails = True
    with pytest.raises(CarryError):
        made.acquire(named(3, 4))
    memory.fails = False
    made.check()
    assert made.leases == {}
    assert made.free_blocks == 2
    assert use(made, memory, 1, 2) == (0, 0)
    use(made, memory, 3, 4)
    assert use(made, memory, 1, 2) == (2, 2)
    memory.fails = True
    with pytest.raises(CarryError):
        made.acquire(named(3, 4))
    memory.fails = False
    made.check()
    # The load failed, what lies below is right.
    assert use(made, memory, 3, 4)[0] in (0, 2)


def test_write_through_that_fails() -> None:
    made, memory = with_memory(4, 8, "through")
    lease = admitted(made, named(1, 2))
    memory.fails = True
    with pytest.raises(CarryError):
        made.release(lease)
    memory.fails = False
    made.check()
    assert lease.released
    assert hits(made, 1, 2) == 2
    assert made.store.homes[""].second is not None
    assert made.store.homes[""].second.partition.resident == 0


def test_a_copy_that_fails_is_not_trusted() -> None:
    made, memory = with_memory(8, 2)
    lease = admitted(made, named(1, 2, tokens=3))
    lease.computed(3)
    memory.first |= {0: 1, 1: 2}
    memory.fails = True
    with pytest.raises(CarryError):
        lease.extend(1, hashes=[5])
    memory.fails = False
    assert (lease.lost_from, lease.tokens) == (1, 4)
    assert hits(made, 1, 5) == 1
    made.release(lease)
    made.check()
    assert hits(made, 1, 5) == 1
    assert made.lookup(named(1, 2, tokens=3)) == 3


def test_who_carries_by_itself_says_what_it_could_not() -> None:
    made = cache(2, second_tier=TierSettings(capacity_blocks=4))
    serve(made, 1, 2)
    lease = admitted(made, named(3, 4))
    assert [move.kind for move in lease.moves] == ["offload"] * 2
    made.uncarried(lease.moves)
    made.release(lease, failed=True)
    made.check()
    assert admitted(made, named(1, 2)).hit_blocks == 0


def test_a_context_leaves_its_last_moves_to_whoever_carries() -> None:
    made = cache(4, second_tier=TierSettings(capacity_blocks=4, write="through"))
    with made.acquire(named(1, 2)) as lease:
        pass
    assert [move.kind for move in lease.last_moves] == ["offload"] * 2


def test_what_expires_takes_what_is_below_it_along() -> None:
    made, memory = with_memory(3, 4)
    use(made, memory, 1, 2, 3, lifetime_s=5.0)
    use(made, memory, 7, 8)
    assert hits(made, 1, 2, 3) == 1
    made.clock.now += 10.0  # type: ignore[attr-defined]
    assert made.drop_expired() == 1
    made.check()
    assert use(made, memory, 1, 2, 3) == (0, 0)


def test_its_settings_are_checked() -> None:
    with pytest.raises(UsageError, match="write must be back or through"):
        TierSettings(capacity_blocks=1, write="never")
    with pytest.raises(UsageError, match="must be from 1"):
        TierSettings(capacity_blocks=0)
    with pytest.raises(UsageError, match="degrade='tier' needs a second_tier"):
        cache(4, degrade="tier")
    with pytest.raises(UsageError, match="policy tlru needs `session`"):
        cache(4, second_tier=TierSettings(capacity_blocks=1, policy="tlru"))
