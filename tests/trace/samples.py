"""One valid sample of every trace format, for the tests that every reader goes through.

A new format adds one `Sample` to `SAMPLES`: two rows or more, how rows become a file, and of
what kind each field is. The broken inputs and the fuzz test take it from there.
"""

from __future__ import annotations

import copy
import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from kvsched.trace.columns import write_columns
from kvsched.trace.load import load_trace

Rows = list[dict[str, Any]]


def json_lines(rows: Rows) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


@dataclass(frozen=True)
class Sample:
    """A valid file of one format."""

    format: str
    rows: Rows
    """At least two, in time order; row N of the file is ``rows[N - 1]``, or ``first_row`` more."""
    fields: dict[str, str] = field(default_factory=dict)
    """Each field's kind: see `test_bad_input.FAULTS`. A field ``a.b`` is ``b`` of object ``a``."""
    render: Callable[[Rows], bytes] = json_lines
    options: dict[str, Any] = field(default_factory=dict)
    """What `load_trace` needs beside the format."""
    optional: frozenset[str] = frozenset()
    """Fields that may be missing or null."""
    first_row: int = 0
    """Rows before the first request, such as a header."""
    text: bool = True
    lines: bool = True
    """Whether a row is a line."""
    cut_shows: bool = True
    """Whether a row that is cut short cannot be a row: JSON ends in a brace, CSV in anything."""
    detected: bool = True
    """Whether the format is told from the content."""
    clock: str = ""
    """Field whose unit is told by its size, if there is one."""

    @property
    def data(self) -> bytes:
        return self.render(self.rows)

    def changed(self, row: int, name: str, value: Any) -> bytes:
        """The file with one field of a row (from 0) set, or removed where ``value`` is ``...``."""
        rows = copy.deepcopy(self.rows)
        holder = rows[row]
        *path, last = name.split(".")
        for step in path:
            holder = holder[step]
        if value is ...:
            del holder[last]
        else:
            holder[last] = value
        return self.render(rows)

    def load(self, path: Path, **more: Any) -> Any:
        return load_trace(path, self.format, **self.options, **more)


MOONCAKE: Rows = [
    {
        "timestamp": 1000 * i,
        "input_length": 600,
        "output_length": 5,
        "hash_ids": [1, i],
        "session_id": "s",
        "turn": i,
        "priority": 0,
        "delay": 2,
        "model": "m",
    }
    for i in range(1, 4)
]
BAILIAN: Rows = [
    {
        "chat_id": i,
        "parent_chat_id": i - 1 if i else -1,
        "timestamp": 10.5 + i,
        "input_length": 40,
        "output_length": 5,
        "type": "text",
        "turn": i + 1,
        "hash_ids": [0, 1, 2 + i],
    }
    for i in range(3)
]
TIMED: Rows = [
    {"timestamp": 0.5 * i, "input_length": 40, "output_length": 5, "hash_ids": [0, 1, i]}
    for i in range(3)
]
LMCACHE: Rows = [
    {
        "timestamp": 1711929600.123 + i,
        "request_id": f"req-{i}",
        "model_name": "m",
        "chunk_size": 256,
        "seq_len": 700,
        "dtypes": ["bfloat16"],
        "shapes": [[2, 32, 256, 128]],
        "chunk_hashes": ["0x" + "ab" * 32, f"0x{i:064x}"],
    }
    for i in range(3)
]
OPENAI: Rows = [
    {
        "custom_id": f"request-{i}",
        "timestamp": 1711929600.5 + i,
        "body": {
            "model": "m",
            "messages": [
                {"role": "system", "content": "You are terse. " * 8},
                {"role": "user", "content": f"Question {i}?"},
            ],
            "user": "u",
        },
        "usage": {"prompt_tokens": 30, "completion_tokens": 4},
    }
    for i in range(3)
]
WEKA: Rows = [
    {"t": i, "in": 130, "out": 3, "hash_ids": [1, i], "type": "n", "model": "m", "think_time": 1}
    for i in range(3)
]


def _weka(rows: Rows) -> bytes:
    session = {"id": "s1", "block_size": 64, "hash_id_scope": "local", "requests": rows}
    return json.dumps(session).encode()


@cache
def _columns_bytes() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "a.jsonl"), Path(folder, "a.kvtrace")
        source.write_bytes(json_lines(MOONCAKE))
        write_columns(load_trace(source, "mooncake"), target)
        return target.read_bytes()


LENGTHS = {
    "timestamp": "time",
    "input_length": "tokens",
    "output_length": "tokens",
    "hash_ids": "ids",
}
SAMPLES = (
    Sample("columns", [], render=lambda _: _columns_bytes(), text=False, lines=False),
    Sample(
        "mooncake",
        MOONCAKE,
        LENGTHS
        | {"session_id": "name", "turn": "count", "priority": "integer", "delay": "seconds"}
        | {"model": "name"},
        optional=frozenset({"session_id", "turn", "priority", "delay", "model"}),
        clock="timestamp",
    ),
    Sample(
        "bailian",
        BAILIAN,
        LENGTHS | {"chat_id": "name", "parent_chat_id": "name", "type": "name", "turn": "count"},
        optional=frozenset({"type", "turn"}),
        clock="timestamp",
    ),
    Sample("vllm-timed", TIMED, LENGTHS, detected=False, clock="timestamp"),
    Sample(
        "lmcache",
        LMCACHE,
        {
            "timestamp": "time or text",
            "model_name": "name",
            "chunk_size": "count",
            "seq_len": "tokens",
            "chunk_hashes": "hashes",
        },
        optional=frozenset({"model_name", "chunk_size"}),
        clock="timestamp",
    ),
    Sample(
        "openai",
        OPENAI,
        {
            "timestamp": "time or text",
            "body": "object",
            "body.messages": "list",
            "body.model": "name",
            "body.user": "name",
            "usage": "object",
            "usage.prompt_tokens": "count",
            "usage.completion_tokens": "count",
        },
        options={"bytes_per_token": 4},
        optional=frozenset(
            {"body.model", "body.user", "usage", "usage.prompt_tokens", "usage.completion_tokens"}
        ),
        clock="timestamp",
    ),
    Sample(
        "weka",
        WEKA,
        {
            "t": "time",
            "in": "tokens",
            "out": "tokens",
            "hash_ids": "ids",
            "type": "name",
            "model": "name",
            "think_time": "seconds",
        },
        render=_weka,
        optional=frozenset({"hash_ids", "type", "model", "think_time"}),
        lines=False,
    ),
)
BY_FORMAT = {sample.format: sample for sample in SAMPLES}
