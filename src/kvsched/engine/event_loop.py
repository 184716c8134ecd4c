"""Event loops of one's own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

Found = TypeVar("Found")


def in_own_loop(
    begin: Callable[[], Coroutine[Any, Any, Found]], stop: Callable[[], None] | None = None
) -> Found:
    """Run ``begin()`` in an event loop of its own, and return what it returns.

    Where this thread has one that runs already (a notebook), a thread of its own is used; an
    interruption then calls ``stop``, which must end it, and a second one is raised when it has.
    """

    def run() -> Found:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            return runner.run(begin())

    if not _has_loop():
        return run()
    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(run)
        try:
            return running.result()
        except KeyboardInterrupt:
            if stop is None:
                raise
            stop()
            return running.result()


def _has_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Return uvloop's event loop where it is installed, else asyncio's."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop
