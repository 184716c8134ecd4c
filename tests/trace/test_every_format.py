"""The same broken inputs for every reader: one line with the file and the fault, or the trace.

A format takes part by its sample in `samples.py`.
"""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest
import zstandard
from samples import BY_FORMAT, SAMPLES, Sample

from kvsched.foundation.errors import InputError
from kvsched.trace import fields
from kvsched.trace.check import structural_fault
from kvsched.trace.formats import FORMATS
from kvsched.trace.load import load_trace

NAN, INFINITY = float("nan"), float("inf")

# What may stand in a field instead, by the field's kind; none of it is a value of that kind.
ANYTHING_BUT_A_NUMBER = {"list": [], "true": True, "object": {"a": 1}}
NOT_FINITE = {"NaN": NAN, "Infinity": INFINITY, "-Infinity": -INFINITY}
FAULTS: dict[str, dict[str, Any]] = {
    "time": {
        **ANYTHING_BUT_A_NUMBER,
        **NOT_FINITE,
        "text": "1000",
        "huge": 10**40,
        "far": 1e30,
    },
    "time or text": {**ANYTHING_BUT_A_NUMBER, **NOT_FINITE, "word": "noon", "text NaN": "nan"},
    "tokens": {
        **ANYTHING_BUT_A_NUMBER,
        **NOT_FINITE,
        "text": "600",
        "negative": -1,
        "huge": 2**31,
        "absurd": 10**40,
        "fraction": 1.5,
    },
    "count": {**ANYTHING_BUT_A_NUMBER, **NOT_FINITE, "text": "1", "negative": -1, "huge": 2**40},
    "integer": {**ANYTHING_BUT_A_NUMBER, **NOT_FINITE, "text": "1", "huge": -(2**40)},
    "seconds": {**ANYTHING_BUT_A_NUMBER, **NOT_FINITE, "text": "1", "negative": -1, "far": 1e30},
    "name": {"list": ["a"], "true": True, "fraction": 1.5, "half a character": "\ud800"},
    "ids": {
        "object": {},
        "text": "12",
        "number": 12,
        "text in it": [1, "x"],
        "NaN in it": [1, NAN],
        "null in it": [None],
        "too wide": [2**64, 1],
    },
    "hashes": {
        "object": {},
        "text": "0x12",
        "word in it": ["0xzz"],
        "empty text in it": [""],
        "fraction in it": [1.5],
        "true in it": [True],
        "half a character": ["\ud800"],
    },
    "list": {"object": {}, "text": "a", "number": 3, "text in it": ["a"], "bare object": [{}]},
    "object": {"list": [], "text": "a", "number": 3, "true": True},
}

names = pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.format)


def cases() -> list[Any]:
    found = []
    for sample in SAMPLES:
        for name, kind in sample.fields.items():
            faults = dict(FAULTS[kind])
            if name not in sample.optional:
                faults |= {"missing": ..., "null": None}
            for fault, value in faults.items():
                case = f"{sample.format}-{name}-{fault}"
                found.append(pytest.param(sample, name, value, id=case))
    return found


def told(path: Path, sample: Sample, **more: Any) -> str:
    with pytest.raises(InputError) as caught:
        sample.load(path, **more)
    message = str(caught.value)
    assert caught.value.exit_code == 2
    assert "\n" not in message
    assert message.startswith(str(path))
    return message


def sound_or_told(path: Path, sample: Sample, data: bytes) -> bool:
    """Whether ``data`` is a trace; where it is none, the error is one line."""
    path.write_bytes(data)
    try:
        trace = sample.load(path)
    except InputError as error:
        message = str(error)
    else:
        message = ""
    if message:
        assert "\n" not in message
        assert message.startswith(str(path))
        return False
    assert structural_fault(trace) is None
    assert len(trace) > 0
    return True


def test_every_format_has_a_sample() -> None:
    assert set(BY_FORMAT) == {known.name for known in FORMATS}


@names
def test_the_sample_is_read_and_recognised(sample: Sample, tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_bytes(sample.data)
    named = sample.load(path)
    assert len(named) == (len(sample.rows) or 3)
    assert named.origin.format == (sample.format if sample.rows else "mooncake")
    if sample.detected:
        assert load_trace(path, **sample.options).digest == named.digest


@names
def test_compressed(sample: Sample, tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_bytes(sample.data)
    digest = sample.load(path).digest
    for packed in (gzip.compress(sample.data), zstandard.compress(sample.data)):
        path.write_bytes(packed)
        assert sample.load(path).digest == digest
        for cut in (5, len(packed) // 2, len(packed) - 1):
            path.write_bytes(packed[:cut])
            told(path, sample)


@names
def test_cut_anywhere(sample: Sample, tmp_path: Path) -> None:
    """Only whole lines make a shorter trace; a cut line is never taken for a whole one."""
    data = sample.data
    path = tmp_path / "trace"
    step = max(1, len(data) // 150)
    for cut in range(1, len(data), step):
        sound = sound_or_told(path, sample, data[:cut])
        at_an_end = b"\n" in (data[cut - 1 : cut], data[cut : cut + 1])
        rows = len(data[:cut].splitlines()) - sample.first_row
        if sample.cut_shows:
            assert sound == (sample.lines and at_an_end and rows >= 1)


@names
def test_empty_and_blank(sample: Sample, tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_bytes(b"")
    assert told(path, sample) == f"{path}: the file is empty"
    path.write_bytes(b"\n \r\n\t\n")
    told(path, sample)


@names
def test_binary(sample: Sample, tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_bytes(b"\x7fELF\x00\x01\x02\x00" * 200)
    told(path, sample)
    data = sample.data
    middle = len(data) // 2
    assert not sound_or_told(path, sample, data[:middle] + b"\x00\xff\xfe\x00" + data[middle:])


@names
@pytest.mark.parametrize("other", SAMPLES, ids=lambda sample: sample.format)
def test_a_file_of_another_format(sample: Sample, other: Sample, tmp_path: Path) -> None:
    """It may happen to be a trace of this one too; where it is none, one line says so."""
    sound_or_told(tmp_path / "trace", sample, other.data)


@names
def test_missing_file_and_folder(sample: Sample, tmp_path: Path) -> None:
    assert told(tmp_path / "none", sample) == f"{tmp_path / 'none'}: no such file"
    told(tmp_path, sample)


texts = pytest.mark.parametrize(
    "sample", [s for s in SAMPLES if s.text], ids=lambda sample: sample.format
)
lines = pytest.mark.parametrize(
    "sample", [s for s in SAMPLES if s.lines], ids=lambda sample: sample.format
)


@texts
def test_byte_order_mark_and_windows_lines(sample: Sample, tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_bytes(sample.data)
    digest = sample.load(path).digest
    path.write_bytes(b"\xef\xbb\xbf" + sample.data.replace(b"\n", b"\r\n"))
    assert sample.load(path).digest == digest


@lines
def test_blank_lines_and_a_missing_last_newline(sample: Sample, tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_bytes(sample.data)
    digest = sample.load(path).digest
    path.write_bytes(sample.data.replace(b"\n", b"\n\n \n"))
    assert sample.load(path).digest == digest
    path.write_bytes(sample.data.removesuffix(b"\n"))
    assert sample.load(path).digest == digest


@lines
def test_invalid_utf8_names_the_row(sample: Sample, tmp_path: Path) -> None:
    path = tmp_path / "trace"
    rows = sample.data.splitlines(keepends=True)
    at = sample.first_row + 1
    rows[at] = rows[at][:-3] + b"\xff\xfe" + rows[at][-3:]
    path.write_bytes(b"".join(rows))
    assert told(path, sample).startswith(f"{path}, row {at + 1}: not valid UTF-8")


@lines
def test_a_broken_row_is_named_or_counted(sample: Sample, tmp_path: Path) -> None:
    path = tmp_path / "trace"
    rows = sample.data.splitlines(keepends=True)
    at = sample.first_row + 1
    rows.insert(at, b'{"broken": \n')
    path.write_bytes(b"".join(rows))
    assert told(path, sample).startswith(f"{path}, row {at + 1}: ")
    trace = sample.load(path, skip_bad_rows=True)
    assert len(trace) == len(sample.rows)
    (note,) = [note for note in trace.origin.notes if "bad row" in note]
    assert note.startswith(f"1 bad row was left out; the first: trace, row {at + 1}: ")


@pytest.mark.parametrize(("sample", "name", "value"), cases())
def test_a_fault_in_one_field(sample: Sample, name: str, value: Any, tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_bytes(sample.changed(1, name, value))
    row = sample.first_row + 2
    message = told(path, sample)
    assert message.startswith(f"{path}, row {row}: ")
    assert name.rsplit(".", maxsplit=1)[-1] in message
    trace = sample.load(path, skip_bad_rows=True)
    assert len(trace) == len(sample.rows) - 1
    assert any(
        note.startswith(f"1 bad row was left out; the first: trace, row {row}: ")
        for note in trace.origin.notes
    )


@pytest.mark.parametrize(
    ("sample", "name"),
    [pytest.param(s, n, id=f"{s.format}-{n}") for s in SAMPLES for n in sorted(s.optional)],
)
def test_optional_fields(sample: Sample, name: str, tmp_path: Path) -> None:
    path = tmp_path / "trace"
    for value in (..., None):
        path.write_bytes(sample.changed(1, name, value))
        assert len(sample.load(path)) >= len(sample.rows) - 1


def test_the_list_finds_a_reader_that_repairs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader that takes -600 for 600, or half a line for a whole one, does not pass."""
    sample = BY_FORMAT["lmcache"]
    test_a_fault_in_one_field(sample, "seq_len", -700, tmp_path)
    test_cut_anywhere(sample, tmp_path)
    monkeypatch.setattr(fields, "tokens", lambda row, name: abs(int(row[name])))
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        test_a_fault_in_one_field(sample, "seq_len", -700, tmp_path)
    monkeypatch.undo()
    parse = fields.parse
    monkeypatch.setattr(fields, "parse", lambda text: parse(text.split(b"]}")[0] + b"]}"))
    with pytest.raises(AssertionError):
        test_cut_anywhere(sample, tmp_path)


clocks = pytest.mark.parametrize(
    "sample", [s for s in SAMPLES if s.clock], ids=lambda sample: sample.format
)


@clocks
def test_mixed_units(sample: Sample, tmp_path: Path) -> None:
    path = tmp_path / "trace"
    rows = [{**row, sample.clock: 1_700_000_000 + i} for i, row in enumerate(sample.rows)]
    path.write_bytes(sample.render(rows))
    assert sample.load(path).origin.time_unit == "s"
    rows[1] = {**rows[1], sample.clock: 1_700_000_001_000}
    path.write_bytes(sample.render(rows))
    assert "mixed units of time" in told(path, sample)
    assert len(sample.load(path, time_unit="ms")) == len(rows)


@clocks
@pytest.mark.parametrize(
    ("unit", "factor"), [("s", 1), ("ms", 10**3), ("us", 10**6), ("ns", 10**9)]
)
def test_units_since_1970(sample: Sample, unit: str, factor: int, tmp_path: Path) -> None:
    path = tmp_path / "trace"
    rows = [
        {**row, sample.clock: (1_700_000_000 + 2 * i) * factor} for i, row in enumerate(sample.rows)
    ]
    path.write_bytes(sample.render(rows))
    trace = sample.load(path)
    assert trace.origin.time_unit == unit
    assert trace.time_s.tolist() == pytest.approx([2.0 * i for i in range(len(rows))])


@clocks
def test_rows_out_of_order_are_sorted_and_said(sample: Sample, tmp_path: Path) -> None:
    path = tmp_path / "trace"
    first, second, *rest = sample.rows
    swapped = [
        {**first, sample.clock: second[sample.clock]},
        {**second, sample.clock: first[sample.clock]},
        *rest,
    ]
    path.write_bytes(sample.render(swapped))
    trace = sample.load(path)
    assert "1 row was out of time order and sorted" in trace.origin.notes
    assert (trace.time_s[1:] >= trace.time_s[:-1]).all()
