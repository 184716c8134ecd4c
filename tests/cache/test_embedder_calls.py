"""What an engine asks while several requests share blocks that are not computed yet."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvsched import KVCacheScheduler
from kvsched.cache import Lease, Outcome, Request, TierSettings
from kvsched.foundation.errors import KvschedError, UsageError


def held(cache: KVCacheScheduler, tokens: range, **how: object) -> Lease:
    admission = cache.acquire(Request(token_ids=tokens, **how))  # type: ignore[arg-type]
    assert admission.lease is not None
    return admission.lease


def test_waiting_for_blocks_ends_as_they_are_computed() -> None:
    cache = KVCacheScheduler(16, block_size=4)
    writer, reader = held(cache, range(14)), held(cache, range(12))
    assert (reader.hit_tokens, reader.computed_tokens) == (12, 0)
    seen = [reader.waits_for_blocks]
    for computed in (3, 4, 9, 14):
        writer.computed(computed)
        seen.append(reader.waits_for_blocks)
    assert seen == [3, 3, 2, 1, 0]
    assert writer.waits_for_blocks == 0


def test_a_fork_waits_for_what_it_was_forked_from() -> None:
    cache = KVCacheScheduler(16, block_size=4)
    first = held(cache, range(8))
    twin = first.fork()
    assert (first.waits_for_blocks, twin.waits_for_blocks) == (0, 2)
    first.computed(8)
    assert twin.waits_for_blocks == 0


@pytest.mark.parametrize("failed", [False, True])
@pytest.mark.parametrize("how", ["hit", "fork"])
def test_one_that_ends_early_takes_nothing_from_who_computes(failed: bool, how: str) -> None:
    cache = KVCacheScheduler(16, block_size=4)
    writer = held(cache, range(12))
    writer.computed(4)
    other = held(cache, range(12)) if how == "hit" else writer.fork()
    cache.release(other, failed=failed)
    assert writer.lost_from is None
    late = held(cache, range(12))
    assert (late.hit_blocks, late.waits_for_blocks) == (3, 2)
    writer.computed(12)
    assert late.waits_for_blocks == 0
    cache.release(writer)
    cache.check()
    assert cache.lookup(Request(token_ids=range(12))) == 12


def test_a_block_that_was_lost_is_waited_for_no_longer_but_known_as_lost() -> None:
    cache = KVCacheScheduler(16, block_size=4)
    writer, reader = held(cache, range(12)), held(cache, range(12))
    writer.computed(4)
    cache.release(writer, failed=True)
    assert (reader.lost_from, reader.waits_for_blocks) == (1, 2)
    cache.release(reader, failed=True)
    cache.check()
    assert cache.lookup(Request(token_ids=range(12))) == 4


def test_a_request_that_runs_can_have_the_room_before_those_that_wait() -> None:
    for admit in (True, False):
        cache = KVCacheScheduler(4, block_size=4)
        runs, leaves = held(cache, range(8)), held(cache, range(100, 108))
        ticket = cache.acquire(Request(token_ids=range(200, 208))).ticket
        assert ticket is not None
        cache.release(leaves, failed=True, admit=admit)
        assert (ticket.admission is not None) == admit
        grown = cache.extend(runs, [1]).outcome
        assert grown is (Outcome.REJECT if admit else Outcome.ADMIT)
        cache.release(runs)
        assert ticket.admission is not None


def test_moves_are_kept_in_the_order_of_decisions() -> None:
    below = TierSettings(capacity_blocks=8, write="through")
    answers = KVCacheScheduler(4, block_size=4, second_tier=below)
    queue = KVCacheScheduler(4, block_size=4, second_tier=below, queue_moves=True)
    wanted = []
    for cache in (answers, queue):
        for start in (0, 100, 0):
            lease = held(cache, range(start, start + 14))
            grown = cache.extend(lease, [1, 2, 3])
            ended = cache.release(lease)
            if cache is answers:
                wanted += [*lease.moves, *grown.moves, *ended]
    assert {move.kind for move in wanted} == {"offload", "load"}
    assert queue.take_moves() == wanted
    assert queue.take_moves() == []


def test_moves_are_carried_or_taken_not_both() -> None:
    with pytest.raises(UsageError, match="not both"):
        KVCacheScheduler(4, queue_moves=True, carry=print)
    with pytest.raises(UsageError, match="queue_moves=True"):
        KVCacheScheduler(4).take_moves()


def test_a_cache_is_saved_once_its_moves_were_taken(tmp_path: Path) -> None:
    below = TierSettings(capacity_blocks=8, write="through")
    cache = KVCacheScheduler(4, block_size=4, second_tier=below, queue_moves=True)
    cache.release(held(cache, range(16)))
    with pytest.raises(UsageError, match="4 moves were not taken"):
        cache.save(tmp_path / "cache")
    assert not list(tmp_path.iterdir())
    assert len(cache.take_moves()) == 4
    cache.save(tmp_path / "cache")
    again = KVCacheScheduler.restore(tmp_path / "cache", queue_moves=True)
    again.release(held(again, range(100, 116)))
    assert [move.kind for move in again.take_moves()] == ["offload"] * 4


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda made: made.acquire(None), "a Request is needed, not NoneType"),
        (lambda made: made.lookup("prefix"), "a Request is needed, not str"),
        (lambda made: made.pin(None, "me"), "a Request or a Lease is needed"),
        (lambda made: made.acquire_all(None), "acquire_all takes requests"),
        (lambda made: made.acquire_all([Request(hashes=[1]), None]), "a Request is needed"),
        (lambda made: made.cancel(None), "a Ticket is needed, not NoneType"),
        (lambda made: made.withdraw("ticket"), "a Ticket is needed, not str"),
        (lambda made: made.unpin(None), "a Pin or its owner's name is needed"),
        (lambda made: made.uncarried(None), "uncarried takes the moves"),
        (lambda made: made.metrics_text({"a": "\ud800"}), "label a is no text"),
        (lambda made: made.save("a\0b"), "no file can have that name"),
        (lambda made: made.restore("a\0b"), "cannot be a file's name"),
        (lambda _made: TierSettings(capacity_blocks=3, policy="nope"), "unknown policy nope"),
    ],
)
def test_calls_that_make_no_sense_are_refused(
    call: Callable[[KVCacheScheduler], Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVSCHED_COMPILED", "0")
    made = KVCacheScheduler(8, block_size=4)
    with pytest.raises(KvschedError, match=said):
        call(made)
    made.check()
    assert (made.leases, made.cached_blocks) == ({}, 0)
