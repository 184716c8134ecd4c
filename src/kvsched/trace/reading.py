"""What a reader is, what it is asked, and the growing columns that it fills."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from kvsched.foundation.errors import InputError
from kvsched.trace.model import UNKNOWN, Labels, Trace
from kvsched.trace.source import Progress, Source

Scalar = TypeVar("Scalar", bound=np.generic)


@dataclass(frozen=True)
class Sampling:
    """What is kept of a trace that is sampled while it is read."""

    rate: Callable[[int], int]
    """Told the trace's block references, once all rows are read; returns N, for 1 node in N."""
    seed: int = 0
    progress: Progress | None = None
    """Told of the passes over what was read: the work done and in all."""


@dataclass(frozen=True)
class ReadOptions:
    """What a user may ask of a reader; a reader names those that it understands."""

    time_unit: str | None = None
    """Unit of the timestamps: s, ms, us or ns; None to detect it."""
    block_size: int | None = None
    """Tokens a block; None for the format's own."""
    session_arrivals: str = "zero"
    """When sessions without a common clock start: ``zero`` or ``poisson:RATE`` a second."""
    seed: int = 0
    """Seed of the arrivals."""
    include_subagents: bool = False
    """Whether requests nested in another one are read too."""
    tokenizer: str | None = None
    """Path of a tokenizer.json, for text."""
    chat_template: str | None = None
    """Path of a chat template, for messages; goes with ``tokenizer``."""
    bytes_per_token: float | None = None
    """Bytes of UTF-8 that count as one token, for text without a tokenizer."""
    skip_bad_rows: bool = False
    """Leave bad rows out and report their count, instead of stopping at the first."""
    columns: Mapping[str, str] | None = None
    """Names of a table's columns by role; None to tell them by their usual names."""
    progress: Progress | None = None
    """Told how many bytes were read."""
    sampling: Sampling | None = None
    """Which nodes to keep, by a reader that hands it to `build_trace`; None for all."""


@dataclass(frozen=True)
class Format:
    """One trace format: adding one is a file with such a value, and a line in `formats`."""

    name: str
    title: str
    """One line for a person who chooses a format."""
    suffixes: tuple[str, ...]
    """Endings of its files, ``.gz`` and ``.zst`` of each understood; for people, not detection."""
    sniff: Callable[[bytes], bool]
    """Whether the first 64 KiB of a file look like it."""
    read: Callable[[Source, ReadOptions], Trace]
    options: frozenset[str] = frozenset()
    """Fields of `ReadOptions` that mean something to it (``progress`` always does)."""
    read_folder: Callable[[Path, ReadOptions], Trace] | None = None
    """Reads a folder of files as one trace, where the format knows such a thing."""
    sniff_folder: Callable[[Path], bool] | None = None
    """Whether a folder is the format's, where its names tell."""


class Growing(Generic[Scalar]):
    """A column filled chunk by chunk; the memory is the column's, not twice that."""

    def __init__(self, dtype: type[Scalar]) -> None:
        self._array: NDArray[Scalar] = np.empty(1024, dtype)
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def extend(self, values: NDArray[Any]) -> None:
        """Append ``values`` (K,). Amortised O(K)."""
        end = self._length + len(values)
        if end > len(self._array):
            self._array.resize(max(end, len(self._array) * 3 // 2), refcheck=False)
        self._array[self._length : end] = values
        self._length = end

    def append(self, value: float) -> None:
        """Append one value. Amortised O(1)."""
        if self._length == len(self._array):
            self._array.resize(self._length * 3 // 2, refcheck=False)
        self._array[self._length] = value
        self._length += 1

    def finish(self) -> NDArray[Scalar]:
        """The column, cut to its length. The object is spent."""
        self._array.resize(self._length, refcheck=False)
        return self._array


class LabelColumn:
    """A column of names, numbered in order of first appearance; None where a row has none."""

    def __init__(self) -> None:
        self._codes = Growing(np.int32)
        self._names: dict[str, int] = {}

    def extend(self, values: Iterable[str | None], count: int) -> None:
        """Append ``count`` names."""
        names = self._names
        codes = (UNKNOWN if v is None else names.setdefault(v, len(names)) for v in values)
        self._codes.extend(np.fromiter(codes, np.int32, count))

    def append(self, value: str | None) -> None:
        """Append one name."""
        code = UNKNOWN if value is None else self._names.setdefault(value, len(self._names))
        self._codes.append(code)

    def extend_coded(self, codes: NDArray[np.int32], names: Sequence[str]) -> None:
        """Append names by code; ``names`` in order of first appearance. O(K)."""
        known = self._names
        mine = [known.setdefault(name, len(known)) for name in names]
        self._codes.extend(np.array([*mine, UNKNOWN], np.int32)[codes])

    def blank(self, count: int) -> None:
        """Append ``count`` rows that have no name."""
        self._codes.extend(np.full(count, UNKNOWN, np.int32))

    def finish(self) -> Labels | None:
        """The labels, or None where no row has one. The object is spent."""
        codes = self._codes.finish()
        return Labels(codes, tuple(self._names)) if self._names else None


def counted(count: int, one: str, many: str) -> str:
    """A number with the right form of what it counts."""
    return f"1 {one}" if count == 1 else f"{count} {many}"


def part_of(before: int, total: int, progress: Progress | None) -> Progress | None:
    """Progress of one file as part of a folder's."""
    if progress is None:
        return None
    return lambda done, _: progress(before + done, total)


@dataclass
class Skipped:
    """Rows left out because they are bad: counted, the first one remembered."""

    file: str
    count: int = 0
    first: InputError | None = field(default=None)

    def add(self, row: int, fault: str, file: str | None = None, count: int = 1) -> None:
        """Count bad rows, of which ``row`` is the first."""
        self.count += count
        if self.first is None:
            self.first = InputError(file or self.file, fault, row)

    def notes(self) -> tuple[str, ...]:
        """One sentence for `Origin.notes`, or nothing."""
        if self.first is None:
            return ()
        name = Path(self.first.file).name
        rows = counted(self.count, "bad row was", "bad rows were")
        return (f"{rows} left out; the first: {name}, row {self.first.row}: {self.first.fault}",)

    def nothing_left(self) -> InputError:
        """The error of a source in which no row is a request."""
        if self.first is None:
            return InputError(self.file, "no request in it")
        rows = "the only row is" if self.count == 1 else f"all {self.count} rows are"
        where = f"row {self.first.row}"
        if self.first.file != self.file:
            where = f"{Path(self.first.file).name}, {where}"
        return InputError(self.file, f"{rows} bad; the first: {where}: {self.first.fault}")
