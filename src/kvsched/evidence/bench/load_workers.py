"""A load sent by several processes, on one clock."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, cast

import msgspec

from kvsched.engine.target import Target
from kvsched.evidence.bench.load_job import Job, Told, divide, new_job, read_frame, write_frame
from kvsched.evidence.bench.load_send import Part
from kvsched.evidence.bench.load_settings import INTERRUPTED, LoadSettings
from kvsched.evidence.bench.measured import RequestOutcome
from kvsched.evidence.bench.workload import BenchWorkload
from kvsched.foundation.errors import KvschedError, UsageError

HEAD_START_S = 0.05
"""Seconds from telling the workers the start to the start."""
LOST = "its worker process ended"

Finished = Callable[[RequestOutcome], None]


class _Worker:
    """A process, and the thread that listens to it."""

    def __init__(
        self,
        number: int,
        job: Job,
        told: queue.SimpleQueue[tuple[int, Told | None]],
    ) -> None:
        self._number = number
        self._told = told
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "kvsched.evidence.bench.load_worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={**os.environ, "PYTHONPATH": _python_path()},
            )
        except OSError as error:
            raise KvschedError(f"a worker process cannot be started ({error.strerror})") from error
        self._asked = cast(BinaryIO, self._process.stdin)
        self._thread = threading.Thread(target=self._listen, args=(job,), daemon=True)
        self._thread.start()

    def _listen(self, job: Job) -> None:
        stream = cast(BinaryIO, self._process.stdout)
        decode = msgspec.msgpack.Decoder(Told).decode
        with contextlib.suppress(OSError, ValueError):
            write_frame(self._asked, job)
        try:
            while (frame := read_frame(stream)) is not None:
                self._told.put((self._number, decode(frame)))
        finally:
            self._told.put((self._number, None))

    def start(self, started_s: float) -> None:
        with contextlib.suppress(OSError, ValueError):
            write_frame(self._asked, started_s)

    def stop(self) -> None:
        """Tell it to end: the end of its stdin."""
        with contextlib.suppress(OSError, ValueError):
            self._asked.close()

    def end(self, kill: bool) -> None:
        if kill:
            self._process.kill()
        self.stop()
        self._process.wait()
        self._thread.join()
        cast(BinaryIO, self._process.stdout).close()


def _python_path() -> str:
    package = str(Path(__file__).resolve().parents[3])
    return os.pathsep.join([package, *filter(None, [os.environ.get("PYTHONPATH")])])


class _Team:
    """The workers of one run."""

    def __init__(self, parts: list[Part], finished: Finished) -> None:
        self.workers: list[_Worker] = []
        self.told: queue.SimpleQueue[tuple[int, Told | None]] = queue.SimpleQueue()
        self._parts = parts
        self._finished = finished
        self._missing = [set(part.index.tolist()) for part in parts]
        self._started_s: float | None = None
        self._interrupted = False

    def stop(self) -> None:
        """Let all end: an interruption."""
        self._interrupted = True
        for worker in self.workers:
            worker.stop()

    def listen(self) -> None:
        """Start the workers together, and hear them out. Raises for a fault of ours."""
        running = len(self.workers)
        preparing = set(range(running))
        while running:
            number, message = self.told.get()
            if message is None:
                running -= 1
            else:
                self._hear(number, message)
            preparing.discard(number)
            if not preparing and self._started_s is None:
                self._started_s = time.perf_counter() + HEAD_START_S
                for worker in self.workers:
                    worker.start(self._started_s)

    def _hear(self, number: int, message: Told) -> None:
        if message.fault is not None:
            raise (UsageError if message.usage else KvschedError)(message.fault)
        for outcome in message.outcomes:
            self._missing[number].discard(outcome.index)
            self._finished(outcome)

    def close(self) -> None:
        """Give what no worker told of an outcome."""
        now_s = 0.0 if self._started_s is None else time.perf_counter() - self._started_s
        for part, missing in zip(self._parts, self._missing, strict=True):
            for place, index in enumerate(part.index.tolist()):
                if index in missing:
                    self._finished(
                        RequestOutcome(
                            index=index,
                            error="cancelled",
                            detail=INTERRUPTED if self._interrupted else LOST,
                            attempts=0,
                            due_s=max(0.0, now_s),
                            sent_prompt_tokens=len(part.prompts[place]),
                            asked_output_tokens=int(part.output_tokens[place]),
                        )
                    )


def send_by_workers(
    workload: BenchWorkload,
    target: Target,
    settings: LoadSettings,
    workers: int,
    finished: Finished,
) -> None:
    """Send ``workload`` from ``workers`` processes; ``finished`` gets each outcome, in this thread.

    A concurrency is divided among them as evenly as it goes, and refusals in a row are counted by
    each. What a worker that died had not told is ``cancelled``. Raises as `run_load`.
    """
    parts = divide(workload, workers)
    team = _Team(parts, finished)
    well = False
    try:
        with _interruptible(team):
            for number, part in enumerate(parts):
                job = new_job(part, target, _share(settings, number, len(parts)))
                team.workers.append(_Worker(number, job, team.told))
            team.listen()
        well = True
    finally:
        for worker in team.workers:
            worker.end(kill=not well)
    team.close()


def _share(settings: LoadSettings, number: int, parts: int) -> LoadSettings:
    concurrency = settings.concurrency
    if concurrency is None:
        return settings
    share = concurrency // parts + (number < concurrency % parts)
    return dataclasses.replace(settings, concurrency=share)


@contextlib.contextmanager
def _interruptible(team: _Team) -> Iterator[None]:
    """Let the first SIGINT end the run in order; the second raises KeyboardInterrupt."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)

    def stop(_number: int, _frame: object) -> None:
        signal.signal(signal.SIGINT, before)
        team.stop()

    signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
