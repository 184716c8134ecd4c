"""From a benchmark's folder to the files of a calibration, as a user runs it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
from bench_results import result as bench_result
from synthetic import SETTINGS, made, measured, shared_prefixes
from typer.testing import CliRunner

from kvsched.cli.app import app
from kvsched.evidence.bench.files import write_run
from kvsched.evidence.calibrate.files import NAMES, record_fields
from kvsched.evidence.calibrate.reading import (
    EngineSaid,
    engine_settings,
    flags_of,
    folders_of,
    read_observed,
    told_apart,
)
from kvsched.evidence.calibrate.result import Calibration
from kvsched.evidence.calibrate.run import calibrate
from kvsched.foundation.errors import InputError, UsageError
from kvsched.serve.fitted import read_fit

ENGINE: dict[str, Any] = {
    "kind": "vllm",
    "version": "0.32.0",
    "block_size": 32,
    "blocks": SETTINGS.num_gpu_blocks + 1,
    "max_model_len": 4096,
    "cache": {"enable_prefix_caching": "True"},
    "arguments": ["--max-num-seqs", "128", "--max-num-batched-tokens=2048"],
}


def folder_of(path: Path, concurrency: int = 1, requests: int = 80, **more: Any) -> Path:
    """A run's folder as `kvsched bench` writes it."""
    trace = shared_prefixes(requests, seed=concurrency)
    outcomes = measured(trace, concurrency=concurrency, seed=concurrency)
    told = bench_result(
        outcomes,
        name=f"concurrency {concurrency}",
        config={"max_concurrency": concurrency},
        engine=ENGINE | more.pop("engine", {}),
        **more,
    )
    path.mkdir(parents=True)
    write_run(path, told, outcomes, trace, {}, "<html></html>")
    return path


def run(*arguments: str | Path) -> Any:
    return CliRunner().invoke(app, ["calibrate", *map(str, arguments)], catch_exceptions=False)


def test_files(tmp_path: Path) -> None:
    folders = [folder_of(tmp_path / f"c{many}", many) for many in (1, 4)]
    out = tmp_path / "out"
    ended = run(*folders, "--output-dir", out)
    assert ended.exit_code == 0
    assert "The goal of 15% at p50 is met" in ended.stdout
    assert sorted(each.name for each in out.iterdir()) == sorted(NAMES)
    found = json.loads((out / "calibration.json").read_bytes())
    schema = Path(__file__).parents[3] / "docs" / "calibration.schema.json"
    jsonschema.validate(found, json.loads(schema.read_bytes()))
    assert [each["name"] for each in found["runs"]] == ["concurrency 1", "concurrency 4"]
    assert found["runs"][0]["engine"]["num_gpu_blocks"] == SETTINGS.num_gpu_blocks
    assert found["runs"][0]["engine"]["name"] == "vllm 0.32.0"
    assert read_fit(out / "step-time.json") == msgspec.convert(found["fit"], type(made_fit()))
    rows = (out / "requests.jsonl").read_bytes().splitlines()
    assert len(rows) == 80
    # The same runs give the same bytes, and json prints them.
    before = {name: (out / name).read_bytes() for name in NAMES}
    again = run(*folders, "--output-dir", out, "--format", "json")
    assert json.loads(again.stdout) == found
    assert {name: (out / name).read_bytes() for name in NAMES} == before
    page = (out / "report.html").read_text(encoding="utf-8")
    for said in ("The goal of 15% at p50 is met", "figure-tpot-requests", "request overhead"):
        assert said in page


def made_fit() -> Any:
    return calibrate([made(1, 80)]).result.fit


def test_runs_are_found_in_folders_of_folders(tmp_path: Path) -> None:
    made = [
        folder_of(tmp_path / "all" / name, 1)
        for name in ("off/concurrency-2", "off/concurrency-10", "on/concurrency-2")
    ]
    (tmp_path / "all" / "comparison.json").write_text("{}")
    assert folders_of([str(tmp_path / "all")]) == made
    assert folders_of([str(made[2]), str(tmp_path / "all" / "off")]) == [made[2], *made[:2]]


def test_turns_that_wait_come_as_they_were_sent_and_a_note_says_so(tmp_path: Path) -> None:
    for many in (4, None):
        folder = folder_of(tmp_path / str(many), many or 4, workload={"waiting_turns": 9})
        result = json.loads((folder / "result.json").read_bytes())
        result["config"]["max_concurrency"] = many
        (folder / "result.json").write_text(json.dumps(result))
        run = read_observed(folder)
        assert run.concurrency is None
        assert any("only latencies are predicted" in note for note in run.notes)
    assert not read_observed(folder_of(tmp_path / "plain", 4)).notes


def test_the_step_time_is_taken_by_simulate(tmp_path: Path) -> None:
    out = tmp_path / "out"
    run(folder_of(tmp_path / "c4", 4), "--output-dir", out)
    workload = tmp_path / "c4" / "workload.kvtrace"
    ended = CliRunner().invoke(
        app,
        ["simulate", str(workload), "--step-time", str(out / "step-time.json"), "--concurrency",
         "4", "--num-gpu-blocks-override", "2001", "--no-band", "--format", "json"],
        catch_exceptions=False,
    )  # fmt: skip
    assert ended.exit_code == 0
    assert json.loads(ended.stdout)["step_time"]["kind"] == "fitted"


def test_a_goal_that_is_missed_is_no_failure(tmp_path: Path) -> None:
    # Of the engine's 2,000 blocks a user says 40.
    folder = folder_of(tmp_path / "c1")
    ended = run(folder, "--num-gpu-blocks-override", "41")
    assert ended.exit_code == 0
    assert "is missed" in " ".join(ended.stdout.split())
    assert "nothing to chance" in " ".join(ended.stdout.split())


def test_a_record(tmp_path: Path) -> None:
    registry = tmp_path / "r.sqlite"
    ended = run(folder_of(tmp_path / "c1"), "--record", "--registry", registry, "--name", "mine")
    assert ended.exit_code == 0
    record_id = ended.stdout.split("Record: ")[1].strip()
    shown = CliRunner().invoke(
        app, ["records", "show", record_id, "--registry", str(registry), "--format", "json"]
    )
    found = json.loads(shown.stdout)
    assert (found["task"], found["name"], found["decision"]) == ("calibrate", "mine", "accept")
    assert found["metrics"]["cached_tokens_differ_requests"] == 0
    assert abs(found["metrics"]["concurrency_1_ttft_error_p50"]) < 0.15
    result = msgspec.convert(found["detail"], Calibration)
    missed = msgspec.structs.replace(result, goal_met=False)
    assert record_fields(missed)["decision"] == "tune"


def test_what_is_refused(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "c1")
    for arguments, said in (
        ((folder, "--fit-share", "1"), "above 0 and below 1"),
        ((folder, "--format", "xml"), "text or json"),
        ((folder, "--registry", "x"), "--record"),
        ((folder, "--output-dir", ""), "is empty"),
    ):
        with pytest.raises(UsageError, match=said):
            run(*arguments)
    with pytest.raises(InputError, match="no such folder"):
        run(tmp_path / "absent")
    with pytest.raises(InputError, match="holds no run"):
        run(empty(tmp_path))
    with pytest.raises(InputError, match="is no folder"):
        run(folder / "result.json")
    with pytest.raises(UsageError, match="c1: is given twice"):
        run(tmp_path, folder)
    before = {each: each.read_bytes() for each in folder.iterdir()}
    with pytest.raises(UsageError, match="c1: holds a run, which is never written over"):
        run(folder, "--output-dir", folder)
    assert {each: each.read_bytes() for each in folder.iterdir()} == before
    with pytest.raises(UsageError, match="--num-gpu-blocks-override 0: at least 2"):
        run(folder, "--num-gpu-blocks-override", "0")
    outcomes = (folder / "requests.jsonl").read_bytes().splitlines(keepends=True)
    (folder / "requests.jsonl").write_bytes(b"".join(outcomes[:-1]))
    with pytest.raises(InputError, match="79 requests, where"):
        run(folder)
    other = folder_of(tmp_path / "other", engine={"block_size": 16})
    with pytest.raises(InputError, match="blocks of 32 tokens, where the engine has 16"):
        run(other)
    silent = folder_of(tmp_path / "silent", engine={"blocks": None})
    with pytest.raises(UsageError, match="how many blocks the engine has"):
        run(silent)
    assert run(silent, "--num-gpu-blocks-override", "2001").exit_code == 0


def empty(path: Path) -> Path:
    made = path / "empty"
    made.mkdir()
    return made


def test_options_of_the_engine() -> None:
    told = ["--max-num-seqs", "8", "--no-enable-prefix-caching", "--watermark=0.1", "-x", "--flag"]
    assert flags_of(told) == {
        "max_num_seqs": "8",
        "enable_prefix_caching": "no",
        "watermark": "0.1",
        "flag": "yes",
    }
    arguments = [*told, "--scheduling-policy", "priority", "--no-enable-chunked-prefill"]
    said = bench_result([], engine=ENGINE | {"arguments": arguments})
    found, order, notes = engine_settings("r", said, EngineSaid())
    assert order == "priority"
    assert (found.max_num_seqs, found.max_num_batched_tokens) == (8, 2048)
    assert not found.enable_prefix_caching
    assert not found.enable_chunked_prefill
    assert found.watermark == 0.1
    assert len(notes) == 1
    assert "max_num_batched_tokens: 2,048 is taken" in notes[0]
    mine, _, _ = engine_settings("r", said, EngineSaid(max_num_seqs=4, max_num_batched_tokens=64))
    assert (mine.max_num_seqs, mine.max_num_batched_tokens) == (4, 64)
    off = {"arguments": [], "cache": {"enable_prefix_caching": "False"}}
    found, _, notes = engine_settings("r", bench_result([], engine=ENGINE | off), EngineSaid())
    assert not found.enable_prefix_caching
    assert len(notes) == 2


def test_turns_that_wait_come_as_they_were_sent(tmp_path: Path) -> None:
    workload = {"source": "folder/chats.jsonl", "waiting_turns": 3}
    found = read_observed(folder_of(tmp_path / "c4", 4, workload=workload))
    assert found.concurrency is None
    assert found.source == "chats.jsonl"
    assert "as they were sent" in found.notes[0]


def test_runs_of_one_name_are_told_apart() -> None:
    one = made(1, 40)
    named = [
        dataclasses.replace(one, name="a", source="x"),
        dataclasses.replace(one, name="a", source="y"),
        dataclasses.replace(one, name="a", source="y"),
        dataclasses.replace(one, name="b"),
    ]
    assert [run.name for run in told_apart(named)] == ["x: a", "y: a (1)", "y: a (2)", "b"]
