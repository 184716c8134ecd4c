"""The peers: an environment each, built once under .bench/, and processes that run in them.

A peer's process stays up and answers one JSON line a command, so that both sides can take turns
and neither pays for its start within a measurement.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any

HERE = Path(__file__).resolve().parent
FOLDER = HERE.parent / ".bench"


class PeerMissingError(Exception):
    """A peer could not be set up; its figures are left out and the table says so."""


def pins() -> dict[str, str]:
    """Peers by name, with the version that is measured."""
    lines = (HERE / "peers.txt").read_text(encoding="utf-8").splitlines()
    kept = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    return dict(line.split("==") for line in kept)


def environment(name: str) -> Path:
    """Return the Python of the peer's environment, built if it is not there yet."""
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


class Peer:
    """A peer's process, running ``script`` in its own environment."""

    def __init__(self, name: str, script: str, *arguments: str) -> None:
        self._process = subprocess.Popen(
            [str(environment(name)), str(HERE / script), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
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
