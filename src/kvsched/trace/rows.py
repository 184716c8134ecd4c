"""JSON lines that list block ids: `timestamp, input_length, output_length, hash_ids` and more.

What the readers of Mooncake, Bailian and vLLM's timed traces share. A chunk of ordinary rows is
decoded at once (`fast`); a chunk with anything else in it goes row by row (`careful`), which
finds the words for what is wrong. Both give the same columns.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any

import msgspec
import numpy as np

from kvsched.foundation.errors import InputError
from kvsched.trace import clock, fields
from kvsched.trace.fields import FARTHEST_TIME, Row
from kvsched.trace.fit import BlockFit
from kvsched.trace.ids import CLASH, CLASH_FAULT, pack_ids, parse_id_lists
from kvsched.trace.lines import checked_rows
from kvsched.trace.model import UNKNOWN, Float64s, Int32s, Int64s, Labels, Origin
from kvsched.trace.reading import Growing, LabelColumn, ReadOptions, Sampling, Skipped
from kvsched.trace.source import Source
from kvsched.trace.spool import KeyColumn, Keys

FIELDS = ("timestamp", "input_length", "output_length", "hash_ids")

_Tokens = Annotated[int, msgspec.Meta(ge=0, le=fields.MOST_TOKENS)]
_Main = tuple[float, int, int, list[int]]


@dataclass(frozen=True)
class Number:
    """An optional number: its type for the fast path, and how the careful one checks it."""

    type: Any
    check: Callable[[Row, str], float | None]


TURN = Number(
    Annotated[int, msgspec.Meta(ge=0, le=fields.MOST_TOKENS)],
    lambda row, name: fields.optional_integer(row, name, 0),
)
PRIORITY = Number(
    Annotated[int, msgspec.Meta(ge=-fields.MOST_TOKENS, le=fields.MOST_TOKENS)],
    lambda row, name: fields.optional_integer(row, name, -fields.MOST_TOKENS),
)
DELAY = Number(
    Annotated[float, msgspec.Meta(ge=0, lt=FARTHEST_TIME)],
    fields.optional_number,
)


@dataclass(frozen=True)
class Shape:
    """What a row has beside `FIELDS`; other fields are ignored."""

    names: tuple[str, ...] = ()
    """Names that every row must have."""
    labels: tuple[str, ...] = ()
    """Names that a row may have."""
    numbers: dict[str, Number] = field(default_factory=dict)

    @cached_property
    def struct(self) -> type[msgspec.Struct]:
        """A row's type for msgspec; its fields stand in the order of the columns."""
        main: list[Any] = [
            ("timestamp", float),
            ("input_length", _Tokens),
            ("output_length", _Tokens),
            ("hash_ids", msgspec.Raw),
        ]
        names = [(name, str | int) for name in self.names]
        labels = [(name, str | int | None, None) for name in self.labels]
        numbers = [(name, number.type | None, None) for name, number in self.numbers.items()]
        return msgspec.defstruct("Row", main + names + labels + numbers, gc=False)

    @property
    def extras(self) -> tuple[str, ...]:
        """The columns after the four, in the struct's order."""
        return (*self.names, *self.labels, *self.numbers)

    def check(self, row: Row) -> tuple[_Main, dict[str, Any]]:
        """Check one row field by field. Raises RowError."""
        main = (
            fields.number(row, "timestamp"),
            fields.tokens(row, "input_length"),
            fields.tokens(row, "output_length"),
            fields.block_ids(row, "hash_ids"),
        )
        extras: dict[str, Any] = {name: fields.label(row, name) for name in self.names}
        extras |= {name: fields.optional_label(row, name) for name in self.labels}
        extras |= {name: number.check(row, name) for name, number in self.numbers.items()}
        return main, extras


@dataclass
class Rows:
    """K rows of a chunk as columns."""

    lines: Int64s
    times: Float64s
    inputs: Int64s
    outputs: Int64s
    blocks: Int64s
    keys: Int64s
    signs: int
    """Of ids (`NEGATIVE`, `ABOVE_SIGNED`)."""
    extras: dict[str, Sequence[Any]]
    """Optional columns that some row has."""
    clash: int | None = None
    """Line of the first row whose ids are of the other sign than those before it."""
    fault: InputError | None = None
    """Why reading stopped after these rows, where it did."""


def fast(shape: Shape, chunk: bytes, first_line: int) -> Rows | None:
    """The rows of a chunk of whole lines, or None where anything in it is out of the ordinary."""
    if not chunk.isascii():
        try:
            chunk.decode()
        except UnicodeDecodeError:
            return None
    text = chunk.rstrip()
    try:
        rows = msgspec.json.Decoder(shape.struct).decode_lines(text)
    except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError):
        return None
    count = len(rows)
    if not count or count != text.count(b"\n") + 1:
        return None
    columns = list(zip(*map(msgspec.structs.astuple, rows), strict=True))
    times = np.array(columns[0], np.float64)
    if not (np.abs(times) < FARTHEST_TIME).all():
        return None
    blocks = np.empty(count, np.int64)
    parsed = parse_id_lists(columns[3], blocks)
    if parsed is None:
        return None
    extras: dict[str, Sequence[Any]] = {}
    for name, column in zip(shape.extras, columns[4:], strict=True):
        if column.count(None) < count:
            extras[name] = column
    return Rows(
        lines=np.arange(first_line, first_line + count),
        times=times,
        inputs=np.array(columns[1], np.int64),
        outputs=np.array(columns[2], np.int64),
        blocks=blocks,
        keys=parsed[0],
        signs=parsed[1],
        extras=extras,
    )


def careful(
    shape: Shape, file: str, chunk: bytes, first_line: int, skipped: Skipped | None
) -> Rows:
    """The rows of a chunk one by one, up to the first fault, or without the bad ones."""
    lines: list[int] = []
    mains: list[_Main] = []
    extras: list[dict[str, Any]] = []
    fault: InputError | None = None
    try:
        for line, (main, extra) in checked_rows(file, chunk, first_line, shape.check, skipped):
            lines.append(line)
            mains.append(main)
            extras.append(extra)
    except InputError as error:
        fault = error
    keys, signs = pack_ids(list(itertools.chain.from_iterable(main[3] for main in mains)))
    found = {name: [extra[name] for extra in extras] for name in shape.extras}
    return Rows(
        lines=np.array(lines, np.int64),
        times=np.array([main[0] for main in mains], np.float64),
        inputs=np.array([main[1] for main in mains], np.int64),
        outputs=np.array([main[2] for main in mains], np.int64),
        blocks=np.array([len(main[3]) for main in mains], np.int64),
        keys=keys,
        signs=signs,
        extras={name: c for name, c in found.items() if c.count(None) < len(c)},
        fault=fault,
    )


class _Columns:
    """The whole trace's columns, filled chunk by chunk."""

    def __init__(self, shape: Shape, sampling: Sampling | None) -> None:
        self.lines = Growing(np.int64)
        self.times = Growing(np.float64)
        self.inputs = Growing(np.int64)
        self.outputs = Growing(np.int64)
        self.blocks = Growing(np.int64)
        self.keys = KeyColumn(sampling)
        self.signs = 0
        self.clash: int | None = None
        self.labels = {name: LabelColumn() for name in shape.names + shape.labels}
        self.numbers = {name: Growing(np.float64) for name in shape.numbers}
        self.present: set[str] = set()

    def append(self, rows: Rows) -> None:
        count = len(rows.times)
        self.lines.extend(rows.lines)
        self.times.extend(rows.times)
        self.inputs.extend(rows.inputs)
        self.outputs.extend(rows.outputs)
        self.blocks.extend(rows.blocks)
        self.keys.extend(rows.keys)
        self.signs |= rows.signs
        self.clash = self.clash or rows.clash
        self.present.update(rows.extras)
        for name, labels in self.labels.items():
            values = rows.extras.get(name)
            if values is None:
                labels.blank(count)
            else:
                labels.extend((v if v is None else str(v) for v in values), count)
        for name, numbers in self.numbers.items():
            values = rows.extras.get(name)
            numbers.extend(np.full(count, np.nan) if values is None else np.array(values, float))


def _without(rows: Rows, bad: Int64s) -> Rows:
    """The rows but those at the indices ``bad``."""
    keep = np.ones(len(rows.times), bool)
    keep[bad] = False
    return Rows(
        lines=rows.lines[keep],
        times=rows.times[keep],
        inputs=rows.inputs[keep],
        outputs=rows.outputs[keep],
        blocks=rows.blocks[keep],
        keys=rows.keys[np.repeat(keep, rows.blocks)],
        signs=rows.signs,
        clash=rows.clash,
        extras={n: list(itertools.compress(c, keep)) for n, c in rows.extras.items()},
    )


def _chunks(source: Source, shape: Shape, skipped: Skipped | None) -> Iterator[Rows]:
    line = 1
    signs = 0
    for chunk in source.line_chunks():
        rows = fast(shape, chunk, line)
        if rows is None:
            rows = careful(shape, source.name, chunk, line, skipped)
        if signs != CLASH and signs | rows.signs == CLASH:
            rows.clash = _clash(shape, chunk, line, signs)
        signs |= rows.signs
        yield rows
        line += chunk.count(b"\n")


def _clash(shape: Shape, chunk: bytes, first_line: int, signs: int) -> int | None:
    """The line of a chunk from which on its ids, and ``signs`` before it, are of both signs."""
    for line, (main, _) in checked_rows("", chunk, first_line, shape.check, Skipped("")):
        signs |= pack_ids(main[3])[1]
        if signs == CLASH:
            return line
    return None


def _read_columns(
    source: Source,
    shape: Shape,
    fit: BlockFit | None,
    skipped: Skipped | None,
    sampling: Sampling | None,
) -> _Columns:
    """Read all rows. Raises InputError at the first bad one, unless ``skipped`` counts them."""
    columns = _Columns(shape, sampling)
    misfit: tuple[int, str] | None = None
    for rows in _chunks(source, shape, skipped):
        bad = np.zeros(0, np.int64) if fit is None else fit.bad(rows.inputs, rows.blocks)
        if fit is not None and len(bad):
            line = int(rows.lines[bad[0]])
            fault = fit.fault(int(rows.inputs[bad[0]]), int(rows.blocks[bad[0]]))
            if skipped is not None:
                skipped.add(line, fault, count=len(bad))
                rows = _without(rows, bad)  # noqa: PLW2901
            elif misfit is None:
                misfit = line, fault
        if misfit is not None and rows.fault is not None:
            raise InputError(source.name, misfit[1], misfit[0])
        if rows.fault is not None:
            raise rows.fault
        if misfit is None:
            columns.append(rows)
    if misfit is not None:
        suggestion = "" if fit is None else fit.suggestion()
        raise InputError(source.name, misfit[1] + suggestion, misfit[0])
    return columns


@dataclass
class Table:
    """All R rows of a file, in its order, ready for `build_trace`."""

    lines: Int64s
    time_s: Float64s
    inputs: Int64s
    outputs: Int64s
    blocks: Int64s
    keys: Keys
    labels: dict[str, Labels | None]
    numbers: dict[str, Float64s | None]
    """Columns that some row has; NaN where a row has none."""
    origin: Origin

    @property
    def starts(self) -> Int64s:
        """(R+1,) where each row's ids start in ``keys``."""
        starts = np.zeros(len(self.blocks) + 1, np.int64)
        np.cumsum(self.blocks, out=starts[1:])
        return starts

    def named(self, name: str) -> Labels:
        """A label column that every row has."""
        column = self.labels[name]
        if column is None:
            raise ValueError(f"no row has {name}")
        return column

    def whole(self, name: str, missing: int = UNKNOWN) -> Int32s | None:
        """A column of whole numbers, ``missing`` where a row has none."""
        column = self.numbers[name]
        return None if column is None else np.nan_to_num(column, nan=missing).astype(np.int32)


def read_table(
    source: Source,
    options: ReadOptions,
    *,
    shape: Shape,
    format: str,
    time_unit: str,
    block_size: int | None,
) -> Table:
    """Read all rows. O(B), as a stream: memory for the columns only.

    Prompts must end in the last block of their ids, of ``block_size`` tokens, unless that is
    None. ``time_unit`` is the format's own. Raises InputError.
    """
    skipped = Skipped(source.name)
    fit = None if block_size is None else BlockFit(block_size)
    columns = _read_columns(
        source, shape, fit, skipped if options.skip_bad_rows else None, options.sampling
    )
    if not len(columns.times):
        raise skipped.nothing_left()
    if columns.signs == CLASH:
        raise InputError(source.name, CLASH_FAULT, columns.clash)
    times, lines = columns.times.finish(), columns.lines.finish()
    unit, notes = clock.find_unit(source.name, times, lines, options.time_unit, time_unit)
    time_s, first_s = clock.seconds(times, unit)
    return Table(
        lines=lines,
        time_s=time_s,
        inputs=columns.inputs.finish(),
        outputs=columns.outputs.finish(),
        blocks=columns.blocks.finish(),
        keys=columns.keys.finish(),
        labels={name: column.finish() for name, column in columns.labels.items()},
        numbers={
            name: column.finish() if name in columns.present else None
            for name, column in columns.numbers.items()
        },
        origin=Origin(
            source.path.name,
            format,
            unit,
            notes + skipped.notes(),
            {"first_timestamp_s": first_s},
        ),
    )
