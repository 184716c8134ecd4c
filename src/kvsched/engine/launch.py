"""Start an engine, wait until it is healthy, and stop it whatever happens."""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvsched.engine.kinds.base import EngineKind
from kvsched.engine.plain_http import EngineSilentError, ask
from kvsched.engine.target import Target
from kvsched.foundation.errors import KvschedError, UsageError

HOST = "127.0.0.1"
LAST_LINES = 12
"""Of the log, in the words of an engine that ended."""
_MOST_WORDS = 1_500
_ERROR = re.compile(r"\b[A-Za-z_]*(?:Error|Exception): .+")


@dataclass(frozen=True)
class LaunchSettings:
    """How an engine is started."""

    kind: EngineKind
    model: str
    arguments: tuple[str, ...] = ()
    """The engine's own options."""
    python: str = sys.executable
    """Of the environment that the engine is installed in."""
    port: int | None = None
    """None for one that is free."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables beside this process's own."""
    ready_timeout_s: float = 600.0
    grace_s: float = 20.0
    """From being asked to end to being killed."""


@dataclass(frozen=True)
class Running:
    """An engine that runs, and ends with the block that it was started for."""

    url: str
    pid: int
    command: tuple[str, ...]
    log: Path
    supervisor: subprocess.Popen[bytes] = field(repr=False)
    heard: list[str] = field(default_factory=list, repr=False)
    """What the supervisor said of the end, once."""

    def ended(self) -> str | None:
        """Return what to say of an engine that ended by itself, with its last words; else None."""
        said = None if self.heard else _said(self.supervisor, 0.0)
        if said is not None and "exit" in said:
            how = "its supervisor" if said["exit"] is None else f"status {said['exit']}"
            self.heard.append(f"the engine ended with {how}{last_words(self.log)}")
        return self.heard[0] if self.heard else None


def free_port() -> int:
    """Return a port of this machine that nothing listens on now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as one:
        one.bind((HOST, 0))
        port: int = one.getsockname()[1]
    return port


def check_port(port: int) -> None:
    """Raise UsageError where something listens on ``port``, or it cannot be had.

    Another engine there would answer, and be measured, for as long as ours takes to start.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as one:
        # As servers do: connections that have ended do not hold a port.
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind((HOST, port))
            one.listen()
        except (OSError, OverflowError) as error:
            said = error.strerror if isinstance(error, OSError) else "from 1 to 65535"
            raise UsageError(f"--port {port}: {said}") from error


@contextlib.contextmanager
def launched(
    settings: LaunchSettings, log: Path, waiting: Callable[[float], None] | None = None
) -> Iterator[Running]:
    """Start the engine with its output in ``log``; yield it when it is healthy.

    It listens on the loopback address alone. When the block ends, by an error or an interruption
    too, it is asked to end, and after ``grace_s`` killed with all that it has started; when this
    process is killed, the same is done by a process that waits for that (`supervisor`).
    ``waiting`` is told the seconds waited. Raises UsageError where its port is taken or it cannot
    be started, and KvschedError where it ends before it is healthy, or is not in time.
    """
    port = free_port() if settings.port is None else settings.port
    check_port(port)
    command = settings.kind.command(settings.python, settings.model, HOST, port, settings.arguments)
    with contextlib.ExitStack() as stack:
        supervisor = _start(settings, command, log)
        stack.callback(_stop, supervisor, settings.grace_s)
        said = _said(supervisor, 30.0) or {"error": "its supervisor did not start"}
        if "pid" not in said:
            raise UsageError(f"--launch {settings.kind.name}: {said.get('error')}")
        pid = int(said["pid"])
        # Should the supervisor itself be killed, the engine must not stay.
        stack.callback(_kill_group, pid, supervisor)
        stack.callback(_stop, supervisor, settings.grace_s)
        running = Running(f"http://{HOST}:{port}", pid, tuple(command), log, supervisor)
        _wait_until_healthy(running, settings, waiting)
        yield running


def _start(settings: LaunchSettings, command: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    package = str(Path(__file__).resolve().parents[2])
    given = {**os.environ, **settings.environment}
    environment = {**settings.kind.environment, **given}
    # The supervisor needs this package, the engine only what the user gave it.
    starter = [sys.executable, "-P", "-c", _FIND, package, str(settings.grace_s), str(log), "--"]
    try:
        log.write_bytes(b"")
        return subprocess.Popen(  # noqa: S603  # this Python, and a module of ours
            [*starter, *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,
        )
    except OSError as error:
        raise UsageError(f"{log}: cannot be written ({error.strerror})") from error


_FIND = """
import sys
sys.path.insert(0, sys.argv.pop(1))
from kvsched.engine.supervisor import main
sys.exit(main())
"""


def _said(supervisor: subprocess.Popen[bytes], timeout_s: float) -> dict[str, Any] | None:
    """Return the next thing the supervisor says within ``timeout_s``, or None."""
    assert supervisor.stdout is not None  # noqa: S101  # asked for above
    ready, _, _ = select.select([supervisor.stdout], [], [], timeout_s)
    if not ready:
        return None
    line = supervisor.stdout.readline()
    if not line:
        return {"exit": None}
    found: dict[str, Any] = json.loads(line)
    return found


def _wait_until_healthy(
    running: Running, settings: LaunchSettings, waiting: Callable[[float], None] | None
) -> None:
    target = Target(running.url, "")
    begun = time.monotonic()
    last = ""
    while True:
        words = running.ended()
        if words is not None:
            raise KvschedError(f"--launch {settings.kind.name}: {words}")
        try:
            ask(target, settings.kind.health, timeout_s=2.0)
        except EngineSilentError as error:
            last = str(error)
        else:
            # Another program may hold the port, and answer while ours ends.
            words = running.ended()
            if words is None:
                return
            continue
        waited = time.monotonic() - begun
        if waited > settings.ready_timeout_s:
            raise KvschedError(
                f"--launch {settings.kind.name}: not healthy after {waited:.0f} s "
                f"({last}){last_words(running.log)}"
            )
        if waiting is not None:
            waiting(waited)
        time.sleep(0.1)


def last_words(log: Path) -> str:
    """Return what a log says of an end, to put after a sentence; empty where it says nothing.

    The first error of the last lines, which the others come of, else those lines themselves.
    """
    try:
        with log.open("rb") as stream:
            stream.seek(max(0, log.stat().st_size - 65_536))
            lines = stream.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return ""
    told = [line.strip() for line in lines if line.strip()]
    if not told:
        return ""
    cause = next((found[0] for line in told if (found := _ERROR.search(line))), None)
    if cause is not None:
        return f"; its first error: {cause[:_MOST_WORDS]} (the rest is in {log})"
    return f"; its last words: {' | '.join(told[-LAST_LINES:])[-_MOST_WORDS:]}"


def _stop(supervisor: subprocess.Popen[bytes], grace_s: float) -> None:
    """Have the supervisor end the engine, and wait for it."""
    if supervisor.stdin is not None:
        with contextlib.suppress(OSError):
            supervisor.stdin.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        supervisor.wait(grace_s + 15.0)
    if supervisor.poll() is None:
        supervisor.kill()
        supervisor.wait()
    if supervisor.stdout is not None:
        supervisor.stdout.close()


def _kill_group(pid: int, supervisor: subprocess.Popen[bytes]) -> None:
    """Kill the engine's processes where the supervisor could not."""
    if supervisor.returncode == 0:
        return
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
