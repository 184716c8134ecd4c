"""Progress on a terminal's stderr; silence elsewhere."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator

Told = Callable[[int, int], None]
"""Called with the work done and in all."""


@contextlib.contextmanager
def working(*names: str) -> Iterator[tuple[Told | None, ...]]:
    """Show a bar for each thing that is done, if stderr is a terminal. Yields what to tell."""
    if not sys.stderr.isatty():
        yield (None,) * len(names)
        return
    with steps() as told:
        yield tuple(functools.partial(told, name) for name in names)


def _silent(_name: str, _done: int, _total: int) -> None:
    """Show nothing."""


@contextlib.contextmanager
def steps() -> Iterator[Callable[[str, int, int], None]]:
    """Show bars, one for each name that is told of. Yields ``told(name, done, total)``."""
    if not sys.stderr.isatty():
        yield _silent
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        tasks: dict[str, TaskID] = {}

        def told(name: str, done: int, total: int) -> None:
            if name not in tasks:
                tasks[name] = bars.add_task(name, total=total)
            bars.update(tasks[name], completed=done, total=total)

        yield told
