"""BurstGPT: arrival times and lengths of a university's ChatGPT and GPT-4 calls, no block ids.

Fields: ``Timestamp`` (s), ``Model``, ``Request tokens``, ``Response tokens`` (0 where the call
failed), ``Total tokens``, ``Log Type``; in the newer files also ``Session ID`` and
``Elapsed time``. Source: BurstGPT (HPMLL), releases 1.1 to 2.0.
"""

from __future__ import annotations

from kvsched.trace.delimited import header_of, read_table
from kvsched.trace.model import Trace
from kvsched.trace.reading import Format, ReadOptions, counted
from kvsched.trace.roles import fixed_columns
from kvsched.trace.source import Source

COLUMNS = {"time": "Timestamp", "input": "Request tokens", "output": "Response tokens"}
OPTIONAL = {"model": "Model", "type": "Log Type", "session": "Session ID"}


def read(source: Source, options: ReadOptions) -> Trace:
    """Read a BurstGPT CSV. O(R), as a stream. Raises InputError."""
    table, _ = read_table(
        source, options, lambda header: fixed_columns(source.name, header, COLUMNS, OPTIONAL)
    )
    failed = table.without_output
    notes: tuple[str, ...] = ()
    if failed:
        notes = (f"{counted(failed, 'call', 'calls')} without response tokens (failed) kept",)
    return table.finish(source.path.name, FORMAT.name, "s", notes)


def sniff(head: bytes) -> bool:
    """Whether the header has BurstGPT's columns."""
    return set(COLUMNS.values()) <= set(header_of(head))


FORMAT = Format(
    name="burstgpt",
    title="BurstGPT CSV: Timestamp, Model, Request tokens, Response tokens",
    suffixes=(".csv",),
    sniff=sniff,
    read=read,
    options=frozenset({"time_unit", "block_size", "skip_bad_rows"}),
)
