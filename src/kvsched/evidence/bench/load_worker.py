"""A worker process of the load generator: ``python -m kvsched.evidence.bench.load_worker``.

Reads a `Job` from stdin, answers that it is ready, reads the moment of the start, sends, and tells
outcomes as they come. The end of stdin ends the run, so that no worker outlives its parent.
"""

from __future__ import annotations

import asyncio
import os
import queue
import signal
import sys
import threading
from typing import BinaryIO

import msgspec

from kvsched.engine.event_loop import new_event_loop
from kvsched.evidence.bench.load import quiet_process
from kvsched.evidence.bench.load_job import Job, Told, job_parts, read_frame, write_frame
from kvsched.evidence.bench.load_send import Sender
from kvsched.evidence.bench.load_settings import INTERRUPTED
from kvsched.evidence.bench.measured import RequestOutcome
from kvsched.foundation.errors import UsageError

TELL_S = 0.05
"""Seconds between two tellings."""


class _Teller:
    """Writes from a thread: a full pipe must not hold up the event loop."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._queue: queue.SimpleQueue[Told | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._write, daemon=True)
        self._thread.start()

    def tell(self, told: Told) -> None:
        self._queue.put(told)

    def close(self) -> None:
        self._queue.put(None)
        self._thread.join()

    def _write(self) -> None:
        while (told := self._queue.get()) is not None:
            try:
                write_frame(self._stream, told)
            except OSError:
                return  # nobody listens: stdin has ended as well


async def _send(job: Job, asked: BinaryIO, teller: _Teller) -> None:
    loop = asyncio.get_running_loop()
    outcomes: list[RequestOutcome] = []

    def tell() -> None:
        if outcomes:
            teller.tell(Told(outcomes=outcomes.copy()))
            outcomes.clear()

    def finished(outcome: RequestOutcome) -> None:
        if not outcomes:
            loop.call_later(TELL_S, tell)
        outcomes.append(outcome)

    sender = Sender(*job_parts(job), finished)
    sender.prepare()
    await sender.connect()
    teller.tell(Told())
    start = read_frame(asked)
    if start is None:
        return

    def ended() -> None:
        if not os.read(asked.fileno(), 1):
            loop.remove_reader(asked.fileno())
            sender.stop(INTERRUPTED)

    loop.add_reader(asked.fileno(), ended)
    try:
        await sender.run(msgspec.msgpack.decode(start, type=float))
    finally:
        loop.remove_reader(asked.fileno())
        tell()


def main() -> None:
    """Do one job."""
    # An interruption at the terminal reaches everyone: the parent decides.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Not buffered: what has been read ahead would be missed by the event loop.
    asked = os.fdopen(0, "rb", buffering=0, closefd=False)
    teller = _Teller(os.fdopen(1, "wb", closefd=False))
    frame = read_frame(asked)
    if frame is None:
        return
    job = msgspec.msgpack.decode(frame, type=Job)
    try:
        with quiet_process(), asyncio.Runner(loop_factory=new_event_loop) as runner:
            runner.run(_send(job, asked, teller))
        teller.tell(Told(done=True))
    except UsageError as error:
        teller.tell(Told(fault=str(error), usage=True))
    except Exception as error:  # noqa: BLE001  # the parent is told
        teller.tell(Told(fault=f"{type(error).__name__}: {error}"))
    teller.close()


if __name__ == "__main__":
    main()
    sys.exit(0)
