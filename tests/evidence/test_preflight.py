"""Preflight: each check by itself, the status over all, exit codes, files."""

from __future__ import annotations

import contextlib
import dataclasses
import http.server
import json
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_cuda import FakeTorch
from packaging.requirements import Requirement

from kvsched.cli.app import app
from kvsched.evidence.preflight import run as run_module
from kvsched.evidence.preflight.gpu import Machine
from kvsched.evidence.preflight.host import engine_check, output_check, python_check
from kvsched.evidence.preflight.report import Check, Preflight, decision_of, worst
from kvsched.evidence.preflight.run import run_preflight
from kvsched.evidence.preflight.settings import PreflightSettings, checked, split_packages
from kvsched.foundation.errors import UsageError

VERSIONS = {"torch": "2.5.1", "numpy": "2.4.0rc1"}
DRIVER = {
    "name": "Fake",
    "memory_bytes": 80_000_000_000,
    "driver": "570.1",
    "compute_capability": "9.0",
}


def machine(
    torch: Any = None, devices: tuple[dict[str, Any], ...] = (), absent: str = "torch is missing"
) -> Machine:
    return Machine(
        load_torch=lambda: (torch, "" if torch is not None else absent),
        driver_devices=lambda: (list(devices), "" if devices else "no driver"),
        package_version=VERSIONS.get,
    )


def gpu(gb: int = 80, capability: tuple[int, int] = (9, 0)) -> FakeTorch:
    return FakeTorch(total=gb * 10**9, capability=capability)


NONE, ONE = machine(), machine(gpu(), (DRIVER,))


def found(where: Machine, **settings: Any) -> tuple[Preflight, dict[str, Check]]:
    result = run_preflight(PreflightSettings(**settings), where)
    return result, {check.name: check for check in result.checks}


def test_a_machine_with_everything_is_ok() -> None:
    result, checks = found(ONE, gpu=True, native_bf16=True, min_gpu_memory_gb=80)
    assert result.status == "ok"
    assert {check.status for check in checks.values()} == {"ok"}
    assert result.evidence_level == "gpu_smoke"
    assert result.decision.decision == "measure"
    assert checks["driver"].reason == "driver 570.1 sees Fake."
    assert result.environment["driver"] == "570.1"
    assert result.environment["torch"] == {"version": "9.9", "cuda": "99.9"}
    assert not {"torch", "driver", "devices"} & set(result.environment["unknown"])


@pytest.mark.parametrize(("required", "status"), [(False, "warning"), (True, "blocked")])
def test_no_gpu_blocks_only_where_one_is_required(required: bool, status: str) -> None:
    result, checks = found(NONE, gpu=required)
    assert result.status == status
    for name in ("cuda", "driver", "gpu"):
        assert checks[name].status == status
        assert checks[name].next_action
    assert result.environment["unknown"]["torch"] == "torch is missing"
    assert result.environment["unknown"]["driver"] == "no driver"
    assert result.evidence_level == "cpu_simulation"
    assert "gpu memory" not in checks


@pytest.mark.parametrize("required", [False, True])
@pytest.mark.parametrize("where", [NONE, ONE])
def test_a_minimum_that_no_device_meets_blocks_with_or_without_gpu(
    required: bool, where: Machine
) -> None:
    result, checks = found(where, gpu=required, min_gpu_memory_gb=80.1)
    assert checks["gpu memory"].status == "blocked"
    assert result.status == "blocked"


def test_memory_is_known_from_the_driver_where_torch_has_no_cuda() -> None:
    result, checks = found(machine(None, (DRIVER,)), min_gpu_memory_gb=80)
    assert checks["gpu memory"].status == "ok"
    assert checks["gpu"].status == "warning"
    assert "the driver sees one, torch does not" in checks["gpu"].reason
    assert result.status == "warning"


@pytest.mark.parametrize(
    ("capability", "required", "status"),
    [
        ((8, 0), True, "ok"),
        ((7, 5), True, "blocked"),
        ((7, 5), False, "warning"),
    ],
)
def test_native_bf16_is_compute_capability_8(
    capability: tuple[int, int], required: bool, status: str
) -> None:
    _, checks = found(machine(gpu(80, capability), (DRIVER,)), native_bf16=required)
    assert checks["native bf16"].status == status


def test_native_bf16_without_a_device_blocks() -> None:
    result, _ = found(NONE, native_bf16=True)
    assert result.status == "blocked"


def test_memory_and_bf16_must_be_one_devices() -> None:
    large = {**DRIVER, "compute_capability": "7.0"}
    small = {**DRIVER, "memory_bytes": 10**10}
    where = machine(None, (large, small))
    for wanted in ({"native_bf16": True}, {"min_gpu_memory_gb": 80}):
        assert found(where, **wanted)[0].status == "warning"
    result, checks = found(where, native_bf16=True, min_gpu_memory_gb=80)
    assert result.status == "blocked"
    assert "no device has both" in checks["gpu memory"].reason


def test_a_gpu_that_does_not_compute_blocks() -> None:
    torch = gpu()

    def broken(*_values: object, **_more: object) -> None:
        raise RuntimeError("no kernel image is available\nmore")

    torch.ones = broken  # type: ignore[method-assign,assignment]
    result, checks = found(machine(torch, (DRIVER,)))
    assert result.status == "blocked"
    assert "no kernel image is available" in checks["gpu"].reason
    assert result.evidence_level == "cpu_simulation"


def test_a_torch_without_cuda_says_so() -> None:
    torch = gpu()
    torch.version = type("V", (), {"cuda": None, "hip": None})  # type: ignore[assignment]
    _, checks = found(machine(torch), gpu=True)
    assert "built without CUDA" in checks["cuda"].reason
    assert checks["cuda"].status == "blocked"


def test_a_torch_for_rocm_needs_a_device_too() -> None:
    torch = gpu()
    torch.version = type("V", (), {"cuda": None, "hip": "6.4"})  # type: ignore[assignment]
    torch.cuda.is_bf16_supported = lambda including_emulation: True  # type: ignore[attr-defined]
    torch.cuda.device = lambda index: contextlib.nullcontext()  # type: ignore[attr-defined]
    assert found(machine(torch), gpu=True)[1]["cuda"].status == "ok"
    torch.cuda.is_available = lambda: False  # type: ignore[method-assign]
    _, checks = found(machine(torch), gpu=True)
    assert checks["cuda"].status == "blocked"
    assert "finds no device" in checks["cuda"].reason


@pytest.mark.parametrize(
    ("wanted", "status"),
    [
        ("torch", "ok"),
        ("torch>=2.5", "ok"),
        ("torch>=2.5,<2.6", "ok"),
        ("numpy>=2.3", "ok"),
        ("torch>=2.10", "blocked"),
        ("torch==2.5.0", "blocked"),
        ("absent", "blocked"),
    ],
)
def test_packages_and_their_versions(wanted: str, status: str) -> None:
    result, checks = found(ONE, packages=(wanted,))
    name = f"package {Requirement(wanted).name}"
    assert checks[name].status == status
    assert result.status == status
    as_optional, _ = found(ONE, optional_packages=(wanted,))
    assert as_optional.status == ("ok" if status == "ok" else "warning")


def test_versions_keep_their_commas() -> None:
    assert split_packages(["torch>=2.5,<3, numpy", "msgspec"]) == (
        "torch>=2.5,<3",
        "numpy",
        "msgspec",
    )


@pytest.mark.parametrize(
    "wrong",
    [
        {"min_gpu_memory_gb": float("nan")},
        {"min_gpu_memory_gb": -1.0},
        {"min_disk_gb": float("inf")},
        {"engine_timeout_s": 0.0},
        {"engine_timeout_s": float("nan")},
        {"packages": ("not a name",)},
        {"packages": ("torch @ file:///x",)},
        {"optional_packages": ("torch; python_version<'3'",)},
        {"engine_url": "localhost:8000"},
        {"engine_url": "ftp://host"},
        {"engine_url": "http://"},
        {"engine_url": "http://host:port"},
        {"engine_url": "http://name:secret@host"},
        {"output": ""},
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError) as caught:
        checked(dataclasses.replace(PreflightSettings(), **wrong))
    assert "secret" not in str(caught.value)


def test_an_old_python_blocks() -> None:
    assert python_check((3, 10, 9)).status == "blocked"
    assert python_check((3, 11, 0)).status == "ok"


def test_the_worst_status_counts() -> None:
    checks = [Check(name=s, status=s, reason="") for s in ("ok", "warning", "blocked")]  # type: ignore[arg-type]
    assert [worst(checks[:n]) for n in range(4)] == ["ok", "ok", "warning", "blocked"]
    assert decision_of(checks).decision == "pending"


def test_disk_space_warns(tmp_path: Path) -> None:
    output = str(tmp_path / "x.json")
    assert found(ONE, output=output)[1]["disk (output)"].status == "ok"
    result, checks = found(ONE, output=output, min_disk_gb=1e9)
    assert checks["disk (output)"].status == "warning"
    assert str(tmp_path) not in str(result)


class Engine(http.server.BaseHTTPRequestHandler):
    answers: dict[str, int]

    def do_GET(self) -> None:
        code = self.answers.get(self.path, 404)
        if code == 0:
            self.server.held.wait(20)  # type: ignore[attr-defined]
            return
        self.send_response(code)
        if code == 302:
            self.send_header("Location", "http://[::bad/")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_values: object) -> None: ...


@pytest.fixture
def engine() -> Iterator[tuple[str, type[Engine]]]:
    handler = type("Handler", (Engine,), {"answers": {}})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        server.held = threading.Event()  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", handler
        finally:
            server.held.set()  # type: ignore[attr-defined]
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(
    ("answers", "status", "said"),
    [
        ({"/health": 200}, "ok", "/health answers 200"),
        ({"/v1/models": 200}, "ok", "/v1/models answers 200"),
        ({"/health": 503, "/v1/models": 200}, "blocked", "/health answers 503"),
        ({}, "blocked", "/v1/models answers 404"),
        ({"/health": 0}, "blocked", "no answer within 0.3 s"),
        ({"/health": 302}, "blocked", "leads on to what is no address"),
    ],
)
def test_an_engines_answers(
    engine: tuple[str, type[Engine]], answers: dict[str, int], status: str, said: str
) -> None:
    url, handler = engine
    handler.answers = answers
    for address in (url, f"{url}/v1/"):
        check = engine_check(address, 0.3 if answers.get("/health") == 0 else 20)
        assert check.status == status
        assert said in check.reason


def test_an_engine_that_is_not_there_or_is_none() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]

        def speak() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(100)
                connection.sendall(b"220 mail ready\r\n")

        thread = threading.Thread(target=speak)
        thread.start()
        check = engine_check(f"http://127.0.0.1:{port}", 20)
        thread.join()
    assert (check.status, check.reason) == ("blocked", "what answers there is no HTTP server.")
    gone = engine_check(f"http://127.0.0.1:{port}", 20)
    assert "refused" in gone.reason


def command(monkeypatch: pytest.MonkeyPatch, where: Machine, *arguments: str) -> int:
    monkeypatch.setattr(run_module, "Machine", lambda: where)
    try:
        code = app(["preflight", *arguments], standalone_mode=False)
    except SystemExit as ended:
        code = ended.code
    return int(code or 0)


def test_exit_codes_and_the_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "preflight.json"
    assert command(monkeypatch, NONE, "--output", str(file)) == 0
    assert "warning" in capsys.readouterr().out
    assert json.loads(file.read_text())["status"] == "warning"
    assert command(monkeypatch, NONE, "--gpu", "--output", str(file), "--format", "json") == 2
    shown = json.loads(capsys.readouterr().out)
    # What is blocked is written all the same.
    assert shown == json.loads(file.read_text())
    assert shown["status"] == "blocked"
    assert command(monkeypatch, NONE, "--min-gpu-memory-gb", "1") == 2
    assert command(monkeypatch, ONE, "--min-gpu-memory-gb", "1", "--gpu", "--native-bf16") == 0
    for arguments in (["--min-gpu-memory-gb", "nan"], ["--format", "yaml"]):
        with pytest.raises(UsageError):
            command(monkeypatch, ONE, *arguments)


@pytest.mark.parametrize("name", ["missing/preflight.json", "."])
def test_an_output_that_cannot_be_written_blocks(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(tmp_path.iterdir())
    assert command(monkeypatch, ONE, "--output", str(tmp_path / name), "--format", "json") == 2
    shown = json.loads(capsys.readouterr().out)
    blocked = [check["name"] for check in shown["checks"] if check["status"] == "blocked"]
    assert blocked == ["disk (output)"]
    assert sorted(tmp_path.iterdir()) == before


def test_an_output_that_is_a_device_or_too_long_is_blocked(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for output, said in (
        (str(pipe), "device or a pipe"),
        (str(tmp_path / ("x" * 300)), "too long"),
    ):
        check = output_check(output, 0.0)
        assert check.status == "blocked"
        assert said in check.reason
    assert output_check(str(tmp_path / "new.json"), 0.0).status == "ok"
