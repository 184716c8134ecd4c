"""JSON lines one by one: every row checked, every fault with its row."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

from kvsched.foundation.errors import InputError
from kvsched.trace import fields
from kvsched.trace.fields import Row, RowError
from kvsched.trace.reading import Skipped
from kvsched.trace.source import Source

Checked = TypeVar("Checked")


def checked_rows(
    file: str,
    chunk: bytes,
    first_line: int,
    check: Callable[[Row], Checked],
    skipped: Skipped | None,
) -> Iterator[tuple[int, Checked]]:
    """Yield (line number, ``check(row)``) for each row of a chunk of whole lines.

    A row is bad where ``check`` raises RowError. Bad rows are counted in ``skipped``; without
    it the first raises InputError. Blank lines are no rows.
    """
    texts = chunk.split(b"\n")
    for number, text in enumerate(texts, first_line):
        if not text.strip():
            continue
        try:
            found = check(fields.as_object(fields.parse(text.removesuffix(b"\r"))))
        except RowError as error:
            words = str(error)
            if number == first_line + len(texts) - 1 and words.startswith("not valid"):
                words = "the last line is cut short: no whole JSON object, and no newline"
            if skipped is None:
                raise InputError(file, words, number) from error
            skipped.add(number, words)
            continue
        yield number, found


def read_rows(
    source: Source, check: Callable[[Row], Checked], skipped: Skipped | None
) -> Iterator[tuple[int, Checked]]:
    """Yield `checked_rows` of a whole file, as a stream."""
    line = 1
    for chunk in source.line_chunks():
        yield from checked_rows(source.name, chunk, line, check, skipped)
        line += chunk.count(b"\n")


def first_row(head: bytes) -> Row | None:
    """The first row of a file of JSON lines, to tell the format by its keys.

    None where it is no object, or does not end within ``head``.
    """
    for text in head.split(b"\n"):
        if text.strip():
            try:
                return fields.as_object(fields.parse(text))
            except RowError:
                return None
    return None
