"""Requests that wait for room: whose turn it is.

Tenants take turns by what was admitted for each, over its weight (start-time fair queueing); within
a tenant the highest priority goes first, then the earliest deadline, then the first to arrive. A
request that many later ones have passed goes before all others, and nothing passes it then.
"""

from __future__ import annotations

import heapq
import itertools
import math
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from kvsched.cache.request import Admission, Request

if TYPE_CHECKING:
    from kvsched.cache.serving import Serving


class Ticket:
    """A place in the waiting list. `wait` for its turn, or ask `admission` from time to time."""

    __slots__ = (
        "_cache", "_callbacks", "_done", "admission", "arrived", "fault", "number", "request",
    )  # fmt: skip

    def __init__(self, cache: Serving, request: Request, number: int, arrived: int):
        self._cache = cache
        self._callbacks: list[Callable[[Admission], None]] = []
        self._done = threading.Event()
        self.request = request
        self.number = number
        self.arrived = arrived
        """Admissions of the cache before it came."""
        self.admission: Admission | None = None
        """What became of it; None while it waits, and until its moves are carried."""
        self.fault: BaseException | None = None
        """What kept its moves from being carried, where that is why it was rejected."""

    def wait(self, timeout_s: float | None = None) -> Admission | None:
        """Wait for the turn; None if it has not come within ``timeout_s``."""
        self._done.wait(timeout_s)
        return self.admission

    def cancel(self) -> bool:
        """Leave the list; False if the turn has come already.

        A lease is then to be released: `when_settled` tells of it.
        """
        return self._cache.cancel(self)

    def withdraw(self) -> None:
        """Leave the list, and give back what its turn brings if that has come."""
        self._cache.withdraw(self)

    def when_settled(self, callback: Callable[[Admission], None]) -> None:
        """Call ``callback`` once, with the admission: at once if there is one."""
        with self._cache.lock:
            if not self._done.is_set():
                self._callbacks.append(callback)
                return
        if self.admission is not None:
            callback(self.admission)

    def settle(self, admission: Admission) -> list[Callable[[Admission], None]]:
        """Say what became of it; return what is to be called, without the lock."""
        self.admission = admission
        called, self._callbacks = self._callbacks, []
        self._done.set()
        return called

    def __repr__(self) -> str:
        state = "waiting" if self.admission is None else str(self.admission.outcome)
        return f"<Ticket {self.number}: {state}>"


class _Line:
    """Tickets of one tenant, the one whose turn is next on top."""

    __slots__ = ("heap", "served", "weight")

    def __init__(self, weight: float) -> None:
        self.weight = weight
        self.served = 0.0
        """Virtual time: tokens admitted over weight, never behind the list's own when it wakes."""
        self.heap: list[tuple[int, float, int, Ticket]] = []


class WaitingList:
    """Tickets by tenant: O(log n) a call, amortised, and O(T log T) for T tenants' turns.

    The caller holds the lock.
    """

    def __init__(self, most_passes: int, weight_of: Callable[[str], float]) -> None:
        self.most_passes = most_passes
        self._weight_of = weight_of
        self._lines: dict[str, _Line] = {}
        self._order: deque[Ticket] = deque()
        self._deadlines: list[tuple[float, int, Ticket]] = []
        self._waiting: dict[int, Ticket] = {}
        self._clock = 0.0
        self._count = itertools.count()
        self.admissions = 0
        self.tokens = 0
        """Prompt tokens of all that wait."""

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Ticket]:
        return iter(self._waiting.values())

    def add(self, cache: Serving, request: Request, tokens: int) -> Ticket:
        """Put a request in line."""
        ticket = Ticket(cache, request, next(self._count), self.admissions)
        line = self._lines.get(request.tenant)
        if line is None:
            line = self._lines[request.tenant] = _Line(self._weight_of(request.tenant))
            line.served = self._clock
        deadline = math.inf if request.deadline_s is None else request.deadline_s
        heapq.heappush(line.heap, (-request.priority, deadline, ticket.number, ticket))
        if deadline < math.inf:
            heapq.heappush(self._deadlines, (deadline, ticket.number, ticket))
        self._order.append(ticket)
        self._waiting[ticket.number] = ticket
        self.tokens += tokens
        return ticket

    def remove(self, ticket: Ticket, tokens: int) -> bool:
        """Take a ticket out of the list; False if it is not in it."""
        if self._waiting.pop(ticket.number, None) is None:
            return False
        self.tokens -= tokens
        if not self._waiting:
            # Nobody is behind anybody any more.
            self._lines.clear()
        elif len(self._lines) > 2 * len(self._waiting) + 64:
            self._forget_lines()
        self._sweep()
        return True

    def _forget_lines(self) -> None:
        """Forget the half of the tenants without a request that are least ahead of others."""
        idle = [(line.served, name) for name, line in self._lines.items() if not self._top(line)]
        idle.sort()
        for _, name in idle[: (len(idle) + 1) // 2]:
            del self._lines[name]

    def _sweep(self) -> None:
        """Forget records of what has left: on top always, all once they are the most."""
        while self._order and self._order[0].number not in self._waiting:
            self._order.popleft()
        while self._deadlines and self._deadlines[0][1] not in self._waiting:
            heapq.heappop(self._deadlines)
        if len(self._order) > 2 * len(self._waiting) + 16:
            self._order = deque(each for each in self._order if each.number in self._waiting)
            self._deadlines = [each for each in self._deadlines if each[1] in self._waiting]
            heapq.heapify(self._deadlines)
            for name, line in list(self._lines.items()):
                line.heap = [each for each in line.heap if each[2] in self._waiting]
                heapq.heapify(line.heap)
                if not line.heap and line.served <= self._clock:
                    del self._lines[name]

    def _top(self, line: _Line) -> Ticket | None:
        while line.heap and line.heap[0][2] not in self._waiting:
            heapq.heappop(line.heap)
        return line.heap[0][3] if line.heap else None

    def starved(self) -> Iterator[Ticket]:
        """Yield those since whose coming more than ``most_passes`` were admitted, in order."""
        self._sweep()
        for ticket in self._order:
            if self.admissions - ticket.arrived <= self.most_passes:
                return
            if ticket.number in self._waiting:
                yield ticket

    def turns(self) -> Iterator[Ticket]:
        """Yield whose turn it is: the first of each tenant, the least served tenant first."""
        ready = []
        for name, line in list(self._lines.items()):
            ticket = self._top(line)
            if ticket is not None:
                ready.append((line.served, ticket.number, ticket))
            elif line.served <= self._clock:
                del self._lines[name]
        for _, _, ticket in sorted(ready, key=lambda each: each[:2]):
            yield ticket

    def admitted(self, request: Request, tokens: int) -> None:
        """Count an admission, from the list or past it, for the tenant it is for."""
        self.admissions += 1
        line = self._lines.get(request.tenant)
        if line is None:
            return
        start = max(line.served, self._clock)
        self._clock = start
        line.served = start + max(tokens, 1) / line.weight

    def overdue(self, now: float) -> Iterator[Ticket]:
        """Yield those whose deadline has passed. The caller takes each out."""
        while True:
            self._sweep()
            if not self._deadlines or self._deadlines[0][0] >= now:
                return
            yield self._deadlines[0][2]
