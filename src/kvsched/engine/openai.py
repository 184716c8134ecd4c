"""A streaming client for an OpenAI-compatible completions API, light enough to time engines with.

Many requests at once on one event loop, by callbacks: no task for each request. Connections are
kept and used again. Works with asyncio's loop and with uvloop's. Proxies are not used.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import cast
from urllib.parse import urlsplit

from kvsched.engine.openai_answer import Answer
from kvsched.engine.openai_http import AnswerParser, NoAnswerError
from kvsched.engine.openai_request import addresses, request_head
from kvsched.engine.target import Target

IDLE_S = 3.0
"""Seconds for which an idle connection is kept: uvicorn, which serves vLLM, closes after 5."""
GRACE_S = 1.0
"""Seconds after ``[DONE]`` in which the answer may end before its connection is closed."""
CONNECT_S = 10.0
"""Longest wait for a connection; the deadline of the first token if that is shorter."""

Ended = Callable[[Answer], None]


class Call:
    """One sending, from `Client.send` to its end. Its answer grows while it runs."""

    __slots__ = (
        "_client",
        "_opening",
        "_request",
        "_timer",
        "_wire",
        "answer",
        "deadlines",
        "ended",
    )

    def __init__(
        self,
        client: Client,
        request: bytes,
        answer: Answer,
        deadlines: tuple[float, float],
        ended: Ended,
    ) -> None:
        self.answer = answer
        self.deadlines = deadlines
        """Seconds from the sending to the first token, and to the end."""
        self.ended: Ended | None = ended
        self._client = client
        self._request = request
        self._wire: _Wire | None = None
        self._opening: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def cancel(self, detail: str) -> None:
        """Give up; it ends at once, as cancelled."""
        self.answer.fail("cancelled", detail)
        self._end()

    def _start(self) -> None:
        wire = self._client._idle_wire()
        if wire is not None:
            self._send_on(wire)
        else:
            self._open_soon()

    def _open_soon(self) -> None:
        client = self._client
        self._opening = client._loop.create_task(self._open())
        client._opening.add(self._opening)
        self._opening.add_done_callback(client._opening.discard)

    async def _open(self) -> None:
        limit_s = min(CONNECT_S, *self.deadlines)
        try:
            async with asyncio.timeout(limit_s):
                wire = await self._client._new_wire()
        except TimeoutError:
            self._fail_open(f"no connection within {limit_s:g} s")
        except (OSError, ssl.SSLError) as error:
            self._fail_open(str(error))
        else:
            self._opening = None
            if self.ended is None:
                self._client._keep(wire)
            else:
                self._send_on(wire)

    def _fail_open(self, detail: str) -> None:
        self._opening = None
        self.answer.fail("refused", detail)
        self._end()

    def _send_on(self, wire: _Wire) -> None:
        self._wire = wire
        wire.begin(self)
        self.answer.sendings += 1
        self.answer.sent_s = time.perf_counter()
        wire.transport.write(self._request)
        loop = self._client._loop
        self._timer = loop.call_later(min(self.deadlines), self._deadline)

    def _deadline(self) -> None:
        """A deadline has passed: the first token's, the end's, or the grace after the end mark."""
        answer = self.answer
        first_s, whole_s = self.deadlines
        sent_s = answer.sent_s or 0.0
        if answer.done:
            self._end()
        elif answer.first_token_s is None and first_s <= whole_s:
            answer.fail("timeout_first_token", f"no token within {first_s:g} s")
            self._end()
        elif (left_s := sent_s + whole_s - time.perf_counter()) > 0:
            # Not moved at the first token: a timer costs more than the one that comes for nothing.
            self._timer = self._client._loop.call_later(left_s, self._deadline)
        else:
            answer.fail("timeout", f"no end within {whole_s:g} s")
            self._end()

    def _again(self) -> None:
        """The kept connection had been closed before it took the request: use a new one."""
        self._stop_timer()
        self._wire = None
        self._open_soon()

    def _grace(self) -> None:
        """The end mark has come, the answer's end not yet."""
        self._stop_timer()
        self._timer = self._client._loop.call_later(GRACE_S, self._deadline)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _end(self) -> None:
        """Let go of everything, and tell."""
        ended, self.ended = self.ended, None
        if ended is None:
            return
        self._stop_timer()
        if self._opening is not None:
            self._opening.cancel()
            self._opening = None
        if self._wire is not None:
            self._wire.leave()
            self._wire = None
        answer = self.answer
        if answer.fault is None:
            answer.close(time.perf_counter())
        if answer.detail is not None:
            answer.detail = self._client._without_key(answer.detail)
        ended(answer)


class _Wire(asyncio.Protocol):
    """A connection: one call at a time."""

    __slots__ = ("_call", "_client", "_parser", "_started", "idle_since", "transport", "used")

    transport: asyncio.Transport

    def __init__(self, client: Client) -> None:
        self._client = client
        self._call: Call | None = None
        self._parser = AnswerParser()
        self._started = False
        self.used = False
        """Whether it has carried a whole answer."""
        self.idle_since = 0.0

    def begin(self, call: Call) -> None:
        """Carry ``call`` from now on."""
        self._call = call
        self._parser = AnswerParser()
        self._started = False

    def leave(self) -> None:
        """The call has ended, well or not: keep the connection if it can carry another."""
        self._call = None
        parser = self._parser
        if parser.whole and parser.reusable and not self.transport.is_closing():
            self.used = True
            self._client._keep(self)
        else:
            self.transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's is no subclass of asyncio's.
        self.transport = cast(asyncio.Transport, transport)
        self._client._wires.add(self)

    def data_received(self, data: bytes) -> None:
        moment_s = time.perf_counter()
        call = self._call
        if call is None:
            # An idle connection has nothing to say.
            self.transport.abort()
            return
        answer = call.answer
        parser = self._parser
        try:
            body = parser.feed(data)
        except NoAnswerError as error:
            answer.fail("invalid_json", str(error), moment_s)
            call._end()
            return
        if not self._started:
            if not parser.status:
                return
            self._started = True
            answer.head(parser.status, parser.headers)
        if body:
            answer.body(body, moment_s)
        if parser.whole:
            answer.close(moment_s)
            call._end()
        elif answer.fault == "invalid_json":
            call._end()
        elif answer.done:
            call._grace()

    def connection_lost(self, exc: Exception | None) -> None:
        client = self._client
        client._lost(self)
        call, self._call = self._call, None
        if call is None:
            return
        parser = self._parser
        if self.used and not self._started:
            call._again()
            return
        if not parser.end() or not self._started:
            why = str(exc) if exc is not None else "closed by the other side"
            where = "in mid-answer" if self._started else "before an answer"
            call.answer.fail("reset", f"the connection broke off {where}: {why}")
        # The answer of a closed connection must not keep it.
        parser.reusable = False
        call._end()


class Client:
    """Sends requests to one engine and keeps its connections. Use it inside one event loop.

    Raises UsageError for an API key or header that HTTP cannot carry, and for an address whose
    name is not known.
    """

    def __init__(self, target: Target) -> None:
        self._loop = asyncio.get_running_loop()
        parts = urlsplit(target.url)
        self._host = parts.hostname or ""
        secure = parts.scheme == "https"
        self._port = parts.port or (443 if secure else 80)
        self._tls = ssl.create_default_context() if secure else None
        self._key = target.api_key
        self._head = request_head(target)
        self._addresses = addresses(self._host, self._port)
        self._idle: OrderedDict[_Wire, None] = OrderedDict()
        self._wires: set[_Wire] = set()
        self._opening: set[asyncio.Task[None]] = set()
        self._all_lost: asyncio.Event | None = None

    def send(
        self,
        body: bytes,
        *,
        asked_tokens: int,
        ttft_timeout_s: float,
        timeout_s: float,
        ended: Ended,
    ) -> Call:
        """Send ``body`` (JSON) now; ``ended`` gets the answer once, from the loop.

        It never raises: an answer without a fault is one whose stream came whole, with its end
        mark and ``asked_tokens`` tokens as far as the engine counts them. A request on a kept
        connection that the server closed before a byte of an answer goes out again, once, on a new
        one.
        """
        request = b"%b%d\r\n\r\n%b" % (self._head, len(body), body)
        call = Call(self, request, Answer(asked_tokens), (ttft_timeout_s, timeout_s), ended)
        call._start()
        return call

    async def connect(self, count: int) -> None:
        """Open ``count`` connections ahead; those that cannot be are left to their requests."""

        async def one() -> None:
            with contextlib.suppress(OSError, ssl.SSLError):
                async with asyncio.timeout(CONNECT_S):
                    self._keep(await self._new_wire())

        await asyncio.gather(*(one() for _ in range(count)))

    async def close(self) -> None:
        """Close every connection, and wait until the sockets are gone."""
        self._all_lost = asyncio.Event()
        for opening in self._opening:
            opening.cancel()
        await asyncio.gather(*self._opening, return_exceptions=True)
        for wire in list(self._wires):
            wire.transport.abort()
        if self._wires:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(GRACE_S):
                    await self._all_lost.wait()

    def _idle_wire(self) -> _Wire | None:
        idle = self._idle
        oldest_s = self._loop.time() - IDLE_S
        while idle and next(iter(idle)).idle_since < oldest_s:
            idle.popitem(last=False)[0].transport.abort()
        # The one last used, so that those that are too many grow old.
        while idle:
            wire, _ = idle.popitem()
            if not wire.transport.is_closing():
                return wire
        return None

    async def _new_wire(self) -> _Wire:
        fault: OSError | None = None
        for address in list(self._addresses):
            wire = _Wire(self)
            try:
                await self._loop.create_connection(
                    partial(_same, wire),
                    address,
                    self._port,
                    ssl=self._tls,
                    server_hostname=self._host if self._tls else None,
                )
            except OSError as error:
                self._lost(wire)
                fault = error
            except asyncio.CancelledError:
                # uvloop 0.23 does not tell a protocol that was given up in mid-handshake.
                self._lost(wire)
                raise
            else:
                if address != self._addresses[0]:
                    self._addresses.remove(address)
                    self._addresses.insert(0, address)
                return wire
        raise fault or OSError("no address")

    def _keep(self, wire: _Wire) -> None:
        if self._all_lost is not None:
            wire.transport.abort()
            return
        wire.idle_since = self._loop.time()
        self._idle[wire] = None

    def _lost(self, wire: _Wire) -> None:
        self._wires.discard(wire)
        self._idle.pop(wire, None)
        if self._all_lost is not None and not self._wires:
            self._all_lost.set()

    def _without_key(self, text: str) -> str:
        return text.replace(self._key, "***") if self._key else text


def _same(wire: _Wire) -> _Wire:
    return wire
