"""Stand between kvsched and an engine, so that the engine ends whatever becomes of kvsched.

``python -m kvsched.engine.supervisor GRACE LOG -- COMMAND`` starts the command in a session of its
own with its output in the log file, and says its process id on stdout. It ends the engine and all
that came of it when its own stdin ends, which it does at the latest with the process that holds
the other end: also one that was killed. What the engine leaves behind when it ends by itself is
ended too. The last line on stdout is the engine's exit status.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

_SUBREAPER = 36
"""PR_SET_CHILD_SUBREAPER of Linux's prctl: orphans of descendants become children of this one."""
_LOOK_S = 0.02


def main() -> int:
    """Be the supervisor. Returns 0 where the engine could be started."""
    grace_s, log = float(sys.argv[1]), sys.argv[2]
    command = sys.argv[4:]
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # Who stops kvsched closes stdin: a signal to this process alone would lose the engine.
        signal.signal(each, signal.SIG_IGN)
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
    try:
        with Path(log).open("ab") as stream:
            engine = subprocess.Popen(  # noqa: S603  # the user named the engine
                command,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                start_new_session=True,
                preexec_fn=_take_signals,  # noqa: PLW1509  # there are no threads here
            )
    except OSError as error:
        _say({"error": f"{command[0]}: {error.strerror}"})
        return 1
    _say({"pid": engine.pid})
    asked = _wait(engine)
    if asked:
        _end(engine, grace_s)
    _sweep(engine.pid)
    _say({"exit": engine.wait()})
    return 0


def _take_signals() -> None:
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, signal.SIG_DFL)


def _say(what: dict[str, object]) -> None:
    # Nobody may be there to hear it.
    with contextlib.suppress(OSError):
        os.write(1, json.dumps(what).encode() + b"\n")


def _wait(engine: subprocess.Popen[bytes]) -> bool:
    """Wait for the end of stdin or of the engine; return whether it was stdin's."""
    while engine.poll() is None:
        ready, _, _ = select.select([0], [], [], 10 * _LOOK_S)
        if ready and not os.read(0, 4096):
            return True
    return False


def _end(engine: subprocess.Popen[bytes], grace_s: float) -> None:
    """Ask the engine to end: its first process alone, then all of them."""
    for ask, whom in ((signal.SIGINT, os.kill), (signal.SIGTERM, os.killpg)):
        with contextlib.suppress(ProcessLookupError):
            whom(engine.pid, ask)
        until = time.monotonic() + grace_s / 2
        while engine.poll() is None and time.monotonic() < until:
            time.sleep(_LOOK_S)
        if engine.returncode is not None:
            return


def _sweep(group: int) -> None:
    """Kill what is left of the engine's group, and the orphans that came to this process."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)
    for _ in range(500):
        left = _children()
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            # The engine itself is waited for by its own object.
            if pid != group:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)
        if not [pid for pid in left if pid != group]:
            return
        time.sleep(_LOOK_S / 4)


def _children() -> list[int]:
    """Process ids of this one's children; none where there is no /proc."""
    found: list[int] = []
    for task in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += [int(pid) for pid in task.read_text().split()]
    return found


if __name__ == "__main__":
    sys.exit(main())
