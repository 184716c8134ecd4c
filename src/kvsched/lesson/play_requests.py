"""The requests of a step-through: few enough to look at one by one."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from kvsched.foundation.errors import InputError, UsageError

MOST_REQUESTS = 30
"""More than these nobody steps through, and a page with all runs of them would be large."""
MOST_BYTES = 2**31 - 1
"""Sizes are kept in 32 bits."""
LONGEST_PREFIX = 40
"""Letters of a prefix that a page has room for."""
GRID = 7
"""Capacities that a page offers, from the largest entry to all of them."""


class Request(NamedTuple):
    """One request of the chapter: a prefix and its bytes."""

    prefix: str
    bytes_: int


DEFAULT_CAPACITY = 100
DEFAULT_REQUESTS = (
    Request("exam", 60),
    Request("exam", 60),
    Request("exam", 60),
    Request("chat", 16),
    Request("docs", 24),
    Request("quiz", 16),
    Request("docs", 24),
    Request("chat", 16),
    Request("docs", 24),
    Request("chat", 16),
    Request("quiz", 16),
    Request("docs", 24),
)
"""In a cache of 100 bytes: a prefix that was hot and stays, a large newcomer that leaves before an
older small one, a tie, and stale records of both kinds."""


def is_file(given: str) -> bool:
    """Whether ``given`` names a file; a long list of requests is no name at all."""
    try:
        return Path(given).is_file()
    except OSError:
        return False


def read_requests(given: str) -> tuple[Request, ...]:
    """Return the requests of a file, one ``PREFIX BYTES`` a line, or of ``PREFIX:BYTES,…`` itself.

    Raises InputError with file, row and fault, UsageError where ``given`` is neither.
    """
    if is_file(given):
        return _read_file(given)
    if ":" not in given:
        raise UsageError(
            f"{given}: there is no such file, and it is no list of requests, as in exam:60,chat:16"
        )
    found = []
    for number, part in enumerate(given.split(","), 1):
        prefix, _, size = part.strip().rpartition(":")
        fault = _fault_of(prefix.strip(), size)
        if fault:
            raise UsageError(f"request {number} ({part.strip()[:60]!r}): {fault}")
        found.append(Request(prefix.strip(), int(size)))
    return _counted(found, "the list")


def _read_file(name: str) -> tuple[Request, ...]:
    try:
        text = Path(name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(name, f"cannot be read ({_fault(error)})") from error
    found = []
    for row, line in enumerate(text.split("\n"), 1):
        if line.strip():
            prefix, size = ["", *line.rsplit(maxsplit=1)][-2:]
            fault = _fault_of(prefix.strip(), size)
            if fault:
                raise InputError(name, fault, row)
            found.append(Request(prefix.strip(), int(size)))
    return _counted(found, name)


def check_capacity(requests: tuple[Request, ...], capacity: int) -> None:
    """Raise UsageError where an entry could never fit: the chapter refuses it in mid-run."""
    if not 0 < capacity <= MOST_BYTES:
        raise UsageError(f"the capacity must be from 1 to {MOST_BYTES:,} bytes, not {capacity:,}")
    for number, request in enumerate(requests, 1):
        if request.bytes_ > capacity:
            raise UsageError(
                f"request {number} ({request.prefix}) has {request.bytes_:,} bytes, more than the "
                f"capacity of {capacity:,}"
            )


def capacities(requests: tuple[Request, ...], own: int | None) -> tuple[list[int], int]:
    """Return the capacities to offer, ascending, and which of them to begin with.

    From the largest entry, below which nothing runs, to the sum of all entries, above which
    nothing leaves, in equal steps; with ``own`` among them, or the middle one chosen.
    """
    largest: dict[str, int] = {}
    for request in requests:
        largest[request.prefix] = max(largest.get(request.prefix, 0), request.bytes_)
    low, high = max(largest.values()), min(sum(largest.values()), MOST_BYTES)
    grid = sorted({low + (high - low) * step // (GRID - 1) for step in range(GRID)})
    if own is None:
        return grid, grid[len(grid) // 2]
    return sorted({*grid, own}), own


def _counted(found: list[Request], where: str) -> tuple[Request, ...]:
    if not found:
        raise UsageError(f"{where}: there is no request")
    if len(found) > MOST_REQUESTS:
        raise UsageError(
            f"{where}: {len(found):,} requests; a step-through takes at most {MOST_REQUESTS}"
        )
    return tuple(found)


def _fault_of(prefix: str, size: str) -> str | None:
    if not prefix:
        return "a request is a prefix and its bytes"
    if not prefix.isprintable() or len(prefix) > LONGEST_PREFIX:
        return f"a prefix is printable and of at most {LONGEST_PREFIX} letters"
    if not (size.isascii() and size.isdigit()) or len(size) > len(str(MOST_BYTES)):
        return f"bytes must be a whole number up to {MOST_BYTES:,}, not {size[:20]!r}"
    if not 0 < int(size) <= MOST_BYTES:
        return f"bytes must be from 1 to {MOST_BYTES:,}, not {int(size):,}"
    return None


def _fault(error: OSError | UnicodeDecodeError) -> str:
    return "not UTF-8" if isinstance(error, UnicodeDecodeError) else str(error.strerror)
