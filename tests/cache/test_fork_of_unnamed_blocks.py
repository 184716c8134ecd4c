"""A fork that writes into a shared block far behind the last block that has a name."""

from __future__ import annotations

from kvsched.cache import KVCacheScheduler, Request


def test_a_copy_behind_unnamed_blocks_holds_nothing_more() -> None:
    cache = KVCacheScheduler(capacity_blocks=16, block_size=4)
    lease = cache.acquire(Request(hashes=[b"a" * 32, b"b" * 32], tokens=8)).lease
    assert lease is not None
    # Two blocks without a name, the last one partial.
    assert cache.extend(lease, 6).block_ids
    twin = cache.fork(lease)
    grown = cache.extend(twin, 1)
    assert [move.kind for move in grown.moves] == ["copy"]
    cache.check()
    cache.release(lease)
    cache.release(twin)
    cache.check()
    assert cache.free_blocks == 16
