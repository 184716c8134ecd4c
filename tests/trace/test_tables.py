"""Text tables: Azure, BurstGPT, CSV with named columns; values by hand, faults, fast = careful."""

from __future__ import annotations

import csv
import datetime
import gzip
import json
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard
from table_samples import (
    AZURE_2023,
    AZURE_2024,
    BURSTGPT,
    BURSTGPT_SESSIONS,
    CSV,
    SAMPLES,
    load,
    told,
    written,
)

from kvsched.foundation.errors import InputError, UsageError
from kvsched.foundation.jit import compilation_enabled
from kvsched.trace import cells
from kvsched.trace.load import load_trace
from kvsched.trace.model import Trace
from kvsched.trace.roles import find_columns, parse_columns


def test_azure_of_2023(tmp_path: Path) -> None:
    trace = load(tmp_path, AZURE_2023)
    assert trace.origin.format == "azure"
    assert trace.time_s.tolist() == [0.0, 4.314579, 4.541877]
    assert trace.input_tokens.tolist() == [374, 396, 879]
    assert trace.output_tokens.tolist() == [44, 109, 55]
    assert trace.starts.tolist() == [0, 0, 0, 0]
    assert trace.nodes == 0
    assert trace.session is None
    day = datetime.datetime(2023, 11, 16, 18, 15, 46, 680590, datetime.UTC)
    assert trace.origin.settings["first_timestamp_s"] == day.timestamp()


def test_azure_of_2024(tmp_path: Path) -> None:
    trace = load(tmp_path, AZURE_2024)
    assert trace.origin.format == "azure"
    assert trace.time_s.tolist() == [0.0, 0.998837, 0.998838]


def test_azure_keeps_its_ticks_of_100_ns(tmp_path: Path) -> None:
    """A double of nanoseconds since 1970 would round them to 256 ns."""
    lines = [f"2023-11-16 18:15:46.00000{tick:02d},1,1" for tick in range(0, 100, 7)]
    trace = load(tmp_path, b"TIMESTAMP,ContextTokens,GeneratedTokens\n" + "\n".join(lines).encode())
    assert trace.time_s.tolist() == [tick / 1e7 for tick in range(0, 100, 7)]


def test_azure_as_published(shared_traces: Path) -> None:
    """Against the csv module and datetime."""
    path = shared_traces / "azure" / "AzureLLMInferenceTrace_conv.csv"
    trace = load_trace(path)
    with path.open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    assert len(trace) == len(rows) == 19_366
    assert trace.input_tokens.tolist() == [int(row["ContextTokens"]) for row in rows]
    assert trace.output_tokens.tolist() == [int(row["GeneratedTokens"]) for row in rows]
    first = datetime.datetime.fromisoformat(rows[0]["TIMESTAMP"][:26])
    for at in range(0, len(rows), 97):
        moment = datetime.datetime.fromisoformat(rows[at]["TIMESTAMP"][:26])
        assert trace.time_s[at] == pytest.approx((moment - first).total_seconds(), abs=1e-6)


def test_burstgpt(tmp_path: Path) -> None:
    trace = load(tmp_path, BURSTGPT)
    assert trace.origin.format == "burstgpt"
    assert trace.time_s.tolist() == [0, 40, 113]
    assert trace.input_tokens.tolist() == [472, 1087, 417]
    assert trace.output_tokens.tolist() == [18, 230, 0]
    assert trace.model is not None
    assert (trace.model.names, trace.model.codes.tolist()) == (("ChatGPT", "GPT-4"), [0, 0, 1])
    assert trace.type is not None
    assert trace.type.names == ("Conversation log", "API log")
    assert trace.session is None
    assert trace.origin.notes[0] == "1 call without response tokens (failed) kept"


def test_burstgpt_with_sessions(tmp_path: Path) -> None:
    trace = load(tmp_path, BURSTGPT_SESSIONS)
    assert trace.origin.format == "burstgpt"
    assert (trace.origin.time_unit, trace.time_s.tolist()) == ("s", [0, 51])
    assert trace.session is not None
    assert (trace.session.names, trace.session.codes.tolist()) == (("1722ac82-0a46",), [0, -1])


def mooncake(folder: Path, data: bytes) -> Trace:
    """The same rows as Mooncake JSON lines."""
    path = folder / "same.jsonl"
    with path.open("w") as lines:
        for row in csv.DictReader(data.decode().splitlines()):
            found: dict[str, Any] = {"hash_ids": json.loads(row["hash_ids"])}
            for name in ("timestamp", "input_length", "output_length"):
                found[name] = int(row[name])
            found["session_id"] = row["session_id"]
            found["turn"] = int(row["turn"]) if row["turn"] else None
            lines.write(json.dumps(found) + "\n")
    return load_trace(path)


def test_csv_is_read_like_mooncake(tmp_path: Path) -> None:
    trace = load(tmp_path, CSV)
    assert trace.origin.format == "csv"
    assert trace.origin.time_unit == "ms"
    assert trace.time_s.tolist() == [0, 2, 3]
    assert trace.chains.tolist() == [0, 1, 0, 2, 0, 2, 3]
    assert trace.tokens.tolist() == [512, 88, 88, 1]
    assert trace.turn is not None
    assert trace.turn.tolist() == [1, 2, -1]
    assert trace.digest == mooncake(tmp_path, CSV).digest


LISTS = {
    "json": '"[1, 2]"',
    "json without blanks": '"[1,2]"',
    "blanks": "1 2",
    "semicolons": "1;2",
    "quoted commas": '"1,2"',
    "commas and blanks": '"1, 2"',
    "bars": "1|2",
    "two blanks": "1  2",
    "padded": " 1 2 ",
    "strings": '"[""1"", ""2""]"',
}


@pytest.mark.parametrize("name", LISTS)
def test_ways_to_write_ids(name: str, tmp_path: Path) -> None:
    expected = load(tmp_path, CSV).digest
    assert load(tmp_path, CSV.replace(b'"[1, 2]"', LISTS[name].encode())).digest == expected


def rewritten(**options: Any) -> bytes:
    return written(list(csv.reader(CSV.decode().splitlines())), **options)


def test_ways_to_write_tables(tmp_path: Path) -> None:
    expected = load(tmp_path, CSV).digest
    same = {
        "semicolon": rewritten(delimiter=";"),
        "tab": rewritten(delimiter="\t"),
        "bar": rewritten(delimiter="|"),
        "all quoted": rewritten(quoting=csv.QUOTE_ALL),
        "CRLF": CSV.replace(b"\n", b"\r\n"),
        "BOM": b"\xef\xbb\xbf" + CSV,
        "blank lines": b"\n \r\n" + CSV.replace(b"\n", b"\n\n  \n"),
        "gz": gzip.compress(CSV),
        "zst": zstandard.compress(CSV),
        "doubled quote": CSV.replace(b",a,", b',"a",'),
        "whole doubles": CSV.replace(b",a,1\n", b",a,1.0\n"),
        "plus": CSV.replace(b"1000,", b"+1000,"),
        "padded": CSV.replace(b"1000,600", b" 1000 , 600 "),
        "other columns": CSV.replace(b"turn\n", b'turn,"a ""b"""\n')
        .replace(b",1\n", b',1,"x ""y"" \n, z"\n')
        .replace(b",2\n", b",2,\n")
        .replace(b",b,\n", b",b,,\n"),
    }
    for name, data in same.items():
        assert load(tmp_path, data).digest == expected, name
    notes = load(tmp_path, CSV.removesuffix(b"\n")).origin.notes
    assert notes[0] == "the last line has no newline: it may be cut short"


def test_named_columns(tmp_path: Path) -> None:
    data = b"""\
when,prompt,gen,blocks,conv,who,kind,engine,nth,rank,until,pause
10,40,3,1 2 3,c1,t1,chat,m1,1,5,12.5,0.25
11,33,4,1 2 4,c1,,code,m1,2,-1,,
12,16,5,1,,t2,chat,m2,,,20,1
"""
    columns = (
        "time=when,input=prompt,output=gen,blocks=blocks,session=conv,tenant=who,type=kind,"
        "model=engine,turn=nth,priority=rank,deadline=until,delay=pause"
    )
    trace = load(tmp_path, data, columns=columns, block_size=16, time_unit="s")
    assert trace.origin.format == "csv"
    assert trace.time_s.tolist() == [0, 1, 2]
    assert trace.chains.tolist() == [0, 1, 2, 0, 1, 3, 0]
    assert trace.tokens.tolist() == [16, 16, 8, 1]
    named = {n: getattr(trace, n) for n in ("session", "tenant", "type", "model")}
    assert {n: (v.names, v.codes.tolist()) for n, v in named.items()} == {
        "session": (("c1",), [0, 0, -1]),
        "tenant": (("t1", "t2"), [0, -1, 1]),
        "type": (("chat", "code"), [0, 1, 0]),
        "model": (("m1", "m2"), [0, 0, 1]),
    }
    assert trace.turn is not None
    assert trace.turn.tolist() == [1, 2, -1]
    assert trace.priority is not None
    assert trace.priority.tolist() == [5, -1, 0]
    assert trace.deadline_s is not None
    assert trace.deadline_s[[0, 2]].tolist() == [2.5, 10]
    assert np.isnan(trace.deadline_s[1])
    assert trace.delay_s is not None
    assert trace.delay_s[[0, 2]].tolist() == [0.25, 1]
    assert trace.origin.settings["columns"]["time"] == "when"
    by_mapping = load(tmp_path, data, columns=parse_columns(columns), block_size=16, time_unit="s")
    assert by_mapping.digest == trace.digest


def test_deadlines_may_be_dates(tmp_path: Path) -> None:
    data = b"""\
time,input_tokens,output_tokens,deadline
2024-01-01T00:00:00Z,1,1,2024-01-01T00:00:02.5Z
2024-01-01T00:00:01Z,1,1,
"""
    trace = load(tmp_path, data)
    assert trace.deadline_s is not None
    assert trace.deadline_s[0] == 2.5
    assert np.isnan(trace.deadline_s[1])


def test_time_zones(tmp_path: Path) -> None:
    moments = ["2024-02-29 23:30:00+00:00", "2024-03-01T01:30:01+0200", "2024-02-29 18:30:02-05:00"]
    rows = "".join(f"{moment},1,1\n" for moment in moments)
    trace = load(tmp_path, b"time,input_tokens,output_tokens\n" + rows.encode())
    assert trace.time_s.tolist() == [0, 1, 2]


def test_without_a_role(tmp_path: Path) -> None:
    """An empty column takes a role away from a usual name."""
    trace = load(tmp_path, CSV, columns="session=,blocks=")
    assert trace.session is None
    assert trace.references == 0
    assert "no block ids: arrival times and lengths only, nothing can be cached" in (
        trace.origin.notes
    )


UNITS = {
    "time_s": ("s", 1.0),
    "time_ms": ("ms", 1e-3),
    "timestamp_us": ("us", 1e-6),
    "timestamp_ns": ("ns", 1e-9),
    "time": ("s", 1.0),
}


@pytest.mark.parametrize("name", UNITS)
def test_units_by_name(name: str, tmp_path: Path) -> None:
    unit, factor = UNITS[name]
    data = f"{name},prompt_tokens,completion_tokens,delay\n7,5,1,3\n9,5,1,\n"
    trace = load(tmp_path, data.encode())
    assert trace.origin.time_unit == unit
    assert trace.time_s.tolist() == [0, pytest.approx(2 * factor)]
    assert trace.delay_s is not None
    assert trace.delay_s[0] == pytest.approx(3 * factor)
    assumed = "timestamps are read as s (--time-unit reads them otherwise)"
    assert (assumed in trace.origin.notes) == (name == "time")


def test_sizes_of_their_own(tmp_path: Path) -> None:
    data = b"""\
time_s,input_tokens,output_tokens,hash_ids,block_tokens
0,100,1,7 8,60 30
1,61,1,7 9,60 1
2,60,1,7,60
"""
    trace = load(tmp_path, data)
    assert trace.unequal
    assert trace.tokens.tolist() == [60, 30, 1]
    assert trace.chain_tokens.tolist() == [90, 61, 60]
    assert told(tmp_path, data.replace(b"60 30", b"60")) == (
        'table.csv, row 2: "block_tokens" has 1 sizes for 2 ids'
    )
    assert told(tmp_path, data.replace(b"2,60,", b"2,59,")) == (
        "table.csv, row 4: fewer tokens than the blocks hold: 59"
    )
    assert "1 bad row was left out" in str(
        load(tmp_path, data.replace(b"60 30", b"60 0"), skip_bad_rows=True).origin.notes
    )


def test_ids_that_are_text(tmp_path: Path) -> None:
    data = b"""\
time_s,input_tokens,output_tokens,block_hashes
0,20,1,ab01 ff
1,20,1,ab01 fe
2,20,1,"[""ab01"", ""007""]"
"""
    trace = load(tmp_path, data, block_size=16)
    assert trace.chains.tolist() == [0, 1, 0, 2, 0, 3]
    # BLAKE2b with 8 bytes of digest, as `b2sum -l 64` prints it for "ab01".
    printed = int.from_bytes(bytes.fromhex("2e4431ff4f2d7796"), "little", signed=True)
    assert trace.key[0] == printed == cells.hashed_id("ab01")
    assert any("BLAKE2b" in note for note in trace.origin.notes)


def test_block_sizes(tmp_path: Path) -> None:
    """Assumed, it must fit every row; given, prompts may go on after their blocks."""
    data = b"timestamp,input_length,output_length,hash_ids\n0,40,1,1 2\n1,33,1,1 2\n"
    assert told(tmp_path, data) == (
        "table.csv, row 2: fewer tokens than the ids need: 40, but 2 ids of 512 need 513"
        "; a block size of 32 fits every row (--block-size 32)"
    )
    trace = load(tmp_path, data, block_size=16)
    assert trace.tokens.tolist() == [16, 16]
    assert trace.origin.notes == (
        "2 prompts have tokens after the blocks of 16; no block covers them",
    )
    assert told(tmp_path, data, block_size=40) == (
        "table.csv, row 2: fewer tokens than the ids need: 40, but 2 ids of 40 need 41"
    )


def test_columns_with_commas() -> None:
    assert parse_columns('time=t,"input=Request, tokens"') == {
        "time": "t",
        "input": "Request, tokens",
    }
    with pytest.raises(UsageError, match="a quote is not closed"):
        parse_columns('"time=t')
    found = find_columns("f", ["a", "Prompt Tokens", "output-tokens", "c"], {"time": "c"})
    assert found == {"time": 3, "input": 1, "output": 2}
    with pytest.raises(InputError, match="no column is known as the blocks"):
        find_columns("f", ["time", "input_tokens", "output_tokens", "block_tokens"], None)


def test_columns_may_be_named_for_a_known_format(tmp_path: Path) -> None:
    trace = load(tmp_path, AZURE_2023, columns="input=GeneratedTokens,output=ContextTokens")
    assert trace.origin.format == "csv"
    assert trace.input_tokens.tolist() == [44, 109, 55]


@pytest.mark.parametrize("name", SAMPLES)
def test_detection(name: str, tmp_path: Path) -> None:
    path = tmp_path / "anything.dat"
    path.write_bytes(SAMPLES[name])
    assert load_trace(path).origin.format == name
    path.write_bytes(b'{"timestamp": 0, "input_length": 0, "output_length": 1, "hash_ids": []}\n')
    assert load_trace(path).origin.format == "mooncake"
    path.write_bytes(b"Dear reader,\nthis is no table, or is it?\n")
    with pytest.raises(InputError, match="in none of the formats known"):
        load_trace(path)


@pytest.mark.parametrize("command", [("replay", "--capacity-blocks", "9"), ("curve",), ("study",)])
def test_nothing_to_cache_is_said(command: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes(AZURE_2023)
    name, *more = command
    run = subprocess.run(
        [sys.executable, "-m", "kvsched", name, "t.csv", *more],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (run.returncode, run.stdout) == (2, "")
    assert run.stderr.splitlines()[-1] == (
        "kvsched: t.csv has no block ids: nothing can be cached; use it for timing "
        "(arrivals and lengths)"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["t.csv"]


def test_columns_on_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes(b"t,p,g,junk\n0,40,1,x\n1,33,1,y\n")
    columns = ["--columns", "time=t,input=p,output=g", "--time-unit", "ms"]
    run = subprocess.run(
        [sys.executable, "-m", "kvsched", "trace", "info", "t.csv", *columns, "--format", "json"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(run.stdout)
    assert (found["format"], found["requests"], found["prompt_tokens"]) == ("csv", 2, 73)
    assert found["settings"]["columns"] == {"time": "t", "input": "p", "output": "g"}


@pytest.mark.skipif(not compilation_enabled(), reason="long, as plain Python")
def test_a_long_table_is_a_stream(tmp_path: Path) -> None:
    """64 MB of cells that nobody wants leave no trace in the memory."""
    row = b'%d,5,1,"' + b"x" * 4000 + b'"\n'
    path = tmp_path / "long.csv"
    with path.open("wb") as out:
        out.write(b"time_s,input_tokens,output_tokens,text\n")
        for low in range(0, 16_000, 1000):
            out.write(b"".join(row % at for at in range(low, low + 1000)))
    load(tmp_path, CSV)  # compiled by now
    tracemalloc.start()
    try:
        trace = load_trace(path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(trace) == 16_000
    assert path.stat().st_size > 60 << 20
    assert peak < 30 << 20


def test_one_column_may_have_two_roles(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("time_s,input_tokens,output_tokens\n1,512,1\n3,600,2\n")
    found = load_trace(
        path, columns="time=time_s,output=output_tokens,input=input_tokens,deadline=time_s"
    )
    assert found.deadline_s is not None
    assert found.deadline_s.tolist() == found.time_s.tolist() == [0.0, 2.0]
    same = load_trace(path, columns="time=input_tokens,input=input_tokens,output=output_tokens")
    assert same.input_tokens.tolist() == [512, 600]
