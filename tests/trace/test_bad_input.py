"""Every kind of bad input is one line that names the file, the row and the fault."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
import zstandard

from kvsched.foundation.errors import KvschedError, UsageError
from kvsched.trace.formats import known_names
from kvsched.trace.load import load_trace

GOOD = b'{"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [1, 2]}\n'


def row(**changes: object) -> bytes:
    fields = {"timestamp": 3000, "input_length": 600, "output_length": 5, "hash_ids": [1, 3]}
    fields.update(changes)
    return json.dumps({k: v for k, v in fields.items() if v is not ...}).encode() + b"\n"


# What stands in the file, and the message after its name.
BAD_FILES: dict[str, tuple[bytes, str]] = {
    "empty": (b"", ": the file is empty"),
    "blank": (b"\n \r\n", ": the file is empty"),
    "truncated last line": (
        GOOD + row()[:40],
        ", row 2: the last line is cut short: no whole JSON object, and no newline",
    ),
    "broken line": (GOOD + b'{"timestamp": 0,, }\n' + GOOD, ", row 2: not valid JSON (column 17)"),
    "not an object": (GOOD + b"[1, 2]\n", ", row 2: must be a JSON object, not a list"),
    "null": (GOOD + b"null\n", ", row 2: must be a JSON object, not null"),
    "ids are no list": (
        GOOD + row(hash_ids={"a": 1}),
        ', row 2: "hash_ids" must be a list, not an object',
    ),
    "id is a string": (
        GOOD + row(hash_ids=[1, "x"]),
        ', row 2: "hash_ids"[1] must be an integer, not a string',
    ),
    "id is a fraction": (
        GOOD + row(hash_ids=[1, 2.0]),
        ', row 2: "hash_ids"[1] must be an integer, not 2.0',
    ),
    "string for a number": (
        GOOD + row(timestamp="3000"),
        ', row 2: "timestamp" must be a number, not a string',
    ),
    "string for a length": (
        GOOD + row(input_length="600"),
        ', row 2: "input_length" must be an integer, not a string',
    ),
    "true for a number": (
        GOOD + row(timestamp=True),
        ', row 2: "timestamp" must be a number, not true',
    ),
    "true for a length": (
        GOOD + row(output_length=True),
        ', row 2: "output_length" must be an integer, not true',
    ),
    "true for an id": (
        GOOD + row(hash_ids=[True, 2]),
        ', row 2: "hash_ids"[0] must be an integer, not true',
    ),
    "fraction for a length": (
        GOOD + row(output_length=1.5),
        ', row 2: "output_length" must be an integer, not 1.5',
    ),
    "negative input": (
        GOOD + row(input_length=-600),
        ', row 2: "input_length" must not be negative: -600',
    ),
    "negative output": (
        GOOD + row(output_length=-1),
        ', row 2: "output_length" must not be negative: -1',
    ),
    "huge input": (
        GOOD + row(input_length=3_000_000_000),
        ', row 2: "input_length" is out of range: 3000000000 (at most 2147483647)',
    ),
    "absurd input": (
        GOOD + row(input_length=10**60),
        ', row 2: "input_length" is out of range: '
        "100000000000000000000000000000000000 ... (at most 2147483647)",
    ),
    "more tokens than ids": (
        GOOD + row(input_length=1025),
        ", row 2: more tokens than the ids can hold: 1025, but 2 ids of 512 tokens hold 1024",
    ),
    "another block size": (
        row(input_length=2040) + row(input_length=1800),
        ", row 1: more tokens than the ids can hold: 2040, but 2 ids of 512 tokens hold 1024"
        "; a block size of 1024 fits every row (--block-size 1024)",
    ),
    "tokens without ids": (
        GOOD + row(hash_ids=[]),
        ", row 2: more tokens than the ids can hold: 600, but there are no ids",
    ),
    "fewer tokens than ids": (
        GOOD + row(input_length=512),
        ", row 2: fewer tokens than the ids need: 512, but 2 ids of 512 need 513",
    ),
    "missing timestamp": (GOOD + row(timestamp=...), ', row 2: "timestamp" is missing'),
    "missing input": (GOOD + row(input_length=...), ', row 2: "input_length" is missing'),
    "missing output": (GOOD + row(output_length=...), ', row 2: "output_length" is missing'),
    "missing ids": (GOOD + row(hash_ids=...), ', row 2: "hash_ids" is missing'),
    "mixed dates": (
        row(timestamp=1_700_000_000) + GOOD.replace(b": 0", b": 1700000000123"),
        ", row 2: mixed units of time: 1700000000123 looks like ms since 1970, "
        "1700000000 in row 1 like s since 1970 (--time-unit reads them as they are)",
    ),
    "a date among counts": (
        GOOD + row() + row(timestamp=1_700_000_000),
        ", row 3: mixed units of time: 1700000000 looks like s since 1970, "
        "0 in row 1 like a count from 0 (--time-unit reads them as they are)",
    ),
    "mixed counts": (
        b"".join(row(timestamp=t) for t in (1000, 2000, 3, 4000, 5, 6000)),
        ", row 3: mixed units of time: rows out of order fall into order when 3 is multiplied "
        "by 1000 (--time-unit reads them as they are)",
    ),
    "binary": (
        b"\x7fELF\x00\x01\x02\x00" * 20,
        f": binary data, in none of the formats known: {known_names()}",
    ),
    "binary row": (GOOD + b"\x00\x01\x02\n" + GOOD, ", row 2: not valid JSON (column 1)"),
    "text": (
        b"neither,of,them\n1,2,3\n",
        f": its content is in none of the formats known: {known_names()} "
        "(--format names one; --columns time=NAME,input=NAME,… names the columns of a table)",
    ),
    "invalid UTF-8": (
        GOOD + row(session_id="xx").replace(b"xx", b"\xff\xfe"),
        ", row 2: not valid UTF-8 (byte 97)",
    ),
    "half a character": (
        GOOD + row(session_id="\ud800"),
        ', row 2: "session_id" is not valid Unicode (half of a surrogate pair)',
    ),
    "id above 64 bits": (
        GOOD + row(hash_ids=[1, 2**64]),
        ', row 2: "hash_ids"[1] does not fit in 64 bits: 18446744073709551616',
    ),
    "id below 64 bits": (
        GOOD + row(hash_ids=[-(2**63) - 1, 2]),
        ', row 2: "hash_ids"[0] does not fit in 64 bits: -9223372036854775809',
    ),
    "signed and unsigned ids": (
        GOOD + row(hash_ids=[-1, 2**64 - 1]),
        ", row 2: block ids are both negative and above 2^63: they would meet",
    ),
    "NaN": (
        GOOD + row(timestamp=float("nan")),
        ', row 2: "timestamp" must be a finite number: it is NaN',
    ),
    "Infinity": (
        GOOD + row(timestamp=float("inf")),
        ', row 2: "timestamp" must be a finite number: it is infinite',
    ),
    "overflowing float": (
        GOOD + row().replace(b"3000", b"1e999"),
        ', row 2: "timestamp" must be a finite number: it is infinite',
    ),
    "far time": (GOOD + row(timestamp=1e30), ', row 2: "timestamp" is out of range: 1e+30'),
    "digits without end": (
        GOOD + row().replace(b"3000", b"1" * 9000),
        ", row 2: a number has too many digits",
    ),
    "deep": (GOOD + b'{"timestamp": ' + b"[" * 200_000 + b"\n", ", row 2: nested too deeply"),
    "negative delay": (GOOD + row(delay=-1), ', row 2: "delay" must not be negative: -1'),
    "priority": (GOOD + row(priority=2**40), ', row 2: "priority" is out of range: 1099511627776'),
    "session": (
        GOOD + row(session_id=["a"]),
        ', row 2: "session_id" must be a string, not a list',
    ),
}


def message(path: Path, **options: object) -> str:
    with pytest.raises(KvschedError) as caught:
        load_trace(path, **options)
    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("name", BAD_FILES)
def test_exact_message(name: str, tmp_path: Path) -> None:
    content, expected = BAD_FILES[name]
    path = tmp_path / "trace.jsonl"
    path.write_bytes(content)
    assert message(path) == f"{path}{expected}"


@pytest.mark.parametrize("name", ["broken line", "string for a number", "more tokens than ids"])
def test_skipped_rows_are_counted_and_told(name: str, tmp_path: Path) -> None:
    content, expected = BAD_FILES[name]
    path = tmp_path / "trace.jsonl"
    path.write_bytes(content + row(hash_ids=[7]) + row(hash_ids=[7, 8]))
    trace = load_trace(path, skip_bad_rows=True)
    assert len(trace) == content.count(b"\n")
    fault = expected.removeprefix(", ")
    if name == "more tokens than ids":
        fault = fault.removesuffix(" hold 1024") + " hold 1024"
    first = "row 2: more" if name.startswith("more") else fault
    (note,) = trace.origin.notes
    assert note.startswith(f"2 bad rows were left out; the first: trace.jsonl, {first}")


def test_nothing_left(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_bytes(row(timestamp="x") * 3)
    assert message(path, skip_bad_rows=True) == (
        f'{path}: all 3 rows are bad; the first: row 1: "timestamp" must be a number, not a string'
    )


def test_the_first_of_two_faults_is_told(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_bytes(GOOD + row(input_length=9999) + b"broken\n")
    assert message(path).startswith(f"{path}, row 2: more tokens than the ids can hold: 9999")


def test_rows_out_of_order_are_sorted_and_said(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_bytes(row(timestamp=5000) + row(timestamp=2000, output_length=7) + row())
    trace = load_trace(path)
    assert trace.time_s.tolist() == [0.0, 1.0, 3.0]
    assert trace.output_tokens.tolist() == [7, 5, 5]
    assert trace.origin.notes == ("2 rows were out of time order and sorted",)
    assert trace.origin.settings["first_timestamp_s"] == 2.0


def test_missing_file(tmp_path: Path) -> None:
    path = tmp_path / "none.jsonl"
    assert message(path) == f"{path}: no such file"


def test_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "secret.jsonl"
    path.write_bytes(GOOD)

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    assert message(path) == f"{path}: permission denied"


def test_a_folder_without_traces(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("nothing")
    assert message(tmp_path) == (
        f"{tmp_path}: no session files in the folder (.json, .json.gz, .json.zst)"
    )


def test_a_folder_for_a_reader_of_files(tmp_path: Path) -> None:
    assert message(tmp_path, format="mooncake") == (
        f"{tmp_path}: is a folder; the mooncake reader reads one file"
    )


def test_wrong_options(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_bytes(GOOD)
    told = message(path, format="floppy")
    assert told == f"trace format 'floppy' is not known: use one of {known_names()}"
    assert message(path, time_unit="min") == ("time unit 'min' is not known: use s, ms, us, ns")
    assert message(path, block_size=0) == "block size 0 is out of range: 1 to 2147483647 tokens"
    assert message(path, session_arrivals="poisson:0") == (
        "session arrivals 'poisson:0' are not known: use zero or poisson:RATE (sessions a second)"
    )
    assert message(path, session_arrivals="poisson:2") == (
        "--session-arrivals means nothing for a trace in the format mooncake"
    )
    with pytest.raises(UsageError):
        load_trace(path, session_arrivals="poisson:nan")


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_damaged_compression(suffix: str, tmp_path: Path) -> None:
    word = {".gz": "gzip", ".zst": "zstd"}[suffix]
    rows = b"".join(
        row(
            timestamp=i, hash_ids=[int(k) for k in np.random.default_rng(i).integers(9**15, size=2)]
        )
        for i in range(3000)
    )
    packed = gzip.compress(rows) if suffix == ".gz" else zstandard.compress(rows)
    path = tmp_path / f"trace.jsonl{suffix}"
    path.write_bytes(packed)
    assert len(load_trace(path)) == 3000
    path.write_bytes(packed + packed)
    assert len(load_trace(path)) == 6000
    path.write_bytes(packed[: len(packed) // 2])
    assert message(path) == f"{path}: the {word} data is cut short"
    path.write_bytes(packed[:-3])
    assert message(path) == f"{path}: the {word} data is cut short"
    path.write_bytes(packed[:2000] + b"\xff" * 2000 + packed[4000:])
    assert message(path).startswith(str(path))
    path.write_bytes(packed[:8] + b"\xff" * 400)
    assert message(path) == f"{path}: the {word} data is damaged"


WEKA = {
    "id": "s1",
    "block_size": 64,
    "hash_id_scope": "local",
    "requests": [{"t": 0.0, "in": 130, "out": 3, "hash_ids": [1, 2], "type": "n", "model": "m"}],
}

BAD_SESSIONS: dict[str, tuple[dict[str, object], dict[str, object], str]] = {
    "no id": ({"id": ...}, {}, ': "id" is missing'),
    "null id": ({"id": None}, {}, ': "id" must be a string, not null'),
    "no block size": ({"block_size": ...}, {}, ': "block_size" is missing'),
    "block size": ({"block_size": 0}, {}, ': "block_size" is out of range: 0'),
    "scope": ({"hash_id_scope": 3}, {}, ': "hash_id_scope" must be "local" or "global"'),
    "no requests": ({"requests": ...}, {}, ': "requests" is missing'),
    "requests": ({"requests": {}}, {}, ': "requests" must be a list, not an object'),
    "none": ({"requests": []}, {}, ": no request in it"),
    "a request": ({"requests": [3]}, {}, ", row 1: must be a JSON object, not a number"),
    "no t": ({}, {"t": ...}, ', row 1: "t" is missing'),
    "string": ({}, {"in": "130"}, ', row 1: "in" must be an integer, not a string'),
    "negative": ({}, {"out": -1}, ', row 1: "out" must not be negative: -1'),
    "NaN": ({}, {"t": float("nan")}, ', row 1: "t" must be a finite number: it is NaN'),
    "nested": ({}, {"requests": 4}, ', row 1: "requests" must be a list, not a number'),
    "id": (
        {},
        {"hash_ids": [2**70]},
        ', row 1: "hash_ids"[0] does not fit in 64 bits: 1180591620717411303424',
    ),
}


@pytest.mark.parametrize("name", BAD_SESSIONS)
def test_bad_session(name: str, tmp_path: Path) -> None:
    changes, changed_row, expected = BAD_SESSIONS[name]
    request = {**WEKA["requests"][0], **changed_row}
    session = {**WEKA, "requests": [{k: v for k, v in request.items() if v is not ...}], **changes}
    path = tmp_path / "s.json"
    path.write_text(json.dumps({k: v for k, v in session.items() if v is not ...}))
    assert message(path) == f"{path}{expected}"
    assert message(tmp_path).startswith(str(tmp_path if name == "none" else path))


def test_broken_session_files(tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    text = json.dumps(WEKA)
    path.write_text(text[:-9])
    assert message(path) == f"{path}: not valid JSON (column 136)"
    path.write_text("")
    assert message(tmp_path) == f"{path}: the file is empty"
    path.write_text(text)
    other = {**WEKA, "block_size": 128}
    (tmp_path / "t.json").write_text(json.dumps(other))
    assert message(tmp_path) == (
        f'{tmp_path / "t.json"}: "block_size" is 128, the other sessions have 64'
    )
    assert message(path, block_size=16) == f'{path}: "block_size" is 64, --block-size is 16'


def test_bad_session_rows_are_counted(tmp_path: Path) -> None:
    good = WEKA["requests"][0]
    session = {**WEKA, "requests": [good, {**good, "in": -3}, {**good, "t": 2}]}
    path = tmp_path / "s.json"
    path.write_text(json.dumps(session))
    trace = load_trace(tmp_path, skip_bad_rows=True)
    assert len(trace) == 2
    assert trace.origin.notes == (
        '1 bad row was left out; the first: s.json, row 2: "in" must not be negative: -3',
    )
