"""Text tables that are bad: one line with file, row, column and fault."""

from __future__ import annotations

from pathlib import Path

import pytest
from table_samples import (
    AZURE_2023,
    CSV,
    load,
    told,
)

from kvsched.foundation.jit import compilation_enabled

HEAD = b"timestamp,input_length,output_length,hash_ids,session_id,turn\n"
GOOD = b'1000,600,5,"[1, 2]",a,1\n'
BAD_ROWS: dict[str, tuple[bytes, str]] = {
    "few cells": (b"1,2\n", "has 2 cells, the header 6"),
    "many cells": (b"1,2,3,4,5,6,7\n", "has 7 cells, the header 6"),
    "no time": (b",600,5,1 2,a,1\n", '"timestamp" is empty'),
    "word for a time": (b"noon,600,5,1 2,a,1\n", "\"timestamp\" must be a number, not 'noon'"),
    "date for a time": (
        b"2024-01-01 00:00:00,600,5,1 2,a,1\n",
        "\"timestamp\" must be a number, not '2024-01-01 00:00:00'",
    ),
    "NaN": (b"nan,600,5,1 2,a,1\n", '"timestamp" must be a finite number: it is nan'),
    "infinite": (b"1e999,600,5,1 2,a,1\n", '"timestamp" must be a finite number: it is infinite'),
    "far": (b"1e30,600,5,1 2,a,1\n", '"timestamp" is out of range: 1e+30'),
    "fraction": (b"1,600.5,5,1 2,a,1\n", "\"input_length\" must be an integer, not '600.5'"),
    "negative": (b"1,-600,5,1 2,a,1\n", '"input_length" must not be negative: -600'),
    "huge": (
        b"1,600,3000000000,1 2,a,1\n",
        '"output_length" is out of range: 3000000000 (at most 2147483647)',
    ),
    "no input": (b"1,,5,1 2,a,1\n", '"input_length" is empty'),
    "underscore": (b"1,6_00,5,1 2,a,1\n", "\"input_length\" must be an integer, not '6_00'"),
    "other digits": (
        "1,٦٠٠,5,1 2,a,1\n".encode(),
        "\"input_length\" must be an integer, not '٦٠٠'",
    ),
    "broken list": (b'1,600,5,"[1, ",a,1\n', "\"hash_ids\" is no list of ids: '[1, '"),
    "object in a list": (
        b'1,600,5,"[1, {}]",a,1\n',
        '"hash_ids"[1] must be an integer or a string',
    ),
    "wide id": (
        b'1,600,5,"[1, 18446744073709551616]",a,1\n',
        '"hash_ids"[1] does not fit in 64 bits: 18446744073709551616',
    ),
    "fewer tokens": (
        b"1,512,5,1 2,a,1\n",
        "fewer tokens than the ids need: 512, but 2 ids of 512 need 513",
    ),
    "turn": (b"1,600,5,1 2,a,-1\n", '"turn" must not be negative: -1'),
    "text after a quote": (
        b'1,600,5,"1 2"x,a,1\n',
        "not valid CSV (',' expected after '\"')",
    ),
    "UTF-8": (b"1,600,5,1 2,\xff\xfe,1\n", 'not valid UTF-8 in "session_id"'),
    "return": (
        b"1,600,5,1 2,a\rb,1\n",
        "not valid CSV (new-line character seen in unquoted field)",
    ),
}


@pytest.mark.parametrize("name", BAD_ROWS)
def test_a_bad_row_is_named_or_counted(name: str, tmp_path: Path) -> None:
    row, fault = BAD_ROWS[name]
    data = HEAD + GOOD + row + GOOD
    hint = " (--block-size says what a block holds)" if name == "fewer tokens" else ""
    assert told(tmp_path, data) == f"table.csv, row 3: {fault}{hint}"
    trace = load(tmp_path, data, skip_bad_rows=True)
    assert len(trace) == 2
    assert trace.digest == load(tmp_path, HEAD + GOOD + GOOD).digest
    noted = f"1 bad row was left out; the first: table.csv, row 3: {fault}"
    assert noted in trace.origin.notes


def test_rows_are_numbered_by_line(tmp_path: Path) -> None:
    data = b"\n" + HEAD + b'1000,600,5,"[1, 2]","a\nb",1\n\n' + b"1,2\n"
    assert told(tmp_path, data) == "table.csv, row 6: has 2 cells, the header 6"


BAD_DATES = {
    "12:00": "must be a date as in 2023-11-16 18:15:46.68, not '12:00'",
    "2023-02-29 00:00:00": "is no day of the calendar: '2023-02-29 00:00:00'",
    "2023-02-28 24:00:00": "is no time of the day: '2023-02-28 24:00:00'",
    "1969-12-31 00:00:00": "is out of range: '1969-12-31 00:00:00' (from 1970 to 2199)",
    "1000": "must be a date as in 2023-11-16 18:15:46.68, not '1000'",
}


@pytest.mark.parametrize("moment", BAD_DATES)
def test_bad_dates(moment: str, tmp_path: Path) -> None:
    data = AZURE_2023 + f"{moment},1,1\n".encode()
    assert told(tmp_path, data) == f'table.csv, row 5: "TIMESTAMP" {BAD_DATES[moment]}'
    assert len(load(tmp_path, data, skip_bad_rows=True)) == 3


BAD_FILES: dict[str, tuple[bytes, str]] = {
    "an open quote": (
        HEAD + GOOD + b'1,600,5,"1 2,a,1\n' + b"1,1,1,1,b,\n",
        ", row 3: a quote is not closed",
    ),
    "cut short": (
        HEAD + GOOD + b"1,600",
        ", row 3: the last line is cut short: it has 2 cells, the header 6, and has no newline",
    ),
    "header only": (HEAD, ": no request in it"),
    "no output": (
        b"timestamp,input_length,gen\n1,2,3\n",
        ": no column is known as the output: say --columns output=COLUMN; the columns are "
        "timestamp, input_length, gen",
    ),
    "a name of two lines": (
        b'timestamp,input_length,"ge\nn"\n1,2,3\n',
        ": no column is known as the output: say --columns output=COLUMN; the columns are "
        "timestamp, input_length, ge\ufffdn",
    ),
    "two times": (
        b"time,timestamp,input_length,output_length\n1,1,2,3\n",
        ": time and timestamp may both be the time: choose with --columns time=COLUMN",
    ),
    "bad header": (
        b"timestamp,input_length,output_length,\xff\n1,2,3,4\n",
        ": the header is not valid UTF-8",
    ),
    "signs of ids": (
        HEAD + b"1,600,5,-1 18446744073709551615,a,1\n",
        ": block ids are both negative and above 2^63: they would meet",
    ),
    "mixed units": (
        b"time,input_length,output_length\n1700000000,1,1\n1700000000123,1,1\n",
        ", row 3: mixed units of time: 1700000000123 looks like ms since 1970, 1700000000 in "
        "row 2 like s since 1970 (--time-unit reads them as they are)",
    ),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_a_bad_file_is_one_line(name: str, tmp_path: Path) -> None:
    data, fault = BAD_FILES[name]
    assert told(tmp_path, data, format="csv").replace(", row 1: the header", ": the header") == (
        f"table.csv{fault}"
    )


def test_an_open_quote_is_never_skipped(tmp_path: Path) -> None:
    """What follows it cannot be told from what it holds."""
    data, _ = BAD_FILES["an open quote"]
    assert told(tmp_path, data, skip_bad_rows=True) == "table.csv, row 3: a quote is not closed"


def test_lines_that_a_quote_swallows_are_counted(tmp_path: Path) -> None:
    data = HEAD + GOOD + b'1,600,5,"1 2,a,1\n' + GOOD + GOOD
    fault = "row 3: not valid CSV (',' expected after '\"')"
    assert told(tmp_path, data) == f"table.csv, {fault}"
    trace = load(tmp_path, data, skip_bad_rows=True)
    assert len(trace) == 2
    assert trace.origin.notes == (f"2 bad rows were left out; the first: table.csv, {fault}",)


def test_a_format_whose_column_is_missing(tmp_path: Path) -> None:
    data = AZURE_2023.replace(b"GeneratedTokens", b"Output")
    assert told(tmp_path, data, format="azure") == (
        'table.csv: "GeneratedTokens" is not in the header; the columns are TIMESTAMP, '
        "ContextTokens, Output"
    )


def test_wrong_columns(tmp_path: Path) -> None:
    names = "timestamp, input_length, output_length, hash_ids, session_id, turn"
    assert told(tmp_path, CSV, columns="time=when") == (
        f"--columns time=when: that column is not there; the columns are {names}"
    )
    assert told(tmp_path, CSV, columns="tme=timestamp").startswith(
        "--columns tme=: a column can be time, input, output, blocks, "
    )
    assert told(tmp_path, CSV, columns="timestamp").startswith("--columns timestamp: write ROLE=")
    assert told(tmp_path, CSV, columns="time=a,time=b") == "--columns: time is given twice"
    assert told(tmp_path, AZURE_2023, format="azure", columns="time=TIMESTAMP") == (
        "--columns means nothing for a trace in the format azure"
    )
    assert told(tmp_path, AZURE_2023, time_unit="s") == (
        "--time-unit means nothing for timestamps that are dates"
    )
    twice = CSV.replace(b"turn\n", b"session_id\n")
    assert "stands twice" in told(tmp_path, twice, columns="session=session_id")


@pytest.mark.skipif(not compilation_enabled(), reason="long, as plain Python")
def test_rows_in_several_pieces_are_numbered_on(tmp_path: Path) -> None:
    rows = b"".join(b"%d,600,5,1 2,session-%d,1\n" % (at, at % 3) for at in range(200_000))
    assert len(rows) > 4 << 20
    trace = load(tmp_path, HEAD + rows)
    assert (len(trace), trace.nodes) == (200_000, 2)
    assert trace.session is not None
    assert trace.session.names == ("session-0", "session-1", "session-2")
    assert trace.session.codes.tolist() == [at % 3 for at in range(200_000)]
    assert told(tmp_path, HEAD + rows + b"1,2\n") == (
        "table.csv, row 200002: has 2 cells, the header 6"
    )
