"""The fast path of a text table: rows cut in one pass, columns parsed where their cells lie."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvsched.trace import cells, scan
from kvsched.trace.fields import RowError
from kvsched.trace.model import Float64s, Int32s, Int64s


@dataclass(frozen=True)
class Cut:
    """The cells of K rows, where they lie in the text."""

    data: bytes
    text: NDArray[np.uint8]
    slots: dict[str, int]
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]
    lines: Int64s

    @classmethod
    def of(
        cls, data: bytes, mark: str, columns: int, places: Mapping[str, int], first_line: int
    ) -> Cut | None:
        """Cut ``data``, or None where it is out of the ordinary or empty. As `scan.cut`."""
        text = np.frombuffer(data, np.uint8)
        # Two roles may lie in one column: a slot is a column's.
        columns_used = list(dict.fromkeys(places.values()))
        slots = {role: columns_used.index(place) for role, place in places.items()}
        wanted = np.full(columns, -1, np.int64)
        wanted[columns_used] = np.arange(len(columns_used))
        room = data.count(b"\n") + 1
        starts, ends = (np.zeros((len(columns_used), room), np.int64) for _ in range(2))
        lines = np.empty(room, np.int64)
        count = scan.cut(text, ord(mark), wanted, first_line, starts, ends, lines)
        if count < 1:
            return None
        return cls(data, text, slots, starts[:, :count], ends[:, :count], lines[:count])

    @property
    def count(self) -> int:
        """K."""
        return len(self.lines)

    def has(self, role: str) -> bool:
        """Whether the table has a column for the role."""
        return role in self.slots

    def _column(self, role: str) -> tuple[NDArray[np.uint8], Int64s, Int64s]:
        slot = self.slots[role]
        return self.text, self.starts[slot], self.ends[slot]

    def cell(self, role: str, row: int) -> str:
        """One cell as text."""
        slot = self.slots[role]
        return self.data[self.starts[slot, row] : self.ends[slot, row]].decode()

    def _cells(self, role: str) -> list[str]:
        _, starts, ends = self._column(role)
        pairs = zip(starts.tolist(), ends.tolist(), strict=True)
        return [self.data[start:end].decode() for start, end in pairs]

    def integers(self, role: str) -> Int64s | None:
        """A column of integers, `scan.MISSING` where empty; None where a cell is none."""
        out = np.empty(self.count, np.int64)
        return out if scan.integers(*self._column(role), out) else None

    def optional_integers(self, role: str) -> Float64s | None:
        """The same with NaN where empty."""
        found = self.integers(role)
        return None if found is None else np.where(found == scan.MISSING, np.nan, found)

    def times(self, role: str, dated: bool) -> Any:
        """Dates, or numbers; None where a cell is neither empty nor such."""
        if dated:
            dates = np.empty(self.count, np.int64)
            return dates if scan.dates(*self._column(role), dates) else None
        numbers = np.empty(self.count, np.float64)
        if scan.numbers(*self._column(role), numbers):
            return numbers
        try:
            each = [cells.number(c, "") if c.strip() else np.nan for c in self._cells(role)]
        except RowError:
            return None
        return np.array(each, np.float64)

    def ids(self, role: str, counts: Int64s) -> tuple[Int64s, int, bool] | None:
        """The lists of all rows; fills ``counts`` (K,). None where a cell is no list of ids."""
        if not self.has(role):
            return np.empty(0, np.int64), 0, False
        found = scan.blocks(*self._column(role), counts)
        if found is not None:
            return (*found, False)
        try:
            lists = [cells.blocks(cell, "") for cell in self._cells(role)]
        except RowError:
            return None
        counts[:] = [len(each) for each in lists]
        return cells.pack([each for chain in lists for each in chain])

    def labels(self, role: str) -> tuple[Int32s, list[str]]:
        """Codes (K,), -1 where empty, and names in order of first appearance."""
        codes = np.empty(self.count, np.int32)
        firsts = np.empty(self.count, np.int64)
        table = np.full(1 << (2 * self.count).bit_length(), -1, np.int32)
        found = scan.number_labels(*self._column(role), codes, firsts, table)
        return codes, [self.cell(role, row) for row in firsts[:found].tolist()]
