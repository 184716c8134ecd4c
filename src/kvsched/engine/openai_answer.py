"""One request's answer as it comes in: moments of its tokens, what the engine says, its fault."""

from __future__ import annotations

import time
from typing import Any, Literal

import msgspec

from kvsched.engine.openai_events import Choice, Chunk, EventStream, TooLongError, decode_chunk

Fault = Literal[
    "refused",
    "reset",
    "timeout_first_token",
    "timeout",
    "rate_limited",
    "server_error",
    "client_error",
    "invalid_json",
    "incomplete",
    "cancelled",
]
"""Why a request failed.

refused: no connection; reset: it broke off in mid-answer; timeout_first_token: no token before
its deadline; timeout: the answer did not end before its deadline; rate_limited: 429; server_error:
5xx, or an error told inside the stream; client_error: another 4xx; invalid_json: what came is no
answer; incomplete: the stream ended without its end mark or with fewer tokens than asked for;
cancelled: the run was interrupted.
"""

MOST_DETAIL = 300
"""Characters of what is told of a fault."""
MOST_KEPT = 64 * 1024
"""Bytes kept of an answer that is no stream."""
SPARE_PIECES = 1024
"""Pieces of a stream that may come beyond twice the tokens asked for, before it is cut off."""


class Answer:
    """What came back for one sending. Moments are `time.perf_counter`."""

    __slots__ = (
        "_body",
        "_events",
        "_most_pieces",
        "asked_tokens",
        "cached_tokens",
        "detail",
        "done",
        "fault",
        "finish_reason",
        "finished_s",
        "first_token_s",
        "output_tokens",
        "prompt_tokens",
        "retry_after",
        "sendings",
        "sent_s",
        "status",
        "token_counts",
        "token_s",
    )

    def __init__(self, asked_tokens: int) -> None:
        self.asked_tokens = asked_tokens
        self.status: int | None = None
        self.fault: Fault | None = None
        self.detail: str | None = None
        self.retry_after: str | None = None
        """The header of that name."""
        self.sendings = 0
        self.sent_s: float | None = None
        """None where no connection came about."""
        self.first_token_s: float | None = None
        self.finished_s: float | None = None
        """When its end mark came, or its fault."""
        self.token_s: list[float] = []
        self.token_counts: list[int] | None = []
        """Tokens of each piece; None once a piece came that does not say."""
        self.prompt_tokens: int | None = None
        self.output_tokens: int | None = None
        self.cached_tokens: int | None = None
        self.finish_reason: str | None = None
        self.done = False
        """Whether ``[DONE]`` came."""
        self._events: EventStream | None = None
        self._body = b""
        self._most_pieces = 2 * asked_tokens + SPARE_PIECES

    def fail(self, fault: Fault, detail: str, moment_s: float | None = None) -> None:
        """Note why it failed; the first reason stays."""
        if self.fault is None:
            self.fault = fault
            self.detail = one_line(detail)[:MOST_DETAIL]
            self.finished_s = time.perf_counter() if moment_s is None else moment_s

    def head(self, status: int, headers: dict[str, str]) -> None:
        """Take the answer's head."""
        self.status = status
        self.retry_after = headers.get("retry-after")
        coding = headers.get("content-encoding", "identity").lower()
        if coding != "identity":
            self.fail("invalid_json", f"the answer is encoded as {coding}, which was not asked for")
        kind = headers.get("content-type", "text/event-stream").lower()
        if status == 200 and kind.startswith("text/event-stream"):
            self._events = EventStream()

    def body(self, data: bytes, moment_s: float) -> None:
        """Take bytes of the body, which came at ``moment_s``. O(bytes)."""
        if self._events is None:
            self._body += data[: MOST_KEPT - len(self._body)]
            return
        try:
            events = self._events.feed(data)
        except TooLongError:
            self.fail("invalid_json", "an event is too long", moment_s)
            return
        for event in events:
            if self.done or self.fault == "invalid_json":
                return
            if event == b"[DONE]":
                self.done = True
                if self.fault is None:
                    self.finished_s = moment_s
                return
            self._event(event, moment_s)

    def _event(self, event: bytes, moment_s: float) -> None:
        try:
            chunk = decode_chunk(event)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            start = event[:80].decode(errors="replace")
            self.fail("invalid_json", f"an event is no completion ({error}): {start}", moment_s)
            return
        if chunk.error is not None or chunk.object == "error":
            self.fail("server_error", f"in the stream: {_error_text(chunk)}", moment_s)
            return
        if chunk.choices:
            self._piece(chunk.choices[0], moment_s)
        usage = chunk.usage
        if usage is not None:
            self.prompt_tokens = usage.prompt_tokens
            self.output_tokens = usage.completion_tokens
            if usage.prompt_tokens_details is not None:
                self.cached_tokens = usage.prompt_tokens_details.cached_tokens

    def _piece(self, choice: Choice, moment_s: float) -> None:
        if choice.finish_reason is not None:
            self.finish_reason = choice.finish_reason
        ids = choice.token_ids
        if not ids and not choice.text:
            return
        if self.first_token_s is None:
            self.first_token_s = moment_s
        self.token_s.append(moment_s)
        if ids is None:
            self.token_counts = None
        elif self.token_counts is not None:
            self.token_counts.append(len(ids))
        if len(self.token_s) > self._most_pieces:
            self.fail(
                "invalid_json",
                f"cut off: {len(self.token_s)} pieces came for {self.asked_tokens} tokens",
                moment_s,
            )

    def close(self, moment_s: float) -> None:
        """The answer is whole: judge it."""
        if self.fault is None:
            self._judge(moment_s)

    def _judge(self, moment_s: float) -> None:
        status = self.status or 0
        if status != 200:
            told = body_text(self._body)
            kind: Fault = "client_error"
            if status == 429:
                kind = "rate_limited"
            elif status >= 500:
                kind = "server_error"
            elif status < 300:
                kind = "invalid_json"
            self.fail(kind, f"HTTP {status}: {told}" if told else f"HTTP {status}", moment_s)
        elif self._events is None:
            told = body_text(self._body)
            error = _decoded(self._body).get("error") is not None
            kind = "server_error" if error else "invalid_json"
            self.fail(kind, told if error else f"the answer is no stream: {told}", moment_s)
        elif not self.done:
            self.fail("incomplete", "the stream ended without [DONE]", moment_s)
        else:
            self._count()

    def _count(self) -> None:
        counted = None
        if self.token_counts:
            counted = sum(self.token_counts)
        came = self.output_tokens if counted is None else counted
        if came is not None and came < self.asked_tokens:
            done_s = self.finished_s
            self.fail("incomplete", f"{came} tokens of {self.asked_tokens} came", done_s)
        elif came is None and not self.token_s:
            self.fail("incomplete", "no token came", self.finished_s)
        elif came is None and self.finish_reason not in (None, "length"):
            done_s = self.finished_s
            self.fail("incomplete", f"it ended by itself: {self.finish_reason}", done_s)
        elif counted is not None and self.output_tokens not in (None, counted):
            self.detail = f"usage says {self.output_tokens} tokens, {counted} came"


def one_line(said: str) -> str:
    """Return what a server said without line breaks and what a terminal would obey."""
    return "".join(each if each.isprintable() else "?" for each in " ".join(said.split()))


def _decoded(body: bytes) -> dict[str, Any]:
    try:
        told = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return {}
    return told if isinstance(told, dict) else {}


def _error_text(chunk: Chunk) -> str:
    """Return the words of an error object."""
    told = chunk.message if chunk.error is None else chunk.error
    if isinstance(told, dict) and isinstance(told.get("message"), str):
        return str(told["message"])
    return told if isinstance(told, str) else msgspec.json.encode(told).decode()


def body_text(body: bytes) -> str:
    """Return what an error's body says, in one line: OpenAI's, FastAPI's, or as it is."""
    told = _decoded(body)
    error = told.get("error", told)
    if isinstance(error, dict):
        words = error.get("message", error.get("detail"))
        if isinstance(words, str):
            return words
    elif isinstance(error, str):
        return error
    return " ".join(body[:MOST_DETAIL].decode(errors="replace").split())
