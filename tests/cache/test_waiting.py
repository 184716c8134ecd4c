"""Waiting for one's turn: threads, asyncio, callbacks; nobody is forgotten, nobody told twice."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from embedder import CarryError
from live_cache import admitted, cache, hits, named, serve

from kvsched.cache import Admission, KVCacheScheduler, Lease, Outcome, Ticket, TierSettings

MANY = 400


pytestmark = pytest.mark.usefixtures("plain")


def queued(made: KVCacheScheduler, *keys: int, **about: Any) -> Ticket:
    ticket = made.acquire(named(*keys, **about)).ticket
    assert ticket is not None
    return ticket


def full(capacity: int = 2, **settings: Any) -> tuple[KVCacheScheduler, Lease]:
    made = cache(capacity, **settings)
    return made, admitted(made, named(*range(1_000, 1_000 + capacity)))


def test_wait_returns_the_admission_or_none_in_time() -> None:
    made, held = full()
    ticket = queued(made, 1)
    assert ticket.wait(0.01) is None
    thread = threading.Timer(0.05, made.release, [held])
    thread.start()
    admission = ticket.wait(30.0)
    thread.join()
    assert admission is ticket.admission
    assert admission is not None
    assert admission.outcome is Outcome.ADMIT
    assert ticket.wait() is admission


def test_many_threads_wait_and_each_has_its_turn() -> None:
    made, held = full(max_waiting=MANY)
    ran: list[int] = []

    def work(number: int) -> None:
        admission = made.acquire(named(number, 5_000 + number))
        if admission.ticket is not None:
            found = admission.ticket.wait(60.0)
            assert found is not None
            admission = found
        assert admission.lease is not None
        ran.append(number)
        made.release(admission.lease)

    threads = [threading.Thread(target=work, args=[number]) for number in range(40)]
    for thread in threads:
        thread.start()
    made.release(held)
    for thread in threads:
        thread.join(60.0)
    assert sorted(ran) == list(range(40))
    made.check()
    assert (made.waiting, made.free_blocks) == (0, 2)


def test_callbacks_that_release_do_not_nest() -> None:
    made, held = full(max_waiting=5_000)
    ran: list[int] = []

    def tell(admission: Admission) -> None:
        assert admission.lease is not None
        ran.append(1)
        made.release(admission.lease)

    for number in range(3_000):
        queued(made, number, 5_000 + number).when_settled(tell)
    made.release(held)
    assert len(ran) == 3_000
    assert made.waiting == 0
    made.check()


def test_a_callback_that_fails_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    made, held = full()
    told: list[str] = []

    def fail(admission: Admission) -> None:
        told.append("fail")
        raise ValueError("mine")

    one, two = queued(made, 1), queued(made, 2)
    one.when_settled(fail)
    two.when_settled(lambda _: told.append("two"))
    with caplog.at_level(logging.ERROR, "kvsched.cache"):
        made.release(held)
    assert told == ["fail", "two"]
    assert "a callback of a request that waited failed" in caplog.text
    # Nor those who come later and whose coming makes room for none.
    three = queued(made, 3, 4)
    three.when_settled(fail)
    assert one.admission is not None
    assert one.admission.lease is not None
    assert two.admission is not None
    assert two.admission.lease is not None
    made.release(one.admission.lease)
    assert made.release(two.admission.lease) == ()
    assert three.admission is not None


def test_a_callback_that_stops_the_program_comes_after_the_others() -> None:
    made, held = full()
    told: list[str] = []

    def stop(_: Admission) -> None:
        raise KeyboardInterrupt

    queued(made, 1).when_settled(stop)
    queued(made, 2).when_settled(lambda _: told.append("two"))
    with pytest.raises(KeyboardInterrupt):
        made.release(held)
    assert told == ["two"]
    made.check()


def test_when_settled_after_the_turn_calls_at_once() -> None:
    made, held = full()
    ticket = queued(made, 1)
    made.release(held)
    told: list[Admission] = []
    ticket.when_settled(told.append)
    assert told == [ticket.admission]


def apart(function: Callable[[], Any]) -> Any:
    """Call it in a thread of its own: a browser's driver may have left a loop in this one."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result()


def run(main: Any) -> Any:
    found = apart(lambda: asyncio.run(main))
    gc.collect()
    return found


def test_asyncio_waits_for_its_turn() -> None:
    made, held = full(max_waiting=MANY)

    async def one(number: int) -> int:
        admission = await made.acquire_async(named(number, 5_000 + number))
        assert admission.lease is not None
        await asyncio.sleep(0)
        made.release(admission.lease)
        return number

    async def main() -> None:
        tasks = [asyncio.create_task(one(number)) for number in range(100)]
        await asyncio.sleep(0)
        made.release(held)
        assert await asyncio.wait_for(asyncio.gather(*tasks), 60) == list(range(100))

    run(main())
    made.check()
    assert (made.waiting, made.free_blocks) == (0, 2)


def test_asyncio_with_releases_from_a_thread() -> None:
    made, held = full(max_waiting=MANY)

    async def one(number: int) -> None:
        admission = await made.acquire_async(named(number, 5_000 + number))
        lease = admission.lease
        assert lease is not None
        await asyncio.to_thread(made.release, lease)

    async def main() -> None:
        tasks = [asyncio.create_task(one(number)) for number in range(50)]
        await asyncio.to_thread(made.release, held)
        await asyncio.wait_for(asyncio.gather(*tasks), 60)

    run(main())
    assert (made.waiting, made.free_blocks) == (0, 2)


def test_a_cancelled_task_leaves_the_list_and_what_it_was_given() -> None:
    made, held = full()

    async def main() -> None:
        before = asyncio.create_task(made.acquire_async(named(1, 2)))
        after = asyncio.create_task(made.acquire_async(named(3, 4)))
        await asyncio.sleep(0)
        assert made.waiting == 2
        before.cancel()
        with pytest.raises(asyncio.CancelledError):
            await before
        assert made.waiting == 1
        # The turn has come, and the task is cancelled before it can know.
        made.release(held)
        after.cancel()
        with pytest.raises(asyncio.CancelledError):
            await after

    run(main())
    made.check()
    assert made.leases == {}
    assert (made.waiting, made.free_blocks) == (0, 2)


def test_a_closed_loop_holds_nothing() -> None:
    made, held = full()

    async def main() -> None:
        waiting = made.acquire_async(named(1, 2))
        task = asyncio.ensure_future(waiting)
        await asyncio.sleep(0)
        tasks.append(task)

    def run_and_close() -> None:
        loop = asyncio.new_event_loop()
        loop.run_until_complete(main())
        loop.close()

    tasks: list[Any] = []
    apart(run_and_close)
    made.release(held)
    assert made.leases == {}
    assert made.free_blocks == 2
    made.check()
    tasks[0]._log_destroy_pending = False


def test_asyncio_rejections_come_at_once() -> None:
    made, _ = full(max_waiting=0)
    found = run(made.acquire_async(named(1)))
    assert found.outcome is Outcome.REJECT


def test_the_moves_of_those_that_waited_are_carried_before_they_are_told() -> None:
    carried: list[Any] = []
    made = cache(2, carry=carried.extend, second_tier=TierSettings(capacity_blocks=4))
    serve(made, 1, 2)
    held = admitted(made, named(7, 8))
    carried.clear()
    ticket = queued(made, 1, 2)
    seen: list[tuple[int, bool]] = []

    def tell(admission: Admission) -> None:
        assert admission.lease is not None
        seen.append((len(carried), made.lock._is_owned()))  # type: ignore[attr-defined]
        assert list(admission.lease.moves) == carried

    ticket.when_settled(tell)
    made.release(held)
    assert seen == [(4, False)]


def test_a_request_that_waited_and_whose_moves_fail_is_told_why() -> None:
    fails = [False]

    def carry(_: Any) -> None:
        if fails[0]:
            raise CarryError("no link")

    made = cache(2, carry=carry, second_tier=TierSettings(capacity_blocks=4))
    serve(made, 1, 2)
    held = admitted(made, named(7, 8))
    ticket, after = queued(made, 1, 2), queued(made, 7)
    fails[0] = True
    made.release(held)
    assert ticket.admission is not None
    assert ticket.admission.outcome is Outcome.REJECT
    assert ticket.admission.reason == "its moves could not be carried: no link"
    assert isinstance(ticket.fault, CarryError)
    # Its failure made room for the next.
    assert after.admission is not None
    made.check()


def test_what_a_failed_batch_was_to_write_is_not_loaded_by_those_behind_it() -> None:
    """Two decisions, the second to load what the first offloads; the first fails."""
    memory: dict[int, str] = {}
    state = {"fails": True, "entered": threading.Event(), "go": threading.Event()}

    def carry(moves: Any) -> None:
        if state["fails"]:
            state["entered"].set()  # type: ignore[attr-defined]
            state["go"].wait(30)  # type: ignore[attr-defined]
            state["fails"] = False
            raise CarryError("the first")
        for move in moves:
            if move.kind == "offload":
                memory[move.target] = "bytes"
            elif move.kind == "load":
                assert memory.get(move.source) == "bytes", "garbage was loaded"

    made = cache(6, carry=carry, second_tier=TierSettings(capacity_blocks=8))
    serve(made, 1, 2, 3, 4)
    serve(made, 20)
    serve(made, 21)
    errors: list[BaseException] = []

    def acquire(*keys: int) -> None:
        try:
            made.acquire(named(*keys))
        except (CarryError, AssertionError) as error:
            errors.append(error)

    first = threading.Thread(target=acquire, args=[5, 6])
    first.start()
    assert state["entered"].wait(30)  # type: ignore[attr-defined]
    second = threading.Thread(target=acquire, args=[1, 2, 3])
    second.start()
    for _ in range(1_000):
        if len(made.outbox._queue) == 2:
            break
        time.sleep(0.01)
    assert len(made.outbox._queue) == 2
    state["go"].set()  # type: ignore[attr-defined]
    first.join(30)
    second.join(30)
    assert [str(error) for error in errors] == ["the first"] * 2
    made.check()
    assert made.leases == {}
    assert hits(made, 1, 2, 3, 4) == 2
    serve(made, 1, 2, 3, 4)


def test_batches_are_carried_in_the_order_of_the_decisions() -> None:
    """Eight threads; a tier whose bytes are checked at every load."""
    first: dict[int, int] = {}
    second: dict[int, int] = {}
    wrong: list[Any] = []

    def carry(moves: Any) -> None:
        for move in moves:
            source = second if move.kind == "load" else first
            target = second if move.kind == "offload" else first
            target[move.target] = source[move.source]

    made = cache(16, carry=carry, second_tier=TierSettings(capacity_blocks=24))

    def work(seed: int) -> None:
        for step in range(60):
            keys = [((seed * 7 + step * 13) % 11) * 10 + at for at in range(3)]
            admission = made.acquire(named(*keys))
            if admission.ticket is not None:
                found = admission.ticket.wait(60)
                assert found is not None
                admission = found
            lease = admission.lease
            assert lease is not None
            first_own = lease.hit_blocks
            ready = lease.hit_blocks - lease.loaded_blocks - lease.waits_for_blocks
            for at, block in enumerate(lease.block_ids):
                loaded = lease.hit_blocks - lease.loaded_blocks <= at < lease.hit_blocks
                if (at < ready or loaded) and first.get(block) != keys[at]:
                    wrong.append((keys, at))
                if at >= first_own:
                    first[block] = keys[at]
            made.release(lease, failed=bool(lease.waits_for_blocks))

    threads = [threading.Thread(target=work, args=[seed]) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert wrong == []
    made.check()
    assert made.free_blocks == 16
