"""One process's part of a load: when each request goes out, and what became of it."""

from __future__ import annotations

import asyncio
import email.utils
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from kvsched.engine.openai import Call, Client
from kvsched.engine.openai_answer import Answer, Fault
from kvsched.engine.openai_request import completion_fields
from kvsched.engine.target import Target
from kvsched.evidence.bench.load_settings import FIRST_RETRY_S, INTERRUPTED, LoadSettings
from kvsched.evidence.bench.measured import RequestOutcome
from kvsched.evidence.bench.workload import joined

AT_ONCE = 16
"""Requests sent before what came in is looked at: a burst must not hold up answers' stamps."""
READY_BYTES = 64 * 2**20
"""Bytes of request bodies that are made ahead of time."""

Finished = Callable[[RequestOutcome], None]


@dataclass(frozen=True, eq=False)
class Part:
    """The requests that one process sends, (R,) each. ``after`` are places in this part."""

    index: NDArray[np.int64]
    """Places in the whole workload, ascending."""
    prompts: Sequence[NDArray[np.int32]]
    output_tokens: NDArray[np.int64]
    arrival_s: NDArray[np.float64]
    after: NDArray[np.int32]
    think_s: NDArray[np.float64]
    priority: NDArray[np.int32] | None
    words: tuple[str, ...] | None = None
    """Text of each number in ``prompts``; None where those are token ids."""


class _Bodies:
    """Requests as JSON, made before they are needed where there is time and room."""

    def __init__(self, part: Part, target: Target, settings: LoadSettings) -> None:
        self._part = part
        self._model = target.model
        self._sign = -1 if settings.low_priority_first else 1
        self._more = settings.extra_body
        self._encode = msgspec.json.Encoder().encode
        self._ready: dict[int, bytes] = {}
        self._bytes = 0
        self._next = 0
        self._taken = bytearray(len(part.index))

    def take(self, place: int) -> bytes:
        self._taken[place] = 1
        body = self._ready.pop(place, None)
        if body is None:
            return self._make(place)
        self._bytes -= len(body)
        return body

    def prepare(self) -> bool:
        """Make the next one; False where there is no room, or none is left."""
        following = self._taken.find(0, self._next)
        if following < 0 or self._bytes >= READY_BYTES:
            self._next = len(self._taken) if following < 0 else following
            return False
        self._next = following
        body = self._ready[self._next] = self._make(self._next)
        self._bytes += len(body)
        self._next += 1
        return True

    def _make(self, place: int) -> bytes:
        part = self._part
        more = self._more
        if part.priority is not None:
            more = {"priority": self._sign * int(part.priority[place])} | more
        prompt: list[int] | str = part.prompts[place].tolist()
        if part.words is not None:
            prompt = joined(part.words, part.prompts[place])
        fields = completion_fields(self._model, prompt, int(part.output_tokens[place]), more)
        return self._encode(fields)


class Sender:
    """Sends a part. Use it inside one event loop; moments are from ``started_s`` (perf_counter)."""

    def __init__(
        self, part: Part, target: Target, settings: LoadSettings, finished: Finished
    ) -> None:
        self._part = part
        self._settings = settings
        self._finished = finished
        self._client = Client(target)
        self._bodies = _Bodies(part, target, settings)
        self._loop = asyncio.get_running_loop()
        self._started_s = 0.0
        count = len(part.index)
        self._due_s = [math.nan] * count
        self._attempts = [0] * count
        self._calls: dict[int, Call] = {}
        self._timers: dict[int, asyncio.TimerHandle] = {}
        """Of later turns and of requests that are sent again."""
        self._left = count
        self._unsent = set(range(count))
        self._refused = 0
        self._stopped = False
        self._over = asyncio.Event()
        self._bug: Exception | None = None
        self._followers: dict[int, list[int]] = {}
        for place, before in enumerate(part.after.tolist()):
            if before >= 0:
                self._followers.setdefault(before, []).append(place)
        self._heads = deque(np.flatnonzero(part.after < 0).tolist())
        if settings.concurrency is None:
            self._heads = deque(sorted(self._heads, key=lambda place: part.arrival_s[place]))
        self._root, self._open_in = _sessions(part.after)
        self._tick_at: asyncio.Handle | None = None

    def prepare(self) -> None:
        """Make what can be made before time counts."""
        while self._bodies.prepare():
            pass

    async def connect(self) -> None:
        """Open the connections of a closed loop's clients before time counts.

        An engine that computes takes long to accept one, and that is no lag of ours.
        """
        if self._settings.concurrency is None:
            return
        opening = self._client.connect(min(self._settings.concurrency, self._left))
        tasks = {self._loop.create_task(opening), self._loop.create_task(self._over.wait())}
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def run(self, started_s: float) -> None:
        """Send everything from ``started_s`` on; return when each request has an outcome."""
        self._started_s = started_s
        self._loop.set_exception_handler(self._broken)
        try:
            if not self._left:
                return
            if self._settings.concurrency is None:
                self._tick()
            else:
                self._tick_at = self._loop.call_later(
                    max(0.0, started_s - time.perf_counter()), self._seat_clients
                )
            await self._over.wait()
            if self._bug is not None:
                raise self._bug
        finally:
            try:
                self.stop(INTERRUPTED)
            finally:
                await self._client.close()

    def _broken(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """A callback raised: end the run with it, which would wait for ever for its request."""
        error = context.get("exception")
        if isinstance(error, OSError) or context["message"].startswith("Fatal error on SSL"):
            return  # of a connection, which its call is told of
        if isinstance(error, Exception):
            self._bug = self._bug or error
            self._over.set()
        else:
            loop.default_exception_handler(context)

    def stop(self, detail: str) -> None:
        """End what runs, and send nothing more: what has no outcome is cancelled."""
        if self._stopped:
            return
        self._stopped = True
        if self._tick_at is not None:
            self._tick_at.cancel()
        for timer in self._timers.values():
            timer.cancel()
        waiting = list(self._timers)
        self._timers.clear()
        for call in list(self._calls.values()):
            call.cancel(detail)
        places = sorted({*self._unsent, *waiting})
        self._unsent.clear()
        for place in places:
            self._not_sent(place, "cancelled", detail)

    def _now(self) -> float:
        return time.perf_counter() - self._started_s

    def _tick(self) -> None:
        """Open loop: send what is due, and come again when the next is."""
        heads, arrival_s = self._heads, self._part.arrival_s
        for _ in range(AT_ONCE):
            if not heads or self._stopped:
                return
            due_s = float(arrival_s[heads[0]])
            if due_s > self._now():
                break
            self._send_first(heads.popleft(), due_s)
        else:
            self._tick_at = self._loop.call_soon(self._tick)
            return
        while (left_s := due_s - self._now()) > 0.002 and self._bodies.prepare():
            pass
        self._tick_at = self._loop.call_later(max(0.0, left_s), self._tick)

    def _seat_clients(self) -> None:
        for _ in range(self._settings.concurrency or 0):
            self._next_head(0.0)

    def _next_head(self, due_s: float) -> None:
        """Closed loop: a client is free."""
        if self._heads and not self._stopped:
            self._send_first(self._heads.popleft(), due_s)

    def _send_first(self, place: int, due_s: float) -> None:
        self._due_s[place] = due_s
        self._unsent.discard(place)
        self._send(place)

    def _send(self, place: int) -> None:
        self._timers.pop(place, None)
        settings = self._settings
        body = self._bodies.take(place)
        self._calls[place] = self._client.send(
            body,
            asked_tokens=int(self._part.output_tokens[place]),
            ttft_timeout_s=settings.ttft_timeout_s,
            timeout_s=settings.timeout_s,
            ended=lambda answer: self._ended(place, answer),
        )

    def _ended(self, place: int, answer: Answer) -> None:
        self._calls.pop(place, None)
        self._attempts[place] += max(1, answer.sendings)
        if answer.fault == "rate_limited" and not self._stopped:
            wait_s = retry_wait_s(
                answer, self._attempts[place], int(self._part.index[place]), self._settings
            )
            if wait_s is not None:
                self._timers[place] = self._loop.call_later(wait_s, self._send, place)
                return
        self._close(place, self._outcome(place, answer))
        if answer.fault != "refused":
            self._refused = 0
            return
        self._refused += 1
        if self._refused == self._settings.stop_after_refusals:
            self._give_up()

    def _outcome(self, place: int, answer: Answer) -> RequestOutcome:
        start_s = self._started_s
        counts = answer.token_counts
        return RequestOutcome(
            index=int(self._part.index[place]),
            error=answer.fault,
            detail=answer.detail,
            http_status=answer.status,
            attempts=self._attempts[place],
            due_s=self._due_s[place],
            sent_s=_since(answer.sent_s, start_s),
            first_token_s=_since(answer.first_token_s, start_s),
            finished_s=_since(answer.finished_s, start_s),
            token_s=tuple([moment - start_s for moment in answer.token_s]),
            token_counts=tuple(counts) if counts is not None else (),
            sent_prompt_tokens=len(self._part.prompts[place]),
            asked_output_tokens=int(self._part.output_tokens[place]),
            prompt_tokens=answer.prompt_tokens,
            output_tokens=answer.output_tokens,
            cached_tokens=answer.cached_tokens,
            finish_reason=answer.finish_reason,
        )

    def _close(self, place: int, outcome: RequestOutcome) -> None:
        """Hand over an outcome; what waited for it becomes due."""
        self._finished(outcome)
        self._left -= 1
        if not self._left:
            self._over.set()
        if self._stopped:
            return
        ended_s = self._now() if outcome.finished_s is None else outcome.finished_s
        for follower in self._followers.get(place, ()):
            if follower not in self._unsent:
                continue
            due_s = ended_s + float(self._part.think_s[follower])
            arrival_s = float(self._part.arrival_s[follower])
            if self._settings.concurrency is None and arrival_s > due_s:
                due_s = arrival_s
            self._unsent.discard(follower)
            self._due_s[follower] = due_s
            self._timers[follower] = self._loop.call_later(
                max(0.0, due_s - self._now()), self._send, follower
            )
        root = self._root[place]
        self._open_in[root] -= 1
        if self._settings.concurrency is not None and not self._open_in[root]:
            self._loop.call_soon(self._next_head, ended_s)

    def _not_sent(self, place: int, kind: Fault, detail: str) -> None:
        due_s = self._due_s[place]
        if math.isnan(due_s):
            due_s = float(self._part.arrival_s[place])
        if math.isnan(due_s) or self._settings.concurrency is not None:
            due_s = self._now()
        outcome = RequestOutcome(
            index=int(self._part.index[place]),
            error=kind,
            detail=detail,
            attempts=self._attempts[place],
            due_s=due_s,
            sent_prompt_tokens=len(self._part.prompts[place]),
            asked_output_tokens=int(self._part.output_tokens[place]),
        )
        self._close(place, outcome)

    def _give_up(self) -> None:
        """Nobody listens any more: the rest is refused without asking."""
        detail = f"not sent: {self._refused} connections in a row were refused"
        places = sorted({*self._unsent, *self._timers})
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self._unsent.clear()
        self._heads.clear()
        for place in places:
            self._not_sent(place, "refused", detail)


def _since(moment_s: float | None, start_s: float) -> float | None:
    return None if moment_s is None else moment_s - start_s


def _sessions(after: NDArray[np.int32]) -> tuple[list[int], list[int]]:
    """Return the first turn of each request's session, and by first turn the turns. O(R)."""
    root = list(range(len(after)))
    turns = [0] * len(after)
    for place, before in enumerate(after.tolist()):
        if before >= 0:
            root[place] = root[before]
        turns[root[place]] += 1
    return root, turns


def retry_wait_s(answer: Answer, attempts: int, index: int, settings: LoadSettings) -> float | None:
    """Return the seconds until a request that was answered with 429 is sent again; None for never.

    Retry-After counts in seconds or as a date. Without it the wait doubles from `FIRST_RETRY_S`,
    drawn out by up to a half, by the request's index, so that those refused together do not come
    back together.
    """
    if attempts > settings.retries:
        return None
    asked_s = _retry_after_s(answer.retry_after)
    if asked_s is not None:
        return asked_s if asked_s <= settings.longest_retry_wait_s else None
    spread = 1.0 + (index * 0.6180339887498949) % 1.0 / 2
    wait_s = FIRST_RETRY_S * 2.0 ** min(attempts - 1, 60) * spread
    return min(wait_s, settings.longest_retry_wait_s)


def _retry_after_s(text: str | None) -> float | None:
    if text is None:
        return None
    text = text.strip()
    if text.isascii() and text.isdigit():
        return float(text[:18])
    try:
        moment_s = email.utils.parsedate_to_datetime(text).timestamp()
    except (ValueError, OverflowError):
        return None
    return max(0.0, moment_s - time.time())
