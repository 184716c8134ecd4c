"""What the readers of tables share: batches of columns, and the trace that they become."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kvsched.foundation.errors import InputError, UsageError
from kvsched.trace import clock, roles
from kvsched.trace.build import build_trace
from kvsched.trace.fields import MOST_TOKENS
from kvsched.trace.fit import BlockFit
from kvsched.trace.ids import CLASH, CLASH_FAULT
from kvsched.trace.model import UNKNOWN, Float64s, Int32s, Int64s, Labels, Origin, Trace
from kvsched.trace.reading import Growing, LabelColumn, ReadOptions, Skipped, counted
from kvsched.trace.scan import MISSING
from kvsched.trace.spool import KeyColumn

BLOCK_SIZE = 512
"""Tokens a block where ids are given and their size is not: Mooncake's."""
TIMING_BLOCK_SIZE = 16
"""Tokens a block of a trace without ids: vLLM's. Nothing is cut by it."""
LEAST = {"turn": 0, "priority": -MOST_TOKENS, "scope": 0}
TEXT_IDS = "block ids that are not 64-bit integers are kept as 64 bits of their BLAKE2b hash"


@dataclass
class Batch:
    """K rows of a table as columns."""

    rows: Int64s
    """(K,) numbers of the rows, for the faults."""
    times: Int64s | Float64s
    """(K,) nanoseconds since 1970 where `dated`, else in the source's unit."""
    dated: bool
    inputs: Int64s
    outputs: Int64s
    counts: Int64s
    """(K,) block ids of each row."""
    keys: Int64s
    """The block ids of all rows."""
    sizes: Int64s | None = None
    """Tokens of each of them, where blocks have sizes of their own."""
    signs: int = 0
    texts: bool = False
    """Whether an id was text."""
    labels: dict[str, tuple[Int32s, Sequence[str]]] = field(default_factory=dict)
    """Codes (K,), -1 for none, and their names in order of first appearance."""
    numbers: dict[str, Float64s] = field(default_factory=dict)
    """Optional numbers, NaN where a row has none."""
    deadlines: Int64s | Float64s | None = None
    """As `times`; `MISSING` or NaN where a row has none."""
    fault: InputError | None = None
    """Why reading stopped after these rows, where it did."""

    def without(self, bad: Int64s) -> Batch:
        """The rows but those at the indices ``bad``."""
        keep = np.ones(len(self.rows), bool)
        keep[bad] = False
        return Batch(
            rows=self.rows[keep],
            times=self.times[keep],
            dated=self.dated,
            inputs=self.inputs[keep],
            outputs=self.outputs[keep],
            counts=self.counts[keep],
            keys=self.keys[np.repeat(keep, self.counts)],
            sizes=None if self.sizes is None else self.sizes[np.repeat(keep, self.counts)],
            signs=self.signs,
            texts=self.texts,
            labels={n: _seen(c[keep], names) for n, (c, names) in self.labels.items()},
            numbers={n: c[keep] for n, c in self.numbers.items()},
            deadlines=None if self.deadlines is None else self.deadlines[keep],
            fault=self.fault,
        )


def _seen(codes: Int32s, names: Sequence[str]) -> tuple[Int32s, Sequence[str]]:
    """Codes and names numbered anew, as the codes that are left first appear."""
    used, first = np.unique(codes[codes >= 0], return_index=True)
    order = used[np.argsort(first)]
    anew = np.full(len(names) + 1, UNKNOWN, np.int32)
    anew[order] = np.arange(len(order))
    return anew[codes], [names[code] for code in order.tolist()]


class Table:
    """The columns of a whole table, filled batch by batch; memory for them only.

    ``found`` has the roles that the table has columns for, with the columns' names.
    """

    def __init__(
        self,
        file: str,
        found: Mapping[str, str],
        options: ReadOptions,
        block_size: int | None = None,
        keep_empty: bool = False,
    ) -> None:
        self.skipped = Skipped(file)
        self._file = file
        self._found = dict(found)
        self._options = options
        self._unequal = "sizes" in found
        if self._unequal and options.block_size is not None:
            raise UsageError("--block-size means nothing for blocks that have sizes of their own")
        known = options.block_size or block_size
        usual = BLOCK_SIZE if "blocks" in found else TIMING_BLOCK_SIZE
        self.block_size = known or usual
        self._fit = BlockFit(self.block_size)
        # Where the size is only assumed, every row must confirm it.
        self._strict = known is None
        self._misfit: tuple[int, str] | None = None
        self._keep_empty = keep_empty
        self._beyond = 0
        self.cut_short = False
        """Whether the last line has no newline."""
        self.without_output = 0
        """Rows added that have no output tokens."""
        self._dated: bool | None = None
        self._signs = 0
        self._texts = False
        self._rows, self._inputs, self._outputs, self._counts = (
            Growing(np.int64) for _ in range(4)
        )
        self._keys = KeyColumn(options.sampling)
        self._sizes = Growing(np.int32)
        self._times: Growing[Any] = Growing(np.float64)
        self._deadlines: Growing[Any] = Growing(np.float64)
        self._labels = {name: LabelColumn() for name in roles.LABELS if name in found}
        self._numbers = {
            name: Growing(np.float64) for name in (*roles.INTEGERS, "delay") if name in found
        }

    @property
    def skipping(self) -> Skipped | None:
        """Where bad rows are counted, or None where the first one stops."""
        return self.skipped if self._options.skip_bad_rows else None

    def add(self, batch: Batch) -> None:
        """Append a batch. Raises InputError at its fault, or where a row does not fit its ids."""
        batch = self._fitting(batch)
        if self._misfit is not None and batch.fault is not None:
            raise InputError(self._file, self._misfit[1], self._misfit[0])
        if batch.fault is not None:
            raise batch.fault
        if self._misfit is not None or not len(batch.rows):
            return
        if self._dated is None and batch.dated:
            self._times, self._deadlines = Growing(np.int64), Growing(np.int64)
        self._dated = batch.dated
        self._rows.extend(batch.rows)
        self._times.extend(batch.times)
        self._inputs.extend(batch.inputs)
        self._outputs.extend(batch.outputs)
        self.without_output += int((batch.outputs == 0).sum())
        self._counts.extend(batch.counts)
        self._keys.extend(batch.keys)
        if batch.sizes is not None:
            self._sizes.extend(batch.sizes)
        self._signs |= batch.signs
        self._texts |= batch.texts
        for name, labels in self._labels.items():
            labels.extend_coded(*batch.labels[name])
        for name, numbers in self._numbers.items():
            numbers.extend(batch.numbers[name])
        if batch.deadlines is not None:
            self._deadlines.extend(batch.deadlines)

    def _fitting(self, batch: Batch) -> Batch:
        """The rows whose prompts reach into their last block (and no farther, if `_strict`)."""
        if "blocks" not in self._found:
            return batch
        if batch.sizes is not None:
            covered = np.zeros(len(batch.keys) + 1, np.int64)
            np.cumsum(batch.sizes, out=covered[1:])
            ends = np.cumsum(batch.counts)
            bad = np.flatnonzero(covered[ends] - covered[ends - batch.counts] > batch.inputs)
        elif self._strict:
            bad = self._fit.bad(batch.inputs, batch.counts)
        else:
            reach = (batch.counts - 1) * self.block_size >= batch.inputs
            bad = np.flatnonzero(reach & (batch.counts > 0))
            if self._options.block_size is not None:
                self._beyond += int((batch.counts * self.block_size < batch.inputs).sum())
        if not len(bad):
            return batch
        row = int(batch.rows[bad[0]])
        tokens, count = int(batch.inputs[bad[0]]), int(batch.counts[bad[0]])
        fault = self._fit.fault(tokens, count)
        if batch.sizes is not None:
            fault = f"fewer tokens than the blocks hold: {tokens}"
        if self._options.skip_bad_rows:
            self.skipped.add(row, fault, count=len(bad))
            return batch.without(bad)
        if self._misfit is None:
            self._misfit = row, fault
        return batch

    def finish(
        self,
        source: str,
        format: str,
        usual_unit: str | None,
        notes: tuple[str, ...] = (),
        settings: Mapping[str, Any] | None = None,
        orders: Mapping[str, Sequence[str]] | None = None,
    ) -> Trace:
        """Build the trace; the object is spent.

        ``usual_unit`` is the unit of timestamps that do not say theirs by size or name, None
        where it can only be assumed. ``notes`` and ``settings`` go to the origin. ``orders``
        fixes the names of labels and their order. Raises InputError where no row is left, or a
        row did not fit.
        """
        if self._misfit is not None:
            hint = self._fit.suggestion() or " (--block-size says what a block holds)"
            hint = hint if self._strict and not self._unequal else ""
            raise InputError(self._file, self._misfit[1] + hint, self._misfit[0])
        if not len(self._rows):
            raise self.skipped.nothing_left()
        if self._signs == CLASH:
            raise InputError(self._file, CLASH_FAULT)
        time_s, first_s, unit, unit_notes, deadline_s = self._clock(usual_unit)
        starts = np.zeros(len(time_s) + 1, np.int64)
        np.cumsum(self._counts.finish(), out=starts[1:])
        found = {name: column.finish() for name, column in self._labels.items()}
        for name, order in (orders or {}).items():
            found[name] = _ordered(found[name], order, len(time_s))
        numbers = {name: column.finish() for name, column in self._numbers.items()}
        kept = {"first_timestamp_s": first_s, **(settings or {})}
        if self._options.columns is not None:
            kept["columns"] = self._found
        told = (*unit_notes, *notes, *self._notes(), *self.skipped.notes())
        return build_trace(
            time_s=time_s,
            input_tokens=self._inputs.finish(),
            output_tokens=self._outputs.finish(),
            starts=starts,
            keys=self._keys.finish(),
            block_size=0 if self._unequal else self.block_size,
            sizes=self._sizes.finish() if self._unequal else None,
            origin=Origin(source, format, unit, tuple(dict.fromkeys(told)), kept),
            scope=_integers(numbers.get("scope"), 0, always=True),
            tenant=found.get("tenant"),
            session=found.get("session"),
            type=found.get("type"),
            model=found.get("model"),
            turn=_integers(numbers.get("turn"), UNKNOWN, self._keep_empty),
            priority=_integers(numbers.get("priority"), 0, self._keep_empty),
            deadline_s=self._if_any(deadline_s),
            delay_s=self._if_any(self._delay_s(numbers.get("delay"), unit)),
            sampling=self._options.sampling,
        )

    def _notes(self) -> tuple[str, ...]:
        notes: tuple[str, ...] = ()
        if "blocks" not in self._found:
            notes += ("no block ids: arrival times and lengths only, nothing can be cached",)
        if self._beyond:
            rows = counted(self._beyond, "prompt has", "prompts have")
            notes += (f"{rows} tokens after the blocks of {self.block_size}; no block covers them",)
        if self._texts:
            notes += (TEXT_IDS,)
        if self.cut_short:
            notes += ("the last line has no newline: it may be cut short",)
        return notes

    def _clock(
        self, usual: str | None
    ) -> tuple[Float64s, float, str, tuple[str, ...], Float64s | None]:
        """Seconds from the earliest time, that one, the unit, its notes, and the deadlines."""
        given = self._options.time_unit
        times, deadlines = self._times.finish(), self._deadlines.finish()
        if self._dated:
            if given is not None:
                raise UsageError("--time-unit means nothing for timestamps that are dates")
            # In integers: a double holds the date of a nanosecond to a quarter of a microsecond.
            first = int(times.min())
            late = None
            if "deadline" in self._found:
                late = np.where(deadlines == MISSING, np.nan, (deadlines - first) / 1e9)
            first_s = first // 10**9 + first % 10**9 / 1e9
            return (times - first) / 1e9, first_s, "ns", ("timestamps are dates",), late
        named = roles.unit_of_name(self._found["time"])
        unit, notes = clock.find_unit(
            self._file, times, self._rows.finish(), given or named, usual or "s"
        )
        if given is None and named is None and usual is None and not notes:
            notes = (f"timestamps are read as {unit} (--time-unit reads them otherwise)",)
        time_s, first_s = clock.seconds(times, unit)
        if "deadline" not in self._found:
            return time_s, first_s, unit, notes, None
        own = roles.unit_of_name(self._found["deadline"]) or unit
        return time_s, first_s, unit, notes, deadlines / clock.UNITS[own] - first_s

    def _delay_s(self, delay: Float64s | None, unit: str) -> Float64s | None:
        if delay is None:
            return None
        own = roles.unit_of_name(self._found["delay"]) or ("s" if self._dated else unit)
        return delay / clock.UNITS[own]

    def _if_any(self, column: Float64s | None) -> Float64s | None:
        """The column, or None where no row has a value and the table does not say more."""
        if column is None or (np.isnan(column).all() and not self._keep_empty):
            return None
        return column


def _ordered(labels: Labels | None, names: Sequence[str], count: int) -> Labels:
    """The labels (of ``count`` requests) with these names in this order."""
    if labels is None:
        return Labels(np.full(count, UNKNOWN, np.int32), tuple(names))
    place = {name: code for code, name in enumerate(names)}
    codes = [place[name] for name in labels.names]
    return Labels(np.array([*codes, UNKNOWN], np.int32)[labels.codes], tuple(names))


def _integers(column: Float64s | None, missing: int, always: bool) -> Any:
    if column is None or (np.isnan(column).all() and not always):
        return None
    return np.nan_to_num(column, nan=missing).astype(np.int32)
