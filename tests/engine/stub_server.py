"""A server that misbehaves as it is told, to launch as an engine.

Behaviour comes as options: ``--ignore`` (SIGINT and SIGTERM), ``--fork N`` (children, each in a
session of its own), ``--die-at-start``, ``--die-after SECONDS`` (from when it was first asked for
its health), ``--never-healthy``, ``--loud``.
"""

from __future__ import annotations

import argparse
import http.server
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

SLEEPER = "import signal, time\nsignal.signal(15, signal.SIG_IGN)\ntime.sleep(600)"


class Handler(http.server.BaseHTTPRequestHandler):
    healthy = True
    die_after: float | None = None

    def do_GET(self) -> None:
        if self.die_after is not None:
            threading.Timer(self.die_after, os._exit, (3,)).start()
        self.send_response(200 if self.healthy else 503)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("--model", "--host", "--pids"):
        parser.add_argument(name)
    parser.add_argument("--port", type=int)
    parser.add_argument("--fork", type=int, default=0)
    parser.add_argument("--die-after", type=float)
    for flag in ("--ignore", "--die-at-start", "--never-healthy", "--loud"):
        parser.add_argument(flag, action="store_true")
    told = parser.parse_args()
    pids = [os.getpid()]
    if told.ignore:
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, signal.SIG_IGN)
    for _ in range(told.fork):
        # An orphan at once: its parent ends, and it is in a session of its own.
        found = subprocess.run(
            [sys.executable, "-c", _ORPHAN, SLEEPER], capture_output=True, check=True, text=True
        )
        pids.append(int(found.stdout))
    if told.pids:
        Path(told.pids).write_text("\n".join(map(str, pids)))
    if told.loud:
        for line in range(20_000):
            sys.stdout.write(f"a line of the log {line}\n")
    if told.die_at_start:
        sys.exit("no such model")
    Handler.die_after = told.die_after
    Handler.healthy = not told.never_healthy
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    http.server.ThreadingHTTPServer((told.host, told.port), Handler).serve_forever()


_ORPHAN = """
import subprocess, sys
one = subprocess.Popen([sys.executable, "-c", sys.argv[1]], start_new_session=True,
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
print(one.pid)
"""

if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        time.sleep(0)
