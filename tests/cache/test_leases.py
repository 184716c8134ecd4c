"""Leases: which blocks, in which order, who may write them, and what is left of them."""

from __future__ import annotations

import numpy as np
import pytest
from live_cache import admitted, cache, hits, named, serve

from kvsched.cache import KVCacheScheduler, Lease, NotAdmittedError, Outcome, Request
from kvsched.cache.events import BlockRemoved, BlockStored
from kvsched.foundation.errors import UsageError

pytestmark = pytest.mark.usefixtures("plain")


def test_blocks_come_in_order_and_are_shared_where_prompts_are() -> None:
    made = cache(8)
    one = admitted(made, named(1, 2, 3))
    assert one.block_ids == (0, 1, 2)
    two = admitted(made, named(1, 2, 4))
    assert two.block_ids == (0, 1, 3)
    assert (two.hit_blocks, two.hit_tokens, two.waits_for_blocks) == (2, 4, 2)
    one.computed(4)
    three = admitted(made, named(1, 2, 3))
    assert (three.block_ids, three.hit_blocks, three.waits_for_blocks) == ((0, 1, 2), 3, 1)
    made.check()


def test_the_tail_leaves_first() -> None:
    made = cache(4)
    assert serve(made, 1, 2, 3, 4) == 0
    serve(made, 5)
    assert hits(made, 1, 2, 3, 4) == 3
    serve(made, 6, 7)
    assert hits(made, 1, 2, 3, 4) == 1
    assert hits(made, 5) == 1


def test_what_is_held_never_leaves() -> None:
    made = cache(4)
    held = admitted(made, named(1, 2, 3))
    for key in range(10, 20):
        serve(made, key)
    assert hits(made, 1, 2, 3) == 3
    assert made.acquire(named(4, 5)).outcome is Outcome.QUEUE
    made.release(held)
    assert made.waiting == 0


def test_partial_blocks_have_no_key_unless_it_is_given() -> None:
    made = cache(8)
    ids = admitted(made, Request(token_ids=[1, 2, 3]))
    assert (len(ids.block_ids), ids.extra_blocks, ids.tokens) == (2, 1, 3)
    made.release(ids)
    assert made.lookup(Request(token_ids=[1, 2, 3])) == 2
    keyed = admitted(made, named(8, 9, tokens=3))
    assert keyed.extra_blocks == 0
    made.release(keyed)
    assert made.lookup(named(8, 9, tokens=3)) == 3
    with pytest.raises(UsageError, match="more than 2 tokens fill"):
        made.acquire(named(8, 9, tokens=2))
    made.check()


def test_it_grows_block_by_block_and_stores_what_is_full() -> None:
    made = cache(8)
    lease = admitted(made, Request(token_ids=[1, 2, 3]))
    assert lease.extend([4]).block_ids == ()
    assert hits_of(made, [1, 2, 3, 4]) == 4
    assert lease.extend([5, 6, 7]).block_ids == (2, 3)
    assert lease.block_ids == (0, 1, 2, 3)
    assert hits_of(made, [1, 2, 3, 4, 5, 6, 7, 8]) == 6
    assert lease.extend(1).block_ids == ()
    assert hits_of(made, [1, 2, 3, 4, 5, 6, 7, 8]) == 6
    assert lease.extend([9, 9]).block_ids == (4,)
    # Nothing behind tokens that nobody named can be found.
    made.release(lease)
    made.check()
    assert made.cached_blocks == 3
    assert made.free_blocks == 8


def hits_of(made: KVCacheScheduler, ids: list[int]) -> int:
    return made.lookup(Request(token_ids=ids))


def test_hashes_name_blocks_that_a_count_filled() -> None:
    made = cache(8)
    lease = admitted(made, named(1, tokens=2))
    lease.extend(4)
    assert hits(made, 1, 2, 3) == 1
    with pytest.raises(UsageError, match="4 hashes for blocks from 1 on, but 6 tokens fill 3"):
        lease.extend(0, hashes=[2, 3, 4, 5])
    lease.extend(0, hashes=[2, 3])
    assert hits(made, 1, 2, 3) == 3
    made.check()


def test_growth_without_room_changes_nothing() -> None:
    made = cache(2)
    lease = admitted(made, named(1, 2))
    growth = lease.extend([5])
    assert (growth.outcome, growth.block_ids) == (Outcome.REJECT, ())
    assert growth.reason == "no room: all blocks are held"
    assert (lease.tokens, lease.block_ids) == (4, (0, 1))
    made.check()


def test_growth_pushes_out_what_nobody_holds() -> None:
    made = cache(3)
    serve(made, 7, 8)
    lease = admitted(made, named(1))
    assert lease.block_ids == (2,)
    assert lease.extend(1).block_ids == (1,)
    assert hits(made, 7, 8) == 1


def test_the_same_generated_twice_has_two_blocks_and_one_name() -> None:
    made = cache(8)
    one = admitted(made, Request(token_ids=[1, 2, 3]))
    two = admitted(made, Request(token_ids=[1, 2, 3]))
    one.extend([4, 5])
    two.extend([4, 5])
    assert one.block_ids[:2] == (0, 1)
    assert two.block_ids[:2] == (0, 2)
    assert made.cached_blocks == 2
    made.check()
    # Whoever stored it first computes it: the second may not say that the first's block is.
    two.computed(5)
    three = admitted(made, Request(token_ids=[1, 2, 3, 4]))
    assert (three.block_ids, three.waits_for_blocks) == ((0, 1), 1)
    made.release(two)
    four = admitted(made, Request(token_ids=[1, 2, 3, 4]))
    assert four.waits_for_blocks == 1
    made.release(one, failed=True)
    made.check()
    assert (three.lost_from, four.lost_from) == (1, 1)


def test_who_copied_what_another_stored_takes_nothing_along_when_it_fails() -> None:
    made = cache(8)
    one = admitted(made, Request(token_ids=[1, 2, 3]))
    one.computed(3)
    two = admitted(made, Request(token_ids=[1, 2, 3]))
    one.extend([4])
    two.extend([4])
    made.release(two, failed=True)
    assert one.lost_from is None
    one.computed(4)
    made.release(one)
    assert hits_of(made, [1, 2, 3, 4]) == 4
    made.check()


def test_forks_share_until_one_writes() -> None:
    made = cache(8)
    lease = admitted(made, Request(token_ids=[1, 2, 3]))
    twin = lease.fork()
    third = twin.fork()
    assert lease.block_ids == twin.block_ids == third.block_ids == (0, 1)
    growth = lease.extend([4, 5])
    assert [(move.kind, move.source, move.target) for move in growth.moves] == [("copy", 1, 2)]
    assert (lease.block_ids, twin.block_ids) == ((0, 2, 3), (0, 1))
    assert [move.source for move in twin.extend([9]).moves] == [1]
    # The last to hold it writes where it is.
    assert third.extend([8]).moves == ()
    assert third.block_ids == (0, 1)
    made.check()
    for each in (lease, third, twin):
        made.release(each)
    made.check()
    assert made.free_blocks == 8


def test_forks_of_blocks_without_names() -> None:
    """A partial block behind others that have no name is the forks' own as well."""
    made = cache(9, 3)
    lease = admitted(made, named(1, 2, 3, tokens=14))
    twin = lease.fork()
    growth = lease.extend(1)
    assert [(move.source, move.target) for move in growth.moves] == [(4, 5)]
    made.check()
    with pytest.raises(UsageError, match="a fork shares cannot be named"):
        lease.extend(0, hashes=[4])
    made.check()
    made.release(twin)
    lease.extend(0, hashes=[4])
    assert hits(made, 1, 2, 3, 4) == 4
    made.release(lease)
    made.check()
    assert made.free_blocks == 9


def test_a_partial_block_with_a_key_is_copied_and_stays() -> None:
    made = cache(8)
    lease = admitted(made, named(1, 2, tokens=3))
    lease.computed(3)
    growth = lease.extend(1, hashes=[5])
    assert [(move.source, move.target) for move in growth.moves] == [(1, 2)]
    made.check()
    assert made.lookup(named(1, 2, tokens=3)) == 3
    assert hits(made, 1, 5) == 2
    made.release(lease)
    made.check()


def test_a_partial_block_that_nobody_computed_is_let_go_when_its_lease_grows() -> None:
    made = cache(8)
    lease = admitted(made, named(1, 2, tokens=3))
    other = admitted(made, named(1, 2, tokens=3))
    assert other.waits_for_blocks == 2
    lease.extend(1)
    assert other.lost_from == 1
    assert made.lookup(named(1, 2, tokens=3)) == 2
    made.release(other, failed=True)
    made.check()
    made.release(lease)
    made.check()
    assert made.free_blocks == 8


def test_a_partial_block_that_a_fork_still_writes_stays() -> None:
    made = cache(8)
    lease = admitted(made, named(1, 2, tokens=3))
    twin = lease.fork()
    lease.extend(1)
    assert twin.lost_from is None
    made.release(twin)
    assert made.lookup(named(1, 2, tokens=3)) == 3
    made.check()


def test_failure_drops_what_was_not_computed() -> None:
    made = cache(8)
    lease = admitted(made, named(1, 2, 3, 4))
    lease.computed(5)
    made.release(lease, failed=True)
    made.check()
    assert hits(made, 1, 2, 3, 4) == 2
    assert made.cached_blocks == 2


def test_failure_is_told_to_all_who_hold_the_blocks() -> None:
    made = cache(8)
    one = admitted(made, named(1, 2))
    two = admitted(made, named(1, 2, 3))
    twin = one.fork()
    aside = admitted(made, named(1, 9))
    one.computed(2)
    made.release(one, failed=True)
    assert (two.lost_from, twin.lost_from, aside.lost_from) == (1, 1, None)
    # Nobody finds it, and it is stored anew beside.
    assert hits(made, 1, 2, 3) == 1
    anew = admitted(made, named(1, 2))
    assert anew.block_ids[1] != two.block_ids[1]
    for lease in (two, twin, aside, anew):
        made.release(lease)
        made.check()
    assert hits(made, 1, 2, 3) == 2
    assert made.cached_blocks == 3


def test_a_failure_says_nothing_of_what_others_are_computing() -> None:
    made = cache(8)
    first = admitted(made, named(1, 2))
    second = admitted(made, named(1, 2, 3))
    assert second.waits_for_blocks == 2
    made.release(second, failed=True)
    third = admitted(made, named(1, 2))
    assert third.waits_for_blocks == 2
    made.release(first)
    assert admitted(made, named(1, 2)).waits_for_blocks == 0


def test_nobody_says_for_another_that_its_blocks_are_computed() -> None:
    made = cache(8)
    first = admitted(made, named(1, 2))
    second = admitted(made, named(1, 2, 3))
    assert second.waits_for_blocks == 2
    made.release(second)
    assert admitted(made, named(1, 2)).waits_for_blocks == 2
    made.release(first, failed=True)
    made.check()
    assert hits(made, 1, 2, 3) == 0


def test_a_context_releases_and_fails_with_its_body() -> None:
    made = cache(4)
    with made.acquire(named(1, 2)) as lease:
        assert not lease.released
    assert hits(made, 1, 2) == 2

    def stop(lease: Lease, error: type[BaseException]) -> None:
        lease.computed(2)
        raise error

    with pytest.raises(KeyError), made.acquire(named(3, 4)) as lease:
        stop(lease, KeyError)
    assert hits(made, 3, 4) == 1
    with pytest.raises(KeyboardInterrupt), admitted(made, named(7, 8)) as lease:
        stop(lease, KeyboardInterrupt)
    assert hits(made, 7, 8) == 1
    with pytest.raises(NotAdmittedError, match="not admitted: reject"):
        made.acquire(named(*range(9))).__enter__()
    made.check()
    assert made.free_blocks == 4


def test_a_lease_ends_once() -> None:
    made, other = cache(4), cache(4)
    lease = admitted(made, named(1, 2))
    twin = lease.fork()
    assert made.release(lease) == ()
    assert made.release(lease, failed=True) == ()
    assert lease.close() == ()
    made.check()
    assert hits(made, 1, 2) == 2
    for use in (lambda: lease.extend(1), lambda: lease.computed(1), lease.fork,
                lambda: made.pin(lease, "me")):  # fmt: skip
        with pytest.raises(UsageError, match="lease 0 was released"):
            use()
    with pytest.raises(UsageError, match="another cache's"):
        other.release(twin)
    with pytest.raises(UsageError, match="another cache's"):
        other.extend(twin, 1)
    with pytest.raises(UsageError, match="tokens must be from 0 to the 4"):
        twin.computed(5)
    made.release(twin)
    assert made.free_blocks == 4


@pytest.mark.parametrize("tokens", ["abc", b"abc", -1, True, [1, "2"], [1.5], {1: 2}, None, 2.0])
def test_growth_that_makes_no_sense(tokens: object) -> None:
    made = cache(4)
    lease = admitted(made, Request(token_ids=[1, 2, 3]))
    with pytest.raises(UsageError):
        lease.extend(tokens)  # type: ignore[arg-type]
    assert lease.tokens == 3
    made.check()


def test_hashes_of_every_form_name_the_same_blocks() -> None:
    made = cache(8)
    lease = admitted(made, named(1, 2, 3))
    made.release(lease)
    for hashes in (
        np.array([1, 2, 3]),
        np.array([1, 2, 3], np.uint64),
        [(each).to_bytes(8, "little") for each in (1, 2, 3)],
        np.array([[each, 0, 0, 0] for each in (1, 2, 3)], np.uint8),
    ):
        assert made.lookup(Request(hashes=hashes)) == 6


def test_every_namespace_is_its_own() -> None:
    made = cache(32)
    abouts = [
        {}, {"cache_salt": "a"}, {"lora_name": "a"}, {"model_revision": "a"}, {"tenant": "a"},
        {"cache_salt": "b"}, {"cache_salt": "a", "lora_name": "a"}, {"cache_salt": ""},
    ]  # fmt: skip
    for about in abouts[:-1]:
        assert serve(made, 1, 2, **about) == 0
    for about in abouts:
        assert hits(made, 1, 2, **about) == 2
    assert made.cached_blocks == 2 * len(abouts[:-1])
    shared = cache(8, isolate_tenants=False)
    serve(shared, 1, 2, tenant="a")
    assert hits(shared, 1, 2, tenant="b") == 2


def test_clear_forgets_and_what_is_old_does_no_harm() -> None:
    made = cache(4)
    lease = admitted(made, named(1, 2))
    pin = made.pin(lease, "me")
    assert not made.clear()
    made.release(lease)
    assert not made.clear()
    made.unpin(pin)
    assert made.clear()
    made.check()
    assert (made.cached_blocks, hits(made, 1, 2)) == (0, 0)
    assert made.release(lease) == ()
    with pytest.raises(UsageError, match="is not held"):
        made.unpin(pin)
    serve(made, 1, 2)
    assert hits(made, 1, 2) == 2
    made.check()


def test_a_batch_that_makes_no_sense_changes_nothing() -> None:
    made = cache(8)
    with pytest.raises(UsageError):
        made.acquire_all([named(1, 2), named(3, tokens=1), Request(hashes=[b"x" * 99])])
    made.check()
    assert (made.free_blocks, made.cached_blocks) == (8, 0)


def test_an_entry_that_never_fits_does_not_stop_a_batch() -> None:
    made = cache(4)
    outcomes = [
        each.outcome
        for each in made.acquire_all([named(1), named(*range(10, 20)), named(2), named(3, 4, 5)])
    ]
    assert outcomes == [Outcome.ADMIT, Outcome.REJECT, Outcome.ADMIT, Outcome.QUEUE]


def test_events_name_what_left_where_no_name_comes_again() -> None:
    """Long chains use up all numbers but the latest: none that left just now is reused."""
    for capacity in range(2, 9):
        made = cache(capacity, history_blocks=0, max_events=100)
        cached: set[bytes | int] = set()
        for start in range(0, 4_000, 100):
            length = capacity - (start // 100) % 2
            serve(made, *range(start, start + length))
            for event in made.take_events():
                if isinstance(event, BlockStored):
                    cached.update(event.block_hashes)
                elif isinstance(event, BlockRemoved):
                    assert cached.issuperset(event.block_hashes)
                    cached.difference_update(event.block_hashes)
            assert len(cached) == made.cached_blocks
