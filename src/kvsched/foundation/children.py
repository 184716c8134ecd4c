"""Work that holds the GIL, done in processes: jobs by name, an answer in JSON for each.

A child runs ``python -m MODULE`` and ends in `answer_jobs`. No `multiprocessing`: it would run a
user's own script again in every child.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

Answer = dict[str, Any]


def can_start() -> bool:
    """Whether this Python can start another one like itself."""
    return bool(sys.executable) and not getattr(sys, "frozen", False)


def _start(module: str) -> subprocess.Popen[str]:
    package = str(Path(__file__).resolve().parents[2])
    paths = [package, *filter(None, [os.environ.get("PYTHONPATH")])]
    return subprocess.Popen(  # noqa: S603  # this Python, and a module of ours
        # Without -P a file beside the user, called like a module, would be imported.
        [sys.executable, "-P", "-m", module],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
    )


class _Team:
    """The children of one call, and what they have not done yet."""

    def __init__(self, module: str, jobs: Sequence[str]) -> None:
        self.module = module
        self.waiting: queue.SimpleQueue[str] = queue.SimpleQueue()
        for job in jobs:
            self.waiting.put(job)
        self.answers: queue.SimpleQueue[tuple[str, Answer] | None] = queue.SimpleQueue()
        self.children: list[subprocess.Popen[str]] = []
        self.stopped = threading.Event()

    def serve(self) -> None:
        """Hand jobs to a child of its own until none is left, or the child has gone."""
        try:
            child = _start(self.module)
        except OSError:
            self.answers.put(None)
            return
        self.children.append(child)
        with child:
            while not self.stopped.is_set() and self._ask(child):
                pass
        self.answers.put(None)

    def _ask(self, child: subprocess.Popen[str]) -> bool:
        assert child.stdin is not None  # noqa: S101  # asked for above
        assert child.stdout is not None  # noqa: S101
        try:
            job = self.waiting.get_nowait()
        except queue.Empty:
            return False
        try:
            child.stdin.write(job + "\n")
            child.stdin.flush()
            answer: Answer = json.loads(child.stdout.readline())
        except (OSError, ValueError):
            self.answers.put((job, {"error": "its process ended"}))
            return False
        self.answers.put((job, answer))
        return True

    def stop(self) -> None:
        """End the children."""
        self.stopped.set()
        for child in self.children:
            child.terminate()


def in_children(module: str, jobs: Sequence[str], children: int) -> Iterator[tuple[str, Answer]]:
    """Do ``jobs`` in ``children`` processes of ``module``; yield each with its answer as it ends.

    An answer has ``error`` where the job failed, or its process ended. The caller's leaving, by an
    error or an interruption, ends the processes.
    """
    team = _Team(module, jobs)
    threads = [threading.Thread(target=team.serve) for _ in range(min(children, len(jobs)))]
    for thread in threads:
        thread.start()
    try:
        running = len(threads)
        while running:
            answer = team.answers.get()
            if answer is None:
                running -= 1
            else:
                yield answer
        while not team.waiting.empty():
            yield team.waiting.get(), {"error": "no process could do it"}
    finally:
        team.stop()
        for thread in threads:
            thread.join()


def answer_jobs(do: Callable[[str], Answer]) -> None:
    """Be a child: do one job a line from stdin, and answer with a line of JSON."""
    # An interruption at the terminal reaches everyone: the parent decides.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    answers = sys.stdout
    sys.stdout = sys.stderr  # what a job prints is no answer
    for line in sys.stdin:
        try:
            answer = do(line.strip())
        except (Exception, SystemExit) as error:  # noqa: BLE001  # the parent is told
            answer = {"error": f"{type(error).__name__}: {' '.join(str(error).split())}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
