"""The load generator: sends a workload to an engine and times what comes back."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import resource
import signal
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from kvsched.engine.event_loop import in_own_loop
from kvsched.engine.target import Target
from kvsched.evidence.bench.load_send import Part, Sender
from kvsched.evidence.bench.load_settings import INTERRUPTED, LoadSettings
from kvsched.evidence.bench.measured import RequestOutcome
from kvsched.evidence.bench.workload import BenchWorkload

Report = Callable[[int, int], None]
"""Told how many requests have ended, of how many."""

REPORT_S = 0.1
"""Least seconds between two reports."""
MOST_FILES = 65_536
"""Open files that a run asks the system for: a connection is one."""


def run_load(
    workload: BenchWorkload,
    target: Target,
    settings: LoadSettings,
    *,
    report: Report | None = None,
) -> list[RequestOutcome]:
    """Send ``workload`` to ``target``; return what became of each request, in its order.

    In an open loop no request waits for another's answer, except that a later turn of a session is
    due its think time after the turn before has ended, well or not: the engine's load must not
    depend on its own failures. A closed loop does not look at arrivals; a session's later turn
    is due in the same way, and its client waits with it.

    Nothing is raised for what the engine does: refused connections, faults and deadlines are
    outcomes. An interruption (SIGINT, in the main thread) ends the run: what had ended keeps its
    outcome, the rest is ``cancelled``; a second one raises KeyboardInterrupt. Raises UsageError
    for an address or key that cannot be used. May be called in a notebook, whose loop runs.
    """
    total = len(workload)
    outcomes: dict[int, RequestOutcome] = {}
    progress = _Progress(report, total)

    def finished(outcome: RequestOutcome) -> None:
        outcomes[outcome.index] = outcome
        progress.show(len(outcomes))

    with quiet_process():
        workers = min(settings.workers, settings.concurrency or settings.workers, max(total, 1))
        if workers > 1:
            from kvsched.evidence.bench.load_workers import send_by_workers

            send_by_workers(workload, target, settings, workers, finished)
        else:
            _send_here(whole_part(workload), target, settings, finished)
    progress.end(len(outcomes))
    return [outcomes[index] for index in range(total)]


class _Progress:
    def __init__(self, report: Report | None, total: int) -> None:
        self._report = report
        self._total = total
        self._next_s = 0.0

    def show(self, done: int) -> None:
        if self._report is not None and time.perf_counter() >= self._next_s:
            self._report(done, self._total)
            self._next_s = time.perf_counter() + REPORT_S

    def end(self, done: int) -> None:
        if self._report is not None:
            self._report(done, self._total)


def whole_part(workload: BenchWorkload) -> Part:
    """Return all of a workload as one part."""
    return Part(
        index=np.arange(len(workload)),
        prompts=workload.prompts,
        output_tokens=workload.output_tokens,
        arrival_s=workload.arrival_s,
        after=workload.after,
        think_s=workload.think_s,
        priority=workload.priority,
        words=workload.words,
    )


def _send_here(
    part: Part, target: Target, settings: LoadSettings, finished: Callable[[RequestOutcome], None]
) -> None:
    stops: list[Callable[[], object]] = []

    async def send() -> None:
        sender = Sender(part, target, settings, finished)
        soon = asyncio.get_running_loop().call_soon_threadsafe
        stops.append(partial(soon, sender.stop, INTERRUPTED))
        with _interruptible(sender):
            sender.prepare()
            await sender.connect()
            await sender.run(time.perf_counter())

    def stop() -> None:
        for each in stops:
            with contextlib.suppress(RuntimeError):  # its loop has just ended
                each()

    in_own_loop(send, stop)


@contextlib.contextmanager
def _interruptible(sender: Sender) -> Iterator[None]:
    """Let the first SIGINT end the run in order; the second raises KeyboardInterrupt."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    before = signal.getsignal(signal.SIGINT)

    def stop() -> None:
        loop.remove_signal_handler(signal.SIGINT)
        signal.signal(signal.SIGINT, before)
        sender.stop(INTERRUPTED)

    loop.add_signal_handler(signal.SIGINT, stop)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)
        signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def quiet_process() -> Iterator[None]:
    """Let this process have many connections, and no long pauses."""
    with _many_files(), _frozen_garbage():
        yield


@contextlib.contextmanager
def _many_files() -> Iterator[None]:
    """Allow as many open files as the system lets this process have, for a while."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        yield
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextlib.contextmanager
def _frozen_garbage() -> Iterator[None]:
    """Keep what is there already out of garbage collection: a full one stops the clock for long."""
    if gc.get_freeze_count():
        yield
        return
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
