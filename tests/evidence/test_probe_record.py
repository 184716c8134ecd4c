"""A probe and a preflight as records of the registry."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import msgspec
import pytest
from fake_cuda import FakeTorch

from kvsched.evidence.preflight import report as preflight_report
from kvsched.evidence.preflight.gpu import Machine
from kvsched.evidence.preflight.run import run_preflight
from kvsched.evidence.preflight.settings import PreflightSettings
from kvsched.evidence.probe.cpu import CpuBackend
from kvsched.evidence.probe.cuda import CudaBackend
from kvsched.evidence.probe.record import record_of
from kvsched.evidence.probe.report import ProbeReport
from kvsched.evidence.probe.run import run_probe
from kvsched.evidence.probe.settings import ProbeSettings
from kvsched.evidence.probe.shape import ShapeSettings
from kvsched.evidence.record_sources import record_from
from kvsched.evidence.registry import Registry
from kvsched.evidence.schema import schemas
from kvsched.foundation.errors import InputError


def test_a_probe_is_kept_and_comes_back_whole(tmp_path: Path) -> None:
    shape = ShapeSettings(kv_heads=8, head_dim=128, layers=32)
    settings = ProbeSettings(shape=shape, repeats=2, memory_share=0.25, copy_bytes=(1 << 20,))
    report = run_probe(settings, CudaBackend(FakeTorch()))
    with Registry(tmp_path / "records.sqlite") as registry:
        kept = registry.add(record_of(report, "fake"))
        assert registry.verify() == []
        found = registry.get(kept.record_id)
    assert found.evidence_level == "synthetic_gpu_block_probe"
    assert (found.task, found.name, found.decision) == ("gpu-kv-probe", "fake", "accept")
    assert found.metrics["bytes_per_block_measured"] == 2 << 20
    assert found.metrics["peak_driver_bytes"] is None
    assert found.missing["peak_driver_bytes"] == report.missing["peak_driver_bytes"]
    assert found.environment["runtime"]["device"] == "Fake"
    assert msgspec.convert(found.detail, ProbeReport) == report


def test_a_preflight_is_kept(tmp_path: Path) -> None:
    absent = Machine(
        load_torch=lambda: (None, "torch is missing"), driver_devices=lambda: ([], "no driver")
    )
    for gpu, status in ((False, "ok"), (True, "blocked")):
        result = run_preflight(PreflightSettings(gpu=gpu), absent)
        with Registry(tmp_path / "records.sqlite") as registry:
            kept = registry.add(preflight_report.record_of(result))
        assert (kept.task, kept.status) == ("preflight", status)
        assert kept.metrics["checks_blocked"] == (3 if gpu else 0)


def test_the_report_of_a_file_becomes_the_same_record() -> None:
    kept = Path(__file__).parents[2] / "examples" / "evidence" / "probe-cpu.json"
    data = kept.read_bytes()
    record = record_from(data, kept.name)
    assert record.metrics == record_of(msgspec.json.decode(data, type=ProbeReport)).metrics
    assert record.metrics["bytes_per_block_measured"] is not None
    told = json.loads(data)
    jsonschema.validate(told, schemas()["probe.schema.json"])
    for broken, fault in (
        ({**told, "runs": 3}, "runs: "),
        ({**told, "status": "fine"}, "status: "),
        ({**told, "colour": "red"}, "unknown field 'colour' in this probe report"),
    ):
        with pytest.raises(InputError, match=fault):
            record_from(json.dumps(broken).encode(), "probe.json")


def test_a_preflight_of_a_file_becomes_a_record() -> None:
    absent = Machine(load_torch=lambda: (None, "torch is missing"), driver_devices=lambda: ([], ""))
    result = run_preflight(PreflightSettings(gpu=True), absent)
    record = record_from(msgspec.json.encode(result), "preflight.json")
    assert (record.status, record.metrics["checks_blocked"]) == ("blocked", 3)
    jsonschema.validate(json.loads(msgspec.json.encode(result)), schemas()["preflight.schema.json"])
    broken = {**msgspec.to_builtins(result), "status": "fine"}
    with pytest.raises(InputError, match="status: invalid enum value 'fine'"):
        record_from(json.dumps(broken).encode(), "preflight.json")


def test_blocks_too_small_for_patterns_say_so() -> None:
    shape = ShapeSettings(kv_heads=1, head_dim=8, layers=1)
    settings = ProbeSettings(
        shape=shape, blocks=8, repeats=1, device="cpu", memory_share=0.0001, copy_bytes=(1 << 20,)
    )
    report = run_probe(settings)
    record = record_of(report)
    names = [name for name in record.missing if name.startswith(("fits_", "stranded_"))]
    assert len(names) == 12
    assert {record.missing[name] for name in names} == {report.missing["fragmentation.fits"]}
    for name, value in record.metrics.items():
        assert (value is None) == (name in record.missing)


def test_every_null_of_a_host_probe_has_a_reason() -> None:
    shape = ShapeSettings(kv_heads=8, head_dim=128, layers=8)
    settings = ProbeSettings(
        shape=shape, blocks=8, repeats=1, device="cpu", memory_share=0.01, copy_bytes=(1 << 20,)
    )
    for backend in (CpuBackend(), CpuBackend(FakeTorchOnHost())):
        assert backend.describe()["torch_cuda"] is None
        assert "runtime.torch_cuda" in backend.missing
    report = run_probe(settings, CpuBackend())
    found = msgspec.to_builtins(report)
    run = found["runs"][0]
    for prefix, values in (
        ("", run),
        ("", run["accounts"]),
        ("", found["pooled"]["accounts"]),
        ("runtime.", found["runtime"]),
    ):
        for name, value in values.items():
            assert value is not None or prefix + name in report.missing


class FakeTorchOnHost:
    __version__ = "2.9.0+cpu"

    class version:  # noqa: N801 - torch's name
        cuda = None
