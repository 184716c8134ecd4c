"""How a long command ends early."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def ends_as_interruptions() -> Iterator[None]:
    """Let SIGTERM and SIGHUP do what an interruption does: what was measured is written.

    A scheduler of jobs ends them by the first, a terminal that closes by the second. Without
    effect outside the main thread, and on a signal that is ignored (nohup).
    """

    def interrupt(_signal: int, _frame: object) -> None:
        signal.raise_signal(signal.SIGINT)

    before: dict[signal.Signals, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for each in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(each) is not signal.SIG_IGN:
                before[each] = signal.signal(each, interrupt)
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
