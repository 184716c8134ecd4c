"""Azure's LLM inference traces: arrival times and lengths, no block ids.

Fields: ``TIMESTAMP`` (a date with up to 7 decimals; since 2024 with ``+00:00``),
``ContextTokens``, ``GeneratedTokens``. Source: Azure public data set, 2023 (Splitwise, ISCA'24)
and 2024 (DynamoLLM, HPCA'25).
"""

from __future__ import annotations

from kvsched.trace.delimited import header_of, read_table
from kvsched.trace.model import Trace
from kvsched.trace.reading import Format, ReadOptions
from kvsched.trace.roles import fixed_columns
from kvsched.trace.source import Source

COLUMNS = {"time": "TIMESTAMP", "input": "ContextTokens", "output": "GeneratedTokens"}


def read(source: Source, options: ReadOptions) -> Trace:
    """Read an Azure CSV. O(R), as a stream. Raises InputError."""
    table, _ = read_table(
        source, options, lambda header: fixed_columns(source.name, header, COLUMNS, {})
    )
    return table.finish(source.path.name, FORMAT.name, "s")


def sniff(head: bytes) -> bool:
    """Whether the header has Azure's columns."""
    return set(COLUMNS.values()) <= set(header_of(head))


FORMAT = Format(
    name="azure",
    title="Azure LLM inference trace: TIMESTAMP, ContextTokens, GeneratedTokens",
    suffixes=(".csv",),
    sniff=sniff,
    read=read,
    options=frozenset({"time_unit", "block_size", "skip_bad_rows"}),
)
