"""A small engine in a process of its own: OpenAI streaming completions, vLLM's metrics, faults.

``with fake_engine(ttft_s=0.01) as engine: engine.url, engine.stats()``. A script is a set of the
keywords of `fake_engine_server.DEFAULTS`; ``requests={3: {...}}`` changes them for the request that
came fourth, ``when={token: {...}}`` for requests whose last prompt token it is.
"""

from __future__ import annotations

import contextlib
import json
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fake_engine_server

MODEL = fake_engine_server.MODEL


@dataclass
class FakeEngine:
    """A running one."""

    url: str
    process: subprocess.Popen[str]
    certificate: str | None = None

    def get(self, path: str) -> str:
        """Return what it answers to a GET."""
        context = (
            None
            if self.certificate is None
            else ssl.create_default_context(cafile=self.certificate)
        )
        with urllib.request.urlopen(self.url + path, context=context) as answered:  # noqa: S310
            text: str = answered.read().decode()
        return text

    def stats(self) -> dict[str, Any]:
        """Return its counts: requests, connections open now, most running at once, …"""
        counts: dict[str, Any] = json.loads(self.get("/fake/stats"))
        return counts

    def stats_when_quiet(self, seconds: float = 5.0) -> dict[str, Any]:
        """Return its counts once no other connection is open, or after ``seconds``."""
        ends = time.perf_counter() + seconds
        while (counts := self.stats())["open"] and time.perf_counter() < ends:
            time.sleep(0.01)
        return counts

    def kill(self) -> None:
        """End it at once, as a crash would."""
        self.process.kill()
        self.process.wait()


@contextlib.contextmanager
def fake_engine(port: int = 0, **script: Any) -> Iterator[FakeEngine]:
    """Start one, give it, and end it whatever happens."""
    command = [
        sys.executable,
        "-I",
        str(Path(fake_engine_server.__file__).resolve()),
        "--port",
        str(port),
    ]
    with subprocess.Popen(
        [*command, json.dumps(script)], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line:
                raise RuntimeError("the fake engine did not start")
            tls = script.get("tls")
            scheme = "http" if tls is None else "https"
            yield FakeEngine(
                f"{scheme}://127.0.0.1:{int(line)}", process, None if tls is None else tls[0]
            )
        finally:
            process.kill()
