"""Server-sent events, and what a completions API puts into them."""

from __future__ import annotations

from typing import Any

import msgspec

MOST_EVENT = 16 * 2**20
"""Bytes of one event. vLLM's first event repeats the prompt's token ids where ids are asked for."""


class TooLongError(Exception):
    """An event of more bytes than `MOST_EVENT`."""


class EventStream:
    r"""Cuts a stream of bytes into the data of its events, however the bytes are split.

    As the HTML standard's event streams: lines end with ``\n``, ``\r\n`` or ``\r``; the lines
    ``data:`` of an event are joined with ``\n``; comments and other fields are dropped; an event
    that no blank line ended does not count.
    """

    __slots__ = ("_after_cr", "_data", "_data_bytes", "_line", "_line_bytes", "_started")

    def __init__(self) -> None:
        self._line: list[bytes] = []
        """Parts of a line that has not ended."""
        self._data: list[bytes] = []
        """Data lines of an event that has not ended."""
        self._line_bytes = 0
        self._data_bytes = 0
        self._after_cr = False
        self._started = False

    def feed(self, data: bytes) -> list[bytes]:
        """Return the data of each event that ended in ``data``. O(bytes). Raises TooLongError."""
        if self._started and not (self._line or self._data or self._after_cr):
            quick = _plain_events(data)
            if quick is not None:
                return quick
        return self._feed(data)

    def _feed(self, data: bytes) -> list[bytes]:
        events: list[bytes] = []
        if self._after_cr and data:
            # The second half of a line's end that two reads brought.
            data = data.removeprefix(b"\n")
            self._after_cr = False
        self._after_cr = data.endswith(b"\r") or (self._after_cr and not data)
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        lines = data.split(b"\n")
        for place, part in enumerate(lines):
            if place == len(lines) - 1:
                if part:
                    self._line.append(part)
                    self._line_bytes += len(part)
                break
            line = b"".join([*self._line, part]) if self._line else part
            self._line.clear()
            self._line_bytes = 0
            if not self._started:
                line = line.removeprefix(b"\xef\xbb\xbf")
                self._started = True
            if not line:
                if self._data:
                    events.append(b"\n".join(self._data))
                    self._data.clear()
                    self._data_bytes = 0
            elif line.startswith(b"data"):
                self._field(line)
        if self._line_bytes + self._data_bytes > MOST_EVENT:
            raise TooLongError
        return events

    def _field(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        if name == b"data":
            value = value.removeprefix(b" ")
            self._data.append(value)
            self._data_bytes += len(value) + 1


def _plain_events(data: bytes) -> list[bytes] | None:
    """Return the data of whole events of one line each, as engines send them; else None."""
    if not data.startswith(b"data: ") or not data.endswith(b"\n\n") or b"\r" in data:
        return None
    if data.count(b"\n") == 2:
        return [data[6:-2]]
    events = data[:-2].split(b"\n\n")
    for event in events:
        if not event.startswith(b"data: ") or b"\n" in event:
            return None
    return [event[6:] for event in events]


class PromptDetails(msgspec.Struct):
    """A part of `Usage`."""

    cached_tokens: int | None = None


class Usage(msgspec.Struct):
    """What an engine says that a request took."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: PromptDetails | None = None


class Choice(msgspec.Struct):
    """A piece of one answer."""

    text: str | None = None
    token_ids: list[int] | None = None
    """vLLM's, where the request asks with ``return_token_ids``."""
    finish_reason: str | None = None


class Chunk(msgspec.Struct):
    """One event of a stream of completions; fields that are not here are skipped."""

    choices: list[Choice] = []
    usage: Usage | None = None
    error: Any = None
    object: str | None = None
    message: Any = None


decode_chunk = msgspec.json.Decoder(Chunk).decode
"""Bytes to a `Chunk`; raises msgspec.DecodeError, also for a field of another type."""
