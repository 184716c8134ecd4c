"""Text tables: a sound trace or one line; the fast path is the careful one."""

from __future__ import annotations

import datetime
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from table_samples import (
    CSV,
    written,
)

from kvsched.foundation.errors import InputError, UsageError
from kvsched.trace import cells, scan
from kvsched.trace.check import structural_fault
from kvsched.trace.cut import Cut
from kvsched.trace.load import load_trace

QUICK = settings(
    derandomize=True,
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


cell = st.one_of(
    st.integers(-3, 2000).map(str),
    st.sampled_from(["", " ", "1.0", "1.5", "nan", "1e3", "9" * 19, "-", "x", '"', "é", "\x00"]),
    st.text(alphabet='0123456789.-+eE ;,|[]"\n\r\t', max_size=6),
)
moments = st.one_of(
    st.datetimes(datetime.datetime(1968, 1, 1), datetime.datetime(2201, 1, 1)).map(str),
    st.sampled_from(["2023-02-29 00:00:00", "2024-02-29T00:00:00Z", "2024-01-01 00:00:60"]),
    st.from_regex(
        r"20\d\d-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\.\d{1,10})?(Z|[+-]\d\d:?\d\d)?", fullmatch=True
    ),
    cell,
)


@st.composite
def tables(draw: st.DrawFn) -> bytes:
    """Good rows, some with a cell exchanged or bytes overwritten."""
    dated = draw(st.booleans())
    rows = []
    for at in range(draw(st.integers(1, 5))):
        blocks = draw(st.integers(0, 3))
        moment = f"2024-01-01 00:00:0{at}.5" if dated else str(draw(st.integers(0, 5000)))
        row = [
            moment,
            str(max(0, blocks * 512 - draw(st.integers(0, 511)))),
            str(draw(st.integers(0, 9))),
            draw(st.sampled_from([" ", ";"])).join(
                map(str, draw(st.lists(st.integers(0, 4), min_size=blocks, max_size=blocks)))
            ),
            draw(st.sampled_from(["a", "b", ""])),
            draw(st.sampled_from(["1", "", "2.5"])),
            draw(st.sampled_from(["1", ""])),
        ]
        if draw(st.integers(0, 3)) == 0:
            row[draw(st.integers(0, 6))] = draw(moments)
        if draw(st.integers(0, 19)) == 0:
            row.pop()
        rows.append(row)
    header = b"timestamp,input_length,output_length,hash_ids,session_id,delay,turn\n"
    data = written(rows)
    if draw(st.integers(0, 2)) == 0:
        at = draw(st.integers(0, len(data)))
        data = data[:at] + draw(st.binary(max_size=4)) + data[at + draw(st.integers(0, 4)) :]
    return header + data


def outcome(path: Path, data: bytes, **options: Any) -> object:
    path.write_bytes(data)
    try:
        trace = load_trace(path, **options)
    except (InputError, UsageError) as error:
        message = str(error)
        if "\n" in message:
            raise ValueError("an error is one line") from error
        return message
    assert structural_fault(trace) is None
    assert len(trace) > 0
    return trace.digest, trace.origin


def same_on_both_paths(folder: Path, data: bytes, skip: bool) -> bool:
    path = folder / "fuzz.csv"
    fast = outcome(path, data, format="csv", skip_bad_rows=skip)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Cut, "of", lambda *_: None)
        careful = outcome(path, data, format="csv", skip_bad_rows=skip)
    return fast == careful


@QUICK
@given(data=st.one_of(tables(), st.binary(max_size=200)), skip=st.booleans())
def test_fast_is_careful(data: bytes, skip: bool, tmp_path_factory: pytest.TempPathFactory) -> None:
    assert same_on_both_paths(tmp_path_factory.getbasetemp(), data, skip)
    outcome(tmp_path_factory.getbasetemp() / "fuzz.csv", data)


def test_the_comparison_can_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = scan.integers

    def one_more(text: Any, starts: Any, ends: Any, out: Any) -> bool:
        sound = whole(text, starts, ends, out)
        out[0] += 1
        return sound

    assert same_on_both_paths(tmp_path, CSV, False)
    monkeypatch.setattr(scan, "integers", one_more)
    assert not same_on_both_paths(tmp_path, CSV, False)


@QUICK
@given(moment=moments)
def test_dates_as_the_library_reads_them(moment: str) -> None:
    data = moment.encode("utf-8", "surrogatepass")
    text = np.frombuffer(data, np.uint8)
    out = np.zeros(1, np.int64)
    span = np.array([0]), np.array([len(data)])
    if not scan.dates(text, *span, out) or not moment.strip(" "):
        return
    zoned = moment.strip(" ")
    fraction = zoned.partition(".")[2]
    digits = "".join(itertools.takewhile(str.isdigit, fraction))
    short_form = zoned.replace(f".{digits}", "") if digits else zoned
    found = datetime.datetime.fromisoformat(short_form)
    found = found if found.tzinfo else found.replace(tzinfo=datetime.UTC)
    whole = (found - datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)) // datetime.timedelta(
        seconds=1
    )
    assert out[0] == whole * 10**9 + int(digits.ljust(9, "0") or 0)
    assert cells.date(moment, "t") == out[0]


@QUICK
@given(value=st.floats(allow_nan=False, allow_infinity=False, width=64), places=st.integers(0, 6))
def test_numbers_as_python_reads_them(value: float, places: int) -> None:
    data = f"{value % 1e8:.{places}f}".encode()
    out = np.zeros(1)
    if scan.numbers(np.frombuffer(data, np.uint8), np.array([0]), np.array([len(data)]), out):
        assert out[0] == float(data)
