"""Records as files: JSON lines, CSV, Parquet, the chapter's table in Markdown; and back."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO

from kvsched.evidence.record import Record
from kvsched.evidence.record_check import (
    MOST_BYTES,
    RecordError,
    canonical,
    parse_object,
    record_of,
)
from kvsched.evidence.record_words import brief_config, key_metrics, number
from kvsched.foundation.errors import InputError, UsageError

SUFFIXES = {
    ".jsonl": "jsonl",
    ".csv": "csv",
    ".parquet": "parquet",
    ".md": "markdown",
    ".html": "html",
}
FORMATS = tuple(SUFFIXES.values())
TEXTS = (
    "record_id",
    "created_at",
    "task",
    "name",
    "evidence_level",
    "status",
    "decision",
    "reason",
    "corrects",
    "superseded_by",
    "workload_digest",
    "config",
    "environment",
    "missing",
    "checksum",
)
"""The first columns of CSV and Parquet; nested ones as JSON. A column a metric follows."""
METRIC = "metric."
"""Begins the name of a metric's column."""
_FORMULA = re.compile(r"[=+\-@\t\r＝＋－＠']")
_SPECIAL = re.compile(r"([\\`*\[\]<>|~&$#])|(?<![^\W_])(_)|(_)(?![^\W_])")

Corrections = Mapping[str, tuple[str, ...]]
"""Ids of the records that correct one, by its id."""


def find_format(output: str | None, named: str | None) -> str:
    """Return the format that is named, or that the file's suffix says. Raises UsageError."""
    if named is not None:
        if named not in FORMATS:
            raise UsageError(f"--format {named}: must be one of {', '.join(FORMATS)}")
        return named
    suffix = "" if output is None else Path(output).suffix.lower()
    if suffix not in SUFFIXES:
        raise UsageError(f"give --format {'|'.join(FORMATS)}, or an --output of such a suffix")
    return SUFFIXES[suffix]


def write_jsonl(records: Iterable[Record], stream: IO[bytes]) -> None:
    """Write each record's canonical JSON, one a line: `read_jsonl` gives back the same."""
    for record in records:
        stream.write(canonical(record) + b"\n")


def read_jsonl(stream: IO[bytes], file: str) -> Iterator[tuple[int, Record]]:
    """Yield each record with its line; empty lines are passed over.

    Every one must be sound and sealed. Raises InputError with the line.
    """
    row = 0
    while line := stream.readline(MOST_BYTES + 2):
        row += 1
        if not line.strip():
            continue
        found = parse_object(line.rstrip(b"\r\n"), file, row)
        try:
            record = record_of(found)
            if not record.checksum:
                raise RecordError("checksum: is missing; `kvsched records add` takes new records")
        except RecordError as error:
            raise InputError(file, str(error), row) from None
        yield row, record


def harmless(text: str) -> str:
    """Return text that no spreadsheet takes for a formula.

    What begins with ``= + - @``, their full-width forms, a tab, a carriage return or an
    apostrophe gets an apostrophe before it; taking one off gives the text back.
    """
    return f"'{text}" if _FORMULA.match(text) else text


def text_row(record: Record, corrections: Corrections) -> dict[str, str | None]:
    """Return the columns named in `TEXTS`; None where the record has none."""
    row: dict[str, str | None] = {}
    for name in TEXTS:
        if name == "superseded_by":
            row[name] = " ".join(corrections.get(record.record_id, ())) or None
        elif name in ("config", "environment", "missing"):
            row[name] = json.dumps(getattr(record, name), ensure_ascii=False, sort_keys=True)
        else:
            row[name] = getattr(record, name)
    return row


def metric_names(records: Iterable[Record]) -> list[str]:
    """Return the names of all metrics of the records, sorted."""
    return sorted({name for record in records for name in record.metrics})


def write_csv(
    again: Callable[[], Iterable[Record]], corrections: Corrections, stream: IO[bytes]
) -> None:
    """Write a row a record; an empty cell is what was not measured, or is not there.

    ``again`` gives the records, twice: first for the columns. Texts are `harmless`; numbers stand
    as they are, and read back as the same.
    """
    names = metric_names(again())
    text = io.TextIOWrapper(stream, encoding="utf-8", newline="")
    writer = csv.writer(text)
    writer.writerow([*TEXTS, *(METRIC + name for name in names)])
    for record in again():
        texts = text_row(record, corrections).values()
        cells = [None if value is None else harmless(value) for value in texts]
        values = (record.metrics.get(name) for name in names)
        writer.writerow([*cells, *(None if value is None else repr(value) for value in values)])
    text.flush()
    text.detach()


def write_parquet(
    again: Callable[[], Iterable[Record]], corrections: Corrections, stream: IO[bytes]
) -> None:
    """Write a row a record: CSV's columns, and ``record``, the canonical JSON.

    A metric's column is of 64-bit integers where all its values are, else of doubles. Raises
    UsageError without polars.
    """
    from kvsched.trace.parquet import load_polars

    pl = load_polars()
    rows: list[dict[str, str | None]] = []
    metrics: list[dict[str, float | int | None]] = []
    bodies: list[str] = []
    for record in again():
        rows.append(text_row(record, corrections))
        metrics.append(record.metrics)
        bodies.append(canonical(record).decode())
    columns = {name: pl.Series([row[name] for row in rows], dtype=pl.String) for name in TEXTS}
    for name in sorted({name for each in metrics for name in each}):
        values = [each.get(name) for each in metrics]
        whole = all(isinstance(value, int | None) for value in values)
        found = values if whole else [None if value is None else float(value) for value in values]
        columns[METRIC + name] = pl.Series(found, dtype=pl.Int64 if whole else pl.Float64)
    columns["record"] = pl.Series(bodies, dtype=pl.String)
    pl.DataFrame(columns).write_parquet(stream)


def write_markdown(records: Iterable[Record], corrections: Corrections, stream: IO[bytes]) -> None:
    """Write the course's table of records: a row a record, in the order of the registry."""
    headings = (
        "date", "task", "evidence level", "configuration", "metrics", "decision", "reason",
        "record",
    )  # fmt: skip
    stream.write(_cells(headings))
    stream.write(_cells(["---"] * len(headings)))
    for record in records:
        metrics = ", ".join(f"{name} {number(value)}" for name, value in key_metrics(record))
        newer = corrections.get(record.record_id, ())
        said = [record.record_id[:8]]
        said += [f"superseded by {each[:8]}" for each in newer]
        said += [f"corrects {record.corrects[:8]}"] if record.corrects else []
        ended = "" if record.status == "ok" else f" ({record.status})"
        what = f"{record.task}: {record.name}" if record.name else record.task
        row = (
            record.created_at[:10],
            what,
            record.evidence_level,
            brief_config(record) or "–",
            metrics or "–",
            record.decision + ended,
            record.reason or "–",
            ", ".join(said),
        )
        stream.write(_cells([plain_markdown(cell) for cell in row]))


def _cells(cells: Iterable[str]) -> bytes:
    return f"| {' | '.join(cells)} |\n".encode()


def plain_markdown(text: str) -> str:
    """Return text that a Markdown table shows as it is: on one line, its marks escaped."""
    shown = "".join(each if each.isprintable() else " " for each in text)
    return _SPECIAL.sub(lambda found: "\\" + found[0], " ".join(shown.split()))


_Again = Callable[[], Iterable[Record]]
WRITERS: dict[str, Callable[[_Again, Corrections, IO[bytes]], None]] = {
    "jsonl": lambda again, _corrections, stream: write_jsonl(again(), stream),
    "csv": write_csv,
    "parquet": write_parquet,
    "markdown": lambda again, corrections, stream: write_markdown(again(), corrections, stream),
}
"""By format; the page is the report's."""
