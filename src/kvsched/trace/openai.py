"""Logs of OpenAI-style chat requests: JSON lines with the messages themselves.

A row has ``messages`` (and maybe ``tools``) at the top, or under ``body`` as in files of the
batch API. Read where present, at the top or under ``body``: ``timestamp`` or ``created`` (s
since 1970, another unit by size, or an ISO 8601 date), ``usage.completion_tokens`` and
``usage.prompt_tokens`` (also of ``response`` and ``response.body``), ``user`` (the tenant),
``model``, ``session_id``, ``conversation_id`` or ``session``. Others are ignored.

Blocks come from a tokenizer and a chat template, or from bytes (`text`): never from a guess.
Where no row has a time, requests are one second apart in the file's order. Source: OpenAI's
chat completions and batch API, as served by vLLM and SGLang too.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import numpy as np

from kvsched.foundation.errors import UsageError
from kvsched.trace import clock, fields
from kvsched.trace.build import build_trace
from kvsched.trace.fields import Row, RowError
from kvsched.trace.lines import first_row, read_rows
from kvsched.trace.model import Float64s, Origin, Trace
from kvsched.trace.reading import Format, Growing, LabelColumn, ReadOptions, Skipped, counted
from kvsched.trace.source import Source
from kvsched.trace.text import ByteBlocks, TextBlocks, text_blocks

BLOCK_SIZE = 16
_BATCH = 256
_SESSION = ("session_id", "conversation_id", "session")
_TIMES = ("timestamp", "created")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class _Request(NamedTuple):
    text: str
    time: float | None
    dated: bool
    """Whether the time was written as a date."""
    prompt: int | None
    output: int | None
    user: str | None
    model: str | None
    session: str | None


class _Log:
    """Requests read so far."""

    def __init__(self, source: Source, options: ReadOptions, blocks: TextBlocks) -> None:
        self.source = source
        self.options = options
        self.blocks = blocks
        self.skipped = Skipped(source.name)
        self.first: _Request | None = None
        self.lines, self.sizes = Growing(np.int64), Growing(np.int64)
        self.times, self.inputs = Growing(np.float64), Growing(np.int64)
        self.outputs, self.keys = Growing(np.int64), Growing(np.int64)
        self.labels = {name: LabelColumn() for name in ("user", "model", "session")}
        self.without_output = self.compared = self.said = self.counted_here = 0

    def check(self, row: Row) -> _Request:
        """Check one row and make its text. Raises RowError."""
        body = _object(row, "body")
        holder = row if "messages" in row else body
        if "messages" not in holder:
            raise RowError('"messages" is missing, at the top and under "body"')
        text = self.blocks.render(_messages(holder), holder.get("tools"))
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise RowError('"messages" are not valid Unicode (half of a surrogate pair)') from error
        response = _object(row, "response")
        answer = _object(response, "body")
        places = (row, body, answer, response)
        time, dated = _time(places)
        self._same_clock(time, dated)
        usage = next((found for place in places if (found := _object(place, "usage"))), {})
        return _Request(
            text,
            time,
            dated,
            fields.optional_integer(usage, "prompt_tokens", 0),
            fields.optional_integer(usage, "completion_tokens", 0),
            _label(("user",), row, body),
            _label(("model",), row, body),
            _label(_SESSION, row, body),
        )

    def _same_clock(self, time: float | None, dated: bool) -> None:
        """Refuse a row whose time is of another kind than the first row's."""
        if self.first is None:
            return
        if (time is None) != (self.first.time is None):
            raise RowError(
                'no "timestamp" or "created", which rows before have'
                if time is None
                else "a time, which rows before have not"
            )
        if time is not None and dated != self.first.dated:
            now, before = ("a date", "numbers") if dated else ("a number", "dates")
            raise RowError(f"the time is {now}, in rows before {before}")

    def read(self) -> None:
        """Read all rows. Raises InputError."""
        skipped = self.skipped if self.options.skip_bad_rows else None
        batch: list[_Request] = []
        for line, request in read_rows(self.source, self.check, skipped):
            self.first = self.first or request
            self.lines.append(line)
            batch.append(request)
            if len(batch) == _BATCH:
                self._add(batch)
                batch = []
        self._add(batch)

    def _add(self, batch: list[_Request]) -> None:
        cuts = self.blocks.cut([request.text for request in batch])
        for request, (tokens, keys) in zip(batch, cuts, strict=True):
            if request.time is not None:
                self.times.append(request.time)
            self.inputs.append(tokens)
            self.outputs.append(request.output or 0)
            self.without_output += request.output is None
            if request.prompt is not None:
                self.compared += 1
                self.said += request.prompt
                self.counted_here += tokens
            self.sizes.append(len(keys))
            self.keys.extend(np.array(keys, np.int64))
            for name, column in self.labels.items():
                column.append(getattr(request, name))

    def clock(self) -> tuple[Float64s, str, float | None, tuple[str, ...]]:
        """Times in seconds, their unit, the first of them, and what to note about them."""
        count = len(self.inputs)
        given = self.options.time_unit
        dated = self.first is not None and self.first.dated
        if given is not None and (dated or not len(self.times)):
            what = "the times are dates" if dated else "no row has a time"
            raise UsageError(f"--time-unit means nothing here: {what}")
        if not len(self.times):
            note = "no row has a time: requests are one second apart, in the file's order"
            return np.arange(count, dtype=np.float64), "s", None, (note,)
        times = self.times.finish()
        lines = self.lines.finish()
        unit, notes = clock.find_unit(self.source.name, times, lines, "s" if dated else given, "s")
        if dated:
            notes = ("times are dates; those without a zone are read as UTC",)
        time_s, first_s = clock.seconds(times, unit)
        return time_s, unit, first_s, notes

    def notes(self) -> Iterator[str]:
        """What was chosen and left out: one sentence each."""
        yield from self.blocks.notes
        if self.without_output:
            rows = counted(self.without_output, "request does", "requests do")
            yield f"{rows} not say its output, which counts as 0 tokens"
        if self.compared and self.said != self.counted_here:
            rows = counted(self.compared, "request", "requests")
            agree = ""
            if isinstance(self.blocks, ByteBlocks) and self.said and self.counted_here:
                ratio = self.blocks.ratio * self.counted_here / self.said
                agree = f" (--bytes-per-token {ratio:.3g} would agree)"
            yield (
                f"usage says {self.said} prompt tokens in {rows}, counted here are "
                f"{self.counted_here}{agree}"
            )
        yield from self.skipped.notes()


def _object(row: Row, name: str) -> Row:
    """An object, or an empty one where the field is missing or null. Raises RowError."""
    value = row.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise RowError(f'"{name}" must be an object, not {fields.kind(value)}')
    return value


def _messages(row: Row) -> list[Row]:
    value = fields.required(row, "messages")
    if not isinstance(value, list):
        raise RowError(f'"messages" must be a list, not {fields.kind(value)}')
    for place, message in enumerate(value):
        if not isinstance(message, dict):
            raise RowError(f'"messages"[{place}] must be an object, not {fields.kind(message)}')
        if not isinstance(message.get("role"), str):
            raise RowError(f'"messages"[{place}] has no "role"')
    return value


def _label(names: tuple[str, ...], *places: Row) -> str | None:
    for name in names:
        for place in places:
            found = fields.optional_label(place, name)
            if found is not None:
                return found
    return None


def _time(places: tuple[Row, ...]) -> tuple[float | None, bool]:
    """The row's time, and whether it is a date (then in s since 1970). Raises RowError."""
    for name in _TIMES:
        for place in places:
            value = place.get(name)
            if isinstance(value, str):
                try:
                    date = datetime.fromisoformat(value)
                except ValueError:
                    return fields.time(place, name), False
                date = date if date.tzinfo else date.replace(tzinfo=UTC)
                return (date - _EPOCH) / timedelta(seconds=1), True
            if value is not None:
                return fields.number(place, name), False
    return None, False


def read(source: Source, options: ReadOptions) -> Trace:
    """Read a log. O(bytes), as a stream: memory for the columns and 256 rows' text.

    Raises InputError, and UsageError where the options do not say how text becomes tokens.
    """
    block_size = options.block_size or BLOCK_SIZE
    log = _Log(source, options, text_blocks(options, block_size))
    log.read()
    if not len(log.inputs):
        raise log.skipped.nothing_left()
    time_s, unit, first_s, notes = log.clock()
    starts = np.zeros(len(log.sizes) + 1, np.int64)
    np.cumsum(log.sizes.finish(), out=starts[1:])
    settings = {**log.blocks.settings, "first_timestamp_s": first_s}
    return build_trace(
        time_s=time_s,
        input_tokens=log.inputs.finish(),
        output_tokens=log.outputs.finish(),
        starts=starts,
        keys=log.keys.finish(),
        block_size=block_size,
        origin=Origin(source.path.name, FORMAT.name, unit, (*notes, *log.notes()), settings),
        tenant=log.labels["user"].finish(),
        session=log.labels["session"].finish(),
        model=log.labels["model"].finish(),
        sampling=options.sampling,
    )


def sniff(head: bytes) -> bool:
    """Whether the first row has messages, at the top or under ``body``."""
    if head.lstrip()[:1] != b"{":
        return False
    row = first_row(head)
    if row is None:  # a prompt longer than the head, or a bad row
        return b'"messages"' in head and b'"role"' in head
    body = row.get("body")
    return "messages" in row or (isinstance(body, dict) and "messages" in body)


FORMAT = Format(
    name="openai",
    title="OpenAI-style chat logs: JSONL with messages; needs --tokenizer or --bytes-per-token",
    suffixes=(".jsonl",),
    sniff=sniff,
    read=read,
    options=frozenset(
        {
            "time_unit",
            "block_size",
            "tokenizer",
            "chat_template",
            "bytes_per_token",
            "skip_bad_rows",
        }
    ),
)
