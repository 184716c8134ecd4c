"""A damaged file of raw columns is told before anything uses an index from it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvsched.foundation.errors import InputError, UsageError
from kvsched.trace.columns import write_columns
from kvsched.trace.load import load_trace


def message(path: Path) -> str:
    with pytest.raises(InputError) as caught:
        load_trace(path)
    return str(caught.value)


def damaged(path: Path, name: str, index: int, value: int) -> None:
    """Overwrite one entry of a column in a file of raw columns."""
    data = bytearray(path.read_bytes())
    length = int.from_bytes(data[12:16], "little")
    header = json.loads(data[20 : 20 + length])
    column = next(c for c in header["columns"] if c["name"] == name)
    at = 20 + length + column["offset"]
    size = int(column["dtype"][-1])
    if index < 0:
        index += column["length"]
    data[at + index * size : at + (index + 1) * size] = value.to_bytes(size, "little", signed=True)
    path.write_bytes(data)


DAMAGE = {
    "chains past the end": ("chains", 1, 99, "a chain names a node that does not exist"),
    "negative chains": ("chains", 1, -1, "a chain names a node that does not exist"),
    "another path": ("chains", 1, 0, "a chain is not a path from a root"),
    "a parent above": ("parent", 0, 2, "a parent is not below its child"),
    "parent past the end": ("parent", 2, 99, "a parent is not below its child"),
    "depth": ("depth", 1, 5, "a depth is not its parent's plus 1"),
    "starts": ("starts", 1, 99, "starts do not run from 0 to the number of references"),
    "last start": ("starts", -1, 3, "starts do not run from 0 to the number of references"),
    "tokens": ("tokens", 0, 0, "tokens of a node are out of range"),
    "input": ("input_tokens", 0, -5, "input_tokens are out of range"),
    "short input": ("input_tokens", 0, 5, "a request has fewer tokens than its chain needs"),
    "output": ("output_tokens", 0, -5, "output_tokens are out of range"),
    "time": ("time_s", 0, 2**62, "time_s does not ascend from 0"),
    "labels": ("session.codes", 0, 1, "session codes are out of range"),
}


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    source = tmp_path / "trace.jsonl"
    row = {"timestamp": 0, "input_length": 600, "output_length": 5}
    rows = [{**row, "hash_ids": [1, 2]}, {**row, "hash_ids": [1, 3], "session_id": "a"}]
    rows[1]["timestamp"] = 3000
    source.write_text("\n".join(map(json.dumps, rows)))
    path = tmp_path / "trace.kvtrace"
    write_columns(load_trace(source), path)
    return path


@pytest.mark.parametrize("name", DAMAGE)
def test_damaged_columns(name: str, raw: Path) -> None:
    load_trace(raw)
    column, index, value, expected = DAMAGE[name]
    damaged(raw, column, index, value)
    assert message(raw) == f"{raw}: damaged: {expected}"


def test_damaged_raw_files(raw: Path) -> None:
    data = raw.read_bytes()
    raw.write_bytes(data[:-100])
    assert message(raw) == f"{raw}: cut short: 100 bytes of the columns are missing"
    raw.write_bytes(data[:100])
    assert message(raw) == f"{raw}: cut short: the header is not whole"
    raw.write_bytes(data[:10])
    assert message(raw) == f"{raw}: not a kvsched trace: it does not start as one"
    raw.write_bytes(data + b"\0")
    assert message(raw) == f"{raw}: damaged: it goes on after the columns"
    raw.write_bytes(data[:8] + b"\x63" + data[9:])
    assert message(raw) == f"{raw}: version 99 of the raw columns; this kvsched reads 1"
    raw.write_bytes(data[:40] + b"\xff" + data[41:])
    assert message(raw) == f"{raw}: damaged: the header is not as it was written"


def test_errors_leave_nothing_behind(raw: Path, tmp_path: Path) -> None:
    before = sorted(tmp_path.iterdir())
    trace = load_trace(raw)
    with pytest.raises(UsageError):
        write_columns(trace, tmp_path / "no such folder" / "x.kvtrace")
    with pytest.raises(InputError):
        load_trace(tmp_path / "trace.json")
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("name", ["key", "time_s", "input_tokens", "output_tokens"])
def test_a_flipped_bit_that_still_makes_a_trace_is_told(raw: Path, name: str) -> None:
    values = {"key": 7, "time_s": 0, "input_tokens": 601, "output_tokens": 6}
    damaged(raw, name, 1, values[name])
    assert message(raw) == f"{raw}: damaged: {name} is not as it was written"
