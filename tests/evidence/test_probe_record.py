"""A probe and a preflight as records of the registry."""

from __future__ import annotations

from pathlib import Path

import msgspec
from fake_cuda import FakeTorch

from kvsched.evidence.preflight import report as preflight_report
from kvsched.evidence.preflight.gpu import Machine
from kvsched.evidence.preflight.run import run_preflight
from kvsched.evidence.preflight.settings import PreflightSettings
from kvsched.evidence.probe.cuda import CudaBackend
from kvsched.evidence.probe.record import record_of
from kvsched.evidence.probe.report import ProbeReport
from kvsched.evidence.probe.run import run_probe
from kvsched.evidence.probe.settings import ProbeSettings
from kvsched.evidence.probe.shape import ShapeSettings
from kvsched.evidence.registry import Registry


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
