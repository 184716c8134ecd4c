"""Alibaba Bailian's anonymous Qwen traces: JSON lines, one id per 16 tokens of the prompt.

Fields: ``chat_id``, ``parent_chat_id`` (-1 at a session's root), ``timestamp`` (s from the
trace's start), ``input_length``, ``output_length``, ``hash_ids`` (the last one partial);
``type`` (text, search, image, file, thinking, …) and ``turn``. Others are ignored.

An id is the salted hash of one block's 16 tokens, numbered: it names content, not a prefix, so
the same id after another block is another node. A session is named by its root's ``chat_id``.
Source: qwen-bailian-usagetraces-anon (Apache-2.0), of "KVCache Cache in the Wild", ATC'25.
"""

from __future__ import annotations

import numpy as np

from kvsched.foundation.errors import InputError
from kvsched.trace.build import build_trace
from kvsched.trace.model import Int64s, Labels, Trace
from kvsched.trace.reading import Format, LabelColumn, ReadOptions, counted
from kvsched.trace.rows import TURN, Shape, read_table
from kvsched.trace.source import Source

BLOCK_SIZE = 16
ROOT = "-1"
SHAPE = Shape(names=("chat_id", "parent_chat_id"), labels=("type",), numbers={"turn": TURN})
_UNKNOWN, _OPEN = -1, -2


def read(source: Source, options: ReadOptions) -> Trace:
    """Read a Bailian trace. O(B), as a stream: memory for the columns only. Raises InputError."""
    block_size = options.block_size or BLOCK_SIZE
    table = read_table(
        source,
        options,
        shape=SHAPE,
        format=FORMAT.name,
        time_unit="s",
        block_size=block_size,
    )
    session, notes = _sessions(
        source.name, table.named("chat_id"), table.named("parent_chat_id"), table.lines
    )
    return build_trace(
        time_s=table.time_s,
        input_tokens=table.inputs,
        output_tokens=table.outputs,
        starts=table.starts,
        keys=table.keys,
        block_size=block_size,
        origin=table.origin.noting(*notes),
        session=session,
        type=table.labels["type"],
        turn=table.whole("turn"),
        sampling=options.sampling,
    )


def _sessions(
    file: str, chats: Labels, parents: Labels, lines: Int64s
) -> tuple[Labels | None, list[str]]:
    """Name each row's session by the chat at the root of its chain of parents. O(R).

    A parent that is not in the file (the trace may begin within a session) is its root.
    Raises InputError where a chain of parents has no end.
    """
    count = len(chats.codes)
    first: dict[str, int] = {}
    for row, code in enumerate(chats.codes.tolist()):
        first.setdefault(chats.names[code], row)
    above = [parents.names[code] for code in parents.codes.tolist()]
    root = np.full(count, _UNKNOWN, np.int64)
    absent: set[int] = set()
    names: list[str] = [""] * count
    for row in range(count):
        path = []
        at = row
        while root[at] == _UNKNOWN:
            root[at] = _OPEN
            path.append(at)
            parent = above[at]
            if parent == ROOT:
                names[at] = chats.names[chats.codes[at]]
                root[at] = at
            elif parent not in first:
                names[at] = parent
                root[at] = at
                absent.add(at)
            else:
                at = first[parent]
        if root[at] == _OPEN:
            raise InputError(
                file, '"parent_chat_id" leads back to the same chat', int(lines[path[0]])
            )
        root[path] = root[at]
    column = LabelColumn()
    column.extend((names[at] for at in root.tolist()), count)
    notes = []
    if absent:
        rows = counted(len(absent), "row has a parent", "rows have parents")
        notes.append(f"{rows} outside the trace, whose id names the session")
    if len(first) < count:
        rows = counted(count - len(first), "row has", "rows have")
        notes.append(f"{rows} the chat_id of an earlier row; later turns follow the earlier one")
    return column.finish(), notes


def sniff(head: bytes) -> bool:
    """Whether it looks like JSON rows of block ids with chats and their parents."""
    return head.lstrip()[:1] == b"{" and b'"parent_chat_id"' in head and b'"hash_ids"' in head


FORMAT = Format(
    name="bailian",
    title="Bailian (Qwen) JSONL: chat_id, parent_chat_id, timestamp, lengths, hash_ids",
    suffixes=(".jsonl",),
    sniff=sniff,
    read=read,
    options=frozenset({"time_unit", "block_size", "skip_bad_rows"}),
)
