"""A study's policies served in time: the same runs as `kvsched simulate`, in every output."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
from rich.console import Console
from typer.testing import CliRunner

from kvsched.cli.app import app
from kvsched.foundation.errors import UsageError
from kvsched.report.format import seconds, short
from kvsched.report.html import render_html
from kvsched.report.terminal import print_study
from kvsched.serve.served import Asking, serve
from kvsched.study.files import encode
from kvsched.study.result import StudyResult
from kvsched.study.run import Options, study
from kvsched.study.schema import result_schema
from kvsched.trace.generate import generate, preset
from kvsched.trace.model import Trace

POLICIES = ("fifo", "lfu")
ENGINE = {"model": "llama-3.1-8b", "gpu": "h100"}


@pytest.fixture(autouse=True)
def uncompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVSCHED_COMPILED", "0")


@pytest.fixture(scope="module")
def trace() -> Trace:
    return generate(preset("chat", requests=60), 5)


@pytest.fixture(scope="module")
def result(trace: Trace) -> StudyResult:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KVSCHED_COMPILED", "0")
        options = Options(points=2, policies=POLICIES, simulate=True)
        return study(trace, 700, options=options, **ENGINE)


def test_each_row_is_the_policy_s_own_simulation(trace: Trace, result: StudyResult) -> None:
    served = result.served
    assert served is not None
    assert [row.policy for row in served.rows] == ["lru", "fifo", "lfu"], "no optima: they look on"
    assert (served.max_num_seqs, served.max_num_batched_tokens) == (1024, 8192)
    for row in served.rows:
        asked = Asking(
            **ENGINE, num_gpu_blocks_override=701, eviction_policy=row.policy, band=False
        )
        alone = serve(trace, asked).result.summary
        assert alone.ttft_s is not None
        assert alone.throughput is not None
        assert row.ttft_p50_s == alone.ttft_s.p50
        assert row.ttft_p99_s == alone.ttft_s.p99
        assert row.requests_s == alone.throughput.requests_s
        assert row.output_tokens_s == alone.throughput.output_tokens_s
        assert row.hit_ratio == alone.hit_ratio
        assert row.overloaded == alone.overload.overloaded
        assert row.unfinished == 60 - alone.finished
    assert len({(row.hit_ratio, row.ttft_p50_s) for row in served.rows}) > 1, "policies differ"


def test_it_follows_the_published_schema(result: StudyResult) -> None:
    data = json.loads(encode(result))
    jsonschema.validate(data, result_schema())
    assert data["config"]["simulate"] is True
    assert msgspec.convert(data, StudyResult).served == result.served
    data["served"]["rows"][0]["ttft_p99_s"] = "soon"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(data, result_schema())


def printed(result: StudyResult) -> str:
    file = io.StringIO()
    print_study(result, Console(file=file, width=80, highlight=False))
    assert all(len(line) <= 80 for line in file.getvalue().splitlines())
    return file.getvalue()


def test_text_and_page_say_it(result: StudyResult) -> None:
    text, html = printed(result), render_html(result)
    assert result.served is not None
    for row in result.served.rows:
        for value in (seconds(row.ttft_p99_s), short(row.output_tokens_s)):
            assert value in text
            assert f'<td class="n">{value}</td>' in html
    assert "What requests see" in text
    over = msgspec.structs.replace(
        result.served.rows[0], overloaded=True, ttft_p50_s=None, fault="<b>stalled</b>"
    )
    table = msgspec.structs.replace(result.served, rows=(over,))
    changed = msgspec.structs.replace(result, served=table)
    assert "overload: the queue grows without end" in " ".join(printed(changed).split())
    assert "lru: <b>stalled</b>" in printed(changed)
    assert "&lt;b&gt;stalled&lt;/b&gt;" in render_html(changed)
    assert "Where it is overloaded the queue grows" in render_html(changed)


def test_without_it_there_is_no_table(trace: Trace) -> None:
    plain = study(trace, 700, options=Options(points=2, policies=POLICIES), **ENGINE)
    assert plain.served is None
    assert "What requests see" not in printed(plain)
    assert 'id="h-served"' not in render_html(plain)
    assert "simulate" not in plain.config


def test_a_policy_that_cannot_run_live_is_a_fault_of_its_row(trace: Trace) -> None:
    options = Options(points=2, policies=("marconi:alpha=auto",), simulate=True)
    found = study(trace, 700, options=options, **ENGINE).served
    assert found is not None
    (row,) = (row for row in found.rows if row.policy.startswith("marconi"))
    assert "cannot run live" in str(row.fault)
    assert row.ttft_p50_s is None


@pytest.mark.parametrize(
    ("engine", "options", "said"),
    [
        ({}, {}, "needs a model and a GPU"),
        ({"model": "llama-3.1-8b"}, {}, "needs a model and a GPU"),
        (ENGINE, {"engine": "sglang"}, "not with engine sglang"),
    ],
)
def test_what_cannot_be_is_refused_first(
    trace: Trace, engine: Any, options: Any, said: str
) -> None:
    def never(*_: object) -> None:
        raise AssertionError

    with pytest.raises(UsageError, match=said):
        study(trace, 700, options=Options(simulate=True, **options), report=never, **engine)


def test_the_command_writes_it(tmp_path: Path) -> None:
    row = '{"timestamp": %d, "input_length": 900, "output_length": 5, "hash_ids": [%d, %d]}\n'
    file = tmp_path / "t.jsonl"
    file.write_text("".join(row % (at * 100, at % 3, at + 9) for at in range(12)))
    arguments = [
        "study", str(file), "--model", "llama-3.1-8b", "--gpu", "h100", "--policies", "lfu",
        "--capacity-blocks", "5", "--points", "2", "--simulate", "-o", str(tmp_path / "out"),
    ]  # fmt: skip
    seen: list[bool] = []

    def noted(*arguments: Any, **_: Any) -> None:
        seen.append(arguments[5].simulate)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys.modules["kvsched.study.run"], "served_policies", noted)
        ended = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert ended.exit_code == 0
    assert seen == [True]
    data = json.loads((tmp_path / "out" / "result.json").read_text())
    assert data["experiment"]["simulate"] is True
