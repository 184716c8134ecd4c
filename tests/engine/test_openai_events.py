from __future__ import annotations

import itertools
import re

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsched.engine import openai_events
from kvsched.engine.openai_events import EventStream, TooLongError, decode_chunk


def by_the_standard(data: bytes) -> list[bytes]:
    """The events of a whole stream, from the standard's grammar, without a thought of speed."""
    *lines, _ = re.split(rb"\r\n|\n|\r", data.removeprefix(b"\xef\xbb\xbf"))
    events, held = [], []
    for line in lines:
        if not line and held:
            events.append(b"\n".join(held))
            held = []
        name, _, value = line.partition(b":")
        if name == b"data":
            held.append(value[1:] if value.startswith(b" ") else value)
    return events


def read(pieces: list[bytes]) -> list[bytes]:
    stream = EventStream()
    return [event for piece in pieces for event in stream.feed(piece)]


STREAMS = {
    "as engines send": (b'data: {"a": 1}\n\ndata: [DONE]\n\n', [b'{"a": 1}', b"[DONE]"]),
    "CRLF": (b"data: a\r\n\r\ndata: b\r\n\r\n", [b"a", b"b"]),
    "CR": (b"data: a\r\rdata: b\r\r", [b"a", b"b"]),
    "several lines": (b"data: a\ndata:b\ndata\n\n", [b"a\nb\n"]),
    "comments": (b": ping\n\n: ping\ndata: a\n: ping\n\n", [b"a"]),
    "other fields": (b"event: x\nid: 7\nretry: 1\ndata: a\ndatax: b\n\n", [b"a"]),
    "one space only": (b"data:  a\n\n", [b" a"]),
    "empty data": (b"data:\n\ndata: \n\n", [b"", b""]),
    "no last blank line": (b"data: a\n\ndata: b\n", [b"a"]),
    "a mark of order": (b"\xef\xbb\xbfdata: a\n\n", [b"a"]),
    "letters of several bytes": ("data: żółć🦊\n\n".encode(), ["żółć🦊".encode()]),
}


@pytest.mark.parametrize("name", STREAMS)
def test_events_are_found_however_they_are_split(name: str) -> None:
    data, events = STREAMS[name]
    assert by_the_standard(data) == events
    assert read([data]) == events
    assert read([data[at : at + 1] for at in range(len(data))]) == events
    for first in range(len(data)):
        for second in range(first, len(data)):
            assert read([data[:first], data[first:second], data[second:]]) == events


PARTS = [
    b"data",
    b":",
    b" ",
    b"\n",
    b"\r",
    b"\r\n",
    b"a",
    b"data: b\n\n",
    b"\xef\xbb\xbf",
    b"event",
]


@given(st.lists(st.lists(st.sampled_from(PARTS)), max_size=8))
def test_any_stream_is_read_as_the_standard_says(reads: list[list[bytes]]) -> None:
    pieces = [b"".join(parts) for parts in reads]
    assert read(pieces) == by_the_standard(b"".join(pieces))


def test_the_quick_way_is_taken_and_right(monkeypatch: pytest.MonkeyPatch) -> None:
    data = b'data: {"a": 1}\n\n'
    assert read([data, data + data]) == [b'{"a": 1}'] * 3
    monkeypatch.setattr(openai_events, "_plain_events", lambda _: [b"wrong"])
    assert read([data, data + data]) == [b'{"a": 1}', b"wrong"]


@pytest.mark.parametrize("line", [b"data: " + b"x" * 90, b"x" * 90, b"data: x\n" * 15])
def test_what_grows_without_end_is_cut(line: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openai_events, "MOST_EVENT", 1000)
    stream = EventStream()
    pieces = itertools.repeat(line, 1000)
    with pytest.raises(TooLongError):
        list(map(stream.feed, pieces))
    assert sum(1 for _ in pieces) > 900


def test_keep_alives_may_go_on_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openai_events, "MOST_EVENT", 1000)
    stream = EventStream()
    for _ in range(1000):
        assert stream.feed(b": pi") == []
        assert stream.feed(b"ng\n") == []
    assert stream.feed(b"data: a\n\n") == [b"a"]


def test_a_chunk_has_what_engines_say() -> None:
    chunk = decode_chunk(
        b'{"id": "c", "choices": [{"index": 0, "text": "a", "token_ids": [5, 6], "logprobs": null,'
        b'"prompt_token_ids": [1, 2], "finish_reason": "length"}], "usage": {"prompt_tokens": 3,'
        b'"completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 1, "x": 0}}}'
    )
    (choice,) = chunk.choices
    assert (choice.text, choice.token_ids, choice.finish_reason) == ("a", [5, 6], "length")
    assert chunk.usage is not None
    assert chunk.usage.prompt_tokens_details is not None
    assert chunk.usage.prompt_tokens_details.cached_tokens == 1


@pytest.mark.parametrize(
    "data", [b"", b"7", b"[]", b'{"choices": 1}', b'{"choices": [{"text": 5}]}', b'{"usage": [']
)
def test_what_is_no_chunk_is_refused(data: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode_chunk(data)
