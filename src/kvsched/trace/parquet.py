"""Parquet tables, read and written with polars: one request a row.

Columns as in a text table (`roles`): times as numbers or dates, block ids as a list of integers
or strings. What `write_parquet` writes is read back to the same digest; the file's metadata
(``kvsched``, JSON) has the block size and what reading the source decided.
"""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from kvsched.foundation.errors import InputError, UsageError
from kvsched.trace import cells, roles, scan
from kvsched.trace.fields import FARTHEST_TIME, MOST_TOKENS, RowError, short
from kvsched.trace.ids import ABOVE_SIGNED, NEGATIVE
from kvsched.trace.model import UNKNOWN, Int32s, Trace
from kvsched.trace.reading import Format, ReadOptions
from kvsched.trace.source import Source
from kvsched.trace.table import LEAST, Batch, Table

if TYPE_CHECKING:
    import polars

MAGIC = b"PAR1"
NOTE = "kvsched"
"""Key of the file's metadata."""
ROWS = 1 << 14
"""Rows read at a time: chains may have thousands of ids."""
_DAY_NS = 86_400 * 10**9
_FIRST_DAY, _LAST_DAY = 0, 84_006  # 1970 to 2199


def load_polars() -> Any:
    """Import polars, or raise UsageError with the command that installs it."""
    try:
        import polars
    except ImportError as error:
        raise UsageError("Parquet needs polars: pip install 'kvsched[data]'") from error
    return polars


@contextlib.contextmanager
def _faults(file: str) -> Iterator[None]:
    """Turn what polars raises over a file into an InputError of one line."""
    pl = load_polars()
    try:
        yield
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError) as error:
        words = str(error).strip().split("\n")[0] or type(error).__name__
        raise InputError(file, f"damaged, or no Parquet: {words}") from error


class _Column:
    """One column of a batch: K values, and which of them are bad for what reason."""

    def __init__(self, name: str, series: polars.Series) -> None:
        self.name = name
        # A column without any value has no type: it fits all.
        self.untyped = series.dtype == load_polars().Null
        self.series = series.cast(load_polars().Float64) if self.untyped else series
        self.bad = np.zeros(len(series), bool)
        self._reasons: list[tuple[Any, str]] = []

    def refuse(self, mask: Any, words: str) -> None:
        """Rows in ``mask`` (K,) are bad; ``{}`` in ``words`` stands for the value."""
        fresh = mask & ~self.bad
        if fresh.any():
            self._reasons.append((fresh, words))
            self.bad |= fresh

    def fault(self, row: int) -> str:
        """What is wrong with a bad row."""
        words = next(words for mask, words in self._reasons if mask[row])
        return f'"{self.name}" {words.format(short(self.series[row]))}'


def nulled(series: polars.Series, bad: Any) -> polars.Series:
    """The series with null in the rows of the mask ``bad`` (K,)."""
    pl = load_polars()
    mask = pl.Series(bad)
    found: polars.Series = pl.select(pl.when(mask).then(None).otherwise(series)).to_series()
    return found


def _of_type(file: str, column: _Column, wanted: str) -> InputError:
    return InputError(file, f'"{column.name}" must hold {wanted}, not {column.series.dtype}')


def _numbers(file: str, column: _Column, required: bool) -> Any:
    """Finite doubles, NaN where there is none."""
    series = column.series
    if not series.dtype.is_numeric():
        raise _of_type(file, column, "numbers")
    empty = series.is_null().to_numpy()
    values = series.cast(load_polars().Float64).to_numpy().astype(np.float64)
    if required:
        column.refuse(empty, "is null")
        column.refuse(np.isnan(values), "must be a finite number: it is NaN")
    column.refuse(np.isinf(values), "must be a finite number: it is infinite")
    column.refuse(np.abs(values) >= FARTHEST_TIME, "is out of range: {}")
    return values


def _integers(file: str, column: _Column, least: int, required: bool) -> Any:
    """Doubles that are whole and from ``least`` to 2^31 - 1, NaN where there is none."""
    if column.series.dtype.is_nested() or not column.series.dtype.is_numeric():
        raise _of_type(file, column, "integers")
    values = _numbers(file, column, required)
    column.refuse(~column.bad & (values != np.floor(values)) & ~np.isnan(values),
                  "must be an integer, not {}")  # fmt: skip
    if least == 0:
        column.refuse(values < 0, "must not be negative: {}")
    column.refuse(
        (values < least) | (values > MOST_TOKENS), f"is out of range: {{}} (at most {MOST_TOKENS})"
    )
    return values


def _times(file: str, column: _Column, required: bool) -> tuple[Any, bool]:
    """Times as doubles, or as nanoseconds since 1970; and whether they are dates."""
    pl = load_polars()
    series = column.series
    if series.dtype == pl.String:
        return _written_times(column, required)
    if not series.dtype.is_temporal():
        return _numbers(file, column, required), False
    if not isinstance(series.dtype, pl.Datetime):
        raise _of_type(file, column, "numbers or dates with a time")
    days = (series.dt.epoch("d")).fill_null(_FIRST_DAY).to_numpy()
    column.refuse((days < _FIRST_DAY) | (days >= _LAST_DAY), "is out of range: {}")
    empty = series.is_null().to_numpy()
    if required:
        column.refuse(empty, "is null")
    sound = nulled(series, column.bad | empty)
    return sound.dt.timestamp("ns").fill_null(scan.MISSING).to_numpy().copy(), True


def _written_times(column: _Column, required: bool) -> tuple[Any, bool]:
    """Times that are text, as in a text table."""
    texts = column.series.to_list()
    first = next((text for text in texts if text), "")
    dated = cells.looks_dated(first)
    values = np.full(len(texts), scan.MISSING if dated else np.nan, np.int64 if dated else float)
    for row, text in enumerate(texts):
        alone = np.arange(len(texts)) == row
        if not text:
            if required:
                column.refuse(alone, "is null")
            continue
        try:
            values[row] = (cells.date if dated else cells.number)(text, column.name)
        except RowError as error:
            column.refuse(alone, str(error).removeprefix(f'"{column.name}" ').replace("{", "{{"))
    return values, dated


def _labels(file: str, column: _Column) -> tuple[Int32s, Sequence[str]]:
    """Codes and names in order of first appearance; integers as their digits."""
    pl = load_polars()
    dtype = column.series.dtype
    named = dtype in (pl.String, pl.Categorical, pl.Enum)
    if not (dtype.is_integer() or named or column.untyped):
        raise _of_type(file, column, "strings or integers")
    texts = column.series.cast(pl.String)
    names = texts.drop_nulls().unique(maintain_order=True)
    numbers = pl.Series(np.arange(len(names), dtype=np.int32))
    codes = texts.replace_strict(names, numbers, default=None, return_dtype=pl.Int32)
    return codes.fill_null(UNKNOWN).to_numpy(), names.to_list()


def _lists(file: str, column: _Column) -> tuple[Any, polars.Series]:
    """Lengths of a column of lists (0 where null), and their items one after another.

    A row whose list holds a null is bad, and counts as empty.
    """
    pl = load_polars()
    series = column.series
    if isinstance(series.dtype, pl.Array):
        series = series.arr.to_list()
    if series.dtype == pl.String:
        raise _of_type(file, column, "lists")
    if column.untyped:
        series = pl.Series([None] * len(series), dtype=pl.List(pl.Int64))
    if not isinstance(series.dtype, pl.List):
        raise _of_type(file, column, "lists")
    holes = series.list.eval(pl.element().is_null().any()).list.first().fill_null(False).to_numpy()
    column.refuse(holes.astype(bool), "has a null among its ids")
    if column.bad.any():
        series = nulled(series, column.bad)
    counts = series.list.len().fill_null(0).to_numpy().astype(np.int64)
    return counts, series.explode().drop_nulls()


def _ids(file: str, column: _Column) -> tuple[Any, Any, int, bool]:
    """Lengths, ids as 64 bits, their signs, and whether they were text."""
    pl = load_polars()
    counts, items = _lists(file, column)
    if items.dtype in (pl.String, pl.Categorical, pl.Enum):
        names = items.cast(pl.String).unique(maintain_order=True)
        words, signs, texts = cells.pack([cells.plain_id(name) for name in names.to_list()])
        place = items.cast(pl.String).replace_strict(names, pl.Series(np.arange(len(names))))
        return counts, words[place.to_numpy()] if len(names) else words, signs, texts
    if not items.dtype.is_integer():
        if len(items):
            raise _of_type(file, column, "lists of integers or strings")
        items = items.cast(pl.Int64)
    if items.dtype == pl.UInt64:
        keys = items.to_numpy()
        above = bool(len(keys) and keys.max() >= 2**63)
        return counts, keys.view(np.int64), ABOVE_SIGNED if above else 0, False
    keys = items.cast(pl.Int64).to_numpy()
    return counts, keys, NEGATIVE if len(keys) and keys.min() < 0 else 0, False


def _sizes(file: str, column: _Column, counts: Any) -> Any:
    """Tokens of each block, beside its id."""
    pl = load_polars()
    of_sizes, items = _lists(file, column)
    if not items.dtype.is_integer():
        raise _of_type(file, column, "lists of integers")
    values = items.cast(pl.Int64).to_numpy()
    column.refuse(of_sizes != counts, "has not one size for each id")
    outside = (values < 1) | (values > MOST_TOKENS)
    row = np.repeat(np.arange(len(of_sizes)), of_sizes)
    column.refuse(np.bincount(row[outside], minlength=len(of_sizes)) > 0,
                  "must hold numbers of tokens from 1 on")  # fmt: skip
    # Rows that do not match leave as bad; until then every id has some size.
    if (of_sizes != counts).any():
        return np.ones(int(counts.sum()), np.int64)
    return values


class _Reader:
    """Turns frames of rows into batches."""

    def __init__(self, file: str, found: dict[str, str], table: Table) -> None:
        self._file = file
        self._found = found
        self._table = table

    def batch(self, frame: polars.DataFrame, first_row: int) -> Batch:
        """The rows of ``frame``, of which the first has the number ``first_row``."""
        file = self._file
        columns = {role: _Column(name, frame[name]) for role, name in self._found.items()}
        times, dated = _times(file, columns["time"], required=True)
        inputs, outputs = (
            _integers(file, columns[r], 0, required=True) for r in ("input", "output")
        )
        rows = len(frame)
        counts, keys, signs, texts = np.zeros(rows, np.int64), np.empty(0, np.int64), 0, False
        sizes = None
        if "blocks" in columns:
            counts, keys, signs, texts = _ids(file, columns["blocks"])
        if "sizes" in columns:
            sizes = _sizes(file, columns["sizes"], counts)
        numbers = {
            role: _integers(file, columns[role], LEAST[role], required=False)
            for role in roles.INTEGERS
            if role in columns
        }
        if "delay" in columns:
            numbers["delay"] = _numbers(file, columns["delay"], required=False)
            columns["delay"].refuse(numbers["delay"] < 0, "must not be negative: {}")
        deadlines = None
        if "deadline" in columns:
            deadlines, late_dated = _times(file, columns["deadline"], required=False)
            if columns["deadline"].series.null_count() == rows:
                deadlines = np.full(rows, scan.MISSING) if dated else np.full(rows, np.nan)
            elif late_dated != dated:
                raise _of_type(file, columns["deadline"], "dates" if dated else "numbers")
        labels = {r: _labels(file, columns[r]) for r in roles.LABELS if r in columns}
        bad = np.any([column.bad for column in columns.values()], axis=0)
        whole = [np.where(bad, 0, column).astype(np.int64) for column in (inputs, outputs)]
        batch = Batch(
            rows=np.arange(first_row, first_row + rows),
            times=times,
            dated=dated,
            inputs=whole[0],
            outputs=whole[1],
            counts=counts,
            keys=keys,
            sizes=sizes,
            signs=signs,
            texts=texts,
            labels=labels,
            numbers=numbers,
            deadlines=deadlines,
        )
        return self._sound(batch, columns, bad) if bad.any() else batch

    def _sound(self, batch: Batch, columns: dict[str, _Column], bad: Any) -> Batch:
        """The rows up to the first bad one, or all but the bad ones."""
        first = int(np.flatnonzero(bad)[0])
        words = next(column for column in columns.values() if column.bad[first]).fault(first)
        row = int(batch.rows[first])
        if self._table.skipping is None:
            batch.fault = InputError(self._file, words, row)
            return batch.without(np.arange(first, len(bad)))
        self._table.skipping.add(row, words, count=int(bad.sum()))
        return batch.without(np.flatnonzero(bad))


def _kept(file: str, where: Any) -> dict[str, Any]:
    """What `write_parquet` left in the file's metadata, or nothing."""
    pl = load_polars()
    with _faults(file):
        text = pl.read_parquet_metadata(where).get(NOTE)
    try:
        kept = json.loads(text) if text is not None else {}
    except ValueError:
        return {}
    sound = (
        isinstance(kept, dict)
        and isinstance(kept.get("block_size"), int)
        and 0 <= kept["block_size"] <= MOST_TOKENS
        and isinstance(kept.get("notes"), list)
        and all(isinstance(note, str) for note in kept["notes"])
        and isinstance(kept.get("settings"), dict)
    )
    return kept if sound else {}


def read(source: Source, options: ReadOptions) -> Trace:
    """Read a Parquet table. O(B), in batches of rows: memory for the columns only.

    Raises InputError with row, column and fault, and UsageError for a column that is not there
    or where polars is not installed.
    """
    pl = load_polars()
    where: Any = source.path if source.regular else io.BytesIO(source.read_all())
    kept = _kept(source.name, where)
    with _faults(source.name):
        lazy = pl.scan_parquet(where, glob=False, hive_partitioning=False)
        schema = lazy.collect_schema()
    header = list(schema.names())
    places = roles.find_columns(source.name, header, options.columns)
    found = {role: header[place] for role, place in places.items()}
    table = Table(source.name, found, options, kept.get("block_size"), keep_empty=bool(kept))
    reader = _Reader(source.name, found, table)
    row = 1
    with _faults(source.name):
        for frame in lazy.select(found.values()).collect_batches(chunk_size=ROWS):
            if len(frame):
                table.add(reader.batch(frame, row))
            row += len(frame)
    return table.finish(
        source.path.name,
        FORMAT.name,
        roles.usual_unit(found),
        tuple(kept.get("notes", ())),
        kept.get("settings"),
        _orders(schema, found) if kept else None,
    )


def _orders(schema: polars.Schema, found: dict[str, str]) -> dict[str, list[str]]:
    """The names of label columns in the order that the file fixes."""
    pl = load_polars()
    orders = {}
    for role in roles.LABELS:
        dtype = schema[found[role]] if role in found else None
        if isinstance(dtype, pl.Enum):
            orders[role] = dtype.categories.to_list()
    return orders


def sniff(head: bytes) -> bool:
    """Whether it starts as Parquet does."""
    return head.startswith(MAGIC)


FORMAT = Format(
    name="parquet",
    title="a Parquet table (needs kvsched[data]); --columns names its columns",
    suffixes=(".parquet",),
    sniff=sniff,
    read=read,
    options=frozenset({"time_unit", "block_size", "skip_bad_rows", "columns"}),
)
