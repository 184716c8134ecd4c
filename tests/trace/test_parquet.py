"""Parquet in and out: the same digest, every type of column, faults by row and column."""

from __future__ import annotations

import datetime
import io
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import table_samples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvsched.foundation.errors import InputError, KvschedError, UsageError
from kvsched.trace import parquet, parquet_export
from kvsched.trace.check import structural_fault
from kvsched.trace.generate import generate, preset
from kvsched.trace.load import load_trace
from kvsched.trace.model import Labels, Origin, Trace
from kvsched.trace.parquet_export import root_scopes, write_parquet

NOTHING: tuple[str, ...] = ()


def table(**changes: Any) -> pl.DataFrame:
    columns: dict[str, Any] = {
        "timestamp": [1000, 3000, 4000],
        "input_length": [600, 600, 1025],
        "output_length": [5, 5, 7],
        "hash_ids": [[1, 2], [1, 3], [1, 3, 4]],
        "session_id": ["a", "a", "b"],
        "turn": [1, 2, None],
    }
    columns.update(changes)
    return pl.DataFrame({n: c for n, c in columns.items() if c is not ...}, strict=False)


def sample_bytes() -> bytes:
    out = io.BytesIO()
    table().write_parquet(out)
    return out.getvalue()


def load(folder: Path, frame: pl.DataFrame, **options: Any) -> Trace:
    path = folder / "table.parquet"
    frame.write_parquet(path)
    trace = load_trace(path, **options)
    assert structural_fault(trace) is None
    return trace


def told(folder: Path, frame: pl.DataFrame, **options: Any) -> str:
    with pytest.raises(KvschedError) as caught:
        load(folder, frame, **options)
    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value)
    return str(caught.value).replace(f"{folder}/", "")


def test_read_like_csv(tmp_path: Path) -> None:
    trace = load(tmp_path, table())
    assert trace.origin.format == "parquet"
    assert trace.chains.tolist() == [0, 1, 0, 2, 0, 2, 3]
    assert trace.digest == table_samples.load(tmp_path, table_samples.CSV).digest


SAME: dict[str, dict[str, Any]] = {
    "small ids": {"hash_ids": pl.Series([[1, 2], [1, 3], [1, 3, 4]], dtype=pl.List(pl.Int16))},
    "unsigned ids": {"hash_ids": pl.Series([[1, 2], [1, 3], [1, 3, 4]], dtype=pl.List(pl.UInt64))},
    "decimal text ids": {"hash_ids": [["1", "2"], ["1", "3"], ["1", "3", "4"]]},
    "doubles": {"timestamp": [1000.0, 3000.0, 4000.0], "turn": [1.0, 2.0, None]},
    "small numbers": {"input_length": pl.Series([600, 600, 1025], dtype=pl.UInt16)},
    "text times": {"timestamp": ["1000", "3000", "4e3"]},
    "categories": {"session_id": pl.Series(["a", "a", "b"], dtype=pl.Categorical)},
}


@pytest.mark.parametrize("name", SAME)
def test_types_of_columns(name: str, tmp_path: Path) -> None:
    expected = load(tmp_path, table()).digest
    assert load(tmp_path, table(**SAME[name])).digest == expected


def test_times_that_are_dates(tmp_path: Path) -> None:
    noon = datetime.datetime(2024, 5, 12, 12)
    moments = [noon + datetime.timedelta(microseconds=each) for each in (0, 1, 2_500_000)]
    for dtype in (pl.Datetime("us"), pl.Datetime("ns", "Europe/Paris"), pl.Datetime("ms")):
        trace = load(tmp_path, table(timestamp=pl.Series(moments).cast(dtype)))
        tick = 0.0 if dtype == pl.Datetime("ms") else 1e-6
        assert trace.time_s.tolist() == [0, tick, 2.5]
    trace = load(tmp_path, table(timestamp=[str(moment) for moment in moments]))
    assert trace.time_s.tolist() == [0, 1e-6, 2.5]
    assert told(tmp_path, table(timestamp=[each.date() for each in moments])) == (
        'table.parquet: "timestamp" must hold numbers or dates with a time, not Date'
    )


def test_ids_of_64_bits(tmp_path: Path) -> None:
    wide = pl.Series([[2**64 - 1, 2], [1, 3], [1, 3, 4]], dtype=pl.List(pl.UInt64))
    assert load(tmp_path, table(hash_ids=wide)).key.tolist()[0] == -1
    text = load(tmp_path, table(hash_ids=[["ab01", "x"], ["ab01", "y"], ["ab01", "y", "7"]]))
    assert text.chains.tolist() == [0, 1, 0, 2, 0, 2, 3]
    assert text.key[3] == 7
    assert "block ids that are not 64-bit integers" in " ".join(text.origin.notes)


def test_named_columns(tmp_path: Path) -> None:
    frame = table().rename({"timestamp": "t", "input_length": "in", "hash_ids": "h"})
    columns = "time=t,input=in,blocks=h"
    trace = load(tmp_path, frame, columns=columns, time_unit="ms")
    assert trace.digest == load(tmp_path, table()).digest
    assert told(tmp_path, frame, columns="time=when") == (
        "--columns time=when: that column is not there; the columns are t, in, output_length, h, "
        "session_id, turn"
    )
    assert told(tmp_path, frame) == (
        "table.parquet: no column is known as the time: say --columns time=COLUMN; the columns "
        "are t, in, output_length, h, session_id, turn"
    )


BAD_ROWS: dict[str, tuple[dict[str, Any], str]] = {
    "no time": ({"timestamp": [1, None, 2]}, '"timestamp" is null'),
    "NaN": ({"timestamp": [1, float("nan"), 2]}, '"timestamp" must be a finite number: it is NaN'),
    "far": ({"timestamp": [1, 1e30, 2]}, '"timestamp" is out of range: 1e+30'),
    "bad text": ({"timestamp": ["1", "x", "2"]}, "\"timestamp\" must be a number, not 'x'"),
    "early": (
        {"timestamp": [datetime.datetime(y, 1, 1) for y in (1970, 1969, 1971)]},
        '"timestamp" is out of range: datetime.datetime(1969, 1, 1, 0, 0)',
    ),
    "no input": ({"input_length": [600, None, 1025]}, '"input_length" is null'),
    "negative": ({"output_length": [1, -1, 2]}, '"output_length" must not be negative: -1'),
    "fraction": ({"output_length": [1, 1.5, 2]}, '"output_length" must be an integer, not 1.5'),
    "huge": (
        {"output_length": [1, 2**40, 2]},
        '"output_length" is out of range: 1099511627776 (at most 2147483647)',
    ),
    "null id": (
        {"hash_ids": [[1, 2], [1, None], [1, 3, 4]]},
        '"hash_ids" has a null among its ids',
    ),
    "turn": ({"turn": [1, -1, 2]}, '"turn" must not be negative: -1'),
    "few tokens": (
        {"input_length": [600, 512, 1025]},
        "fewer tokens than the ids need: 512, but 2 ids of 512 need 513",
    ),
}


@pytest.mark.parametrize("name", BAD_ROWS)
def test_a_bad_row_is_named_or_counted(name: str, tmp_path: Path) -> None:
    changes, fault = BAD_ROWS[name]
    frame = table(**changes)
    hint = " (--block-size says what a block holds)" if name == "few tokens" else ""
    assert told(tmp_path, frame) == f"table.parquet, row 2: {fault}{hint}"
    trace = load(tmp_path, frame, skip_bad_rows=True)
    assert len(trace) == 2
    noted = f"1 bad row was left out; the first: table.parquet, row 2: {fault}"
    assert noted in trace.origin.notes
    good = frame.filter(np.arange(3) != 1)
    assert trace.digest == load(tmp_path, good).digest


BAD_TYPES: dict[str, tuple[dict[str, Any], str]] = {
    "time": ({"timestamp": [[1], [2], [3]]}, '"timestamp" must hold numbers, not List(Int64)'),
    "input": ({"input_length": ["1", "2", "3"]}, '"input_length" must hold integers, not String'),
    "ids": ({"hash_ids": ["1", "2", "3"]}, '"hash_ids" must hold lists, not String'),
    "session": (
        {"session_id": [1.5, 2, 3]},
        '"session_id" must hold strings or integers, not Float64',
    ),
}


@pytest.mark.parametrize("name", BAD_TYPES)
def test_a_bad_type_is_one_line(name: str, tmp_path: Path) -> None:
    changes, fault = BAD_TYPES[name]
    assert told(tmp_path, table(**changes)) == f"table.parquet: {fault}"


def test_damaged_files(tmp_path: Path) -> None:
    data = sample_bytes()
    path = tmp_path / "bad.parquet"
    for content in (data[:100], data[:-9], b"PAR1", b"PAR1" + bytes(500) + b"PAR1"):
        path.write_bytes(content)
        with pytest.raises(InputError, match=r"bad\.parquet: damaged, or no Parquet: ") as caught:
            load_trace(path)
        assert "\n" not in str(caught.value)
    path.write_bytes(table_samples.CSV)
    with pytest.raises(InputError, match="damaged, or no Parquet"):
        load_trace(path, "parquet")


def test_without_polars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "table.parquet"
    path.write_bytes(sample_bytes())
    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(UsageError, match=r"^Parquet needs polars: pip install 'kvsched\[data\]'$"):
        load_trace(path)


# --- out ---------------------------------------------------------------------------------------


def written_and_read(folder: Path, trace: Trace, lost: tuple[str, ...] = NOTHING) -> Trace:
    path = folder / "out.parquet"
    assert write_parquet(trace, path) == lost
    return load_trace(path)


@pytest.mark.parametrize("name", ["chat", "rag"])
def test_presets_are_kept_whole(name: str, tmp_path: Path) -> None:
    trace = generate(preset(name, requests=300), 3)
    again = written_and_read(tmp_path, trace)
    assert again.digest == trace.digest
    settings_of_source = json.loads(json.dumps(trace.origin.settings))
    assert again.origin.settings == {"first_timestamp_s": 0.0, **settings_of_source}
    first = (tmp_path / "out.parquet").read_bytes()
    written_and_read(tmp_path, trace)
    assert (tmp_path / "out.parquet").read_bytes() == first


def test_names_that_all_tools_know(tmp_path: Path) -> None:
    """Without kvsched's metadata it is a table like any other."""
    trace = load(tmp_path, table())
    written_and_read(tmp_path, trace)
    frame = pl.read_parquet(tmp_path / "out.parquet")
    assert frame.columns == [
        "time_s",
        "input_tokens",
        "output_tokens",
        "hash_ids",
        "session",
        "turn",
    ]
    assert frame.rows() == [
        (0.0, 600, 5, [1, 2], "a", 1),
        (2.0, 600, 5, [1, 3], "a", 2),
        (3.0, 1025, 7, [1, 3, 4], "b", None),
    ]
    assert load(tmp_path, frame).digest == trace.digest


def test_sessions_that_never_share(tmp_path: Path) -> None:
    """Roots of one key are told apart by a column `scope`."""
    rows = [{"t": at, "in": 130, "out": 3, "hash_ids": [1, 2]} for at in range(2)]
    folder = tmp_path / "weka"
    folder.mkdir()
    for name in "ba":
        session = {"id": name, "block_size": 64, "requests": rows}
        (folder / f"{name}.json").write_text(json.dumps(session))
    trace = load_trace(folder)
    assert trace.nodes == 4
    scopes = root_scopes(trace)
    assert scopes is not None
    assert scopes.tolist() == [0, 1, 0, 1]
    assert written_and_read(tmp_path, trace).digest == trace.digest
    frame = pl.read_parquet(tmp_path / "out.parquet")
    assert load(tmp_path, frame.drop("scope"), block_size=64).nodes == 2


def test_order_of_names_is_kept(tmp_path: Path) -> None:
    """Names are numbered as the source has them, which time may turn round."""
    trace = load(tmp_path, table(timestamp=[9000, 3000, 1000]))
    assert trace.session is not None
    assert (trace.session.names, trace.session.codes.tolist()) == (("a", "b"), [1, 0, 0])
    again = written_and_read(tmp_path, trace)
    assert again.session is not None
    assert again.session.names == ("a", "b")
    assert again.digest == trace.digest


def bare(**changes: Any) -> Trace:
    one = np.ones(2, np.int64)
    columns: dict[str, Any] = {
        "time_s": np.array([0.0, 1.0]),
        "input_tokens": 16 * one,
        "output_tokens": one,
        "starts": np.array([0, 1, 2]),
        "chains": np.array([0, 0], np.int32),
        "parent": np.array([-1], np.int32),
        "depth": np.zeros(1, np.int32),
        "tokens": np.array([16], np.int32),
        "key": np.array([5]),
    }
    columns.update(changes)
    return Trace(block_size=16, origin=Origin("x", "test", "s"), **columns)


def test_columns_without_a_value_are_kept(tmp_path: Path) -> None:
    none = np.full(2, np.nan)
    trace = bare(
        session=Labels(np.full(2, -1, np.int32), ()),
        tenant=Labels(np.array([1, -1], np.int32), ("unused", "used")),
        turn=np.full(2, -1, np.int32),
        deadline_s=none,
        delay_s=none.copy(),
        priority=np.array([-3, 4], np.int32),
    )
    assert written_and_read(tmp_path, trace).digest == trace.digest


def test_chunks_of_unequal_size(tmp_path: Path) -> None:
    data = b"time_s,input_tokens,output_tokens,hash_ids,block_tokens\n0,99,1,7 8,60 30\n1,9,1,,\n"
    trace = table_samples.load(tmp_path, data)
    again = written_and_read(tmp_path, trace)
    assert (again.unequal, again.digest) == (True, trace.digest)
    assert again.tokens.tolist() == [60, 30]
    bad = pl.read_parquet(tmp_path / "out.parquet").with_columns(
        block_tokens=pl.Series([[60, 0], None], dtype=pl.List(pl.Int32))
    )
    assert told(tmp_path, bad) == (
        'table.parquet, row 1: "block_tokens" must hold numbers of tokens from 1 on'
    )
    short = bad.with_columns(block_tokens=pl.Series([[60], None], dtype=pl.List(pl.Int32)))
    assert told(tmp_path, short) == (
        'table.parquet, row 1: "block_tokens" has not one size for each id'
    )
    assert len(load(tmp_path, short, skip_bad_rows=True)) == 1


def test_what_is_lost_is_said(tmp_path: Path) -> None:
    cut = bare(tokens=np.array([9], np.int32))
    said = ("Parquet cannot keep tokens as they are: it reads back to another digest",)
    again = written_and_read(tmp_path, cut, said)
    assert again.tokens.tolist() == [16]
    assert again.digest != cut.digest
    twice = bare(model=Labels(np.array([0, 1], np.int32), ("m", "m")))
    said = ("Parquet cannot keep model as they are: it reads back to another digest",)
    assert written_and_read(tmp_path, twice, said).digest != twice.digest


def test_nothing_is_written_where_it_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(pl.DataFrame, "write_parquet", fail)
    with pytest.raises(KeyboardInterrupt):
        write_parquet(bare(), tmp_path / "out.parquet")
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_said_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = pl.DataFrame.write_parquet

    def on_a_full_disk(frame: pl.DataFrame, stream: object, **options: Any) -> None:
        with Path("/dev/full").open("wb") as full:
            write(frame, full, **options)

    monkeypatch.setattr(pl.DataFrame, "write_parquet", on_a_full_disk)
    out = tmp_path / "out.parquet"
    with pytest.raises(KvschedError) as caught:
        write_parquet(bare(), out)
    assert str(caught.value) == f"{out}: cannot be written (No space left on device)"
    assert caught.value.exit_code == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["mooncake/synthetic_trace.jsonl", "ragpulse", "weka"])
def test_real_traces(name: str, shared_traces: Path, tmp_path: Path) -> None:
    trace = load_trace(shared_traces / name)
    assert written_and_read(tmp_path, trace).digest == trace.digest


def test_rows_in_several_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = generate(preset("chat", requests=200), 5)
    monkeypatch.setattr(parquet, "ROWS", 7)
    monkeypatch.setattr(parquet_export, "_ROWS", 11)
    assert written_and_read(tmp_path, trace).digest == trace.digest
    frame = pl.read_parquet(tmp_path / "out.parquet")
    broken = frame.with_columns(
        pl.when(pl.int_range(pl.len()) == 150)
        .then(-1)
        .otherwise("input_tokens")
        .alias("input_tokens")
    )
    assert told(tmp_path, broken, block_size=16).startswith("table.parquet, row 151: ")


lists = st.lists(st.lists(st.integers(-2, 3), max_size=4), min_size=1, max_size=8)
QUICK = settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@QUICK
@given(chains=lists, draw=st.data())
def test_any_trace_survives(
    chains: list[list[int]], draw: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.getbasetemp()
    count = len(chains)
    maybe = st.lists(st.one_of(st.none(), st.integers(0, 9)), min_size=count, max_size=count)
    columns = {
        "time_s": draw.draw(st.lists(st.floats(0, 9), min_size=count, max_size=count)),
        "input_tokens": [16 * len(chain) + 1 for chain in chains],
        "output_tokens": [1] * count,
        "hash_ids": pl.Series(chains, dtype=pl.List(pl.Int64)),
        "session_id": draw.draw(
            st.lists(st.sampled_from(["a", "b", "", None]), min_size=count, max_size=count)
        ),
        "scope": draw.draw(st.lists(st.integers(0, 2), min_size=count, max_size=count)),
        "turn": draw.draw(maybe),
        "priority": draw.draw(maybe),
        "deadline_s": draw.draw(maybe),
        "delay_s": draw.draw(maybe),
    }
    trace = load(folder, pl.DataFrame(columns), block_size=16)
    assert written_and_read(folder, trace).digest == trace.digest


@QUICK
@given(draw=st.data())
def test_damage_is_a_trace_or_one_line(
    draw: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    data = bytearray(sample_bytes())
    for _ in range(draw.draw(st.integers(1, 3))):
        data[draw.draw(st.integers(0, len(data) - 1))] = draw.draw(st.integers(0, 255))
    path = tmp_path_factory.getbasetemp() / "fuzz.parquet"
    path.write_bytes(data)
    trace: Trace | None = None
    try:
        trace = load_trace(path, "parquet")
    except (InputError, UsageError) as error:
        message = str(error)
    if trace is None:
        assert "\n" not in message
    else:
        assert structural_fault(trace) is None
