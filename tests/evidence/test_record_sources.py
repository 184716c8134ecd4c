"""What becomes a record: one written by hand, the probe's report, a benchmark's result."""

from __future__ import annotations

import copy
import json
import statistics
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from some_records import PROBE, a_record

from kvsched.evidence.bench.measured import BenchResult, HitRate
from kvsched.evidence.record import checksum_of, sealed
from kvsched.evidence.record_check import MOST_BYTES, canonical
from kvsched.evidence.record_sources import read_source, record_from
from kvsched.foundation.errors import InputError, UsageError
from kvsched.serve.distribution import distribution

TTFT = distribution(np.arange(1.0, 101.0))
BENCH = BenchResult(
    task="prefix-cache",
    kvsched="0.1.0",
    name="caching on",
    started_at="2026-01-31T09:30:00Z",
    config={"rate": 4.0, "seed": 0},
    engine={"kind": "vllm", "version": "0.32"},
    environment={"machine": "x86_64"},
    workload={"source": "preset:chat"},
    workload_digest="w" * 64,
    duration_s=25.0,
    requests=102,
    completed=100,
    errors={"timeout": 2},
    ttft_ms=TTFT,
    tpot_ms=TTFT,
    itl_ms=None,
    latency_ms=TTFT,
    lag_ms=TTFT,
    p999_ms={"ttft": None, "latency": 99.95},
    request_throughput=4.0,
    input_token_throughput=4000.0,
    output_token_throughput=400.0,
    goodput=None,
    good_requests=None,
    hit_rate=HitRate(
        usage=0.5,
        counters=None,
        usage_hit_tokens=5000,
        counter_hit_tokens=None,
        agree=None,
        note="the engine has no counters",
    ),
    counters={},
    gauges={"running": TTFT, "waiting": None},
    fairness=0.75,
    missing={
        "itl_ms": "the engine sends one piece an answer",
        "goodput": "no objective",
        "gauges": "not told",
    },
    warnings=(),
)
BY_HAND: dict[str, Any] = {
    "task": "nsight",
    "evidence_level": "profiler_trace",
    "status": "ok",
    "metrics": {"kernel_ms": 1.25, "occupancy": None},
    "missing": {"occupancy": "no permission for counters"},
}


def made(value: Any, **said: str) -> Any:
    return record_from(json.dumps(value).encode(), "in.json", **said)


def test_a_record_by_hand_is_filled_in() -> None:
    record = made(BY_HAND)
    assert len(record.record_id) == 32
    assert record.created_at.endswith("Z")
    assert record.checksum == checksum_of(record)
    assert record.metrics == BY_HAND["metrics"]
    assert made(BY_HAND).record_id != record.record_id


def test_a_finished_record_stays_as_it_is() -> None:
    record = sealed(a_record())
    assert record_from(canonical(record), "in.json") == record
    with pytest.raises(UsageError, match=r"is sealed by its checksum: leave out --reason"):
        record_from(canonical(record), "in.json", reason="better")
    changed = json.loads(canonical(record)) | {"reason": "better"}
    with pytest.raises(InputError, match="checksum: is not that"):
        made(changed)


def test_what_is_said_beside_it() -> None:
    record = made(PROBE, name="mine", decision="accept", reason="fits", corrects="a" * 32)
    assert (record.name, record.decision, record.reason) == ("mine", "accept", "fits")
    assert record.corrects == "a" * 32
    with pytest.raises(InputError, match="decision"):
        made(PROBE, decision="perhaps")


def test_the_courses_probe_report() -> None:
    record = made(PROBE)
    times = [run["allocation_ms"] for run in PROBE["runs"]]
    assert record.task == "gpu-kv-probe"
    assert record.evidence_level == "synthetic_gpu_block_probe"
    assert (record.status, record.decision) == ("ok", "measure")
    assert record.reason == PROBE["decision"]["reason"]
    assert record.config == PROBE["config"]
    assert record.environment == PROBE["runtime"]
    assert record.detail == PROBE
    assert record.metrics == {
        "runs": 3,
        "allocation_ms": statistics.median(times),
        "allocation_ms_max": max(times),
        "peak_memory_mb": 5.0,
        "block_count": 63,
        "bytes_per_block_theoretical": 65536,
        "total_bytes_theoretical": 4194304,
    }


def test_an_environment_in_a_probe_report_is_kept() -> None:
    record = made({**PROBE, "environment": {"cpu": "x"}, "notes": ["a"]})
    assert record.environment == {"cpu": "x", "runtime": PROBE["runtime"]}
    assert record.detail["notes"] == ["a"]


def test_a_probe_that_could_not_run() -> None:
    record = made({**PROBE, "runs": [], "status": "blocked"})
    assert record.status == "blocked"
    assert record.metrics["allocation_ms"] is None
    assert record.missing["allocation_ms"] == "no run was made"
    report = copy.deepcopy(PROBE)
    report["runs"][1]["allocation_ms"] = None
    record = made(report)
    assert record.metrics["allocation_ms"] is None, "never of the runs that happen to have it"
    assert record.missing["allocation_ms"] == "1 of 3 runs have no allocation_ms"


@pytest.mark.parametrize(
    ("path", "value", "fault"),
    [
        (("runtime",), None, "runtime: must be an object"),
        (("runs",), [1], "runs: must be a list of objects"),
        (("runs", 0, "allocation_ms"), "fast", "runs.0.allocation_ms: must be a number"),
        (("runs", 0, "allocation_ms"), True, "runs.0.allocation_ms: must be a number"),
        (("decision", "decision"), "yes", "decision.decision: must be one of accept"),
        (("decision", "reason"), 1, "decision.reason: must be text"),
        (("evidence_level",), "felt", "evidence_level: must be one of theoretical"),
        (("task",), 5, "task: must be text"),
        (("config", "total_bytes_theoretical"), [], "config.total_bytes_theoretical: must be"),
    ],
)
def test_a_broken_probe_report(path: tuple[Any, ...], value: Any, fault: str) -> None:
    report: Any = copy.deepcopy(PROBE)
    place = report
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    with pytest.raises(InputError) as error:
        made(report)
    assert str(error.value).startswith(f"in.json: {fault}")


@pytest.mark.parametrize("value", [9 * 10**400, -(2**63) - 1])
def test_a_run_beyond_64_bits(value: int) -> None:
    runs = [{"allocation_ms": value}, {"allocation_ms": 1.5}]
    with pytest.raises(InputError, match=r"runs.0.allocation_ms: is beyond 64 bits"):
        made({**PROBE, "runs": runs})


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"runs": []}, "runs: there is none"),
        ({"config": {}}, "config.bytes_per_block_theoretical: must be"),
        ({"config": {"bytes_per_block_theoretical": True}}, "must be a whole number"),
    ],
)
def test_a_broken_report_of_kvscheds_own_probe(changes: dict[str, Any], fault: str) -> None:
    kept = Path(__file__).parents[2] / "examples" / "evidence" / "probe-cpu.json"
    with pytest.raises(InputError, match=fault):
        made({**json.loads(kept.read_bytes()), **changes})


def test_a_probe_report_without_a_field() -> None:
    for name in ("task", "evidence_level", "runtime", "config", "decision"):
        report = {key: value for key, value in PROBE.items() if key != name}
        with pytest.raises(InputError, match=f"{name}: is missing"):
            made(report)


def test_a_benchmark_result(tmp_path: Path) -> None:
    (tmp_path / "result.json").write_bytes(msgspec.json.encode(BENCH))
    data, name = read_source(str(tmp_path))
    assert name == str(tmp_path / "result.json")
    record = record_from(data, name)
    assert TTFT is not None
    metrics = record.metrics
    assert metrics["ttft_ms_p50"] == TTFT.p50
    assert metrics["ttft_ms_p99"] == TTFT.p99
    assert metrics["latency_ms_p999"] == 99.95
    assert metrics["hit_rate_usage"] == 0.5
    assert metrics["errors_timeout"] == 2
    assert metrics["fairness"] == 0.75
    assert metrics["running_mean"] == TTFT.mean
    assert record.workload_digest == BENCH.workload_digest
    assert record.status == "ok"
    assert record.reason == "2 of 102 requests failed"
    assert record.config == {**BENCH.config, "engine": BENCH.engine}
    assert record.environment == BENCH.environment
    assert record.detail["started_at"] == BENCH.started_at
    for key, why in (
        ("itl_ms_p50", "the engine sends one piece an answer"),
        ("goodput", "no objective"),
        ("waiting_mean", "not told"),
        ("hit_rate_counters", "the engine has no counters"),
        ("ttft_ms_p999", "below 1,000 values"),
    ):
        assert metrics[key] is None
        assert record.missing[key] == why
    for key, value in metrics.items():
        assert (value is None) == (key in record.missing), key


def test_an_interrupted_benchmark_is_no_success() -> None:
    stopped = msgspec.structs.replace(BENCH, errors={"cancelled": 2})
    record = record_from(msgspec.json.encode(stopped), "r")
    assert record.status == "failed"
    assert record.reason.endswith("2 of them as the run was interrupted")


def test_a_benchmark_of_which_nothing_completed() -> None:
    failed = msgspec.structs.replace(BENCH, completed=0, errors={"refused": 102})
    assert record_from(msgspec.json.encode(failed), "r").status == "failed"


def test_a_broken_benchmark_result() -> None:
    whole = json.loads(msgspec.json.encode(BENCH))
    for changes, fault in (
        ({"extra": 1}, "unknown field 'extra'"),
        ({"duration_s": "long"}, "duration_s: expected"),
        ({"schema_version": 2}, "schema_version: 2 is not 1"),
    ):
        with pytest.raises(InputError, match=fault):
            made(whole | changes)


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (b"", "no JSON"),
        (b"[1]", "must be a JSON object"),
        (b'{"task": "a", "task": "b"}', "the key 'task' is given twice"),
        (b'{"metrics": {"a": NaN}}', "NaN is no number"),
        (b'{"metrics": {"a": -Infinity}}', "-Infinity is no number"),
        (b'{"metrics": {"a": 1e999}}', "1e999 is too large"),
        (b"\xff\xfe", "no UTF-8"),
        (b'{"a": ' + b"[" * 100_000, "no JSON"),
        (b'{"a": ' + b"9" * 5000 + b"}", "no JSON"),
        (b'{"metrics": {"a": 1}', "no JSON"),
        (b'{"tusk": "a"}', "unknown field 'tusk'"),
        (b"{}", "missing required field `task`"),
        (b'{"task": "t", "evidence_level": "theoretical", "status": "ok", "metrics": {"a": "1"}}',
         "metrics"),
        (b'{"task": "t", "evidence_level": "theoretical", "status": 1}', "status"),
        (b'{"task": "t", "evidence_level": "theoretical", "status": "ok", "created_at": "now"}',
         "created_at"),
    ],
)  # fmt: skip
def test_what_is_no_record(data: bytes, fault: str) -> None:
    with pytest.raises(InputError) as error:
        record_from(data, "in.json")
    assert fault.lower() in str(error.value).lower()
    assert str(error.value).startswith("in.json: ")
    assert "\n" not in str(error.value)


def test_too_large() -> None:
    with pytest.raises(InputError, match="more than 64 MiB"):
        record_from(b" " * (MOST_BYTES + 1), "in.json")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    for path, fault in (
        (str(tmp_path), "there is no result.json in this folder"),
        (str(tmp_path / "none"), "no such file"),
        ("a\0b", "no file can have that name"),
    ):
        with pytest.raises(InputError, match=fault):
            read_source(path)
