"""RAGPulse: a week of a university's retrieval-augmented chat; prompts made of unequal chunks.

``0_trace.jsonl`` has a request a line: ``timestamp`` (s, as text), ``input_length``,
``output_length``, ``session_id``, and ``hash_ids``, an object that lists the ids of the prompt's
chunks by kind. The files 1 to 5 beside it have a chunk a line: its id and its ``token_length``.

A prompt is its chunks in the order of the published rows, in which the authors' own replayer
joins them: system prompt, passages, history, web search, user input. An id names content, not a
prefix, and is unique over all five files: a node is (parent, id), its size the chunk's length.
6 to 12 tokens of a prompt (the chat template's) are in no chunk. Source: RAGPulse,
arXiv:2511.12979, repository flashserve/RAGPulse.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from kvsched.foundation.errors import InputError
from kvsched.trace import cells, clock, fields
from kvsched.trace.build import build_trace
from kvsched.trace.fields import RowError
from kvsched.trace.model import Origin, Trace
from kvsched.trace.reading import Format, Growing, LabelColumn, ReadOptions, Skipped
from kvsched.trace.source import Source

TRACE = "0_trace.jsonl"
KINDS = {
    "sys_prompt": ("1_sys_prompt.jsonl", "sys_prompt_id"),
    "passages_ids": ("2_passages.jsonl", "passage_id"),
    "history": ("3_history.jsonl", "history_id"),
    "web_search": ("5_web_search.jsonl", "web_search_id"),
    "user_input": ("4_user_input.jsonl", "user_input_id"),
}
"""In the order of the prompt: the file that has the lengths, and its field of the id."""
_PACKINGS = ("", ".gz", ".zst")


def _beside(folder: Path, name: str) -> Path | None:
    """The file of that name in the folder, as it is or packed; else what stands in its place."""
    paths = [folder / f"{name}{end}" for end in _PACKINGS]
    file = next((path for path in paths if path.is_file()), None)
    return file or next((path for path in paths if os.path.lexists(path)), None)


def _lines(source: Source, *, refuse_cut: bool = False) -> Iterator[tuple[int, bytes]]:
    """The lines that are not blank, with their numbers.

    Raises InputError, where ``refuse_cut``, if the last line has no newline and is no JSON.
    """
    number = 1
    for chunk in source.line_chunks():
        for line in chunk.split(b"\n"):
            if line.strip():
                yield number, line
            number += 1
        number -= 1
        if refuse_cut and line.strip():
            _refuse_cut(source.name, number, line)


def _refuse_cut(file: str, number: int, line: bytes) -> None:
    try:
        fields.parse(line)
    except RowError as error:
        words = "the last line is cut short: no whole JSON object, and no newline"
        raise InputError(file, words, number) from error


def _read_lengths(
    folder: Path, options: ReadOptions, skipped: Skipped
) -> dict[str, dict[int, int]]:
    """Tokens of every chunk, by kind and id."""
    found: dict[str, dict[int, int]] = {}
    kind_of: dict[int, str] = {}
    for kind, (name, id_field) in KINDS.items():
        path = _beside(folder, name)
        if path is None:
            raise InputError(str(folder / TRACE), f"{name} is not beside it: it has the lengths")
        lengths = found.setdefault(kind, {})
        with Source(path) as source:
            # Of a file cut short more is lost than its last line: skipping it would hide that.
            for number, line in _lines(source, refuse_cut=options.skip_bad_rows):
                try:
                    chunk, length = _length(line, id_field)
                    if kind_of.setdefault(chunk, kind) != kind:
                        raise RowError(f"chunk {chunk} is in {KINDS[kind_of[chunk]][0]} too")
                    if lengths.setdefault(chunk, length) != length:
                        raise RowError(f"chunk {chunk} has two lengths: {lengths[chunk]}, {length}")
                except RowError as error:
                    if not options.skip_bad_rows:
                        raise InputError(source.name, str(error), number) from error
                    skipped.add(number, str(error), file=source.name)
    return found


def _length(line: bytes, id_field: str) -> tuple[int, int]:
    row = fields.as_object(fields.parse(line))
    chunk, length = fields.integer(row, id_field), fields.tokens(row, "token_length")
    if not fields.SMALLEST_ID <= chunk < 2**63:
        raise RowError(f'"{id_field}" does not fit in 64 bits: {fields.short(chunk)}')
    if not length:
        raise RowError('"token_length" must be 1 or more')
    return chunk, length


def _chunks(row: fields.Row, lengths: dict[str, dict[int, int]]) -> tuple[list[int], list[int]]:
    """The prompt's chunks in order, and their tokens."""
    by_kind = fields.required(row, "hash_ids")
    if not isinstance(by_kind, dict):
        raise RowError(f'"hash_ids" must be an object, not {fields.kind(by_kind)}')
    for kind in by_kind:
        if kind not in KINDS:
            raise RowError(f'"hash_ids" has chunks of an unknown kind: {fields.short(kind)}')
    keys: list[int] = []
    sizes: list[int] = []
    for kind, (name, _) in KINDS.items():
        for chunk in fields.block_ids(by_kind, kind):
            if chunk not in lengths[kind]:
                raise RowError(f"{kind} chunk {chunk} has no length in {name}")
            keys.append(chunk)
            sizes.append(lengths[kind][chunk])
    return keys, sizes


def _time(row: fields.Row) -> float:
    value = fields.required(row, "timestamp")
    return cells.number(value, "timestamp") if isinstance(value, str) else fields.number(
        row, "timestamp"
    )  # fmt: skip


class _Columns:
    """The columns of the trace, filled row by row."""

    def __init__(self) -> None:
        self.times = Growing(np.float64)
        self.lines, self.inputs, self.outputs, self.counts, self.keys = (
            Growing(np.int64) for _ in range(5)
        )
        self.sizes = Growing(np.int32)
        self.sessions = LabelColumn()

    def add(self, number: int, line: bytes, lengths: dict[str, dict[int, int]]) -> None:
        """Append a row. Raises RowError, and appends nothing then."""
        row = fields.as_object(fields.parse(line))
        time = _time(row)
        tokens, output = fields.tokens(row, "input_length"), fields.tokens(row, "output_length")
        session = fields.optional_label(row, "session_id")
        keys, sizes = _chunks(row, lengths)
        if sum(sizes) > tokens:
            raise RowError(
                f"fewer tokens than the chunks hold: {tokens}, but they hold {sum(sizes)}"
            )

        def one(column: Growing[Any], value: float) -> None:
            column.extend(np.array([value]))

        one(self.lines, number)
        one(self.times, time)
        one(self.inputs, tokens)
        one(self.outputs, output)
        one(self.counts, len(keys))
        self.keys.extend(np.array(keys, np.int64))
        self.sizes.extend(np.array(sizes, np.int32))
        self.sessions.extend([session], 1)


def read(source: Source, options: ReadOptions) -> Trace:
    """Read 0_trace.jsonl with the files beside it. O(B), as a stream. Raises InputError.

    A row that names a chunk whose length is in no file is a bad row.
    """
    skipped = Skipped(source.name)
    lengths = _read_lengths(source.path.parent, options, skipped)
    columns = _Columns()
    for number, line in _lines(source):
        try:
            columns.add(number, line, lengths)
        except RowError as error:
            if not options.skip_bad_rows:
                raise InputError(source.name, str(error), number) from error
            skipped.add(number, str(error))
    times = columns.times.finish()
    if not len(times):
        raise skipped.nothing_left()
    unit, notes = clock.find_unit(
        source.name, times, columns.lines.finish(), options.time_unit or "s", "s"
    )
    time_s, first_s = clock.seconds(times, unit)
    starts = np.zeros(len(times) + 1, np.int64)
    np.cumsum(columns.counts.finish(), out=starts[1:])
    return build_trace(
        time_s=time_s,
        input_tokens=columns.inputs.finish(),
        output_tokens=columns.outputs.finish(),
        starts=starts,
        keys=columns.keys.finish(),
        sizes=columns.sizes.finish(),
        block_size=0,
        origin=Origin(
            source.path.name,
            FORMAT.name,
            unit,
            notes + skipped.notes(),
            {"first_timestamp_s": first_s, "chunk_order": list(KINDS)},
        ),
        session=columns.sessions.finish(),
        sampling=options.sampling,
    )


def read_folder(folder: Path, options: ReadOptions) -> Trace:
    """Read the folder that has 0_trace.jsonl and the files beside it. As `read`."""
    path = _beside(folder, TRACE)
    if path is None:
        raise InputError(str(folder), f"has no {TRACE}")
    with Source(path, options.progress) as source:
        return read(source, options)


def sniff(head: bytes) -> bool:
    """Whether it looks like JSON rows whose ids come by the kind of chunk."""
    first = head.lstrip().split(b"\n", 1)[0]
    return first[:1] == b"{" and all(name in first for name in (b'"hash_ids"', b'"sys_prompt"'))


def sniff_folder(folder: Path) -> bool:
    """Whether two or more of the six files are in the folder, or something with their names."""
    names = (TRACE, *(name for name, _ in KINDS.values()))
    return sum(_beside(folder, name) is not None for name in names) > 1


FORMAT = Format(
    name="ragpulse",
    title="RAGPulse: 0_trace.jsonl with the lengths of its chunks beside it, or their folder",
    suffixes=(".jsonl",),
    sniff=sniff,
    read=read,
    options=frozenset({"time_unit", "skip_bad_rows"}),
    read_folder=read_folder,
    sniff_folder=sniff_folder,
)
