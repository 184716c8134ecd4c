"""Printing on any terminal."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping

from rich.console import Console, RenderableType

ASCII = str.maketrans(
    {"█": "#", "▓": "%", "▒": "+", "░": "-", "·": ".", "–": "-", "−": "-", "×": "x", "…": "~"}
    | {"≤": "<", "≈": "~", "→": "->"}
    | {"’": "'", "µ": "u"}
)


@contextlib.contextmanager
def for_any_encoding(
    console: Console, signs: Mapping[int, int | str] | None = None
) -> Iterator[None]:
    """Let what is printed inside be ASCII where the console's encoding is no Unicode.

    Signs become those of ``signs`` and of `ASCII`, other letters "?".
    """
    if (console.encoding or "utf-8").lower().startswith("utf"):
        yield
        return
    with console.capture() as captured:
        yield
    text = captured.get().translate(signs or {}).translate(ASCII)
    console.file.write(text.encode("ascii", "replace").decode())


def print_lines(
    lines: Iterable[RenderableType], console: Console, signs: Mapping[int, int | str] | None = None
) -> None:
    """Print ``lines``, as `for_any_encoding`."""
    with for_any_encoding(console, signs):
        for line in lines:
            console.print(line)
