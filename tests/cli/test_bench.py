"""`kvsched bench` as a user runs it, against the fake engine in processes of its own."""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from bench_command import STUB, bench
from fake_engine import FakeEngine, fake_engine

from kvsched.evidence.bench.files import read_run, read_runs, write_run
from kvsched.evidence.registry import Registry
from kvsched.foundation.errors import InputError, KvschedError, UsageError
from kvsched.trace.load import load_trace

SMALL = ["--groups", "3", "--requests-per-group", "6", "--prefix-tokens", "64"]
SMALL += ["--suffix-tokens", "8", "--output-tokens", "4", "--sample-interval", "0.02"]
COST = {"ttft_per_token_s": 2e-4, "itl_s": 0.001}
FILES = {
    "result.json", "requests.jsonl", "gauges.jsonl", "summary.json", "vllm-bench.json",
    "report.html", "workload.kvtrace",
}  # fmt: skip


@pytest.fixture(scope="module")
def engine() -> Iterator[FakeEngine]:
    with fake_engine(**COST) as running:
        yield running


@pytest.fixture(scope="module")
def measured(engine: FakeEngine, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run."""
    out = tmp_path_factory.mktemp("measured") / "run"
    bench("prefix-cache", "--engine-url", engine.url, *SMALL, "-o", str(out))
    return out


@pytest.fixture
def launched(tmp_path: Path) -> Iterator[list[str]]:
    """Options that start the stub; afterwards no process of it may be left."""
    pids = tmp_path / "pids"
    yield [
        "--launch", "vllm", "--model", "some/tiny", "--ready-timeout", "60",
        "--env", f"PYTHONPATH={STUB}", "--env", f"FAKE_PIDS={pids}",
        "--env", f"FAKE_SCRIPT={json.dumps(COST)}",
    ]  # fmt: skip
    assert running(pids) == []


def running(pids: Path) -> list[int]:
    found = []
    for line in pids.read_text().split():
        with contextlib.suppress(OSError):
            state = Path(f"/proc/{line}/stat").read_text().rpartition(")")[2].split()[0]
            found += [int(line)] if state != "Z" else []
    return found


def test_prefix_caching_off_against_on(tmp_path: Path, launched: list[str]) -> None:
    out = tmp_path / "out"
    told = bench(
        "prefix-cache", *launched, *SMALL, "-o", str(out), "--repeats", "2", "--format", "json",
        "--max-overhead", "10",
    )  # fmt: skip
    found = json.loads(told.stdout)
    assert [run["hit_rate"]["usage"] for run in found["runs"]] == pytest.approx(
        [0.0, 960 / 1296] * 2
    )
    assert all(run["hit_rate"]["agree"] for run in found["runs"])
    (comparison,) = found["comparisons"]
    assert comparison["decision"] == "accept", comparison["reason"]
    assert comparison["a"]["runs"] == 2
    changed = {each["name"] for each in comparison["differences"]}
    assert "engine.arguments.--no-enable-prefix-caching" in changed
    for side in ("off", "on"):
        for repeat in ("run-1", "run-2"):
            names = {each.name for each in (out / side / repeat).iterdir()}
            assert names == FILES | {"engine.log"}
    assert len((tmp_path / "pids").read_text().split()) == 4
    assert json.loads((out / "comparison.json").read_text()) == comparison
    again = json.loads(
        bench(
            "compare", str(out / "off"), str(out / "on"), "--format", "json",
            "--max-overhead", "10",
        ).stdout
    )  # fmt: skip
    assert again["reason"] == comparison["reason"]
    for found in (comparison, again):
        assert (found["a"]["name"], found["b"]["name"]) == ("off", "on")
    page = tmp_path / "page.html"
    bench("compare", str(out / "off"), str(out / "on"), "--output", str(page))
    assert "<html" in page.read_text()
    with pytest.raises(UsageError, match="never written over"):
        bench("prefix-cache", *launched, *SMALL, "-o", str(out), "--repeats", "2")


def test_scheduler_settings_each_against_the_first(tmp_path: Path, launched: list[str]) -> None:
    out = tmp_path / "out"
    told = bench(
        "scheduler", *launched, *SMALL, "-o", str(out), "--vary", "max-num-seqs=1,8",
        "--max-concurrency", "1,4", "--judge-points",
    )  # fmt: skip
    assert {each.name for each in out.iterdir()} == {
        "max-num-seqs-1", "max-num-seqs-8", "comparison-concurrency-1.json",
        "comparison-concurrency-1.html", "comparison-concurrency-4.json",
        "comparison-concurrency-4.html",
    }  # fmt: skip
    found = json.loads((out / "comparison-concurrency-4.json").read_text())
    changes = {each["name"]: each for each in found["changes"]}
    assert changes["TTFT p50"]["relative"] < 0
    assert changes["output throughput"]["relative"] > 0
    assert (
        found["differences"] == [{"name": "engine.arguments.--max-num-seqs", "a": "1", "b": "8"}]
        or len(found["differences"]) > 1
    )
    assert "Comparison" in told.stdout
    with pytest.raises(UsageError, match="different workloads"):
        bench(
            "compare",
            str(out / "max-num-seqs-1" / "concurrency-1"),
            str(out / "max-num-seqs-8" / "concurrency-4"),
        )


def test_sides_that_cannot_be_compared_are_told(tmp_path: Path, launched: list[str]) -> None:
    out = tmp_path / "out"
    failing = json.dumps({"requests": {str(at): {"status": 500} for at in range(1, 99)}})
    told = bench(
        "prefix-cache", *launched, "--env", f"FAKE_SCRIPT={failing}", *SMALL, "--warmup", "0",
        "-o", str(out), code=1,
    )  # fmt: skip
    assert "no comparison of off and on: no request ended well" in told.stderr
    assert read_run(out / "on").result.errors == {"server_error": 18}
    assert not (out / "comparison.json").exists()


def test_a_trace_with_sessions(tmp_path: Path, engine: FakeEngine) -> None:
    rows = [
        {"timestamp": 0, "input_length": 1024, "output_length": 40, "hash_ids": [1, 2]},
        {"timestamp": 20, "input_length": 600, "output_length": 3, "hash_ids": [1, 3]},
        {"timestamp": 40, "input_length": 1536, "output_length": 2, "hash_ids": [1, 2, 4]},
    ]
    for row, session in zip(rows, ("a", "b", "a"), strict=True):
        row["session_id"] = session
    trace = tmp_path / "trace.jsonl"
    trace.write_text("".join(json.dumps(row) + "\n" for row in rows))
    out = tmp_path / "out"
    told = bench(
        "replay", str(trace), "--engine-url", engine.url, "-o", str(out), "--sessions",
        "--think-time", "0.05", "--scale", "1/32", "--max-output-tokens", "8", "--warmup", "0",
        "--sample-interval", "0",
    )  # fmt: skip
    assert "1 of 3 requests ask for more than 8 tokens" in told.stderr
    assert "scaled to 1/32" in told.stderr
    found = read_run(out)
    assert [one.sent_prompt_tokens for one in found.outcomes] == [32, 19, 48]
    assert [one.cached_tokens for one in found.outcomes] == [0, 16, 32]
    first, _, later = found.outcomes
    assert first.finished_s is not None
    assert later.due_s == pytest.approx(first.finished_s + 0.05, abs=1e-6)
    sent = load_trace(out / "workload.kvtrace")
    assert sent.block_size == 16
    assert sent.chain_blocks.tolist() == [2, 1, 3]
    assert sent.nodes == 3
    assert found.result.gauges["running"] is None
    assert "nothing was sampled" in found.result.missing["gauges.running"]


def test_a_rate_and_an_objective(tmp_path: Path, engine: FakeEngine) -> None:
    told = bench(
        "prefix-cache", "--engine-url", engine.url, *SMALL, "--request-rate", "200",
        "--slo-ttft-ms", "1000", "--format", "json", "--limit", "10", "--repeats", "2",
    )  # fmt: skip
    one, other = json.loads(told.stdout)["runs"]
    assert one["good_requests"] == 10
    assert one["requests"] == 10
    assert one["config"]["request_rate"] == 200
    assert one["environment"]["machine"]["architecture"]
    assert one["workload_digest"] == other["workload_digest"]
    # Emptied between repeats, so the second hits no more than the first.
    assert one["hit_rate"]["usage_hit_tokens"] == other["hit_rate"]["usage_hit_tokens"] > 0


def test_all_at_once(tmp_path: Path, engine: FakeEngine) -> None:
    out = tmp_path / "out"
    bench(
        "prefix-cache", "--engine-url", engine.url, *SMALL, "--request-rate", "inf", "-o", str(out)
    )
    assert read_run(out).result.config["request_rate"] == "inf"
    assert {one.due_s for one in read_run(out).outcomes} == {0.0}
    assert "all at once" in (out / "report.html").read_text()


def test_without_metrics_everything_else_is_measured(tmp_path: Path) -> None:
    with fake_engine(metrics=False, cached_details=False) as bare:
        told = bench(
            "prefix-cache", "--engine-url", bare.url, *SMALL, "--format", "json", "--repeats", "2"
        )
    first, second = json.loads(told.stdout)["runs"]
    assert first["hit_rate"]["usage"] is None
    assert first["hit_rate"]["counters"] is None
    assert first["missing"]["hit_rate"]
    assert first["completed"] == 18
    assert any("may have been hit" in warning for warning in first["warnings"])
    assert any("the run before left" in warning for warning in second["warnings"])
    assert any("block size" in warning for warning in first["warnings"])


def test_failed_requests_are_an_exit_code_and_still_written(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with fake_engine(requests={4: {"status": 500}, 6: {"reset_after": 1}}) as broken:
        arguments = ["prefix-cache", "--engine-url", broken.url, *SMALL, "--warmup", "0"]
        told = bench(*arguments, "-o", str(out), code=1)
    assert "2 of 18 requests failed (reset 1, server_error 1)" in told.stderr
    assert read_run(out).result.errors == {"reset": 1, "server_error": 1}
    with fake_engine(requests={9: {"status": 500}}) as broken:
        arguments[2] = broken.url
        bench(*arguments, "--max-error-share", "0.1")


def test_wrong_usage_is_noticed() -> None:
    with fake_engine(usage="wrong") as lying:
        told = bench("prefix-cache", "--engine-url", lying.url, *SMALL, "--format", "json")
    (run,) = json.loads(told.stdout)["runs"]
    assert run["hit_rate"]["agree"] is False
    text = "; ".join(run["warnings"])
    assert "hit tokens differ" in text
    assert "18 answers have another length" in text


def test_without_a_standard_output_everything_is_written(
    tmp_path: Path, engine: FakeEngine
) -> None:
    # A socket that takes the number of a closed stream ends the event loop's library.
    out = tmp_path / "out"
    command = [sys.executable, "-m", "kvsched.cli.main", "bench", "prefix-cache", "-o", str(out)]
    ended = subprocess.run(
        ["sh", "-c", '"$@" <&- >&- 2>&-', "sh", *command, "--engine-url", engine.url, *SMALL],
        check=False,
    )
    assert ended.returncode == 0
    assert {each.name for each in out.iterdir()} == FILES


def test_a_dead_engine_writes_what_there_is(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with fake_engine(die_after=6) as dying:
        bench(
            "prefix-cache", "--engine-url", dying.url, *SMALL, "--warmup", "0", "-o", str(out),
            code=1,
        )  # fmt: skip
    found = read_run(out).result
    assert found.completed + sum(found.errors.values()) == 18
    assert 1 <= found.completed <= 6
    assert found.hit_rate.counters is None


def test_records_of_runs_and_comparisons(tmp_path: Path, launched: list[str]) -> None:
    place = tmp_path / "records.db"
    bench("prefix-cache", *launched, *SMALL, "--record", "--registry", str(place))
    with Registry(place) as registry:
        off, on, both = registry.list()
        assert registry.verify() == []
    assert [each.decision for each in (off, on)] == ["pending", "pending"]
    assert both.decision in ("accept", "tune")
    assert off.metrics["hit_rate_usage"] == 0.0
    assert on.metrics["hit_rate_usage"] == pytest.approx(960 / 1296)
    assert both.metrics["hit_rate_share_change"] == pytest.approx(960 / 1296)
    assert off.metrics["hit_rate_counters"] is None
    assert off.workload_digest == both.workload_digest
    for each in (off, on, both):
        assert each.evidence_level == "real_benchmark"
        assert {name for name, value in each.metrics.items() if value is None} == set(each.missing)


def test_a_registry_that_cannot_be_is_told_before_anything_is_measured(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    place, out = tmp_path / "file" / "records.db", tmp_path / "out"
    with fake_engine() as idle:
        arguments = ["prefix-cache", "--engine-url", idle.url, *SMALL, "-o", str(out)]
        with pytest.raises(UsageError, match="cannot be made"):
            bench(*arguments, "--record", "--registry", str(place))
        with pytest.raises(UsageError, match="--registry needs --record"):
            bench(*arguments, "--registry", str(place))
        assert idle.stats()["requests"] == 0
    assert not out.exists()


def test_an_engine_that_asks_for_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with fake_engine(api_key="k") as closed:
        arguments = ["prefix-cache", "--engine-url", closed.url, *SMALL]
        with pytest.raises(KvschedError, match="status 401: the engine asks for an API key"):
            bench(*arguments)
        monkeypatch.setenv("OPENAI_API_KEY", "other")
        with pytest.raises(KvschedError, match="status 401: the engine refuses this API key"):
            bench(*arguments)
        monkeypatch.setenv("OPENAI_API_KEY", "k")
        bench(*arguments)


def test_a_record_of_a_run_with_failures(tmp_path: Path) -> None:
    place = tmp_path / "records.db"
    arguments = [*SMALL, "--warmup", "0", "--record", "--registry", str(place)]
    with fake_engine(requests={4: {"status": 500}}) as broken:
        bench("prefix-cache", "--engine-url", broken.url, *arguments, code=1)
    with Registry(place) as registry:
        (found,) = registry.list()
    assert found.status == "failed"
    assert found.metrics["errors_server_error"] == 1


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_writes_what_it_had_and_stops_the_engine(
    tmp_path: Path, launched: list[str], how: signal.Signals
) -> None:
    out = tmp_path / "out"
    slow = [*launched, "--env", f"FAKE_SCRIPT={json.dumps({'ttft_s': 0.2})}"]
    with subprocess.Popen(
        [sys.executable, "-m", "kvsched", "bench", "prefix-cache", *slow, *SMALL,
         "--warmup", "0", "-o", str(out)],
        stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True,
    ) as process:  # fmt: skip
        until = time.monotonic() + 60
        log = out / "off" / "engine.log"
        while not (log.exists() and log.stat().st_size) and time.monotonic() < until:
            time.sleep(0.05)
        stub = FakeEngine(f"http://127.0.0.1:{int(log.read_text())}", process)
        while stub.stats()["requests"] < 3 and time.monotonic() < until:
            time.sleep(0.02)
        process.send_signal(how)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "interrupted" in said
    assert running(tmp_path / "pids") == []
    assert read_run(out / "off").result.errors["cancelled"] >= 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["prefix-cache"], "give --engine-url"),
        (["prefix-cache", "--engine-url", "http://x", "--launch", "vllm"], "give --engine-url"),
        (["prefix-cache", "--launch", "other", "--model", "m"], "use vllm, sglang"),
        (["prefix-cache", "--launch", "vllm"], "--launch needs --model"),
        (["prefix-cache", "--engine-url", "http://x", "--", "--flag"], "--launch"),
        (["prefix-cache", "--engine-url", "ftp://x"], "must be like http"),
        (["prefix-cache", "--engine-url", "http://x", "--groups", "0"], "groups: at least 1"),
        (["prefix-cache", "--engine-url", "http://x", "--max-overhead", "-1"], "--max-overhead"),
        (["prefix-cache", "--engine-url", "http://x", "--draws", "1"], "--draws"),
        (["prefix-cache", "--engine-url", "http://x", "--repeats", "0"], "--repeats"),
        (["prefix-cache", "--engine-url", "http://x", "--max-concurrency", "a"], "as 1,4,16"),
        (["prefix-cache", "--engine-url", "http://x", "--extra-body", "["], "no JSON"),
        (["prefix-cache", "--engine-url", "http://x", "--extra-body", '{"n":2}'], "n is of the"),
        (["prefix-cache", "--engine-url", "http://x", "--sample-interval", "nan"], "from 0 to"),
        (["prefix-cache", "--engine-url", "http://x", "--sample-interval", "inf"], "from 0 to"),
        (["prefix-cache", "--engine-url", "http://x", "--slo-ttft-ms", "nan"], "--slo-ttft-ms"),
        (["prefix-cache", "--engine-url", "http://x", "--slo-tpot-ms", "-1"], "--slo-tpot-ms"),
        (["prefix-cache", "--engine-url", "http://x", "--vocab-size", "0"], "too small"),
        (["prefix-cache", "--engine-url", "http://x", "--groups", "9999999"], "are too many"),
        (["prefix-cache", "--engine-url", "http://x", "--prefix-tokens", "9999999999"], "too many"),
        (["prefix-cache", "--engine-url", "http://x", "--prefix-tokens", "99999999"], "--limit"),
        (["prefix-cache", "--launch", "vllm", "--model", "m", "--ready-timeout", "inf"], "at most"),
        (["prefix-cache", "--launch", "vllm", "--model", "m", "--port", "70000"], "--port 70000"),
        (["prefix-cache", "--engine-url", "http://x", "--scale", "big"], "no share"),
        (["prefix-cache", "--engine-url", "http://x", "--format", "csv"], "text or json"),
        (["prefix-cache", "--engine-url", "http://x", "--speedup", "2"], "give --trace"),
        (["scheduler", "--engine-url", "http://x", "--vary", "a=1,2"], "need --launch"),
        (["scheduler", "--launch", "vllm", "--model", "m"], "what is to be varied"),
        (["scheduler", "--launch", "vllm", "--model", "m", "--vary", "a"], "write OPTION=A,B"),
        (["scheduler", "--launch", "vllm", "--model", "m", "--vary", "a=1"], "at least two"),
        (["prefix-cache", "--launch", "vllm", "--model", "m", "x"], "stand after --"),
        (["compare", "nowhere", "nowhere"], "no such folder"),
        (["prefix-cache", "--engine-url", "http://x", "--seed", "-1"], "--seed -1"),
        (["compare", "a", "b", "--output", "x.txt"], "name it .json or .html"),
    ],
)  # fmt: skip
def test_wrong_use_is_one_line(arguments: list[str], said: str) -> None:
    with pytest.raises(KvschedError) as error:
        bench(*arguments)
    assert error.value.exit_code == 2
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_an_engine_that_is_not_there_leaves_no_folder(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(KvschedError, match="Connection refused") as error:
        bench("prefix-cache", "--engine-url", "http://127.0.0.1:9", "-o", str(out))
    assert error.value.exit_code == 1
    assert not out.exists()


def test_a_model_that_is_not_served(engine: FakeEngine) -> None:
    with pytest.raises(UsageError, match="the engine serves fake-model"):
        bench("prefix-cache", "--engine-url", engine.url, "--model", "other")


def test_requests_that_are_too_long_for_the_engine() -> None:
    with (
        fake_engine(max_model_len=50) as short,
        pytest.raises(UsageError, match="18 of 18 requests are longer"),
    ):
        bench("prefix-cache", "--engine-url", short.url, *SMALL)


def test_an_engine_that_does_not_start(tmp_path: Path, launched: list[str]) -> None:
    (tmp_path / "pids").touch()
    out = tmp_path / "out"
    with pytest.raises(KvschedError, match="unrecognized arguments: --no-such-flag"):
        bench("prefix-cache", *launched, *SMALL, "-o", str(out), "--", "--no-such-flag")
    assert not (out / "off" / "result.json").exists()


@pytest.mark.parametrize(
    ("file", "data", "said"),
    [
        ("result.json", b"{", "result.json"),
        ("requests.jsonl", b"{}\n", "row 1"),
        ("requests.jsonl", b"", "0 requests, where result.json says 18"),
    ],
)
def test_a_damaged_folder_is_named(
    tmp_path: Path, measured: Path, file: str, data: bytes, said: str
) -> None:
    out = tmp_path / "copy"
    shutil.copytree(measured, out)
    (out / file).write_bytes(data)
    with pytest.raises(InputError, match=said) as error:
        read_runs(str(out))
    assert str(out) in str(error.value)


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("sent_s", 1e308, "ttft_ms"),
        ("finished_s", 99.0, "latency_ms"),
        ("token_s", [], "tpot_ms"),
        ("cached_tokens", -5, "hit tokens"),
        ("error", "reset", "outcome"),
    ],
)
def test_requests_that_are_not_the_results_are_noticed(
    tmp_path: Path, measured: Path, field: str, value: object, said: str
) -> None:
    out = tmp_path / "copy"
    shutil.copytree(measured, out)
    rows = [json.loads(line) for line in (out / "requests.jsonl").read_text().splitlines()]
    rows[4][field] = value
    (out / "requests.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(InputError, match=f"{said} of its requests is not what result.json says"):
        read_runs(str(out))


def test_a_run_is_written_whole_or_not_at_all(tmp_path: Path, measured: Path) -> None:
    found = read_run(measured)
    trace = load_trace(measured / "workload.kvtrace")
    uneven = {"at_s": [1.0], "running": []}
    with pytest.raises(ValueError, match=r"longer|shorter"):
        write_run(tmp_path, found.result, found.outcomes, trace, uneven, "")
    assert list(tmp_path.iterdir()) == []
    write_run(tmp_path, found.result, found.outcomes, trace, {}, "")
    assert {each.name for each in tmp_path.iterdir()} == FILES
    assert read_run(tmp_path).result == found.result


def test_an_engine_that_fails_the_warm_up_is_not_measured(tmp_path: Path) -> None:
    out = tmp_path / "run"
    with fake_engine(requests={at: {"status": 500} for at in range(1, 5)}) as broken:
        arguments = ["prefix-cache", "--engine-url", broken.url, *SMALL, "-o", str(out)]
        with pytest.raises(KvschedError, match=r"4 requests of the warm-up failed.*--vocab-size"):
            bench(*arguments)
    assert not out.exists()
