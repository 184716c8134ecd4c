"""A trace as Mooncake JSONL, for other tools; what the format cannot say is told in notes."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from kvsched.foundation.errors import InputError, UsageError
from kvsched.foundation.files import whole_file
from kvsched.trace import clock
from kvsched.trace.model import Int64s, Trace
from kvsched.trace.mooncake import BLOCK_SIZE
from kvsched.trace.reading import counted

SUFFIX = ".jsonl"
UNCOVERED = ("cut", "fresh")
_LABELS = {"session": "session_id", "tenant": "tenant", "type": "type", "model": "model"}
_ROWS = 4096


def write_mooncake(trace: Trace, path: Path, uncovered: str = "cut") -> tuple[str, ...]:
    """Write ``trace`` as Mooncake JSONL, compressed where ``path`` ends in ``.gz`` or ``.zst``.

    Returns notes: one sentence for each thing that the file does not say as the trace does.

    ``hash_ids`` are the trace's node numbers: one id a prefix, as in Mooncake's release, whatever
    ids the source had. Times are whole milliseconds on the source's clock where that is known,
    else from 0. Session, tenant, type, model, turn, priority and delay are written where a
    request has them, under the names that `mooncake` reads; deadlines have no field.

    The format's ids cover the whole prompt. Of prompt tokens that no block covers, ``"cut"``
    takes them off ``input_length``, so that chains and hits stay as they are; ``"fresh"`` keeps
    the length and gives them ids that never come again, which then take room in a cache.

    O(B). Raises UsageError for blocks of unequal size, for a trace without any blocks where
    ``uncovered`` is ``"cut"``, and where the file cannot be written.
    """
    if uncovered not in UNCOVERED:
        raise UsageError(f"uncovered tokens {uncovered!r}: use {' or '.join(UNCOVERED)}")
    if trace.unequal:
        raise UsageError("blocks have sizes of their own: Mooncake JSONL has one size for all")
    if not trace.references and uncovered == "cut":
        raise UsageError(
            "no request has blocks, and Mooncake's ids cover the prompt: "
            "--uncovered fresh gives every block an id of its own"
        )
    notes: list[str] = []
    times = _times(trace, notes)
    inputs, extra = _covered(trace, uncovered, notes)
    if trace.deadline_s is not None:
        notes.append("deadlines are left out: Mooncake JSONL has no field for them")
    if trace.block_size != BLOCK_SIZE:
        notes.append(
            f"blocks have {trace.block_size} tokens, Mooncake's own {BLOCK_SIZE}: "
            f"read it with --block-size {trace.block_size}"
        )
    with whole_file(path) as stream:
        if path.suffix == ".gz":
            with gzip.GzipFile("", "wb", 6, stream, mtime=0) as packed:
                _write(trace, times, inputs, extra, packed.write)
        elif path.suffix == ".zst":
            import zstandard

            compressor = zstandard.ZstdCompressor(3, write_checksum=True)
            with compressor.stream_writer(stream, closefd=False) as writer:
                _write(trace, times, inputs, extra, writer.write)
        else:
            _write(trace, times, inputs, extra, stream.write)
    return tuple(notes)


def _times(trace: Trace, notes: list[str]) -> Int64s:
    """Milliseconds (R,), whole."""
    exact = trace.time_s * 1e3
    whole = np.rint(exact)
    # A time of whole milliseconds is one in float64 too, but for its last bits.
    rounded = int((np.abs(exact - whole) > 1e-6 * np.maximum(1.0, exact * 1e-6)).sum())
    if rounded:
        requests = counted(rounded, "time was", "times were")
        notes.append(f"{requests} rounded to whole milliseconds")
    first = trace.origin.settings.get("first_timestamp_s")
    start = round(first * 1e3) if isinstance(first, int | float) and first >= 0 else 0
    times: Int64s = whole.astype(np.int64) + start
    try:
        unit, _ = clock.find_unit("", times.astype(np.float64), np.arange(len(times)), None, "ms")
    except InputError:
        unit = ""
    if unit != "ms":
        notes.append("the times do not show their unit: read it with --time-unit ms")
    return times


def _covered(trace: Trace, uncovered: str, notes: list[str]) -> tuple[Int64s, Int64s]:
    """Each request's ``input_length`` (R,), and the ids (R,) to add beyond its chain."""
    missing = trace.input_tokens - trace.chain_tokens
    none = np.zeros(len(trace), np.int64)
    count = int((missing > 0).sum())
    if not count:
        return trace.input_tokens, none
    tokens = f"{int(missing.sum()):,} prompt tokens of {counted(count, 'request', 'requests')}"
    if uncovered == "cut":
        notes.append(f"{tokens} lie in no block and are cut off the prompts")
        return trace.chain_tokens, none
    extra = -(-trace.input_tokens // trace.block_size) - trace.chain_blocks
    added = counted(int(extra.sum()), "id", "ids")
    notes.append(f"{tokens} lie in no block: {added} that never come again stand for them")
    return trace.input_tokens, extra


def _write(
    trace: Trace, times: Int64s, inputs: Int64s, extra: Int64s, write: Callable[[bytes], object]
) -> None:
    encoder = msgspec.json.Encoder()
    for lines in _lines(trace, times, inputs, extra):
        write(encoder.encode_lines(lines))


def _lines(
    trace: Trace, times: Int64s, inputs: Int64s, extra: Int64s
) -> Iterator[list[dict[str, Any]]]:
    """The rows, some thousands at a time."""
    fresh = trace.nodes
    for low in range(0, len(trace), _ROWS):
        high = min(low + _ROWS, len(trace))
        starts = trace.starts[low : high + 1].tolist()
        ids = trace.chains[starts[0] : starts[-1]].tolist()
        rows: list[dict[str, Any]] = []
        columns = zip(
            times[low:high].tolist(),
            inputs[low:high].tolist(),
            trace.output_tokens[low:high].tolist(),
            extra[low:high].tolist(),
            strict=True,
        )
        for place, (timestamp, length, output, more) in enumerate(columns):
            own = ids[starts[place] - starts[0] : starts[place + 1] - starts[0]]
            own += range(fresh, fresh + more)
            fresh += more
            rows.append(
                {
                    "timestamp": timestamp,
                    "input_length": length,
                    "output_length": output,
                    "hash_ids": own,
                }
            )
        _add_optional(trace, low, rows)
        yield rows


def _add_optional(trace: Trace, low: int, rows: list[dict[str, Any]]) -> None:
    """Add to the rows from ``low`` on what else is known of each request."""
    high = low + len(rows)
    for name, field in _LABELS.items():
        labels = getattr(trace, name)
        if labels is not None:
            for row, code in zip(rows, labels.codes[low:high].tolist(), strict=True):
                if code >= 0:
                    row[field] = labels.names[code]
    for name in ("turn", "priority"):
        column = getattr(trace, name)
        if column is not None:
            for row, value in zip(rows, column[low:high].tolist(), strict=True):
                if name == "priority" or value >= 0:
                    row[name] = value
    if trace.delay_s is not None:
        for row, value in zip(rows, trace.delay_s[low:high].tolist(), strict=True):
            if value >= 0:  # not where it is NaN
                row["delay"] = round(value * 1e3, 6)
