"""What is done without the lock: bytes carried in the order of the decisions, callbacks made."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvsched.cache.request import Move

if TYPE_CHECKING:
    from kvsched.cache.serving import Serving

Carry = Callable[[Sequence[Move]], None]
"""What an embedder gives to carry bytes at once; it raises if they could not be carried, and calls
nothing of the cache."""

_log = logging.getLogger("kvsched.cache")


@dataclass(slots=True, eq=False)
class Batch:
    """Moves of one decision."""

    moves: tuple[Move, ...]
    done: bool = False
    error: BaseException | None = None
    """Why they were not carried, or are not to be: what they load was not written."""


class Outbox:
    """Batches of moves in the order in which they were decided, carried one after another.

    A block that one batch frees is another's by then: out of order, bytes would be overwritten
    before they are read. Whoever waits for a batch carries all before it.
    """

    def __init__(self, cache: Serving, carry: Carry | None) -> None:
        self.cache = cache
        self.carry = carry
        self._queue: deque[Batch] = deque()
        self._carrying = threading.RLock()

    def add(self, moves: Sequence[Move]) -> Batch | None:
        """Put moves in line; None if there is nothing to carry. The caller holds the lock."""
        if not moves or self.carry is None:
            return None
        batch = Batch(tuple(moves))
        self._queue.append(batch)
        return batch

    def carry_until(self, batch: Batch | None) -> None:
        """Carry a batch and all before it; raise what became of it. Without the cache's lock."""
        if batch is None:
            return
        with self._carrying:
            while not batch.done:
                self._carry_first()
        if batch.error is not None:
            raise batch.error

    def _carry_first(self) -> None:
        batch = self._queue[0]
        error = batch.error
        if error is None and self.carry is not None:
            try:
                self.carry(batch.moves)
            except BaseException as raised:  # noqa: BLE001  # it is raised to whoever waits for it
                error = raised
        with self.cache.lock:
            self._queue.popleft()
            batch.error, batch.done = error, True
            if error is not None:
                self._forget(batch, error)

    def _forget(self, failed: Batch, error: BaseException) -> None:
        """Forget what a batch was to offload, and fail those behind it that would load it."""
        wrong = self.cache.blocks.departures.discard(failed.moves, self.cache.last_now)
        for batch in self._queue:
            loads = {move.source for move in batch.moves if move.kind == "load"}
            offloads = {move.target for move in batch.moves if move.kind == "offload"}
            if loads & wrong:
                batch.error = error
                wrong |= offloads
            else:
                wrong -= offloads


class Calls:
    """Callbacks, made one after another without the lock: one that releases nests no others."""

    def __init__(self) -> None:
        self._local = threading.local()

    def make(self, calls: Iterable[Callable[[], None]]) -> None:
        """Make calls, or leave them to the call that this thread is in.

        What one raises is logged, and stops no other; what is no Exception is raised at the end.
        """
        queue: deque[Callable[[], None]] | None = getattr(self._local, "queue", None)
        if queue is not None:
            queue.extend(calls)
            return
        self._local.queue = queue = deque(calls)
        fault: BaseException | None = None
        try:
            while queue:
                try:
                    queue.popleft()()
                except Exception:  # noqa: BLE001  # an embedder's callback may raise anything
                    _log.exception("a callback of a request that waited failed")
                except BaseException as error:  # noqa: BLE001  # raised below, others told first
                    fault = error
        finally:
            del self._local.queue
        if fault is not None:
            raise fault
