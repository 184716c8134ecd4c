"""Records as files, and back; two records side by side; the published schema."""

from __future__ import annotations

import csv
import datetime
import io
import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import polars
import pytest
from hypothesis import given
from hypothesis import strategies as st
from some_records import a_record

from kvsched.evidence import record_export
from kvsched.evidence.record import Record, sealed
from kvsched.evidence.record_check import canonical
from kvsched.evidence.record_compare import compare_records
from kvsched.evidence.record_export import (
    METRIC,
    TEXTS,
    find_format,
    harmless,
    plain_markdown,
    read_jsonl,
    write_csv,
    write_jsonl,
    write_markdown,
    write_parquet,
)
from kvsched.evidence.record_words import key_metrics, number, setting, since_moment
from kvsched.evidence.schema import schemas
from kvsched.foundation.errors import InputError, UsageError

ROOT = Path(__file__).parents[2]
FORMULAS = ("=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "＝1", "'=1", "'")
FIRST = sealed(a_record(reason="a | b\n<b>`c`</b>", metrics={"ttft_ms_p50": -0.1, "n": 2**62}))
SECOND = sealed(
    a_record(
        name="", corrects=FIRST.record_id, status="failed", reason="=cmd|' /C calc'!A0",
        metrics={"ttft_ms_p50": 3, "only": 1.5},
        missing={},
    )
)  # fmt: skip
BOTH = [FIRST, SECOND]
CORRECTIONS = {FIRST.record_id: (SECOND.record_id,)}


def again() -> list[Record]:
    return BOTH


def test_jsonl_comes_back_exactly() -> None:
    stream = io.BytesIO()
    write_jsonl(BOTH, stream)
    stream.seek(0)
    assert list(read_jsonl(stream, "f")) == [(1, FIRST), (2, SECOND)]
    spread = b"\n\r\n" + json.dumps(json.loads(canonical(FIRST)), indent=None).encode() + b"\r\n"
    assert list(read_jsonl(io.BytesIO(spread), "f")) == [(3, FIRST)]


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        (canonical(FIRST)[:-1], "no JSON"),
        (canonical(FIRST).replace(b"-0.1", b"-0.2"), "checksum: is not that"),
        (canonical(a_record()), "checksum: is missing"),
        (canonical(FIRST).replace(b'"task"', b'"tusk"'), "unknown field 'tusk'"),
    ],
)
def test_a_bad_line_is_named(line: bytes, fault: str) -> None:
    with pytest.raises(InputError) as error:
        list(read_jsonl(io.BytesIO(canonical(SECOND) + b"\n" + line + b"\n"), "in.jsonl"))
    assert str(error.value).startswith(f"in.jsonl, row 2: {fault}")


def read_csv() -> list[dict[str, str]]:
    stream = io.BytesIO()
    write_csv(again, CORRECTIONS, stream)
    return list(csv.DictReader(io.StringIO(stream.getvalue().decode(), newline="")))


def test_csv_holds_every_figure() -> None:
    first, second = read_csv()
    assert list(first) == [*TEXTS, "metric.n", "metric.only", "metric.ttft_ms_p50"]
    assert float(first[METRIC + "ttft_ms_p50"]) == -0.1
    assert int(first[METRIC + "n"]) == 2**62
    assert first[METRIC + "only"] == "", "not measured is empty, never 0"
    assert first["reason"] == FIRST.reason
    assert first["superseded_by"] == SECOND.record_id
    assert json.loads(second["config"]) == SECOND.config
    assert second["corrects"] == FIRST.record_id


def test_no_text_is_a_formula(monkeypatch: pytest.MonkeyPatch) -> None:
    def formulas(rows: list[dict[str, str]]) -> list[str]:
        return [
            value
            for row in rows
            for key, value in row.items()
            if not key.startswith(METRIC) and value[:1] in "=+-@\t\r＝＋－＠" and value
        ]

    assert formulas(read_csv()) == []
    monkeypatch.setattr(record_export, "harmless", lambda text: text)
    assert formulas(read_csv()) == [SECOND.reason]


@given(st.sampled_from(FORMULAS) | st.text())
def test_what_was_made_harmless_can_be_told(text: str) -> None:
    shown = harmless(text)
    assert not re.match(r"[=+\-@\t\r＝＋－＠]", shown)
    assert shown.removeprefix("'") == text


def test_parquet_has_the_same_columns_and_the_record() -> None:
    stream = io.BytesIO()
    write_parquet(again, CORRECTIONS, stream)
    table = polars.read_parquet(io.BytesIO(stream.getvalue()))
    assert table.columns == [
        *TEXTS, "metric.n", "metric.only", "metric.ttft_ms_p50", "record",
    ]  # fmt: skip
    assert table["metric.n"].to_list() == [2**62, None]
    assert table["metric.ttft_ms_p50"].to_list() == [-0.1, 3.0]
    assert table["reason"].to_list() == [each.reason for each in BOTH]
    records = [msgspec.json.decode(each, type=Record) for each in table["record"]]
    assert records == BOTH


def test_the_table_in_markdown() -> None:
    stream = io.BytesIO()
    write_markdown(BOTH, CORRECTIONS, stream)
    lines = stream.getvalue().decode().splitlines()
    cells = [re.split(r"(?<!\\)\|", line)[1:-1] for line in lines]
    assert len(lines) == 4
    assert {len(row) for row in cells} == {8}, "no text makes a cell of its own"
    date, task, level, config, metrics, decision, reason, record = (x.strip() for x in cells[2])
    assert date == "2026-01-31"
    assert task == "prefix-cache: prefix caching on"
    assert level == "real_benchmark"
    assert config == "engine.block-size=16, engine.enable-prefix-caching=yes, rate=2.5"
    assert metrics.startswith("ttft_ms_p50 -0.1, n 4,611,")
    assert decision == "accept"
    assert reason == r"a \| b \<b\>\`c\`\</b\>"
    assert SECOND.record_id[:8] in record
    assert cells[3][5].strip() == "accept (failed)"


def test_marks_of_markdown_are_escaped() -> None:
    assert plain_markdown("ttft_ms_p50 _a_ *b* [c](d) \\| \u202e") == (
        r"ttft_ms_p50 \_a\_ \*b\* \[c\](d) \\\|"
    )


def test_formats_by_name_and_suffix() -> None:
    assert find_format("a.MD", None) == "markdown"
    assert find_format("a.csv", "jsonl") == "jsonl"
    for output, named in ((None, None), ("a.txt", None), ("a.csv", "xls")):
        with pytest.raises(UsageError):
            find_format(output, named)


def test_words() -> None:
    assert key_metrics(a_record()) == [("ttft_ms_p50", 12.5), ("requests", 100)]
    assert [number(value) for value in (None, 0, 1234567, 1234.56, 0.00001234, 2.0)] == [
        "–", "0", "1,234,567", "1,234.6", "1.234e-05", "2",
    ]  # fmt: skip
    assert setting([2, 16, 8]) == "2×16×8"
    assert setting(list(range(9))) == "9 values"
    assert len(setting("x" * 99)) == 32


def test_since() -> None:
    now = datetime.datetime(2026, 1, 31, 12, tzinfo=datetime.UTC)
    for text, expected in (
        ("2026-01-31", "2026-01-31T00:00:00.000000Z"),
        ("2026-01-31T10:00:00+02:00", "2026-01-31T08:00:00.000000Z"),
        ("36h", "2026-01-30T00:00:00.000000Z"),
        ("1w", "2026-01-24T12:00:00.000000Z"),
    ):
        assert since_moment(text, now) == expected
    for wrong in ("", "yesterday", "7y", "-1d", "999999w", "0001-01-01T00:00:00+23:00"):
        with pytest.raises(UsageError):
            since_moment(wrong, now)


def test_two_records_side_by_side() -> None:
    a = sealed(
        a_record(
            config={"n": 1, "deep": {"x": True, "same": 2}, "m": [1, 2]},
            metrics={"zero": 0, "both": 4, "gone": 2.0, "none": None},
            missing={"none": "no counter"},
        )
    )
    b = sealed(
        a_record(
            config={"n": 1.0, "deep": {"x": 1, "same": 2}, "m": [1, 3], "new": "y"},
            metrics={"zero": 5, "both": 6, "none": 1, "huge": -1e308},
            missing={},
        )
    )
    result = compare_records(a, b)
    rows = {row.name: row for row in result.metrics}
    assert list(rows) == ["zero", "both", "gone", "none", "huge"]
    assert (rows["both"].difference, rows["both"].ratio) == (2, 1.5)
    assert (rows["zero"].difference, rows["zero"].ratio) == (5, None)
    assert rows["gone"].difference is None
    assert rows["gone"].missing == "B: not measured"
    assert rows["none"].missing == "A: no counter"
    assert [change.name for change in result.config] == ["deep.x", "m", "new"]
    assert not result.config[-1].in_a
    assert result.same_workload
    assert result.warnings == ()


def test_different_workloads_are_not_compared() -> None:
    a, b = sealed(a_record()), sealed(a_record(workload_digest="e" * 64))
    none = sealed(a_record(workload_digest=None))
    for one, other in ((a, b), (a, none), (none, b)):
        with pytest.raises(UsageError, match="different workloads"):
            compare_records(one, other)
        result = compare_records(one, other, any_workload=True)
        assert not result.same_workload
        assert "workloads differ" in result.warnings[0]
    assert compare_records(none, none).same_workload


def test_warnings_of_a_comparison() -> None:
    a = sealed(a_record(status="failed", reason="it broke"))
    b = sealed(a_record(task="replay", evidence_level="cpu_simulation"))
    said = " ".join(compare_records(a, b).warnings)
    assert "task: prefix-cache and replay" in said
    assert "evidence level" in said
    assert "A has status failed: it broke" in said


@pytest.mark.parametrize("name", sorted(schemas()))
def test_the_published_schema_is_up_to_date(name: str) -> None:
    written = (ROOT / "docs" / name).read_bytes()
    assert written == msgspec.json.format(msgspec.json.encode(schemas()[name]), indent=1) + b"\n"
    jsonschema.Draft202012Validator.check_schema(json.loads(written))


def test_the_schema_agrees_with_what_is_taken() -> None:
    schema = schemas()["record.schema.json"]
    record: dict[str, Any] = json.loads(canonical(FIRST))
    jsonschema.validate(record, schema)
    for changes in (
        {"extra": 1}, {"record_id": "x"}, {"decision": "no"}, {"metrics": {"a": "1"}},
        {"created_at": "2026"}, {"schema_version": 2}, {"checksum": "f"}, {"task": ""},
    ):  # fmt: skip
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(record | changes, schema)
