from __future__ import annotations

import http.client
import io
import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsched.engine.openai_http import MOST_HEAD, MOST_SIZE_LINE, AnswerParser, NoAnswerError

OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"

ANSWERS: dict[str, tuple[bytes, int, bytes, bool]] = {
    # what is sent: status, body, whether the connection may be used again
    "length": (OK + b"Content-Length: 5\r\n\r\nhello", 200, b"hello", True),
    "no body": (OK + b"Content-Length: 0\r\n\r\n", 200, b"", True),
    "204": (b"HTTP/1.1 204 No Content\r\n\r\n", 204, b"", True),
    "no reason": (b"HTTP/1.1 500\r\nContent-Length: 1\r\n\r\n!", 500, b"!", True),
    "chunks": (CHUNKED + b"3\r\nabc\r\n1\r\nd\r\n0\r\n\r\n", 200, b"abcd", True),
    "sizes": (
        CHUNKED + b"00a\r\n0123456789\r\nA\r\n0123456789\r\n000\r\n\r\n",
        200,
        b"0123456789" * 2,
        True,
    ),
    "line ends in a chunk": (CHUNKED + b"6\r\n\r\n0\r\n\r\r\n0\r\n\r\n", 200, b"\r\n0\r\n\r", True),
    "extensions": (CHUNKED + b'2;a=1\r\nok\r\n2 ; b="x"\r\n!!\r\n0;c\r\n\r\n', 200, b"ok!!", True),
    "trailers": (CHUNKED + b"2\r\nok\r\n0\r\nA: 1\r\nB: 2\r\n\r\n", 200, b"ok", True),
    "interim": (
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"
        + OK
        + b"content-length: 2\r\n\r\nok",
        200,
        b"ok",
        True,
    ),
    "close, with a length": (
        OK + b"Connection: close\r\nContent-Length: 2\r\n\r\nok",
        200,
        b"ok",
        False,
    ),
    "close, without": (
        OK + b"Connection: Close\r\n\r\nall of\r\n\r\nit",
        200,
        b"all of\r\n\r\nit",
        False,
    ),
    "neither": (OK + b"\r\nok", 200, b"ok", False),
    "1.0": (b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok", 200, b"ok", False),
    "the same length twice": (
        OK + b"Content-Length: 2\r\nContent-Length: 2\r\n\r\nok",
        200,
        b"ok",
        True,
    ),
    "chunks and a length": (
        OK + b"Content-Length: 9\r\nTransfer-Encoding: Chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        200,
        b"ok",
        False,
    ),
    "spaces": (OK + b"Content-Length:2 \r\nX-Empty:\r\n\r\nok", 200, b"ok", True),
}

BROKEN: dict[str, bytes] = {
    "not HTTP": b"SSH-2.0-OpenSSH_9\r\n",
    "HTTP/2": b"HTTP/2 200\r\n\r\n",
    "no status": b"HTTP/1.1 OK\r\n\r\n",
    "a status of four": b"HTTP/1.1 2000 OK\r\n\r\n",
    "another protocol": b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
    "no colon": OK + b"nonsense\r\n\r\n",
    "a space before the colon": OK + b"Content-Length : 2\r\n\r\nok",
    "a folded header": OK + b"A: 1\r\n 2\r\n\r\n",
    "a signed length": OK + b"Content-Length: +2\r\n\r\nok",
    "two lengths": OK + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\nok",
    "another coding": OK + b"Transfer-Encoding: gzip, chunked\r\n\r\n",
    "a size that is none": CHUNKED + b"xyz\r\n",
    "a negative size": CHUNKED + b"-1\r\n",
    "a size with a prefix": CHUNKED + b"0x2\r\nok\r\n",
    "a size with an underscore": CHUNKED + b"1_0\r\n",
    "an empty size": CHUNKED + b"\r\n",
    "a size beyond all": CHUNKED + b"f" * 16 + b"\r\n",
    "a chunk longer than its size": CHUNKED + b"2\r\nokay\r\n",
    "headers without end": OK + b"A: " + b"x" * (MOST_HEAD + 1),
    "long headers": OK + b"A: " + b"x" * MOST_HEAD + b"\r\n\r\n",
    "a long size line": CHUNKED + b"2;" + b"x" * (MOST_SIZE_LINE + 1),
    "trailers without end": CHUNKED + b"0\r\n" + b"A: 1\r\n" * (MOST_HEAD // 4 + 1),
}

Parsed = tuple[int, bytes, bool, bool]


def parsed(pieces: list[bytes], parser_class: type[AnswerParser] = AnswerParser) -> Parsed:
    parser = parser_class()
    body = b"".join([parser.feed(piece) for piece in pieces])
    return parser.status, body, parser.end(), parser.reusable


def splits(data: bytes) -> list[list[bytes]]:
    """Whole, in single bytes, cut once anywhere, cut twice a byte apart."""
    cuts = [[data[:at], data[at:]] for at in range(1, len(data))]
    twice = [[data[:at], data[at : at + 1], data[at + 1 :]] for at in range(1, len(data) - 1)]
    return [[data], [data[at : at + 1] for at in range(len(data))], *cuts, *twice]


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_is_read_however_it_is_split(name: str) -> None:
    data, status, body, reusable = ANSWERS[name]
    for pieces in splits(data):
        assert parsed(pieces) == (status, body, True, reusable), pieces


def test_the_splits_catch_a_parser_that_forgets() -> None:
    class Forgetful(AnswerParser):
        def _keep(self, data: bytes, at: int, most: int, what: str) -> int:
            return len(data)

    data, *expected = ANSWERS["extensions"]
    assert list(parsed([data], Forgetful))[:2] == expected[:2]
    wrong = 0
    for pieces in splits(data):
        try:
            wrong += list(parsed(pieces, Forgetful))[:2] != expected[:2]
        except NoAnswerError:
            wrong += 1
    assert wrong > len(data) // 2


class Socket:
    """What http.client reads from."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def makefile(self, *_: Any) -> io.BytesIO:
        return io.BytesIO(self.data)


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_is_what_the_standard_library_reads(name: str) -> None:
    data = ANSWERS[name][0]
    theirs = http.client.HTTPResponse(Socket(data), method="POST")  # type: ignore[arg-type]
    if name == "interim":
        # The standard library skips 100 alone.
        data = data.replace(b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n", b"")
        theirs = http.client.HTTPResponse(Socket(data), method="POST")  # type: ignore[arg-type]
    theirs.begin()
    status, body, whole, _ = parsed([data])
    if name == "the same length twice":
        assert theirs.getheader("content-length") == "2, 2"
        return
    assert (theirs.status, theirs.read(), True) == (status, body, whole)


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_no_answer_is_refused_however_it_is_split(name: str) -> None:
    data = BROKEN[name]
    for pieces in splits(data) if len(data) < 200 else [[data], [data[:100], data[100:]]]:
        with pytest.raises(NoAnswerError) as refused:
            parsed(pieces)
        assert len(str(refused.value)) < 200


@pytest.mark.parametrize("name", ["length", "chunks", "extensions", "trailers"])
def test_an_answer_that_breaks_off_is_not_whole(name: str) -> None:
    data = ANSWERS[name][0]
    assert parsed([data])[2]
    for at in range(len(data)):
        assert not parsed([data[:at]])[2], data[:at]


def test_a_long_stream_leaves_nothing_behind() -> None:
    parser = AnswerParser()
    parser.feed(CHUNKED)
    for _ in range(100):
        assert len(parser.feed(b"400\r\n" + b"x" * 1024 + b"\r\n")) == 1024
        assert parser._left == b""


@pytest.mark.parametrize("name", ["length", "chunks", "204"])
def test_bytes_after_an_answer_spoil_the_connection(name: str) -> None:
    data = ANSWERS[name][0]
    for pieces in ([data + b"H"], [data, b"H"]):
        parser = AnswerParser()
        body = b"".join([parser.feed(piece) for piece in pieces])
        assert (parser.whole, parser.extra, parser.reusable) == (True, True, False)
        assert body == ANSWERS[name][2]


PARTS = [b"HTTP/1.1 200 OK", b"Transfer-Encoding: chunked", b"Content-Length: 3", b"\r\n", b"\r"]
PARTS += [b"\r\n\r\n", b"3\r\nabc\r\n", b"0\r\n", b";", b":", b" ", b"a", b"\x00\xff", OK, CHUNKED]


@given(st.lists(st.one_of(st.sampled_from(PARTS), st.binary(max_size=3)), max_size=12), st.data())
def test_any_bytes_are_read_or_refused_alike_however_split(
    parts: list[bytes], data: st.DataObject
) -> None:
    whole = b"".join(parts)
    at = data.draw(st.integers(0, len(whole)))
    told: list[Parsed | str] = []
    for pieces in ([whole], [whole[:at], whole[at:]]):
        try:
            told.append(parsed(pieces))
        except NoAnswerError:
            told.append("refused")
    assert told[0] == told[1]


def test_repeated_headers_are_joined() -> None:
    parser = AnswerParser()
    parser.feed(OK + b"A: 1\r\nB: 2\r\na: 3\r\n\r\n")
    assert parser.headers == {"a": "1, 3", "b": "2"}
    assert not list(itertools.filterfalse(str.islower, parser.headers))
