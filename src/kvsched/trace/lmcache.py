"""LMCache's look-up log: JSON lines with the chunk hashes that each request asked for.

Fields: ``timestamp`` (s since 1970; a number, or text that is one), ``model_name``,
``chunk_size`` (256 by default), ``seq_len`` (tokens of the prompt), ``chunk_hashes``: hashes of
whole prefixes, hexadecimal text (``0x`` or not) or integers. Only full chunks have a hash, so
the tail of a prompt has no node; a last partial chunk that has one is taken too. A hash is
named by its last 64 bits (LMCache's blake3 has 256). Output lengths are not logged: 0.

Models never share a chunk: a node belongs to one ``model_name``. A folder is the rotated files
``lookup_hashes_*.jsonl`` of one server. Source: LMCache 0.5.6, ``--lookup-hash-log-dir``.
"""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from kvsched.foundation.errors import InputError
from kvsched.trace import clock, fields
from kvsched.trace.build import build_trace
from kvsched.trace.fields import Row, RowError
from kvsched.trace.lines import read_rows
from kvsched.trace.model import Int64s, Origin, Trace
from kvsched.trace.reading import (
    Format,
    Growing,
    LabelColumn,
    ReadOptions,
    Skipped,
    counted,
    part_of,
)
from kvsched.trace.source import Source, os_fault
from kvsched.trace.spool import KeyColumn

CHUNK_SIZE = 256
_WRITTEN = len("0x") + 64
FILES = ("lookup_hashes_*.jsonl", "lookup_hashes_*.jsonl.gz", "lookup_hashes_*.jsonl.zst")


class _Lookup(NamedTuple):
    time: float
    model: str | None
    tokens: int
    keys: Int64s
    wide: bool
    chunk_size: int
    said: bool
    """Whether the row says its chunk size."""


class _Lookups:
    """Look-ups read so far, of one file or several."""

    def __init__(self, where: str, options: ReadOptions) -> None:
        self.where = where
        self.options = options
        self.chunk_size = options.block_size or 0
        self.skipped = Skipped(where)
        self.lines, self.blocks = Growing(np.int64), Growing(np.int64)
        self.times, self.inputs = Growing(np.float64), Growing(np.int64)
        self.keys = KeyColumn(options.sampling)
        self.models = LabelColumn()
        self.unsaid = self.uncovered = self.wide = 0

    def check(self, row: Row) -> _Lookup:
        """Check one row. Raises RowError."""
        time = fields.time(row, "timestamp")
        model = fields.optional_label(row, "model_name")
        tokens = fields.tokens(row, "seq_len")
        keys, wide = _hashes(row)
        size, said = self._chunk_size(row)
        if len(keys) > -(-tokens // size):
            hashes = "1 hash" if len(keys) == 1 else f"{len(keys)} hashes"
            need = (len(keys) - 1) * size + 1
            raise RowError(
                f"fewer tokens than the hashes need: {tokens}, but {hashes} of {size} need {need}"
            )
        return _Lookup(time, model, tokens, keys, wide, size, said)

    def _chunk_size(self, row: Row) -> tuple[int, bool]:
        """The row's chunk size, and whether it says so. Raises RowError."""
        if row.get("chunk_size") is None:
            return self.chunk_size or CHUNK_SIZE, False
        size = fields.integer(row, "chunk_size")
        if not 1 <= size <= fields.MOST_TOKENS:
            raise RowError(f'"chunk_size" is out of range: {fields.short(size)}')
        if self.chunk_size not in (0, size):
            given = self.options.block_size is not None
            other = "--block-size is" if given else "the rows before have"
            raise RowError(f'"chunk_size" is {size}, {other} {self.chunk_size}')
        return size, True

    def add(self, source: Source) -> None:
        """Read one file. Raises InputError."""
        self.skipped.file = source.name
        skipped = self.skipped if self.options.skip_bad_rows else None
        for line, found in read_rows(source, self.check, skipped):
            self.chunk_size = found.chunk_size
            self.unsaid += not found.said
            self.lines.append(line)
            self.times.append(found.time)
            self.inputs.append(found.tokens)
            self.blocks.append(len(found.keys))
            self.keys.extend(found.keys)
            self.models.append(found.model)
            self.wide += found.wide
            self.uncovered += found.tokens - len(found.keys) * self.chunk_size >= self.chunk_size

    def notes(self) -> Iterator[str]:
        """What was chosen and left out: one sentence each."""
        if self.unsaid:
            rows = counted(self.unsaid, "row does", "rows do")
            yield f"{rows} not say the chunk size; read as {self.chunk_size} tokens"
        if self.uncovered:
            rows = counted(self.uncovered, "request has", "requests have")
            yield f"{rows} a chunk or more of tokens that no hash covers"
        if self.wide:
            yield "hashes have more than 64 bits; their last 64 name the chunks"
        yield "output lengths are not logged; they count as 0"
        yield from self.skipped.notes()

    def finish(self) -> Trace:
        """The trace of all look-ups. Raises InputError where there is none."""
        self.skipped.file = self.where
        if not len(self.times):
            raise self.skipped.nothing_left()
        times = self.times.finish()
        unit, notes = clock.find_unit(
            self.where, times, self.lines.finish(), self.options.time_unit, "s"
        )
        time_s, first_s = clock.seconds(times, unit)
        starts = np.zeros(len(times) + 1, np.int64)
        np.cumsum(self.blocks.finish(), out=starts[1:])
        models = self.models.finish()
        return build_trace(
            time_s=time_s,
            input_tokens=self.inputs.finish(),
            output_tokens=np.zeros(len(times), np.int64),
            starts=starts,
            keys=self.keys.finish(),
            block_size=self.chunk_size,
            origin=Origin(
                Path(self.where).name,
                FORMAT.name,
                unit,
                (*notes, *self.notes()),
                {"first_timestamp_s": first_s},
            ),
            scope=None if models is None else models.codes + np.int32(1),
            model=models,
            sampling=self.options.sampling,
        )


def _hashes(row: Row) -> tuple[Int64s, bool]:
    """The keys of a row's chunks, and whether a hash has more than 64 bits. Raises RowError."""
    values = fields.required(row, "chunk_hashes")
    if not isinstance(values, list):
        raise RowError(f'"chunk_hashes" must be a list, not {fields.kind(values)}')
    return _of_256_bits(values) or _of_any_form(values)


def _of_256_bits(values: list[Any]) -> tuple[Int64s, bool] | None:
    """The same where all hashes are as LMCache writes them, ``0x`` and 64 digits; else None."""
    count = len(values)
    try:
        text = "".join(values)
        data = bytes.fromhex(text.replace("0x", ""))
    except (TypeError, ValueError):
        return None
    if not {_WRITTEN}.issuperset(map(len, values)) or text[::_WRITTEN] != "0" * count:
        return None
    # Shorter where an "x" stands elsewhere, or white space, which `fromhex` passes over.
    if text[1::_WRITTEN] != "x" * count or len(data) != 32 * count:
        return None
    words = np.frombuffer(data, ">i8").reshape(-1, 4)
    return words[:, 3].astype(np.int64), bool(words[:, :3].any())


def _of_any_form(values: list[object]) -> tuple[Int64s, bool]:
    keys = []
    wide = False
    for place, value in enumerate(values):
        number = value
        if isinstance(value, str):
            number = fields.hexadecimal(value)
        if number is None or isinstance(number, bool) or not isinstance(number, int):
            told = fields.short(value) if isinstance(value, float | str) else fields.kind(value)
            raise RowError(
                f'"chunk_hashes"[{place}] must be hexadecimal text or an integer, not {told}'
            )
        wide |= not fields.SMALLEST_ID <= number <= fields.LARGEST_ID
        keys.append(fields.low_64_bits(number))
    return np.array(keys, np.int64), wide


def read(source: Source, options: ReadOptions) -> Trace:
    """Read one log. O(B), as a stream: memory for the columns only. Raises InputError."""
    lookups = _Lookups(source.name, options)
    lookups.add(source)
    return lookups.finish()


def read_folder(folder: Path, options: ReadOptions) -> Trace:
    """Read every rotated file directly in ``folder`` as one log. Raises InputError."""
    try:
        paths = [p for p in sorted(folder.iterdir()) if _is_log(p)]
    except OSError as error:
        raise InputError(str(folder), os_fault(error)) from error
    if not paths:
        raise InputError(str(folder), f"no look-up logs in the folder ({FILES[0]})")
    lookups = _Lookups(str(folder), options)
    total = sum(_size(path) for path in paths)
    done = 0
    for path in paths:
        with Source(path, part_of(done, total, options.progress)) as source:
            lookups.add(source)
            done += source.size
    return lookups.finish()


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError as error:
        raise InputError(str(path), os_fault(error)) from error


def _is_log(path: Path) -> bool:
    return any(fnmatch(path.name, pattern) for pattern in FILES)


def sniff_folder(folder: Path) -> bool:
    """Whether rotated look-up logs are in the folder."""
    return any(_is_log(path) for path in folder.iterdir())


def sniff(head: bytes) -> bool:
    """Whether it looks like JSON rows with chunk hashes."""
    return head.lstrip()[:1] == b"{" and b'"chunk_hashes"' in head


FORMAT = Format(
    name="lmcache",
    title="LMCache look-up logs: a JSONL file, or a folder of rotated ones",
    suffixes=(".jsonl",),
    sniff=sniff,
    read=read,
    options=frozenset({"time_unit", "block_size", "skip_bad_rows"}),
    read_folder=read_folder,
    sniff_folder=sniff_folder,
)
