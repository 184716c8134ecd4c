"""Tables as text: CSV with commas, semicolons, tabs or bars, a header, quotes as in RFC 4180.

Columns are told by their names (`roles`), or named with ``--columns``. Block ids are one cell:
a JSON list, or ids with blanks or semicolons between them. Read as a stream with Python's csv.
"""

from __future__ import annotations

import contextlib
import csv
import io
import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvsched.foundation.errors import InputError
from kvsched.trace import cells, roles, scan
from kvsched.trace.cut import Cut
from kvsched.trace.fields import FARTHEST_TIME, MOST_TOKENS, RowError
from kvsched.trace.model import Float64s, Int64s, Trace
from kvsched.trace.reading import Format, ReadOptions
from kvsched.trace.source import LONGEST_LINE, Source
from kvsched.trace.table import LEAST, Batch, Table

DELIMITERS = ",;\t|"
_NOT_UTF8 = "not valid UTF-8"
_BLANK_LINES = re.compile(rb"(?:[ \t\r]*\n)*(?:[ \t\r]*\Z)?")


@dataclass(frozen=True)
class Layout:
    """How a table is written, and which of its columns mean what."""

    delimiter: str
    header: tuple[str, ...]
    places: dict[str, int]
    """Role to the place of its column."""
    lines: int
    """Lines up to the end of the header."""

    def names(self) -> dict[str, str]:
        """Role to the name of its column."""
        return {role: self.header[place] for role, place in self.places.items()}


Find = Callable[[Sequence[str]], dict[str, int]]


def delimiter_of(line: str) -> str:
    """The delimiter that cuts a header into most cells; a comma where none does."""
    return max(DELIMITERS, key=line.count)


def header_of(head: bytes) -> list[str]:
    """The cells of the first line that is not blank, from the first bytes of a file."""
    blank = _BLANK_LINES.match(head)
    text = head[blank.end() if blank else 0 :].decode("utf-8", "replace")
    line = text.split("\n", 1)[0].rstrip("\r")
    if not line.isprintable() and not line.replace("\t", "").isprintable():
        return []
    with contextlib.suppress(csv.Error):
        return [cell.strip() for cell in next(csv.reader([line], delimiter=delimiter_of(line)), [])]
    return []


@contextlib.contextmanager
def _long_cells() -> Iterator[None]:
    """Lift the csv module's limit of 128 KiB a cell, which long chains exceed."""
    before = csv.field_size_limit(LONGEST_LINE)
    try:
        yield
    finally:
        csv.field_size_limit(before)


def _pieces(source: Source) -> Iterator[bytes]:
    """The content in pieces that end with a row."""
    pending = b""
    for chunk in source.line_chunks():
        pending += chunk
        # Within quotes a line does not end the row.
        if pending.count(b'"') % 2 == 0:
            yield pending
            pending = b""
        elif len(pending) > LONGEST_LINE:
            raise InputError(source.name, "a quote is opened and not closed")
    if pending:
        yield pending


def _read_header(file: str, data: bytes, find: Find) -> tuple[Layout, bytes]:
    """The layout that the first row says, and the bytes after it."""
    blank = _BLANK_LINES.match(data)
    start = 0 if blank is None else blank.end()
    # A header may itself have lines within quotes.
    end = start
    while end < len(data):
        end = data.find(b"\n", end) + 1 or len(data)
        if data.count(b'"', start, end) % 2 == 0:
            break
    try:
        text = data[start:end].decode()
    except UnicodeDecodeError as error:
        raise InputError(file, f"the header is {_NOT_UTF8}", 1) from error
    mark = delimiter_of(text)
    try:
        header = next(
            csv.reader(io.StringIO(text, newline="\n"), delimiter=mark, strict=True), None
        )
    except csv.Error as error:
        raise InputError(file, f"the header is not valid CSV ({error})", 1) from error
    if header is None:
        raise InputError(file, "the file is empty")
    names = tuple(cell.strip() for cell in header)
    return Layout(mark, names, find(names), data.count(b"\n", 0, end)), data[end:]


class _Rows:
    """Turns pieces of text into batches; remembers whether times are dates."""

    def __init__(self, file: str, layout: Layout, table: Table) -> None:
        self._file = file
        self._layout = layout
        self._table = table
        self._dated: bool | None = None

    def batch(self, data: bytes, first_line: int) -> Batch:
        """The rows of ``data``, whose first line has the number ``first_line``."""
        try:
            text = data.decode()
        except UnicodeDecodeError:
            return self._careful(data.decode("utf-8", "surrogateescape"), first_line)
        found = self._fast(data, first_line)
        return self._careful(text, first_line) if found is None else found

    def _fast(self, data: bytes, first_line: int) -> Batch | None:
        """All rows at once, or None where anything in them is out of the ordinary."""
        cut = Cut.of(
            data,
            self._layout.delimiter,
            len(self._layout.header),
            self._layout.places,
            first_line,
        )
        if cut is None:
            return None
        first = cut.cell("time", 0)
        if self._dated is None and not first.strip():
            return None  # the first time that is there tells what all are
        dated = cells.looks_dated(first) if self._dated is None else self._dated
        times = cut.times("time", dated)
        inputs, outputs = cut.integers("input"), cut.integers("output")
        counts = np.zeros(cut.count, np.int64)
        ids = cut.ids("blocks", counts)
        sizes = None
        if times is None or inputs is None or outputs is None or ids is None:
            return None
        # What is missing is below 0, or no number.
        if not (_within(inputs) and _within(outputs) and _finite(times)):
            return None
        if cut.has("sizes"):
            of_sizes = np.zeros(cut.count, np.int64)
            listed = cut.ids("sizes", of_sizes)
            if listed is None or listed[2] or (of_sizes != counts).any():
                return None
            sizes = listed[0]
            if len(sizes) and not (sizes.min() > 0 and sizes.max() <= MOST_TOKENS):
                return None
        optional = self._fast_optional(cut, dated)
        if optional is None:
            return None
        self._dated = dated
        return Batch(
            rows=cut.lines,
            times=times,
            dated=dated,
            inputs=inputs,
            outputs=outputs,
            counts=counts,
            keys=ids[0],
            sizes=sizes,
            signs=ids[1],
            texts=ids[2],
            labels={name: cut.labels(name) for name in roles.LABELS if cut.has(name)},
            numbers=optional[0],
            deadlines=optional[1],
        )

    def _fast_optional(
        self, cut: Cut, dated: bool
    ) -> tuple[dict[str, Float64s], Int64s | Float64s | None] | None:
        found: dict[str, Float64s] = {}
        for role in (*roles.INTEGERS, "delay"):
            if not cut.has(role):
                continue
            column = cut.times(role, False) if role == "delay" else cut.optional_integers(role)
            most = FARTHEST_TIME if role == "delay" else MOST_TOKENS
            if column is None or (column < LEAST.get(role, 0)).any() or (column > most).any():
                return None
            found[role] = column
        if not cut.has("deadline"):
            return found, None
        deadlines = cut.times("deadline", dated)
        return None if deadlines is None else (found, deadlines)

    def _careful(self, text: str, first_line: int) -> Batch:
        """The rows one by one, up to the first fault, or without the bad ones."""
        reader = csv.reader(
            io.StringIO(text, newline="\n"), delimiter=self._layout.delimiter, strict=True
        )
        numbers: list[int] = []
        found: list[dict[str, Any]] = []
        fault: InputError | None = None
        last = first_line + text.count("\n")
        while fault is None:
            before = reader.line_num
            number = first_line + before
            try:
                row = next(reader, None)
                if row is None:
                    break
                if len(row) < 2 and not "".join(row).strip():
                    continue
                values = self._careful_row(row)
            except csv.Error as error:
                words = f"not valid CSV ({str(error).partition(' - ')[0]})"
                if any(sign in str(error) for sign in ("unexpected end", "larger than")):
                    # What stands after it cannot be told from what is in it: nothing to skip.
                    raise InputError(self._file, "a quote is not closed", number) from error
            except RowError as error:
                words = str(error)
                if number == last and words.startswith("has "):
                    words = f"the last line is cut short: it {words}, and has no newline"
            else:
                numbers.append(number)
                found.append(values)
                continue
            if self._table.skipping is None:
                fault = InputError(self._file, words, number)
            else:
                # A quote out of place may have swallowed good lines: all are counted.
                self._table.skipping.add(number, words, count=reader.line_num - before)
        return self._packed(numbers, found, fault)

    def _careful_row(self, row: list[str]) -> dict[str, Any]:
        header = self._layout.header
        for place, cell in enumerate(row):
            try:
                cell.encode()
            except UnicodeEncodeError as error:
                where = f' in "{header[place]}"' if place < len(header) else ""
                raise RowError(f"{_NOT_UTF8}{where}") from error
        if len(row) != len(header):
            many = "1 cell" if len(row) == 1 else f"{len(row)} cells"
            raise RowError(f"has {many}, the header {len(header)}")
        values: dict[str, Any] = {}
        for role, place in self._layout.places.items():
            values[role] = self._cell(role, row[place], header[place])
        if "sizes" in values and len(values["sizes"]) != len(values["blocks"]):
            pair = f"{len(values['sizes'])} sizes for {len(values['blocks'])} ids"
            raise RowError(f'"{header[self._layout.places["sizes"]]}" has {pair}')
        return values

    def _cell(self, role: str, text: str, name: str) -> Any:
        if role == "blocks":
            return cells.blocks(text, name)
        if role == "sizes":
            return cells.sizes(text, name)
        if role in roles.LABELS:
            return text or None
        if not text.strip():
            if role in roles.REQUIRED:
                raise RowError(f'"{name}" is empty')
            return None
        if role in ("time", "deadline"):
            if role == "time" and self._dated is None:
                self._dated = cells.looks_dated(text)
            return (cells.date if self._dated else cells.number)(text, name)
        if role == "delay":
            value = cells.number(text, name)
            if value < 0:
                raise RowError(f'"{name}" must not be negative: {text.strip()}')
            return value
        return cells.integer(text, name, LEAST.get(role, 0), MOST_TOKENS)

    def _packed(
        self, rows: list[int], found: list[dict[str, Any]], fault: InputError | None
    ) -> Batch:
        places = self._layout.places
        time_type: type[Any] = np.int64 if self._dated else np.float64
        none = scan.MISSING if self._dated else np.nan

        def column(role: str) -> list[Any]:
            return [values[role] for values in found]

        chains = column("blocks") if "blocks" in places else [[] for _ in found]
        keys, signs, texts = cells.pack([each for chain in chains for each in chain])
        sizes = None
        if "sizes" in places:
            sizes = np.array([each for chain in column("sizes") for each in chain], np.int64)
        deadlines = None
        if "deadline" in places:
            filled = [none if value is None else value for value in column("deadline")]
            deadlines = np.array(filled, time_type)
        return Batch(
            rows=np.array(rows, np.int64),
            times=np.array(column("time"), time_type),
            dated=bool(self._dated),
            inputs=np.array(column("input"), np.int64),
            outputs=np.array(column("output"), np.int64),
            counts=np.array([len(chain) for chain in chains], np.int64),
            keys=keys,
            sizes=sizes,
            signs=signs,
            texts=texts,
            labels={n: _numbered(column(n)) for n in roles.LABELS if n in places},
            numbers={
                n: np.array(column(n), np.float64)
                for n in (*roles.INTEGERS, "delay")
                if n in places
            },
            deadlines=deadlines,
            fault=fault,
        )


def _within(tokens: Int64s) -> bool:
    return bool(tokens.min() >= 0 and tokens.max() <= MOST_TOKENS)


def _finite(times: Any) -> bool:
    """Whether no row is without its time."""
    if times.dtype == np.int64:
        return bool(times.min() > scan.MISSING)
    return bool((np.abs(times) < FARTHEST_TIME).all())


def _numbered(column: Sequence[str | None]) -> tuple[NDArray[np.int32], list[str]]:
    """Names as codes and the names in order of first appearance."""
    seen: dict[str, int] = {}
    codes = [-1 if name is None else seen.setdefault(name, len(seen)) for name in column]
    return np.array(codes, np.int32), list(seen)


def read_table(source: Source, options: ReadOptions, find: Find) -> tuple[Table, Layout]:
    """Read a table whose columns ``find`` places in its header; O(bytes), as a stream.

    Raises InputError with row, column and fault, and UsageError as ``find``.
    """
    with _long_cells():
        pieces = _pieces(source)
        layout, piece = _read_header(source.name, next(pieces, b""), find)
        table = Table(source.name, layout.names(), options)
        rows = _Rows(source.name, layout, table)
        line = layout.lines + 1
        for more in itertools.chain([piece], pieces):
            if more:
                table.add(rows.batch(more, line))
                line += more.count(b"\n")
                table.cut_short = not more.endswith(b"\n")
    return table, layout


def read(source: Source, options: ReadOptions) -> Trace:
    """Read a CSV whose columns are named or told by their names. As `read_table`."""
    table, layout = read_table(
        source, options, lambda header: roles.find_columns(source.name, header, options.columns)
    )
    return table.finish(source.path.name, FORMAT.name, roles.usual_unit(layout.names()))


def sniff(head: bytes) -> bool:
    """Whether the first line is a header of two columns or more, one of them of a usual name."""
    if head.lstrip()[:1] in (b"{", b"["):
        return False
    header = header_of(head)
    return len(header) > 1 and any(roles.usual_role(column) is not None for column in header)


FORMAT = Format(
    name="csv",
    title="a table as text with a header; --columns names its columns",
    suffixes=(".csv", ".tsv"),
    sniff=sniff,
    read=read,
    options=frozenset({"time_unit", "block_size", "skip_bad_rows", "columns"}),
)
