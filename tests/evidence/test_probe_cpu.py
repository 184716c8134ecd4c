"""The probe on host memory: the same path, measured for real."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from absent import absent

from kvsched.evidence.probe.cpu import HEAP_SERVES, CpuBackend
from kvsched.evidence.probe.measure import freed_places, measure_fragmentation
from kvsched.evidence.probe.record import probe_metrics
from kvsched.evidence.probe.report import ProbeReport
from kvsched.evidence.probe.run import run_probe
from kvsched.evidence.probe.settings import ProbeSettings
from kvsched.evidence.probe.shape import ShapeSettings, block_shape
from kvsched.report.probe import render_probe

MIB = 1 << 20
SHAPE = ShapeSettings(kv_heads=8, head_dim=128, layers=16)
"""1 MiB a block."""


def probed(**changes: object) -> ProbeReport:
    values = {
        "shape": SHAPE,
        "blocks": 32,
        "repeats": 2,
        "device": "cpu",
        "memory_share": 0.003,
        "copy_bytes": (MIB,),
        **changes,
    }
    return run_probe(ProbeSettings(**values), CpuBackend())  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def report() -> ProbeReport:
    return probed(vary=("block_tokens=8", "dtype=float8"))


def test_memory_is_what_the_formula_says(report: ProbeReport) -> None:
    accounts = report.runs[-1].accounts
    assert accounts.requested_bytes == 32 * MIB
    assert accounts.driver_bytes == pytest.approx(32 * MIB, rel=0.05)
    assert report.decision.decision == "accept"
    assert report.decision.reason.startswith("On host memory, not on a GPU")
    assert report.evidence_level == "cpu_simulation"
    assert "no figure here is a GPU's" in report.evidence
    assert report.runtime["gpu_memory_gb"] is None
    assert "runtime.gpu_memory_gb" in report.missing


@pytest.mark.parametrize("declared", [MIB * 9 // 10, MIB * 11 // 10, 2 * MIB])
def test_a_wrong_theory_shows(declared: int) -> None:
    found = probed(declared_bytes_per_block=declared)
    assert found.decision.decision == "reject"
    assert f"not {declared:,}" in found.decision.reason
    assert found.decision.deviation == pytest.approx(MIB / declared - 1, abs=0.03)


def test_patterns_fit_what_their_gaps_hold(report: ProbeReport) -> None:
    found = {(each.pattern, each.factor): each for each in report.fragmentation}
    if found["first-half", 2].fits is None:
        absent("this C library does not say what it holds")
    for (pattern, factor), each in found.items():
        gaps = _runs(freed_places(pattern, 32, 0))
        expected = sum(length // factor for length in gaps)
        # Two gaps' ends may meet older holes; what stays in one piece must not come out as broken.
        assert each.fits is not None
        assert abs(each.fits - expected) <= 1, (pattern, factor)


def test_older_holes_of_the_heap_take_no_part() -> None:
    backend = CpuBackend()
    if backend.reading().allocated is None:
        absent("this C library does not say what it holds")
    shape = block_shape(SHAPE)
    # Pieces up to this size then come from the heap, and holes stay between those that are kept.
    np.empty(HEAP_SERVES, dtype=np.uint8)
    pieces = [(backend.allocate(shape), np.empty(200_000, dtype=np.uint8)) for _ in range(64)]
    kept = [small for _, small in pieces]
    del pieces
    found = measure_fragmentation(backend, shape, 32, "first-half", 2, 0)
    assert found.fits is not None
    assert found.fits >= found.ideal - 1
    assert len(kept) == 64


def _runs(places: list[int]) -> list[int]:
    lengths: list[int] = []
    for at, place in enumerate(places):
        if at and place == places[at - 1] + 1:
            lengths[-1] += 1
        else:
            lengths.append(1)
    return lengths


def test_patterns_free_half_and_the_random_one_goes_by_the_seed() -> None:
    assert freed_places("every-second", 9, 0) == [0, 2, 4, 6]
    assert freed_places("first-half", 9, 0) == [0, 1, 2, 3]
    assert freed_places("random", 100, 1) == freed_places("random", 100, 1)
    assert freed_places("random", 100, 1) != freed_places("random", 100, 2)
    assert len(set(freed_places("random", 101, 1))) == 50


def test_variations_have_rows_of_their_own(report: ProbeReport) -> None:
    rows = {(row.key, row.value): row for row in report.varied}
    assert rows["block_tokens", "8"].total_bytes_theoretical == 16 * MIB
    assert rows["dtype", "float8"].accounts.requested_bytes == 16 * MIB


def test_every_metric_that_is_none_has_a_reason(report: ProbeReport) -> None:
    metrics, missing = probe_metrics(report)
    assert {key for key, value in metrics.items() if value is None} == set(missing)
    assert metrics["bytes_per_block_theoretical"] == MIB
    assert metrics["largest_blocks"]
    assert metrics["peak_allocated_bytes"] is None


def test_the_page_is_the_same_for_the_same_report_and_escapes(report: ProbeReport) -> None:
    again = msgspec.json.decode(msgspec.json.encode(report), type=ProbeReport)
    assert render_probe(report) == render_probe(again)
    bad = msgspec.structs.replace(
        report, runtime={**report.runtime, "device": "<script>x()</script>"}
    )
    page = render_probe(bad)
    assert "<script>x()" not in page
    assert "no figure here is a GPU" in page


def test_the_page_draws_its_figures(report: ProbeReport, tmp_path: Path, browser: Any) -> None:
    file = tmp_path / "probe.html"
    file.write_text(render_probe(report), encoding="utf-8")
    page = browser.new_page(viewport={"width": 390, "height": 800})
    faults: list[str] = []
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("request", lambda r: faults.append(r.url) if r.url.startswith("http") else None)
    page.goto(file.as_uri())
    for place in ("memory", "fragmentation", "bandwidth"):
        page.wait_for_selector(f"#figure-{place} .main-svg", state="attached")
    wide = page.evaluate("document.documentElement.scrollWidth")
    page.close()
    assert faults == []
    assert wide <= 390


ROOT = Path(__file__).resolve().parents[2]


def test_what_the_page_shows_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from kvsched.cli.app import app

    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "probe.md").read_text(encoding="utf-8")
    commands = [
        shlex.split(line)
        for block in re.findall(r"^```sh\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
        for line in block.splitlines()
    ]
    assert len(commands) == 4
    for name, *arguments in commands:
        assert name == "kvsched"
        app(arguments, standalone_mode=False)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        *("preflight.json", "probe.html", "probe.json"),
    ]


def test_the_record_that_is_kept_is_a_report_and_names_nobody() -> None:
    file = ROOT / "examples" / "evidence" / "probe-cpu.json"
    kept = msgspec.json.decode(file.read_bytes(), type=ProbeReport)
    assert kept.evidence_level == "cpu_simulation"
    assert kept.config["bytes_per_block_theoretical"] == 2 * MIB
    text = file.read_text(encoding="utf-8")
    assert re.findall(r'"/\w+', text) == []
    assert os.uname().nodename not in text


def run(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kvsched", "probe", *arguments],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        check=False,
    )


SMALL = (
    *("--device", "cpu", "--kv-heads", "8", "--head-dim", "128", "--layers", "8"),
    *("--blocks", "16", "--repeats", "1", "--memory-share", "0.002", "--copy-mib", "1"),
)


def test_the_command_on_the_cpu(tmp_path: Path) -> None:
    file, page = tmp_path / "probe.json", tmp_path / "probe.html"
    ended = run(*SMALL, "--format", "json", "--output", str(file), "--html", str(page))
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    assert found == json.loads(file.read_text())
    assert found["task"] == "gpu-kv-probe"
    assert set(found["runtime"]) >= {
        *("device", "gpu_memory_gb", "torch", "torch_cuda", "native_bf16_supported"),
    }
    assert set(found["config"]) >= {
        *("block_shape", "bytes_per_block_theoretical", "total_bytes_theoretical"),
        *("block_count", "dtype", "repeats"),
    }
    assert set(found["runs"][0]) >= {
        *("repeat", "allocation_ms", "peak_memory_mb", "block_count"),
    }
    assert set(found["decision"]) >= {"decision", "reason"}
    assert page.stat().st_size > 1_000_000
    for private in (str(tmp_path), os.uname().nodename):
        assert private not in ended.stdout


def test_without_cuda_the_command_says_what_would_help() -> None:
    ended = run("--kv-heads", "8", "--head-dim", "8", "--layers", "1", CUDA_VISIBLE_DEVICES="")
    assert ended.returncode == 2
    assert ended.stderr.count("\n") == 1
    assert "kvsched probe --device cpu" in ended.stderr
    assert "pip install 'kvsched[gpu]'" in ended.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--output", "no/such/folder/x.json"), "--output"),
        (("--format", "yaml"), "--format"),
        (("--copy-mib", "1,x"), "--copy-mib"),
        (("--registry", ""), "--registry"),
        (("--output", "same.json", "--html", "same.json"), "same"),
    ],
)
def test_wrong_use_is_refused_before_anything_is_measured(
    arguments: tuple[str, ...], said: str, tmp_path: Path
) -> None:
    from kvsched.cli.app import app
    from kvsched.foundation.errors import UsageError

    with pytest.raises(UsageError, match=said):
        app(["probe", *SMALL, *arguments], standalone_mode=False)


def test_an_interrupt_ends_it_in_one_line(tmp_path: Path) -> None:
    file = tmp_path / "probe.json"
    with subprocess.Popen(
        [
            *(sys.executable, "-m", "kvsched", "probe", *SMALL),
            *("--repeats", "1000", "--blocks", "256", "--memory-share", "0.02"),
            *("--output", str(file)),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        _wait_until_it_allocates(process)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 1
    assert said == "kvsched: interrupted\n"
    assert list(tmp_path.iterdir()) == []


def _wait_until_it_allocates(process: subprocess.Popen[str]) -> None:
    """The command resets the peak once measuring has begun; wait until torch is in memory."""
    maps = Path(f"/proc/{process.pid}/maps")
    for _ in range(600):
        if process.poll() is not None:
            return
        if "libtorch_python" in maps.read_text():
            time.sleep(1.5)
            return
        time.sleep(0.05)


def test_patterns_leave_room_for_the_larger_block_in_the_share() -> None:
    shape = ShapeSettings(kv_heads=8, head_dim=128, layers=8)  # 512 KiB
    each = (512 << 10) + CpuBackend.object_bytes

    class Small(CpuBackend):
        def usable_bytes(self) -> int:
            return 40 * each

    def probed(blocks: int) -> ProbeReport:
        settings = ProbeSettings(
            shape=shape, blocks=blocks, repeats=1, device="cpu", memory_share=0.5,
            copy_bytes=(1 << 20,),
        )  # fmt: skip
        return run_probe(settings, Small())

    assert {row.freed_blocks for row in probed(20).fragmentation} == {8}  # of 20 − 4
    assert {row.freed_blocks for row in probed(12).fragmentation} == {6}


def test_a_limit_on_addresses_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    resource = pytest.importorskip("resource")
    backend = CpuBackend()
    free = backend.usable_bytes()
    limit = address_space_taken() + (64 << 20)
    monkeypatch.setattr(resource, "getrlimit", lambda _which: (limit, limit))
    assert backend.usable_bytes() < (65 << 20) < free


def address_space_taken() -> int:
    (line,) = (
        each
        for each in Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
        if each.startswith("VmSize")
    )
    return int(line.split()[1]) << 10
