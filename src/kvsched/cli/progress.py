"""Progress on a terminal's stderr; silence elsewhere."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator

import typer

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


MOST_COUNTED = 10_000
"""Of no more things than these it is said how many are done."""
COMPILING = "compiling"


def described(name: str, done: int, total: int, compiling: str = "") -> str:
    """Return a bar's text: what is done, of how many, and of compiling how long one takes."""
    if name == COMPILING and compiling:
        if total == 1:
            return f"compiling (once, {compiling})"
        return f"compiling {min(done + 1, total)} of {total} (once, {compiling} each)"
    return f"{name} {done} of {total}" if 1 < total <= MOST_COUNTED else name


@contextlib.contextmanager
def steps(compiling: str = "") -> Iterator[Callable[[str, int, int], None]]:
    """Show bars, one for each name that is told of. Yields ``told(name, done, total)``.

    ``compiling`` is how long that takes; where it is given and stderr is no terminal, one line
    there says that something is compiled.
    """
    if not sys.stderr.isatty():
        said = [not compiling]

        def told_once(name: str, done: int, total: int) -> None:
            if name == COMPILING and done < total and not said[0]:
                said[0] = True
                each = "" if total == 1 else " each"
                many = "" if total == 1 else f" {total} loops"
                typer.echo(f"compiling{many} (once, {compiling}{each})", err=True)

        yield told_once
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        tasks: dict[str, TaskID] = {}

        def told(name: str, done: int, total: int) -> None:
            if name not in tasks:
                tasks[name] = bars.add_task(name, total=total)
            text = described(name, done, total, compiling)
            bars.update(tasks[name], completed=done, total=total, description=text)

        yield told
