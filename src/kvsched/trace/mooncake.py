"""Mooncake JSONL: one request a line, one id per block of the prompt, the last one partial.

Fields: ``timestamp`` (ms), ``input_length``, ``output_length``, ``hash_ids``; optional
``session_id``, ``tenant`` or ``user_id``, ``model``, ``type``, ``turn``, ``priority``, ``delay``
(in the timestamps' unit). Others are ignored. Source: Mooncake, FAST'25 release.
"""

from __future__ import annotations

from kvsched.trace import clock
from kvsched.trace.build import build_trace
from kvsched.trace.model import Trace
from kvsched.trace.reading import Format, ReadOptions
from kvsched.trace.rows import DELAY, FIELDS, PRIORITY, TURN, Shape, read_table
from kvsched.trace.source import Source

BLOCK_SIZE = 512
SHAPE = Shape(
    labels=("session_id", "tenant", "user_id", "model", "type"),
    numbers={"turn": TURN, "priority": PRIORITY, "delay": DELAY},
)


def read(source: Source, options: ReadOptions) -> Trace:
    """Read Mooncake JSONL. O(B), as a stream: memory for the columns only. Raises InputError."""
    block_size = options.block_size or BLOCK_SIZE
    table = read_table(
        source,
        options,
        shape=SHAPE,
        format=FORMAT.name,
        time_unit="ms",
        block_size=block_size,
    )
    delay = table.numbers["delay"]
    return build_trace(
        time_s=table.time_s,
        input_tokens=table.inputs,
        output_tokens=table.outputs,
        starts=table.starts,
        keys=table.keys,
        block_size=block_size,
        origin=table.origin,
        tenant=table.labels["tenant"] or table.labels["user_id"],
        session=table.labels["session_id"],
        type=table.labels["type"],
        model=table.labels["model"],
        turn=table.whole("turn"),
        priority=table.whole("priority", missing=0),
        delay_s=None if delay is None else delay / clock.UNITS[table.origin.time_unit],
        sampling=options.sampling,
    )


def sniff(head: bytes) -> bool:
    """Whether it looks like JSON rows with one of Mooncake's fields."""
    return head.lstrip()[:1] == b"{" and any(f'"{name}"'.encode() in head for name in FIELDS)


FORMAT = Format(
    name="mooncake",
    title="Mooncake JSONL: timestamp, input_length, output_length, hash_ids",
    suffixes=(".jsonl",),
    sniff=sniff,
    read=read,
    options=frozenset({"time_unit", "block_size", "skip_bad_rows"}),
)
