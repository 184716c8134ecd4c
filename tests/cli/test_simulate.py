"""`kvsched simulate`, run as a user runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kvsched.cli.app import app
from kvsched.foundation.errors import InputError, KvschedError, UsageError
from kvsched.serve.files import NAMES

ROW = '{{"timestamp": {}, "input_length": {}, "output_length": {}, "hash_ids": {}}}\n'
ENGINE = ("--model", "llama-3.1-8b", "--gpu", "h100")


@pytest.fixture(autouse=True)
def uncompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVSCHED_COMPILED", "0")


@pytest.fixture
def trace(tmp_path: Path) -> str:
    """Prompts of 512-token blocks that share their first, one of no end, out of order."""
    path = tmp_path / "t.jsonl"
    rows = [(1024, 5, [1, 2]), (1024, 1, [1, 2]), (1536, 3, [1, 2, 3]), (600, 9, [50, 51])]
    rows += [(3000, 2, [1, 60, 61, 62, 63, 64])]
    path.write_text("".join(ROW.format(1000 * at, *row) for at, row in enumerate(rows)))
    return str(path)


def good(*arguments: str) -> str:
    ended = CliRunner().invoke(app, ["simulate", *arguments], catch_exceptions=False)
    assert ended.exit_code == 0, ended.output
    return ended.stdout


def refused(*arguments: str) -> str:
    with pytest.raises((UsageError, InputError)) as caught:
        CliRunner().invoke(app, ["simulate", *arguments], catch_exceptions=False)
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_text_and_json_say_the_same(trace: str) -> None:
    text = good(trace, *ENGINE)
    found = json.loads(good(trace, *ENGINE, "--format", "json"))
    assert found["config"]["max_num_seqs"] == 1024
    assert found["config"]["block_size"] == 512
    assert found["summary"]["requests"] == found["summary"]["finished"] == 5
    # 512 tokens are all that full blocks of 1024 can hit: the last token is computed.
    assert found["summary"]["hit_tokens"] == 512 + 1024 + 512
    assert found["sentences"][0] in " ".join(text.split())
    for said in ("TTFT", "TPOT", "queue wait", "874 blocks of 512 tokens", "hit ratio"):
        assert said in text
    assert set(found["bands"]) == {"low", "high"}
    assert found["step_time"]["kind"] == "roofline"


def test_every_option_reaches_the_engine(trace: str) -> None:
    found = json.loads(
        good(
            trace, *ENGINE, "--format", "json", "--no-band", "--limit", "4",
            "--tensor-parallel-size", "2", "--max-num-seqs", "3", "--max-num-batched-tokens", "700",
            "--long-prefill-token-threshold", "300", "--watermark", "0.1",
            "--max-model-len", "1500",
            "--num-gpu-blocks-override", "20", "--no-enable-prefix-caching", "--no-cache-generated",
            "--scheduling-policy", "priority", "--eviction-policy", "lru", "--speedup", "2",
            "--horizon", "100", "--slo-ttft-ms", "500", "--slo-tpot-ms", "20",
            "--kv-cache-dtype", "fp8", "--weight-dtype", "fp8",
        )
    )  # fmt: skip
    asked = {
        "tensor_parallel_size": 2, "max_num_seqs": 3, "max_num_batched_tokens": 700,
        "long_prefill_token_threshold": 300, "watermark": 0.1, "max_model_len": 1500,
        "num_gpu_blocks": 19, "enable_prefix_caching": False, "cache_generated": False,
        "scheduling_policy": "priority", "eviction_policy": "lru", "speedup": 2.0,
        "horizon_s": 100.0, "slo_ttft_s": 0.5, "slo_tpot_s": 0.02, "concurrency": None,
        "kv_cache_dtype": "fp8", "weight_dtype": "fp8",
    }  # fmt: skip
    assert {name: found["config"][name] for name in asked} == asked
    assert found["summary"]["requests"] == 4
    assert found["summary"]["hit_tokens"] == 0
    assert found["summary"]["rejected_because"] == {"its prompt reaches max_model_len": 1}
    assert found["bands"] == {}
    assert found["summary"]["goodput"]["requests"] == 3
    # Prompts of 1024 tokens in pieces of at most 300: more steps than with 700.
    whole = (
        "--max-num-batched-tokens", "2000", "--max-model-len", "2000",
        "--no-enable-chunked-prefill", "--no-band",
    )  # fmt: skip
    other = json.loads(good(trace, *ENGINE, "--format", "json", *whole, "--concurrency", "1"))
    assert other["config"]["enable_chunked_prefill"] is False
    assert other["config"]["concurrency"] == 1
    assert other["summary"]["rejected_because"] == {"its prompt reaches max_model_len": 1}


def test_arrivals_engines_and_limits_reach_the_engine(trace: str) -> None:
    arguments = (
        "--no-band", "--rate", "50", "--burstiness", "2", "--seed", "7", "--data-parallel-size",
        "2", "--routing", "cache-aware", "--scheduling-policy", "edf:ttft_s=2", "--max-waiting",
        "9", "--max-waiting-tokens", "9000", "--max-queue-s", "5", "--degrade", "unstored",
        "--degrade-above", "0.5", "--pause-above", "0.9", "--resume-below", "0.8", "--swap-space",
        "1", "--swap-bandwidth", "20",
    )  # fmt: skip
    found = json.loads(good(trace, *ENGINE, "--format", "json", *arguments))
    asked = {
        "rate": 50.0, "burstiness": 2.0, "seed": 7, "data_parallel_size": 2, "speedup": None,
        "routing": "cache-aware", "scheduling_policy": "edf:ttft_s=2", "max_waiting": 9,
        "max_waiting_tokens": 9000, "max_queue_s": 5.0, "degrade": "unstored",
        "degrade_above": 0.5, "pause_above": 0.9, "resume_below": 0.8, "swap_space": 1.0,
        "swap_bandwidth": 20.0, "deadlines": False, "swap_blocks": 16,
    }  # fmt: skip
    assert {name: found["config"][name] for name in asked} == asked
    assert len(found["summary"]["engines"]) == 2
    assert found["summary"]["swap"]["preemptions"] == 0
    text = " ".join(good(trace, *ENGINE, *arguments).split())
    for said in (
        "50 requests a second (burstiness 2)", "2 engines, cache-aware", "edf:ttft_s=2",
        "swap space 1 GiB, 16 blocks, at 20 GB/s", "pause above 0.9", "engine 1", "max-waiting 9",
    ):  # fmt: skip
        assert said in text
    own = Path(__file__).resolve().parents[2] / "examples" / "patient_shortest.py"
    order = f"{own}:PatientShortest"
    mine = json.loads(
        good(trace, *ENGINE, "--format", "json", "--no-band", "--scheduling-policy", order)
    )
    assert mine["config"]["scheduling_policy"] == "patient-shortest"
    assert "deadline_s" in refused(trace, *ENGINE, "--deadlines")


def test_presets_are_traces() -> None:
    text = good("preset:chat", *ENGINE, "--limit", "50", "--no-band")
    assert "50 requests" in text
    assert "28,018 blocks of 16 tokens" in text


def test_a_folder_of_files_is_the_same_twice(trace: str, tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("a", "b")]
    for folder in folders:
        out = ("-o", str(folder), "--export", "jsonl,parquet", "--step-log")
        text = good(trace, *ENGINE, *out)
        assert f"Report: {folder / 'report.html'}" in text
    one, other = ({p.name: p.read_bytes() for p in folder.iterdir()} for folder in folders)
    tables = {f"{table}.{form}" for table in ("requests", "steps") for form in ("jsonl", "parquet")}
    assert set(one) == {*NAMES, *tables}
    assert one == other
    result = json.loads(one["result.json"])
    assert result == json.loads(good(trace, *ENGINE, "--format", "json"))
    assert json.loads(one["summary.json"])["request_count"]["avg"] == 5
    assert json.loads(one["trace.json"])["traceEvents"]
    assert one["requests.jsonl"].count(b"\n") == 5


def test_wrong_use_is_one_line_and_nothing_is_written(trace: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    for arguments, said in (
        ((), "how long a step takes is not known"),
        (("--model", "llama-3.1-8b"), "how long a step takes is not known"),
        ((*ENGINE, "--scheduling-policy", "lifo"), "unknown order lifo"),
        ((*ENGINE, "--eviction-policy", "nah"), "unknown policy nah"),
        ((*ENGINE, "--eviction-policy", "opt"), "needs the whole trace"),
        ((*ENGINE, "--speedup", "0"), "speedup must be above 0"),
        ((*ENGINE, "--speedup", "2", "--concurrency", "3"), "a closed loop has no rate"),
        ((*ENGINE, "--concurrency", "0"), "concurrency must be"),
        ((*ENGINE, "--rate", "0"), "the rate must be above 0"),
        ((*ENGINE, "--rate", "1", "--concurrency", "2"), "a rate or a concurrency, not both"),
        ((*ENGINE, "--sessions"), "session column"),
        ((*ENGINE, "--routing", "random"), "unknown routing random"),
        ((*ENGINE, "--resume-below", "0.5"), "resume_below needs pause_above"),
        ((*ENGINE, "--swap-space", "4"), "go together"),
        ((*ENGINE, "--data-parallel-size", "0"), "data_parallel_size must be"),
        ((*ENGINE, "--watermark", "1"), "watermark must be from 0 to below 1"),
        ((*ENGINE, "--slo-tpot-ms", "0"), "tpot_s must be above 0"),
        ((*ENGINE, "--limit", "0"), "at least 1 request"),
        ((*ENGINE, "--export", "xml"), "unknown export xml"),
        ((*ENGINE, "--export", ","), "names no form"),
        ((*ENGINE, "--step-time", "nowhere.json"), "nowhere.json"),
        ((*ENGINE, "--num-gpu-blocks-override", "1"), "at least 2"),
        ((*ENGINE, "--tensor-parallel-size", "3"), "do not divide over 3 ranks"),
        (
            (*ENGINE, "--max-num-seqs", "9", "--max-num-batched-tokens", "8"),
            "at least max_num_seqs",
        ),
    ):
        assert said in refused(trace, *arguments, "-o", str(out))
        assert not out.exists()
    assert "need --output-dir" in refused(trace, *ENGINE, "--step-log")
    taken = Path(trace).rename(tmp_path / "requests.jsonl")
    before = taken.read_bytes()
    assert "is read here" in refused(str(taken), *ENGINE, "-o", str(tmp_path))
    assert taken.read_bytes() == before


def test_bad_rows_name_file_row_and_fault(tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(ROW.format(0, 600, 5, [1, 2]) + '{"timestamp": 1, "input_length": -3}\n')
    assert "bad.jsonl, row 2" in refused(str(path), *ENGINE)
    assert "1 of 1" not in good(str(path), *ENGINE, "--skip-bad-rows", "--no-band")


def test_a_run_from_the_shell(trace: str) -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "kvsched", "simulate", *arguments],
            env=dict(os.environ), capture_output=True, text=True, check=False,
        )  # fmt: skip

    ended = run(trace, *ENGINE, "--format", "json", "--no-band")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert json.loads(ended.stdout)["summary"]["finished"] == 5
    ended = run(trace, *ENGINE, "--scheduling-policy", "lifo")
    assert ended.returncode == 2
    assert ended.stdout == ""
    assert ended.stderr.count("\n") == 1
    assert ended.stderr.startswith("kvsched: unknown order lifo")


@pytest.mark.parametrize("error", [KvschedError("stalled"), KeyboardInterrupt()])
def test_a_failure_leaves_no_folder(
    trace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("kvsched.serve.served.serve", fail)
    with pytest.raises((KvschedError, KeyboardInterrupt, AssertionError)):
        good(trace, *ENGINE, "-o", str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


SWEEP = ("--sweep", "max-num-seqs=1,4", "--sweep", "eviction-policy=lru,sieve")


def test_a_sweep_writes_a_folder_and_goes_on_after_an_interruption(
    trace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = [tmp_path / name for name in ("a", "b")]
    out = ("--export", "jsonl,parquet")
    text = good(trace, *ENGINE, *SWEEP, *out, "-o", str(folders[0]))
    assert "4 points: max-num-seqs · eviction-policy" in text
    assert f"Numbers: {folders[0] / 'sweep.json'}" in text
    result = json.loads((folders[0] / "sweep.json").read_text())
    assert len(result["points"]) == 4
    assert result["points"][0]["bands"] == {}, "the middle alone, unless --band"
    found = json.loads(good(trace, *ENGINE, *SWEEP, "--format", "json"))
    assert found == result

    from kvsched.serve.points import Point, Records

    real = Records.add

    def stopped(self: Records, name: str, point: Point) -> None:
        real(self, name, point)
        if len(self.points) == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Records, "add", stopped)
        ended = CliRunner().invoke(
            app, ["simulate", trace, *ENGINE, *SWEEP, *out, "-o", str(folders[1])]
        )
    assert ended.exit_code == 1
    assert "the same command goes on from here" in ended.stderr
    assert [path.name for path in folders[1].iterdir()] == ["points.jsonl"]
    with (folders[1] / "points.jsonl").open("ab") as stream:
        stream.write(b'{"identity": "torn')
    ended = CliRunner().invoke(
        app, ["simulate", trace, *ENGINE, *SWEEP, *out, "-o", str(folders[1])]
    )
    assert ended.exit_code == 0
    assert "points.jsonl, row 3: damaged, its point is run again" in ended.stderr
    assert "2 of 4 points were there already" in ended.stderr
    names = {"sweep.json", "sweep.html", "sweep.jsonl", "sweep.parquet"}
    one, other = ({n: (folder / n).read_bytes() for n in names} for folder in folders)
    assert one == other
    assert {path.name for path in folders[1].iterdir()} == {*names, "points.jsonl"}


def test_a_rate_is_found(trace: str, tmp_path: Path) -> None:
    asked = (*ENGINE, "--find-rate", "--slo-ttft-ms", "100", "--slo-share", "0.8")
    text = good(trace, *asked, "-o", str(tmp_path / "out"))
    assert "The objective holds" in " ".join(text.split())
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "rate.json", "rate.html", "rate.jsonl", "points.jsonl",
    }  # fmt: skip
    found = json.loads(good(trace, *asked, "--rate", "5", "--format", "json"))
    assert (found["by"], found["share"]) == ("rate", 0.8)
    assert found["tried"][0]["point"]["settings"].keys() == {"rate"}


def test_wrong_searches_write_nothing(trace: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    for arguments, said in (
        (("--sweep", "max-seqs=1"), "no such setting"),
        (("--sweep", "max-num-seqs=0,4"), "max-num-seqs=0: max_num_seqs must be"),
        (("--sweep", "max-num-seqs=4", "--find-rate"), "not both"),
        (("--sweep", "max-num-seqs=4", "--step-log"), "goes with one run"),
        (("--sweep", "max-num-seqs=4", "--export", "xml"), "unknown export xml"),
        (("--find-rate",), "needs an objective"),
        (("--find-rate", "--slo-ttft-ms", "9", "--concurrency", "2"), "a closed loop has no rate"),
        (("--find-rate", "--slo-ttft-ms", "9", "--slo-share", "2"), "the share must be"),
    ):
        assert said in refused(trace, *ENGINE, *arguments, "-o", str(out))
        assert not out.exists()
    taken = Path(trace).rename(tmp_path / "points.jsonl")
    assert "is read here" in refused(str(taken), *ENGINE, *SWEEP, "-o", str(tmp_path))
