"""HTTP/1.1 answers, read piece by piece: as much as a streaming completions API needs.

Written here because what it replaces is the generator's cost: `bench/load.py` measures both.
"""

from __future__ import annotations

MOST_HEAD = 64 * 1024
"""Bytes of status line and headers, and of trailers."""
MOST_SIZE_LINE = 4096
"""Bytes of a chunk's size and its extensions."""
_HEX = b"0123456789abcdefABCDEF"
_BODILESS = (204, 304)

_HEAD, _LENGTH, _SIZE, _CHUNK, _CHUNK_END, _TRAILERS, _TO_CLOSE, _DONE = range(8)


class NoAnswerError(Exception):
    """What came is no HTTP answer that can be read. The text says why."""


class AnswerParser:
    """Reads one answer from bytes however they are split (RFC 9112).

    Interim answers (1xx) are skipped, chunk extensions and trailers dropped. A body without a
    length ends with the connection. Memory: a head, or a chunk's size line, within limits; what
    belongs to the body is handed on at once.
    """

    __slots__ = (
        "_left",
        "_remaining",
        "_state",
        "_trailers",
        "extra",
        "headers",
        "reusable",
        "status",
    )

    def __init__(self) -> None:
        self.status = 0
        """0 until the head is there."""
        self.headers: dict[str, str] = {}
        """By lower-case name; values of a repeated name are joined with commas."""
        self.reusable = True
        """Whether the connection may carry another request once this answer is whole."""
        self.extra = False
        """Whether bytes came after the answer's end."""
        self._state = _HEAD
        self._left = b""
        self._remaining = 0
        self._trailers = 0

    @property
    def whole(self) -> bool:
        """Whether the answer has ended."""
        return self._state == _DONE

    def end(self) -> bool:
        """The connection has ended: say whether the answer was whole."""
        if self._state == _TO_CLOSE:
            self._state = _DONE
        return self._state == _DONE

    def feed(self, data: bytes) -> bytes:
        """Take what was read; return the bytes of the body in it. O(bytes).

        Raises NoAnswerError; nothing more can be fed then.
        """
        if self._left:
            data = self._left + data
            self._left = b""
        body = b""
        at, end = 0, len(data)
        while at < end:
            state = self._state
            if state == _SIZE:
                at = self._size(data, at)
            elif state in (_CHUNK, _LENGTH):
                stop = min(end, at + self._remaining)
                # One piece a read is the rule, so that joining costs nothing.
                body = body + data[at:stop] if body else data[at:stop]
                self._remaining -= stop - at
                at = stop
                if not self._remaining:
                    self._state = _CHUNK_END if state == _CHUNK else _DONE
            elif state == _CHUNK_END:
                at = self._chunk_end(data, at)
            elif state == _TO_CLOSE:
                return body + data[at:]
            elif state == _TRAILERS:
                at = self._trailer(data, at)
            elif state == _HEAD:
                at = self._head(data, at)
            else:
                self.extra = True
                self.reusable = False
                break
        return body

    def _keep(self, data: bytes, at: int, most: int, what: str) -> int:
        """Wait for more of a line or a head."""
        if len(data) - at > most:
            raise NoAnswerError(f"{what} of more than {most} bytes")
        self._left = data[at:]
        return len(data)

    def _head(self, data: bytes, at: int) -> int:
        start = data[at : at + 7]
        if start != b"HTTP/1."[: len(start)]:
            raise NoAnswerError(f"no HTTP/1.1 answer: it begins with {data[at : at + 40]!r}")
        stop = data.find(b"\r\n\r\n", at)
        if stop < 0 or stop - at > MOST_HEAD:
            return self._keep(data, at, MOST_HEAD, "headers")
        lines = data[at:stop].decode("latin-1").split("\r\n")
        version, _, rest = lines[0].partition(" ")
        code = rest[:3]
        if not (code.isascii() and code.isdigit() and len(code) == 3 and rest[3:4] in ("", " ")):
            raise NoAnswerError(f"no status line: {lines[0][:80]!r}")
        status = int(code)
        if 100 <= status < 200 and status != 101:
            return stop + 4
        self.headers = _headers(lines[1:])
        self._frame(status, version)
        self.status = status
        return stop + 4

    def _frame(self, status: int, version: str) -> None:
        """Find how the body ends (RFC 9112, 6.3)."""
        headers = self.headers
        tokens = headers.get("connection", "").lower().replace(" ", "").split(",")
        if version != "HTTP/1.1" or "close" in tokens:
            self.reusable = False
        if status == 101:
            raise NoAnswerError("the server wants another protocol (101)")
        coding = headers.get("transfer-encoding")
        length = headers.get("content-length")
        if status in _BODILESS:
            self._state = _DONE
        elif coding is not None:
            if coding.strip().lower() != "chunked":
                raise NoAnswerError(f"unknown transfer encoding {coding[:80]!r}")
            if length is not None:
                self.reusable = False
            self._state = _SIZE
        elif length is not None:
            values = {value.strip() for value in length.split(",")}
            value = values.pop()
            if values or not (value.isascii() and value.isdigit() and len(value) <= 18):
                raise NoAnswerError(f"no content length: {length[:80]!r}")
            self._remaining = int(value)
            self._state = _LENGTH if self._remaining else _DONE
        else:
            self.reusable = False
            self._state = _TO_CLOSE

    def _size(self, data: bytes, at: int) -> int:
        stop = data.find(b"\r\n", at)
        if stop < 0 or stop - at > MOST_SIZE_LINE:
            return self._keep(data, at, MOST_SIZE_LINE, "a chunk's size line")
        text = data[at:stop]
        if b";" in text:
            text = text.partition(b";")[0]
        text = text.strip(b" \t")
        # int() alone would take a sign, an underscore or a prefix.
        if not text or len(text) > 15 or text.translate(None, _HEX):
            raise NoAnswerError(f"no chunk size: {data[at:stop][:40]!r}")
        self._remaining = int(text, 16)
        self._state = _CHUNK if self._remaining else _TRAILERS
        return stop + 2

    def _chunk_end(self, data: bytes, at: int) -> int:
        mark = data[at : at + 2]
        if mark == b"\r\n":
            self._state = _SIZE
            return at + 2
        if mark != b"\r":
            raise NoAnswerError(f"a chunk goes on after its size: {mark!r}")
        self._left = mark
        return len(data)

    def _trailer(self, data: bytes, at: int) -> int:
        stop = data.find(b"\r\n", at)
        if stop < 0:
            return self._keep(data, at, MOST_HEAD, "trailers")
        self._trailers += stop - at
        if self._trailers > MOST_HEAD:
            raise NoAnswerError(f"trailers of more than {MOST_HEAD} bytes")
        if stop == at:
            self._state = _DONE
        return stop + 2


def _headers(lines: list[str]) -> dict[str, str]:
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not name or name != name.strip():
            raise NoAnswerError(f"no header: {line[:80]!r}")
        name = name.lower()
        value = value.strip(" \t")
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return headers
