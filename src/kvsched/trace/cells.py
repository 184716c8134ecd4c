"""The careful path of a text table: one cell as a value, every fault in words.

The fast path is `scan`; both give the same values.
"""

from __future__ import annotations

import datetime
import functools
import hashlib
import json
import math
import re
from collections.abc import Sequence

import numpy as np

from kvsched.trace.fields import (
    FARTHEST_TIME,
    LARGEST_ID,
    MOST_TOKENS,
    SMALLEST_ID,
    RowError,
    short,
)
from kvsched.trace.ids import pack_ids
from kvsched.trace.model import Int64s

_ONE_DATE = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[ T](\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:?\d\d)?", re.ASCII
)
_INTEGER = re.compile(r"([+-]?\d+)(?:\.0*)?", re.ASCII)
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
_ID = re.compile(r"-?(?:0|[1-9]\d*)", re.ASCII)
_BETWEEN = re.compile(r"[\s;,|]+")
_EPOCH = datetime.date(1970, 1, 1).toordinal()
_LONGEST_NUMBER = 400


def _offset_ns(zone: str | None) -> int:
    if zone is None or zone == "Z":
        return 0
    minutes = 60 * int(zone[1:3]) + int(zone[-2:])
    return (-minutes if zone[0] == "-" else minutes) * 60 * 10**9


def integer(text: str, name: str, least: int, most: int) -> int:
    """One cell as an integer; ``12.0`` is one too. Raises RowError."""
    found = _INTEGER.fullmatch(text.strip())
    if found is None:
        raise RowError(f'"{name}" must be an integer, not {short(text)}')
    if len(found[1]) > _LONGEST_NUMBER:
        raise RowError(f'"{name}": a number has too many digits')
    value = int(found[1])
    if value < 0 <= least:
        raise RowError(f'"{name}" must not be negative: {short(value)}')
    if not least <= value <= most:
        raise RowError(f'"{name}" is out of range: {short(value)} (at most {most})')
    return value


def number(text: str, name: str) -> float:
    """One cell as a finite number. Raises RowError."""
    stripped = text.strip()
    if _NUMBER.fullmatch(stripped) is None:
        if stripped.lower().lstrip("+-") in ("nan", "inf", "infinity"):
            raise RowError(f'"{name}" must be a finite number: it is {stripped}')
        raise RowError(f'"{name}" must be a number, not {short(text)}')
    value = float(stripped)
    if not math.isfinite(value):
        raise RowError(f'"{name}" must be a finite number: it is infinite')
    if not -FARTHEST_TIME < value < FARTHEST_TIME:
        raise RowError(f'"{name}" is out of range: {short(value)}')
    return value


def looks_dated(text: str) -> bool:
    """Whether a cell is meant as a date."""
    return ":" in text or text.count("-") > 1


def date(text: str, name: str) -> int:
    """One cell as nanoseconds since 1970; without a time zone it is UTC. Raises RowError."""
    found = _ONE_DATE.fullmatch(text.strip())
    if found is None:
        wanted = "a date as in 2023-11-16 18:15:46.68"
        raise RowError(f'"{name}" must be {wanted}, not {short(text)}')
    year, month, day, hour, minute, second = (int(found[i]) for i in range(1, 7))
    try:
        days = datetime.date(year, month, day).toordinal() - _EPOCH
    except ValueError as error:
        raise RowError(f'"{name}" is no day of the calendar: {short(text)}') from error
    if hour > 23 or minute > 59 or second > 59:
        raise RowError(f'"{name}" is no time of the day: {short(text)}')
    if not 1970 <= year < 2200:
        raise RowError(f'"{name}" is out of range: {short(text)} (from 1970 to 2199)')
    nanoseconds = int((found[7] or "0").ljust(9, "0"))
    seconds = ((days * 24 + hour) * 60 + minute) * 60 + second
    return seconds * 10**9 + nanoseconds - _offset_ns(found[8])


def blocks(text: str, name: str) -> list[int | str]:
    """One cell as block ids: a JSON list, or ids with blanks, ``;``, ``,`` or ``|`` between them.

    An id that is no integer of 64 bits in plain decimal digits is text. Raises RowError.
    """
    stripped = text.strip()
    if not stripped:
        return []
    if not stripped.startswith("["):
        return [plain_id(piece) for piece in _BETWEEN.split(stripped)]
    try:
        items = json.loads(stripped)
    except RecursionError as error:
        raise RowError(f'"{name}" is nested too deeply') from error
    except ValueError as error:
        raise RowError(f'"{name}" is no list of ids: {short(text)}') from error
    for place, item in enumerate(items):
        if isinstance(item, bool) or not isinstance(item, int | str):
            raise RowError(f'"{name}"[{place}] must be an integer or a string')
        if isinstance(item, int) and not SMALLEST_ID <= item <= LARGEST_ID:
            raise RowError(f'"{name}"[{place}] does not fit in 64 bits: {short(item)}')
    return [plain_id(item) if isinstance(item, str) else item for item in items]


def sizes(text: str, name: str) -> list[int]:
    """One cell as the tokens of each block, written as `blocks`. Raises RowError."""
    found = blocks(text, name)
    for place, size in enumerate(found):
        if not isinstance(size, int) or not 0 < size <= MOST_TOKENS:
            raise RowError(f'"{name}"[{place}] must be a number of tokens from 1 on')
    return [size for size in found if isinstance(size, int)]


def plain_id(text: str) -> int | str:
    """An id of plain decimal digits and 64 bits as that integer; another as it is."""
    if len(text) <= 20 and _ID.fullmatch(text) is not None and text != "-0":
        value = int(text)
        if SMALLEST_ID <= value <= LARGEST_ID:
            return value
    return text


@functools.lru_cache(1 << 16)
def hashed_id(text: str) -> int:
    """64 bits of a text id: BLAKE2b with a digest of 8 bytes, signed.

    Among n ids two meet by chance with a probability of n²/2^65.
    """
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


def pack(ids: Sequence[int | str]) -> tuple[Int64s, int, bool]:
    """Ids as 64 bits, the signs of the integers among them, and whether any was text."""
    if not any(isinstance(each, str) for each in ids):
        keys, signs = pack_ids([each for each in ids if isinstance(each, int)])
        return keys, signs, False
    _, signs = pack_ids([each for each in ids if isinstance(each, int)])
    mixed = [hashed_id(each) if isinstance(each, str) else each for each in ids]
    words = np.array([each & (2**64 - 1) for each in mixed], np.uint64)
    return words.view(np.int64), signs, True
