"""How numbers and names are written, in one place. None is a dash."""

from __future__ import annotations

from collections.abc import Callable, Sequence

DASH = "–"
MINUS = "−"
UNITS = ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
MOST_LETTERS = 60
"""A longer name from the trace is cut here."""


def share(value: float | None, digits: int = 1) -> str:
    """Return a share of 1 as a percentage."""
    if value is None:
        return DASH
    least = 10.0**-digits
    if 0 < abs(value) * 100 < least / 2:
        return f"<{least:g}%" if value > 0 else f">{MINUS}{least:g}%"
    return f"{100 * value:.{digits}f}%".replace("-", MINUS)


def count(value: int | None) -> str:
    """Return a whole number with separators."""
    return DASH if value is None else f"{value:,}"


def block_tokens(block_size: int) -> str:
    """Return how large blocks are; 0 says that every one has a size of its own."""
    return f"{block_size:,} tokens" if block_size else "unequal size"


def short(value: float | None) -> str:
    """Return a large number with a letter: 12.3 k, 4.5 M, 6.7 G."""
    if value is None:
        return DASH
    for size, letter in UNITS:
        # What rounds up to a thousand takes the next letter.
        if abs(value) >= 0.9995 * size:
            return f"{value / size:.3g} {letter}"
    return f"{value:.3g}"


def gib(value: float | None) -> str:
    """Return GiB."""
    if value is None:
        return DASH
    if 0 < value < 1:
        return f"{value:.2g} GiB"
    return f"{value:,.1f} GiB" if value < 1000 else f"{value:,.0f} GiB"


def seconds(value: float | None) -> str:
    """Return a time in the unit that reads best."""
    if value is None:
        return DASH
    if value < 0.9995e-3:
        return "0 s" if value == 0 else f"{value * 1e6:.3g} µs"
    if value < 120:
        return f"{value:.3g} s"
    if value < 7200:
        return f"{value / 60:.3g} min"
    return f"{value / 3600:,.1f} h"


def in_unit(values: Sequence[float | None]) -> tuple[list[str], str]:
    """Return latencies in one unit, and the unit: ms where all are below 1 s, else s."""
    known = [value for value in values if value is not None]
    unit, size = ("ms", 1e3) if known and max(known) < 1 else ("s", 1.0)
    return [_plain(None if value is None else size * value) for value in values], unit


def _plain(value: float | None) -> str:
    """Return a number with three digits or more, and without an exponent."""
    if value is None:
        return DASH
    if value >= 999.5:
        return f"{value:,.0f}"
    return "<0.001" if 0 < value < 0.0009995 else f"{value:.3g}"


def latencies(values: Sequence[float | None]) -> list[str]:
    """Return latencies in one unit, with it: ms where all are below 1 s, else as `seconds`."""
    texts, unit = in_unit(values)
    if unit == "s":
        return [seconds(value) for value in values]
    return [text if text == DASH else f"{text} {unit}" for text in texts]


def times(value: float | None) -> str:
    """Return a ratio."""
    return DASH if value is None else f"{value:.2f}×"


def visible(text: str) -> str:
    """Return a text of the trace on one line, without controls.

    Direction marks and other invisible characters become a sign of their own, since they can
    make a table say what it does not.
    """
    return "".join(
        letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text
    )


def name(text: str) -> str:
    """Return a name from the trace that is safe to show, cut where it is too long."""
    shown = visible(text)
    return shown if len(shown) <= MOST_LETTERS else shown[: MOST_LETTERS - 1] + "…"


def with_sign(value: float | None, unit: str, figure: Callable[[float, str], str]) -> str:
    """Return a difference with its sign, written by ``figure``; shares in points."""
    if value is None:
        return DASH
    sign = "+" if value >= 0 else MINUS
    if unit == "share":
        return f"{sign}{100 * abs(value):.1f} pt"
    return f"{sign}{figure(abs(value), unit)}"
