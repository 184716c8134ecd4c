"""Mooncake JSONL: one request a line, one id per block of the prompt, the last one partial.

Fields: ``timestamp`` (ms), ``input_length``, ``output_length``, ``hash_ids``; optional
``session_id``, ``tenant`` or ``user_id``, ``model``, ``type``, ``turn``, ``priority``, ``delay``
(in the timestamps' unit). Others are ignored. Source: Mooncake, FAST'25 release.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
import numpy as np

from kvsched.foundation.errors import InputError
from kvsched.trace import clock, fields
from kvsched.trace.build import build_trace
from kvsched.trace.fields import FARTHEST_TIME, RowError
from kvsched.trace.fit import BlockFit
from kvsched.trace.ids import CLASH, CLASH_FAULT, pack_ids, parse_id_lists
from kvsched.trace.model import UNKNOWN, Float64s, Int64s, Origin, Trace
from kvsched.trace.reading import Format, Growing, LabelColumn, ReadOptions, Skipped
from kvsched.trace.source import Source

BLOCK_SIZE = 512
TIME_UNIT = "ms"
FIELDS = (b'"timestamp"', b'"input_length"', b'"output_length"', b'"hash_ids"')

_Tokens = Annotated[int, msgspec.Meta(ge=0, le=fields.MOST_TOKENS)]
_Turn = Annotated[int, msgspec.Meta(ge=0, le=fields.MOST_TOKENS)]
_Priority = Annotated[int, msgspec.Meta(ge=-fields.MOST_TOKENS, le=fields.MOST_TOKENS)]
_Delay = Annotated[float, msgspec.Meta(ge=0, lt=FARTHEST_TIME)]
_Name = str | int | None


class _Row(msgspec.Struct, gc=False):
    timestamp: float
    input_length: _Tokens
    output_length: _Tokens
    hash_ids: msgspec.Raw
    session_id: _Name = None
    tenant: _Name = None
    user_id: _Name = None
    model: _Name = None
    type: _Name = None
    turn: _Turn | None = None
    priority: _Priority | None = None
    delay: _Delay | None = None


_LABELS = ("session_id", "tenant", "user_id", "model", "type")
_NUMBERS = ("turn", "priority", "delay")


@dataclass
class _Rows:
    """K rows of a chunk as columns."""

    lines: Int64s
    times: Float64s
    inputs: Int64s
    outputs: Int64s
    blocks: Int64s
    keys: Int64s
    signs: int
    extras: dict[str, Sequence[Any]]
    """Optional columns that some row has."""
    fault: InputError | None = None
    """Why reading stopped after these rows, where it did."""


def _fast(chunk: bytes, first_line: int) -> _Rows | None:
    """The rows of a chunk of whole lines, or None where anything in it is out of the ordinary."""
    if not chunk.isascii():
        try:
            chunk.decode()
        except UnicodeDecodeError:
            return None
    text = chunk.rstrip()
    try:
        rows = msgspec.json.Decoder(_Row).decode_lines(text)
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
    for name, column in zip(_LABELS + _NUMBERS, columns[4:], strict=True):
        if column.count(None) < count:
            extras[name] = column
    return _Rows(
        lines=np.arange(first_line, first_line + count),
        times=times,
        inputs=np.array(columns[1], np.int64),
        outputs=np.array(columns[2], np.int64),
        blocks=blocks,
        keys=parsed[0],
        signs=parsed[1],
        extras=extras,
    )


def _careful_row(line: bytes) -> tuple[tuple[float, int, int, list[int]], dict[str, Any]]:
    row = fields.as_object(fields.parse(line))
    main = (
        fields.number(row, "timestamp"),
        fields.tokens(row, "input_length"),
        fields.tokens(row, "output_length"),
        fields.block_ids(row, "hash_ids"),
    )
    extras: dict[str, Any] = {name: fields.optional_label(row, name) for name in _LABELS}
    extras["turn"] = fields.optional_integer(row, "turn", 0)
    extras["priority"] = fields.optional_integer(row, "priority", -fields.MOST_TOKENS)
    extras["delay"] = fields.optional_number(row, "delay")
    return main, extras


def _careful(file: str, chunk: bytes, first_line: int, skipped: Skipped | None) -> _Rows:
    """The rows of a chunk one by one, up to the first fault, or without the bad ones."""
    lines: list[int] = []
    mains: list[tuple[float, int, int, list[int]]] = []
    extras: list[dict[str, Any]] = []
    fault: InputError | None = None
    texts = chunk.split(b"\n")
    for number, text in enumerate(texts, first_line):
        if not text.strip():
            continue
        try:
            main, extra = _careful_row(text.removesuffix(b"\r"))
        except RowError as error:
            words = str(error)
            if number == first_line + len(texts) - 1 and words.startswith("not valid"):
                words = "the last line is cut short: no whole JSON object, and no newline"
            if skipped is None:
                fault = InputError(file, words, number)
                break
            skipped.add(number, words)
            continue
        lines.append(number)
        mains.append(main)
        extras.append(extra)
    keys, signs = pack_ids(list(itertools.chain.from_iterable(main[3] for main in mains)))
    found = {name: [extra[name] for extra in extras] for name in _LABELS + _NUMBERS}
    return _Rows(
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

    def __init__(self) -> None:
        self.lines = Growing(np.int64)
        self.times = Growing(np.float64)
        self.inputs = Growing(np.int64)
        self.outputs = Growing(np.int64)
        self.blocks = Growing(np.int64)
        self.keys = Growing(np.int64)
        self.signs = 0
        self.labels = {name: LabelColumn() for name in _LABELS}
        self.numbers = {name: Growing(np.float64) for name in _NUMBERS}
        self.present: set[str] = set()

    def append(self, rows: _Rows) -> None:
        count = len(rows.times)
        self.lines.extend(rows.lines)
        self.times.extend(rows.times)
        self.inputs.extend(rows.inputs)
        self.outputs.extend(rows.outputs)
        self.blocks.extend(rows.blocks)
        self.keys.extend(rows.keys)
        self.signs |= rows.signs
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


def _without(rows: _Rows, bad: Int64s) -> _Rows:
    """The rows but those at the indices ``bad``."""
    keep = np.ones(len(rows.times), bool)
    keep[bad] = False
    return _Rows(
        lines=rows.lines[keep],
        times=rows.times[keep],
        inputs=rows.inputs[keep],
        outputs=rows.outputs[keep],
        blocks=rows.blocks[keep],
        keys=rows.keys[np.repeat(keep, rows.blocks)],
        signs=rows.signs,
        extras={n: list(itertools.compress(c, keep)) for n, c in rows.extras.items()},
    )


def _chunks(source: Source, skipped: Skipped | None) -> Iterator[_Rows]:
    line = 1
    for chunk in source.line_chunks():
        rows = _fast(chunk, line)
        yield _careful(source.name, chunk, line, skipped) if rows is None else rows
        line += chunk.count(b"\n")


def _read_columns(source: Source, fit: BlockFit, skipped: Skipped | None) -> _Columns:
    """Read all rows. Raises InputError at the first bad one, unless ``skipped`` counts them."""
    columns = _Columns()
    misfit: tuple[int, str] | None = None
    for rows in _chunks(source, skipped):
        bad = fit.bad(rows.inputs, rows.blocks)
        faults = [fit.fault(int(rows.inputs[i]), int(rows.blocks[i])) for i in bad[:1]]
        if skipped is not None and len(bad):
            skipped.add(int(rows.lines[bad[0]]), faults[0], count=len(bad))
            rows = _without(rows, bad)  # noqa: PLW2901
        elif len(bad) and misfit is None:
            misfit = int(rows.lines[bad[0]]), faults[0]
        if misfit is not None and rows.fault is not None:
            raise InputError(source.name, misfit[1], misfit[0])
        if rows.fault is not None:
            raise rows.fault
        if misfit is None:
            columns.append(rows)
    if misfit is not None:
        raise InputError(source.name, misfit[1] + fit.suggestion(), misfit[0])
    return columns


def read(source: Source, options: ReadOptions) -> Trace:
    """Read Mooncake JSONL. O(B), as a stream: memory for the columns only. Raises InputError."""
    skipped = Skipped(source.name)
    block_size = options.block_size or BLOCK_SIZE
    fit = BlockFit(block_size)
    columns = _read_columns(source, fit, skipped if options.skip_bad_rows else None)
    if not len(columns.times):
        raise skipped.nothing_left()
    if columns.signs == CLASH:
        raise InputError(source.name, CLASH_FAULT)
    times = columns.times.finish()
    unit, unit_notes = clock.find_unit(
        source.name, times, columns.lines.finish(), options.time_unit, TIME_UNIT
    )
    time_s, first_s = clock.seconds(times, unit)
    starts = np.zeros(len(times) + 1, np.int64)
    np.cumsum(columns.blocks.finish(), out=starts[1:])
    labels = {name: column.finish() for name, column in columns.labels.items()}
    numbers = {n: c.finish() if n in columns.present else None for n, c in columns.numbers.items()}
    delay, turn, priority = (numbers[name] for name in ("delay", "turn", "priority"))
    return build_trace(
        time_s=time_s,
        input_tokens=columns.inputs.finish(),
        output_tokens=columns.outputs.finish(),
        starts=starts,
        keys=columns.keys.finish(),
        block_size=block_size,
        origin=Origin(
            source.path.name,
            FORMAT.name,
            unit,
            unit_notes + skipped.notes(),
            {"first_timestamp_s": first_s},
        ),
        tenant=labels["tenant"] or labels["user_id"],
        session=labels["session_id"],
        type=labels["type"],
        model=labels["model"],
        turn=None if turn is None else np.nan_to_num(turn, nan=UNKNOWN).astype(np.int32),
        priority=None if priority is None else np.nan_to_num(priority, nan=0).astype(np.int32),
        delay_s=None if delay is None else delay / clock.UNITS[unit],
    )


def sniff(head: bytes) -> bool:
    """Whether it looks like JSON rows with one of Mooncake's fields."""
    return head.lstrip()[:1] == b"{" and any(name in head for name in FIELDS)


FORMAT = Format(
    name="mooncake",
    title="Mooncake JSONL: timestamp, input_length, output_length, hash_ids",
    suffixes=(".jsonl",),
    sniff=sniff,
    read=read,
    options=frozenset({"time_unit", "block_size", "skip_bad_rows"}),
)
